"""Trials: loading and running a model once in a process of its own, since a runtime may crash on a file.

python -m penstock.trial RUNTIME FILE DEVICE CARE [SIGNATURE-AS-JSON]
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from penstock import machine, parents, runtimes
from penstock.errors import PenstockError
from penstock.runtimes.onnxruntime import read_signature
from penstock.signature import Signature
from penstock.synthetic import synthesize

TIMEOUT_S = 600
# The exit code of a trial that asked for more memory than there is; no error of Python's has it.
_NO_MEMORY = 77
_CARE = {False: "as-usual", True: "careful"}


def attempt(
    runtime: str, path: Path, signature: Signature | None = None, device: str = "cpu", *, careful: bool = False
) -> None:
    """See that a runtime survives a file, in a process that may die of it. Without a signature, an ONNX file's own.

    An error that the runtime raises in good order is left for the caller to meet. That process ends with this one.

    Raises:
        PenstockError: the process died of a signal, asked for more memory than there is, or did not end.
    """
    contract = [signature.model_dump_json()] if signature is not None else []
    command = python_command("penstock.trial", runtime, str(path), device, _CARE[careful], *contract)
    try:
        done = subprocess.run(  # noqa: S603 (this Python, and words of ours)
            command, capture_output=True, timeout=TIMEOUT_S, check=False, env=parents.environment()
        )
    except subprocess.TimeoutExpired:
        raise PenstockError(f"{path.name}: {runtime} does not finish loading it within {TIMEOUT_S} s") from None
    if done.returncode == _NO_MEMORY:
        has = f"{machine.memory_bytes() / 1e9:,.1f} GB"
        raise PenstockError(f"{path.name}: {runtime} needs more memory for it than this machine has ({has})")
    if done.returncode < 0:
        name = parents.signal_name(done.returncode)
        raise PenstockError(f"{path.name}: {runtime} crashes on it ({name}); try another --precision or --format")


def needs_care(runtime: str, path: Path, signature: Signature | None = None, device: str = "cpu") -> bool:
    """Whether a runtime survives a file only where it leaves out what it may die of.

    Raises:
        PenstockError: it dies of it all the same, or does not end.
    """
    try:
        attempt(runtime, path, signature, device)
    except PenstockError:
        if runtime != "onnxruntime":
            raise
        attempt(runtime, path, signature, device, careful=True)
        return True
    return False


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in a Python of its own, as `python -m` does, but for one thing.

    The working directory is not searched: a user's own numpy.py there is not meant.
    """
    start = f"import runpy, sys; sys.path[:1] = []; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", start, *arguments]


def _run(runtime: str, path: str, device: str, care: str, signature: str | None = None) -> None:
    careful, held = care == _CARE[True], Path(path)
    contract = Signature.model_validate_json(signature) if signature else read_signature(held, careful=careful)
    sizes = {name: dim.min for name, dim in contract.dims.items()}
    with runtimes.load(runtime, held, contract, device=device, careful=careful) as runner:
        runner.run(synthesize(contract, sizes).inputs)


def _bounded() -> None:
    """Have this process refused memory that the machine does not have: beyond it others would be ended for it."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = machine.memory_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    parents.end_with_parent()
    if sys.argv[3] == "cpu":  # CUDA reserves more addresses than there is memory
        _bounded()
    try:
        _run(*sys.argv[1:])
    except Exception as error:  # each runtime has its own, of which the text alone speaks of memory
        sys.exit(_NO_MEMORY if isinstance(error, MemoryError) or "alloc" in str(error) else 1)
