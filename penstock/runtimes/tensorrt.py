"""Runs TensorRT engines, of TensorRT and of TensorRT for RTX, through cuda-bindings and CUDA's driver alone.

Inputs are staged in page-locked memory, batches run on lanes (see `penstock.lanes`), and common batch sizes are
launched as CUDA graphs, which are captured in the background once the first is ready.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock import buckets, cuda, engines, rows
from penstock.contexts import Engine
from penstock.errors import PenstockError
from penstock.laid import GIVEN, Laid, Memory, all_laid, gather, scatter, shape_of
from penstock.lanes import Lane
from penstock.launches import Parts, Shapes, Turns
from penstock.leases import CLOSED, Free, Lease
from penstock.runtimes import BaseRunner, RejectedInput, parted
from penstock.signature import Arrays, Signature
from penstock.synthetic import synthesize

log = logging.getLogger(__name__)

LANES = 2
# How an engine of TensorRT for RTX begins.
_RTX = b"vtrt"
# Seconds that closing waits for whoever is in the runner, and between looks whether it is closed.
_CLOSE_S, _POLL_S = 60.0, 0.5
_MOST_SHAPES = 4096
# From this many bytes on several threads copy an input.
_LARGE, _COPIERS = 4 << 20, min(4, os.cpu_count() or 1)


def unavailable(build: Mapping[str, Any], device: str = "cpu") -> str | None:
    """Why an engine with these build facts cannot run on a device of this machine, or None."""
    return engines.unavailable(build, cuda.number(device))


class Capture(NamedTuple):
    """A batch to capture: its shapes, their sizes by dimension, and the shapes of a larger one whose way suits it."""

    shapes: Shapes
    sizes: dict[str, int]
    larger: Shapes = ()


class TensorRTRunner(BaseRunner):
    """Lanes over one engine. Safe to call from several threads: as many batches run at once as there are lanes."""

    steady = True

    def __init__(self, engine: Engine, signature: Signature, lanes: int = LANES) -> None:
        super().__init__(signature)
        self.callers = lanes
        self._engine, self._signature = engine, signature
        self._closed, self._closing = threading.Event(), threading.Lock()
        self._lanes: list[Lane] = []
        self._free = Free()
        self._taken: set[Shapes] = set()
        try:
            turns = Turns()
            for _ in range(lanes):
                self._lanes.append(Lane(engine, turns))
            self._plan = self._captures()
            self._capture(self._lanes[0], self._plan[0])
        except BaseException:
            self._give_back(self._lanes)
            raise
        for lane in reversed(self._lanes):
            self._free.give(lane)
        self._background = threading.Thread(target=self._capture_rest, name="penstock-capture", daemon=True)
        self._background.start()

    def _captures(self) -> list[Capture]:
        """What is captured, the usual batch first, what lies between last; other dimensions have their usual size."""
        signature = self._signature
        usual = {name: dim.opt for name, dim in signature.dims.items()}
        batch = signature.dims.get(str(signature.batch))
        sizes = buckets.sizes(batch.min, batch.opt, batch.max) if batch else (1,)
        order = sorted(sizes, key=lambda size: (size != (batch.opt if batch else 1), size))
        found = {size: self._sized({**usual, str(signature.batch): size}) for size in order}
        for size, larger in buckets.finer(sizes).items():
            found[size] = self._sized({**usual, str(signature.batch): size})._replace(larger=found[larger].shapes)
        return list(found.values())

    def _sized(self, sizes: dict[str, int]) -> Capture:
        shapes = tuple(
            tuple(size if isinstance(size, int) else sizes[size] for size in tensor.shape) for tensor in self.inputs
        )
        return Capture(shapes, sizes)

    def _capture_rest(self) -> None:
        for wanted in self._plan:
            for lane in self._lanes:
                if wanted.shapes in lane.launches:
                    continue
                while not self._free.take_this(lane, _POLL_S):
                    if self._closed.is_set():
                        return
                try:
                    if self._closed.is_set():
                        return
                    self._capture(lane, wanted)
                finally:
                    self._free.give(lane)

    def _capture(self, lane: Lane, wanted: Capture) -> None:
        """Capture a batch; one that cannot be, as where an If decides, is launched kernel by kernel."""
        # Whoever asks meanwhile waits, and all ways together take seconds: they are tried once.
        like = self._lanes[0].launches.get(wanted.shapes) or lane.launches.get(wanted.larger)
        with suppress(cuda.CudaError, PenstockError):
            lane.capture(wanted.shapes, synthesize(self._signature, wanted.sizes).inputs, like)

    def prepare(self, memory: Memory) -> None:
        cuda.call("cudaSetDevice", self._engine.device)
        rows.lock(memory)

    def settled(self, timeout_s: float | None = None) -> bool:
        self._background.join(timeout_s)
        return not self._background.is_alive()

    @property
    def lone(self) -> bool:
        """Not while a lane may be away for a capture; what cannot be captured may take as long as its values say."""
        lanes = self._lanes
        return bool(lanes) and not self._background.is_alive() and len(lanes[0].launches) == len(self._plan)

    def run(self, feeds: Arrays) -> dict[str, Any]:
        return self.run_together([feeds])[0]

    def run_together(self, items: Sequence[Arrays]) -> list[dict[str, Any]]:
        """Each item's rows are copied once on the way in, to where the GPU reads them, and once on the way out."""
        given = {tensor.name: [shape_of(item, tensor.name) for item in items] for tensor in self.inputs}
        with self.lease(tuple(map(_joint, given.values()))) as lease:
            fetched = self._fetched(items) if lease.fetches else ()
            for name, staged in lease.inputs.items() if not fetched else ():
                _stage(items, name, given[name], staged)
            made = dict(zip((tensor.name for tensor in self.outputs), lease.run(fetched), strict=True))
            if lease.given or scatter(made, items):
                return [GIVEN] * len(items)
            # Copies, as the next batch is staged in the same place; each item's are views of them.
            answer = {tensor.name: made[tensor.name].astype(tensor.dtype) for tensor in self.outputs}
        return [answer] if len(items) == 1 else parted(answer, items)

    def _fetched(self, items: Sequence[Arrays]) -> Sequence[Laid]:
        """The items, if the GPU can fetch their rows itself: of the engine's dtypes, in page-locked memory."""
        if not all_laid(items):
            return ()
        dtypes = self._engine.dtypes
        for form in {item.form for item in items}:
            if any(place.dtype != dtypes[name] for name, place in form.inputs.items()) or not rows.lock(form.memory):
                return ()
        return items

    def parts(self, feeds: Arrays) -> Parts:
        """What a batch takes on the GPU, and how much of that its copies in and out are; as it is run, captured or not.

        Raises:
            PenstockError: the engine takes no such shapes.
            InstanceDead: CUDA failed.
        """
        with self.lease(tuple(np.shape(feeds[tensor.name]) for tensor in self.inputs)) as lease:
            for name, staged in lease.inputs.items():
                _copy_in(name, feeds[name], staged)
            lease.run()
            return lease.parts()

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
            raise RuntimeError(CLOSED)
        if shapes not in self._taken:
            self._check(shapes)
            if len(self._taken) < _MOST_SHAPES:
                self._taken.add(shapes)
        return Lease(self._free, shapes, batched=self._signature.batch is not None)

    def _check(self, shapes: Shapes) -> None:
        if self._closed.is_set():
            raise RuntimeError(CLOSED)
        named = dict(zip(self._engine.inputs, shapes, strict=True))
        if self._engine.fitting(named):
            return
        taken = "; or ".join(
            ", ".join(f"{name} {list(p[name][0])} to {list(p[name][2])}" for name in named)
            for p in self._engine.profiles
        )
        given = ", ".join(f"{name!r} has shape {list(shape)}" for name, shape in named.items())
        raise PenstockError(f"input {given}; the engine's profile takes {taken}")

    def close(self) -> None:
        with self._closing:
            if self._closed.is_set():
                return
            self._closed.set()
        self._free.hurry()
        idle: list[Lane] = []
        end = time.monotonic() + _CLOSE_S
        with suppress(queue.Empty):
            while len(idle) < len(self._lanes):
                idle.append(self._free.take(max(0.0, end - time.monotonic())))
        self._background.join(max(0.0, end - time.monotonic()))
        self._free.close()
        if len(idle) < len(self._lanes):  # never under whoever still computes with it
            log.warning("a lane of an engine is still in use; its memory is not given back")
        self._give_back(idle)

    def _give_back(self, lanes: list[Lane]) -> None:
        with suppress(cuda.CudaError):
            cuda.call("cudaSetDevice", self._engine.device)
        for lane in lanes:
            lane.close()
        if len(lanes) == len(self._lanes):
            self._lanes = []
            self._engine = None  # type: ignore[assignment]


