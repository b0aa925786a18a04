"""Runs TensorRT engines, of TensorRT and of TensorRT for RTX, through cuda-bindings alone.

Inputs are staged in page-locked memory, batches run on lanes (see `penstock.lanes`), and common batch sizes are
launched as CUDA graphs, which are captured in the background once the first is ready.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from penstock import buckets, cuda, engines
from penstock.errors import PenstockError
from penstock.lanes import Engine, Lane, Shapes
from penstock.runtimes import BaseRunner, InstanceDead, RejectedInput, rows_of
from penstock.signature import Arrays, Signature

LANES = 2
_CLOSE_S = 60.0
_MOST_SHAPES = 4096
# From this many bytes on several threads copy an input.
_LARGE, _COPIERS = 4 << 20, min(4, os.cpu_count() or 1)


def unavailable(build: Mapping[str, Any], device: str = "cpu") -> str | None:
    """Why an engine with these build facts cannot run on a device of this machine, or None."""
    return engines.unavailable(build, cuda.number(device))


class TensorRTRunner(BaseRunner):
    """Lanes over one engine. Safe to call from several threads: as many batches run at once as there are lanes."""

    def __init__(self, engine: Engine, signature: Signature, lanes: int = LANES) -> None:
        super().__init__(signature)
        self.callers = lanes
        self._engine, self._signature, self._closed = engine, signature, threading.Event()
        self._lanes: list[Lane] = []
        self._free = Free()
        self._taken: set[Shapes] = set()
        try:
            for _ in range(lanes):
                self._lanes.append(Lane(engine))
            self._plan = self._captures()
            if self._plan:
                self._lanes[0].capture(self._plan[0])
        except BaseException:
            self._release()
            raise
        for lane in reversed(self._lanes):
            self._free.give(lane)
        self._background = threading.Thread(target=self._capture_rest, name="penstock-capture", daemon=True)
        self._background.start()

    def _captures(self) -> list[Shapes]:
        """The shapes that are captured, the usual batch first; every other dimension has its usual size."""
        signature = self._signature
        usual = {name: dim.opt for name, dim in signature.dims.items()}
        batch = signature.dims.get(str(signature.batch))
        sizes = buckets.sizes(batch.min, batch.opt, batch.max) if batch else (1,)
        order = sorted(sizes, key=lambda size: (size != (batch.opt if batch else 1), size))
        return [self._shapes({**usual, str(signature.batch): size}) for size in order]

    def _shapes(self, sizes: Mapping[str, int]) -> Shapes:
        return tuple(
            tuple(size if isinstance(size, int) else sizes[size] for size in tensor.shape) for tensor in self.inputs
        )

    def _capture_rest(self) -> None:
        for shapes in self._plan:
            for lane in self._lanes:
                if self._closed.is_set():
                    return
                # A shape that cannot be captured is launched kernel by kernel.
                with suppress(cuda.CudaError, PenstockError):
                    lane.capture(shapes)

    def captured(self, timeout_s: float | None = None) -> bool:
        """Wait until all captures are made; False if that takes longer."""
        self._background.join(timeout_s)
        return not self._background.is_alive()

    def run(self, feeds: Arrays) -> dict[str, Any]:
        return self.run_together([feeds])[0]

    def run_together(self, items: Sequence[Arrays]) -> list[dict[str, Any]]:
        """Each item's rows are copied once on the way in, to where the GPU reads them, and once on the way out."""
        shapes: Shapes = tuple(_joint([np.shape(item[tensor.name]) for item in items]) for tensor in self.inputs)
        ends = list(itertools.accumulate(rows_of(item) for item in items)) if len(items) > 1 else []
        parts = [slice(start, end) for start, end in pairwise([0, *ends])] or [slice(None)]
        with self.lease(shapes) as lease:
            for name, staged in lease.inputs.items():
                for item, part in zip(items, parts, strict=True):
                    _copy_in(name, item[name], staged[part] if staged.ndim else staged)
            answer = list(zip(self.outputs, lease.run(), strict=True))
            for tensor, array in answer:
                if ends and len(array) != ends[-1]:
                    raise RuntimeError(f"output {tensor.name!r} has {len(array)} rows for {ends[-1]}")
            return [
                {tensor.name: (array[part] if array.ndim else array).astype(tensor.dtype) for tensor, array in answer}
                for part in parts
            ]

    def lease(self, shapes: Shapes) -> Lease:
        """A lane's own page-locked memory to write a batch into, and to read its outputs from: nothing is copied twice.

        Use it as a context manager: the lane is given back at the end of the block.

        Args:
            shapes: of each input, in the signature's order.

        Raises:
            PenstockError: the engine takes no such shapes.
            InstanceDead: CUDA failed; the engine must be loaded anew.
        """
        if self._closed.is_set():
            raise RuntimeError("the runner is closed")
        if shapes not in self._taken:
            self._check(shapes)
            if len(self._taken) < _MOST_SHAPES:
                self._taken.add(shapes)
        return Lease(self._free, self._engine.device, shapes, batched=self._signature.batch is not None)

    def _check(self, shapes: Shapes) -> None:
        named = dict(zip(self._engine.inputs, shapes, strict=True))
        if self._engine.profile(named) is not None:
            return
        taken = "; or ".join(
            ", ".join(f"{name} {list(p[name][0])} to {list(p[name][2])}" for name in named)
            for p in self._engine.profiles
        )
        given = ", ".join(f"{name!r} has shape {list(shape)}" for name, shape in named.items())
        raise PenstockError(f"input {given}; the engine's profile takes {taken}")

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._background.join(_CLOSE_S)
        for _ in self._lanes:
            with suppress(queue.Empty):
                self._free.take(timeout_s=_CLOSE_S)
        self._release()

    def _release(self) -> None:
        self._closed.set()
        for lane in self._lanes:
            with suppress(cuda.CudaError):
                lane.close()
        self._lanes = []
        self._engine = None  # type: ignore[assignment]


