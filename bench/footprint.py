"""Footprint: what an artifact takes to load and to run for the first time, seen in a process of its own.

python -m penstock.bench.footprint FOLDER DEVICE THREADS BATCH

A process that has run other models has their memory, their libraries and their warm caches; this one has none. What it
finds is one JSON object on the last line of stdout.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock import artifact, cuda, parents, runtimes, timing, trial
from penstock.artifact import Artifact
from penstock.bench import operations
from penstock.errors import PenstockError

TIMEOUT_S = 600
_RUNS = 2
# What each runtime's import brings, which no model answers for.
_LIBRARIES = {
    "onnxruntime": ("onnxruntime",),
    "torch": ("torch",),
    "tensorrt": ("tensorrt", "tensorrt_rtx", "cuda.bindings.runtime"),
}


class Died(PenstockError):
    """What it loaded or ran killed the process, or never ended: whoever loads it has the same before him."""


@dataclass(frozen=True)
class Footprint:
    """Seconds, and bytes beyond those of the runtime's libraries; None where they cannot be told.

    `process_bytes` is the most that was resident at once in the whole process, `multiply_adds` that of one row.
    """

    load_s: float
    first_call_s: float
    host_bytes: int | None = None
    process_bytes: int | None = None
    device_bytes: int | None = None
    multiply_adds: float | None = None
    uncounted: str | None = None


def measure(found: Artifact, device: str, threads: int | None, batch: int) -> Footprint:
    """Load an artifact in a new process, run it there, and see what that took.

    Args:
        found: the artifact.
        device: `cpu` or `cuda:0`.
        threads: intra-op threads; None leaves it to the runtime.
        batch: rows of the runs that the memory is that of.

    Raises:
        Died: the process died, or did not end.
        PenstockError: it does not load or run.
    """
    command = trial.python_command("penstock.bench.footprint", str(found.folder), device, str(threads or 0), str(batch))
    try:
        done = subprocess.run(  # noqa: S603 (this Python, and words of ours)
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=parents.environment()
        )
    except subprocess.TimeoutExpired:
        raise Died(f"loading and running it at batch {batch} did not end within {TIMEOUT_S} s") from None
    if done.returncode < 0:
        name = parents.signal_name(done.returncode)
        raise Died(f"a process that loaded it and ran it at batch {batch} died of {name}; try a smaller --batch")
    try:
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise PenstockError(f"the process that loads it failed: {said[:300]}") from None
    if "error" in told:
        raise PenstockError(told["error"])
    return Footprint(**told)


def _measured(folder: Path, device: str, threads: int | None, batch: int) -> Footprint:
    found = artifact.read(folder)
    for library in _LIBRARIES.get(found.receipt.runtime, ()):
        with contextlib.suppress(ImportError):
            __import__(library)
    inputs, _ = found.golden()
    signature = found.receipt.signature
    fed = timing.feeds(inputs, batch)
    first = timing.feeds(inputs, signature.min_batch)
    found.check_digests()  # reads the file, which is then as warm as a file is
    on_gpu = found.receipt.runtime == "tensorrt" or device.startswith("cuda")
    taken = _device_bytes(device) if on_gpu else None
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): the most that was resident is counted from here on
    before = _resident("VmRSS")
    started = time.perf_counter()
    with runtimes.load(
        found.receipt.runtime,
        found.model_path,
        signature,
        device=device,
        threads=threads,
        careful=bool(found.receipt.build.get("careful")),
    ) as runner:
        loaded = time.perf_counter()
        runner.run(first)
        called = time.perf_counter()
        for _ in range(_RUNS):
            runner.run(fed)
        runner.settled(TIMEOUT_S)
        process, after = _resident("VmHWM"), _device_bytes(device) if on_gpu else None
    count, uncounted = _operations(found, first)
    return Footprint(
        load_s=loaded - started,
        first_call_s=called - loaded,
        host_bytes=None if before is None or process is None else max(0, process - before),
        process_bytes=process,
        device_bytes=None if taken is None or after is None else max(0, after - taken),
        multiply_adds=count,
        uncounted=uncounted,
    )


def _operations(found: Artifact, fed: dict[str, Any]) -> tuple[float | None, str | None]:
    """Multiply-adds of a row, or why there is no figure; an engine's are those of the graph that it was built from."""
    graph = found.model_path if found.model_path.suffix == ".onnx" else next(iter(found.folder.glob("*.onnx")), None)
    if graph is None:
        return None, f"operations of {found.receipt.format} are not counted"
    try:
        return operations.multiply_adds(graph, fed) / runtimes.rows_of(fed), None
    except Exception as error:  # a graph for TensorRT may hold what onnxruntime has no kernels for
        return None, str(error).splitlines()[0][:200]


def _resident(field: str) -> int | None:
    """`VmRSS`, what is resident now, or `VmHWM`, the most that ever was: proc(5), in bytes."""
    with contextlib.suppress(OSError):
        told = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        return int(told[1]) * 1024 if told else None
    return None


def _device_bytes(device: str) -> int | None:
    """Bytes of the GPU that are taken, by whomever: others must leave it alone meanwhile."""
    with contextlib.suppress(cuda.CudaError, PenstockError):
        return cuda.memory_used(cuda.number(device))
    return None


if __name__ == "__main__":
    parents.end_with_parent()
    try:
        told = asdict(_measured(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) or None, int(sys.argv[4])))
    except Exception as error:  # the one who asked tells it
        told = {"error": str(error) or type(error).__name__}
    print(json.dumps(told))