def _joint(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of several items' rows together.

    Raises:
        ValueError: they differ in more than their rows.
    """
    first = shapes[0]
    if len(shapes) == 1:
        return first
    if any(shape[1:] != first[1:] for shape in set(shapes)):
        raise ValueError(f"shapes {shapes} do not go into one batch")
    return (sum(shape[0] for shape in shapes), *first[1:])


def _parts(shapes: Sequence[tuple[int, ...]]) -> list[slice]:
    """Where the rows of each of several items are in their batch."""
    if len(shapes) == 1:
        return [slice(None)]
    return [slice(start, end) for start, end in pairwise([0, *itertools.accumulate(shape[0] for shape in shapes)])]


def _stage(items: Sequence[Arrays], name: str, shapes: Sequence[tuple[int, ...]], staged: Any) -> None:
    """Copy each item's rows, an array of its shape, into page-locked memory."""
    # Whether they fit into 32 bits is asked of all at once: for each item it takes ten times as long as copying it.
    narrow = len(items) > 1 and staged.dtype == np.int32 and items[0][name].dtype == np.int64
    into = np.empty(staged.shape, np.int64) if narrow else staged
    if not gather(items, name, into):
        arrays = [item[name] for item in items]
        if len(arrays) > 1 and into.nbytes < _LARGE and all(array.dtype == into.dtype for array in arrays):
            np.concatenate(arrays, out=into)
        else:
            for array, part in zip(arrays, _parts(shapes), strict=True):
                _copy_in(name, array, into[part] if into.ndim else into)
    if narrow:
        _copy_in(name, into, staged)


def _copy_in(name: str, array: Any, staged: Any) -> None:
    """Copy a tensor into page-locked memory; TensorRT 8 takes 32 bits for integers of 64."""
    if array.dtype == np.int64 and staged.dtype == np.int32 and array.size:
        # All bits together: tokens and masks are seldom below 0, and one look is enough then.
        if not 0 <= int(np.bitwise_or.reduce(array, axis=None)) < 2**31:
            least, most = int(array.min()), int(array.max())
            if not -(2**31) <= least <= most < 2**31:
                held = most if most >= 2**31 else least
                raise RejectedInput(f"input {name!r} holds {held}; the engine takes 32 bits")
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
    blob = path.read_bytes()
    # The two must not be mixed: each is asked for its own alone.
    flavor, trt = engines.flavor_of("tensorrt_rtx" if blob.startswith(_RTX) else "tensorrt")
    if (why := cuda.problem()) is not None:
        raise PenstockError(f"{path}: an engine needs an NVIDIA GPU; {why}")
    told = engines.log(trt)
    try:
        cuda.call("cudaSetDevice", number)
        held = trt.Runtime(told).deserialize_cuda_engine(blob)
        if held is None:
            raise PenstockError(f"{path}: {flavor} {trt.__version__} does not load this engine: {told.reason()}")
        inputs, outputs = (tuple(t.name for t in tensors) for tensors in (signature.inputs, signature.outputs))
        return TensorRTRunner(Engine(trt, held, inputs, outputs, number), signature, callers)
    except cuda.CudaError as error:
        raise PenstockError(f"{path}: on cuda:{number}: {error}") from None
