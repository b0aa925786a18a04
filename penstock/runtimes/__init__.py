"""Runtimes: what runs an artifact. One module each, found by file name and imported on use.

A runtime is a module of this folder with two functions:

- `unavailable(build, device) -> str | None`: why an artifact with these build facts cannot run on a device of this
  machine, or None;
- `load(path, signature, device=…, threads=…, careful=…) -> Runner`, with `callers=…` if it takes several at once.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from typing_extensions import Self

from penstock.arrays import join, take
from penstock.errors import PenstockError
from penstock.laid import GIVEN, Memory, all_laid, gather, scatter, shape_of
from penstock.signature import Arrays, Signature, Tensor


class InstanceDead(Exception):
    """A runner that will not answer again, whatever it is given; it must be loaded anew."""


class InstanceLost(InstanceDead):
    """The runner died of what another was given: this has not been run."""


class RejectedInput(PenstockError):
    """Inputs that fit the signature but not the model: an index out of its table, sizes that do not go together."""


class Runner(Protocol):
    """A loaded artifact: named numpy arrays in, named numpy arrays out. Ready when constructed.

    `run` takes every input of the signature, rows first, and returns every output in the signature's order; the arrays
    belong to the caller. `run_together` runs the rows of several callers as one batch, and gives each its own. As many
    callers as `callers` says may be in a runner at once. One that is `steady` takes as long whatever the values are;
    one that is `light` may be called from any thread, and waits for nothing but the processor; one that is `inside`
    computes in this process, or has a device do it, and one that is `lone` may have a short batch that comes alone
    run by whoever may not be held up for long.
    `threads` are those that it was given, where it was.
    """

    callers: int
    steady: bool
    light: bool
    inside: bool
    threads: int | None

    @property
    def inputs(self) -> tuple[Tensor, ...]: ...

    @property
    def outputs(self) -> tuple[Tensor, ...]: ...

    def run(self, feeds: Arrays) -> dict[str, Any]: ...

    def run_together(self, items: Sequence[Arrays]) -> list[dict[str, Any]]: ...

    def prepare(self, memory: Memory) -> None: ...

    def settled(self, timeout_s: float | None = None) -> bool: ...

    @property
    def lone(self) -> bool: ...

    @property
    def well(self) -> bool: ...

    @property
    def gone(self) -> bool: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BaseRunner:
    """What every runner shares: its signature's tensors, batches of several, and closing at the end of a `with`."""

    callers = 1
    steady = light = False
    inside = True
    threads: int | None = None

    def __init__(self, signature: Signature) -> None:
        self.inputs = signature.inputs
        self.outputs = signature.outputs

    def run(self, feeds: Arrays) -> dict[str, Any]:
        raise NotImplementedError

    def run_together(self, items: Sequence[Arrays]) -> list[dict[str, Any]]:
        """Run the rows of several callers as one batch.

        Raises:
            RuntimeError: an output has another number of rows than the inputs.
        """
        answer = self.run(dict(items[0]) if len(items) == 1 else joined(items))
        if scatter(answer, items):
            return [GIVEN] * len(items)
        return [answer] if len(items) == 1 else parted(answer, items)

    def prepare(self, memory: Memory) -> None:
        """Told of memory that requests will lie in, before they do."""

    def settled(self, timeout_s: float | None = None) -> bool:
        """Wait until what a runner still prepares in the background is done; False if that takes longer."""
        return True

    @property
    def lone(self) -> bool:
        """Whether whoever may not be held up for long may run a short batch that comes alone."""
        return False

    @property
    def well(self) -> bool:
        """Whether it could answer now, as far as can be seen from outside."""
        return True

    @property
    def gone(self) -> bool:
        """Whether it will never answer again."""
        return False

    def kill(self) -> None:
        """End what it does, if it can be ended: a thread cannot."""

    def close(self) -> None:
        """Give back what the runner holds; calling it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def names() -> list[str]:
    """The runtimes there are, by file name."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def rows_of(feeds: Arrays) -> int:
    """How many rows a batch has."""
    return len(next(iter(feeds.values())))


def joined(items: Sequence[Arrays]) -> dict[str, Any]:
    """The rows of several callers, one after the other."""
    if not all_laid(items):
        return join(items)
    found: dict[str, Any] = {}
    for name, place in items[0].form.inputs.items():
        rows = sum(shape_of(item, name)[0] for item in items)
        found[name] = np.empty((rows, *place.shape[1:]), place.dtype)
        if not gather(items, name, found[name]):
            np.concatenate([item[name] for item in items], out=found[name])
    return found


def parted(answer: Arrays, items: Sequence[Arrays]) -> list[dict[str, Any]]:
    """The answer to the rows of several callers, taken apart.

    Raises:
        RuntimeError: an output has another number of rows than the inputs.
    """
    ends = np.cumsum([rows_of(item) for item in items])
    for name, array in answer.items():
        if len(array) != ends[-1]:
            raise RuntimeError(f"output {name!r} has {len(array)} rows for {ends[-1]}; they cannot be told apart")
    return [take(answer, slice(start, end)) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def unavailable(runtime: str, build: Mapping[str, Any], device: str = "cpu") -> str | None:
    """Why a device here cannot run an artifact of `runtime` with these `build` facts, or None where it can."""
    check_device(device)
    try:
        reason: str | None = _module(runtime).unavailable(build, device)
    except PenstockError as error:
        return str(error)
    return reason


def load(
    runtime: str,
    path: Path,
    signature: Signature,
    *,
    device: str = "cpu",
    threads: int | None = None,
    callers: int | None = None,
    careful: bool = False,
) -> Runner:
    """Load `path` with `runtime`.

    Args:
        runtime: a name from `names()`.
        path: the model file.
        signature: the contract that the file was exported with.
        device: `cpu` or `cuda:0`; a runtime that knows only one kind takes that.
        threads: intra-op threads on a CPU; None leaves it to the runtime.
        callers: how many will be in the runner at once, where its runtime takes several; None leaves it to that.
        careful: leave out what makes the runtime die of some graphs: see `penstock.trial.needs_care`.

    Raises:
        PenstockError: the runtime is unknown or not installed, or refuses the file.
    """
    check_device(device)
    several = {} if callers is None else {"callers": callers}
    runner: Runner = _module(runtime).load(path, signature, device=device, threads=threads, careful=careful, **several)
    return runner


def check_device(device: str) -> None:
    """See that a text names a device, whether there is one or not.

    Raises:
        PenstockError: it does not.
    """
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", device):
        raise PenstockError(f"--device {device[:40]!r}: must be cpu, cuda or cuda:N")


def _module(runtime: str) -> Any:
    if runtime not in names():
        raise PenstockError(f"runtime {runtime!r} is unknown; it must be one of {', '.join(names())}")
    try:
        return importlib.import_module(f"{__name__}.{runtime}")
    except ModuleNotFoundError as error:
        raise PenstockError(
            f"runtime {runtime} needs {error.name}, which is not installed: pip install {error.name}"
        ) from None