class Free:
    """The lanes that nobody has; the one used last goes first, since its buffers are the nearest to the GPU's cores."""

    def __init__(self) -> None:
        # The queue holds as many tokens as the stack holds lanes: it is what a caller waits for.
        self._stack: list[Lane] = []
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()

    def take(self, timeout_s: float | None = None) -> Lane:
        """A lane, as soon as there is one.

        Raises:
            queue.Empty: there was none for so long.
        """
        self._tokens.get(timeout=timeout_s)
        return self._stack.pop()

    def give(self, lane: Lane) -> None:
        self._stack.append(lane)
        self._tokens.put(None)


class Lease:
    """A lane in the caller's hands: write `inputs`, then `run`; its arrays are the lane's and end with the lease."""

    __slots__ = ("_batch", "_batched", "_device", "_free", "_lane", "_shapes")

    def __init__(self, free: Free, device: int, shapes: Shapes, *, batched: bool) -> None:
        self._free, self._device, self._shapes, self._batched = free, device, shapes, batched

    def __enter__(self) -> Lease:
        self._lane = self._free.take()
        self._lane.lock.acquire()
        try:
            cuda.call("cudaSetDevice", self._device)  # each time: others in the thread may have set another
            self._batch = self._lane.prepared(self._shapes, batched=self._batched)
        except BaseException as error:
            self._give_back()
            if isinstance(error, cuda.CudaError):
                raise InstanceDead(f"CUDA: {error}") from None
            raise
        return self

    @property
    def inputs(self) -> dict[str, Any]:
        """Where each input's rows are to be written."""
        return self._batch.inputs

    def run(self) -> tuple[Any, ...]:
        """The outputs, as views of the lane's memory, in the signature's order."""
        self._lane.run(self._batch)
        return self._batch.outputs

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._give_back()
        if isinstance(error, cuda.CudaError):
            raise InstanceDead(f"CUDA: {error}") from None

    def _give_back(self) -> None:
        self._lane.lock.release()
        self._free.give(self._lane)


def _joint(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of several items' rows together.

    Raises:
        ValueError: they differ in more than their rows.
    """
    first = tuple(shapes[0])
    if len(shapes) == 1:
        return first
    if any(shape[1:] != first[1:] for shape in shapes):
        raise ValueError(f"shapes {shapes} do not go into one batch")
    return (sum(shape[0] for shape in shapes), *first[1:])


def _copy_in(name: str, array: Any, staged: Any) -> None:
    """Copy a tensor into page-locked memory; TensorRT 8 takes 32 bits for integers of 64."""
    if array.dtype == np.int64 and staged.dtype == np.int32 and array.size:
        least, most = int(array.min()), int(array.max())
        if not -(2**31) <= least <= most < 2**31:
            raise RejectedInput(f"input {name!r} holds {most if most >= 2**31 else least}; the engine takes 32 bits")
        np.copyto(staged, array, casting="unsafe")
        return
    casting: Any = "no" if array.dtype == staged.dtype else "same_kind"
    if array.nbytes < _LARGE or array.ndim == 0:
        np.copyto(staged, array, casting=casting)
        return
    # One core moves less than the GPU takes; numpy lets go of the interpreter while it copies.
    ends = np.linspace(0, len(array), min(_COPIERS, len(array)) + 1).astype(int)
    parts = [slice(start, end) for start, end in pairwise(ends)]
    list(_copiers().map(lambda part: np.copyto(staged[part], array[part], casting=casting), parts))


@cache
def _copiers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_COPIERS, thread_name_prefix="penstock-copy")


def load(
    path: Path,
    signature: Signature,
    *,
    device: str = "cpu",
    threads: int | None = None,
    careful: bool = False,
    callers: int = LANES,
) -> TensorRTRunner:
    """Load a serialized engine onto `cuda:N` (`cpu`, the other runtimes' default, stands for `cuda:0` here).

    An engine is code: only load one whose digest its receipt vouches for.
    """
    number = cuda.number(device)
    try:
        cuda.call("cudaSetDevice", number)
    except cuda.CudaError as error:
        raise PenstockError(f"--device cuda:{number}: {error}; this machine has {cuda.count()} GPUs") from None
    blob = path.read_bytes()
    problems = []
    for name in engines.FLAVORS:
        try:
            _, trt = engines.flavor_of(name)
        except PenstockError as error:
            problems.append(str(error))
            continue
        held = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(blob)
        if held is not None:
            inputs, outputs = (tuple(t.name for t in tensors) for tensors in (signature.inputs, signature.outputs))
            try:
                return TensorRTRunner(Engine(trt, held, inputs, outputs, number), signature, callers)
            except cuda.CudaError as error:
                raise PenstockError(f"{path}: {error}") from None
        problems.append(f"{name} {trt.__version__} refuses it")
    raise PenstockError(f"{path}: no TensorRT here loads this engine: {'; '.join(problems)}")
