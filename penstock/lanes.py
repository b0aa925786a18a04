"""Lanes: a stream, execution contexts of one engine and the buffers that they share, for one batch at a time.

Each lane copies in, computes and copies out on a stream of its own, so that one lane's copies overlap another's
computing. A batch's launch is one CUDA graph where its shapes have been captured: copies and kernels together, or
kernels that read and write the host's page-locked memory themselves, whichever was quicker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from penstock import buckets, cuda, events, interpreter, rows
from penstock.contexts import Engine
from penstock.errors import PenstockError
from penstock.laid import Laid, have_room
from penstock.launches import Launch, Parts, Prepared, Shapes, Turns

_TIMED = 5
# Engines that are loaded together would time each other, and choose wrongly.
_TIMING = threading.Lock()
# From so many bytes of input on, the lanes' kernels take turns: see Turns.
_HEAVY_BYTES = 4 * 2**20
# Up to so many bytes of a batch may go between kernels and page-locked memory without copies between.
_DIRECT_IN, _DIRECT_OUT = 2**20, 2**16
_NONE: frozenset[str] = frozenset()
# Shapes whose views are kept.
_MOST_PREPARED = 256


class Lane:
    """What one batch at a time needs. Whoever uses it must have it alone: see `penstock.leases`.

    `ready` are the batches prepared so far, by their shapes.
    """

    def __init__(self, engine: Engine, turns: Turns | None = None) -> None:
        self._engine, self._turns = engine, turns or Turns()
        self._freed: list[tuple[str, int]] = []
        self.launches: dict[Shapes, Launch] = {}
        self.ready: dict[Shapes, Prepared] = {}
        cuda.call("cudaSetDevice", engine.device)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        engine = self._engine
        # Non-blocking: the default stream, which others in the process may use, is not waited for.
        self.stream = int(cuda.call("cudaStreamCreateWithFlags", cuda.runtime().cudaStreamNonBlocking))
        self._freed.append(("cudaStreamDestroy", self.stream))
        # Two: the one before may still be waited for when the next is recorded.
        self._done = [cuda.call("cudaEventCreateWithFlags", cuda.runtime().cudaEventDisableTiming) for _ in range(2)]
        self._freed.extend(("cudaEventDestroy", event) for event in self._done)
        self._scratch = self._device(engine.scratch)
        largest = {
            name: max((p[name][2] for p in engine.profiles), key=lambda shape: np.prod(shape)) for name in engine.inputs
        }
        self._loose = engine.context(self._scratch, len(engine.profiles) - 1, self.stream)
        self._loose_profile = len(engine.profiles) - 1
        for name, shape in largest.items():
            self._loose.set_input_shape(name, shape)
        sizes = dict(largest)
        for name in engine.outputs:
            sizes[name] = tuple(self._loose.get_tensor_shape(name))
            if any(size < 0 for size in sizes[name]):
                raise PenstockError(
                    f"output {name!r} has a size that is known only after the run, which is not supported"
                )
        self._host, self._staged, self.buffers = {}, {}, {}
        for name, shape in sizes.items():
            address, array = cuda.pinned(shape, engine.dtypes[name])
            self._freed.append(("cudaFreeHost", address))
            self._host[name], self._staged[name] = address, array
            self.buffers[name] = self._device(array.nbytes)
        self._address(self._loose)
        self.context = cuda.context()

    def _device(self, size: int) -> int:
        address = int(cuda.call("cudaMalloc", max(1, size)))
        self._freed.append(("cudaFree", address))
        return address

    def _address(self, context: Any, direct: frozenset[str] = _NONE) -> None:
        for name, address in self.buffers.items():
            if not context.set_tensor_address(name, self._host[name] if name in direct else address):
                raise PenstockError(f"TensorRT refuses a buffer for {name!r}")

    def _staged_as(self, name: str, shape: tuple[int, ...]) -> Any:
        """The beginning of a tensor's page-locked buffer as an array of this shape."""
        whole = self._staged[name][: self._bytes(name, shape)]
        return whole.view(self._engine.dtypes[name]).reshape(shape)

    def capture(self, shapes: Shapes, rows: Mapping[str, Any], like: Launch | None = None) -> None:
        """Record a batch of these shapes as a CUDA graph, in the profile in which it runs fastest.

        Args:
            shapes: of each input.
            rows: such a batch that the model takes: what lay in the buffers may index where nothing is.
            like: one whose profile and copies are taken without a look at the others, if that profile takes the shapes.
        """
        if shapes in self.launches:
            return
        engine = self._engine
        cuda.call("cudaSetDevice", engine.device)
        best: Launch | None = None
        refused: Exception = ValueError(f"no profile takes {shapes}")
        ways = [(profile, _NONE) for profile in engine.fitting(dict(zip(engine.inputs, shapes, strict=True)))]
        known = [(like.profile, like.direct)] if like is not None and (like.profile, _NONE) in ways else []
        ways = known or ways
        while ways:
            profile, direct = ways.pop(0)
            try:
                with _TIMING:
                    launch = self._recorded(shapes, profile, rows, direct)
            except (cuda.CudaError, PenstockError) as error:
                refused = error
                continue
            if not (direct or known):
                ways += [(profile, names) for names in self._uncopied(launch)]
            if best is None or launch.captured_s < best.captured_s:
                best, launch = launch, best or launch
            if launch is not best:
                cuda.call("cudaGraphExecDestroy", launch.graph)
        if best is None:
            raise refused
        self.launches[shapes] = best
        self.ready.clear()  # another size may fit better now

    def _uncopied(self, launch: Launch) -> list[frozenset[str]]:
        """Tensors so small that it may be quicker to have the kernels read and write the page-locked memory itself."""
        inputs, outputs = self._engine.inputs, self._engine.outputs
        read, written = sum(map(self._bytes, inputs, launch.shapes)), sum(map(self._bytes, outputs, launch.outputs))
        if launch.heavy or written > _DIRECT_OUT:
            return []
        return [frozenset(outputs), *([frozenset((*inputs, *outputs))] if read <= _DIRECT_IN else [])]

    def _recorded(self, shapes: Shapes, profile: int, rows: Mapping[str, Any], direct: frozenset[str]) -> Launch:
        context = self._engine.context(self._scratch, profile, self.stream)
        self._address(context, direct)
        launch = Launch(context, shapes, self._shaped(context, shapes), profile, direct)
        launch.heavy = self.heavy(shapes)
        for name, shape in zip(self._engine.inputs, shapes, strict=True):
            self._staged_as(name, shape)[...] = rows[name]
        # A first launch prepares what may not be recorded; the next ones tell how long it takes.
        self._enqueue(launch)
        self.wait()
        launch.plain_s = self._timed(lambda: self._enqueue(launch))
        capturable = getattr(context, "is_stream_capturable", None)
        if capturable is not None and not capturable(self.stream):
            raise PenstockError("TensorRT says that this cannot be captured")
        launch.graph = self._record(launch)
        try:
            self._launched(launch)
            launch.captured_s = self._timed(lambda: self._launched(launch))
        except BaseException:
            with suppress(cuda.CudaError):
                cuda.call("cudaGraphExecDestroy", launch.graph)
            raise
        return launch

    def _record(self, launch: Launch) -> Any:
        recording = int(cuda.call("cudaStreamCreateWithFlags", cuda.runtime().cudaStreamNonBlocking))
        recorded = None
        try:
            mode = cuda.runtime().cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
            cuda.call("cudaStreamBeginCapture", recording, mode)
            try:
                if launch.heavy:
                    self._compute(launch, recording)
                else:
                    self._enqueue(launch, recording)
            finally:
                recorded = cuda.call("cudaStreamEndCapture", recording)
            return cuda.call("cudaGraphInstantiate", recorded, 0)
        finally:
            if recorded is not None:
                cuda.call("cudaGraphDestroy", recorded)
            cuda.call("cudaStreamDestroy", recording)

    def heavy(self, shapes: Shapes) -> bool:
        """Whether copying a batch's inputs takes long enough to be seen to apart from its kernels."""
        return sum(map(self._bytes, self._engine.inputs, shapes)) >= _HEAVY_BYTES

    def prepared(self, shapes: Shapes, *, batched: bool) -> Prepared:
        """Views for a batch of these shapes, in the captured size that it is best run in."""
        held = self.ready.get(shapes)
        if held is None:
            if len(self.ready) >= _MOST_PREPARED:
                self.ready.clear()
            self.ready[shapes] = held = self._views(shapes, self._best(shapes) if batched else shapes)
        return held

    def _best(self, shapes: Shapes) -> Shapes:
        if shapes in self.launches:
            return shapes
        alike = {held[0][0]: launch for held, launch in self.launches.items() if _rest(held) == _rest(shapes)}
        captured = {rows: launch.captured_s for rows, launch in alike.items()}
        size = buckets.best(shapes[0][0], captured, {rows: launch.plain_s for rows, launch in alike.items()})
        return shapes if size is None else tuple((size, *shape[1:]) for shape in shapes)

    def _views(self, shapes: Shapes, padded: Shapes) -> Prepared:
        engine, rows = self._engine, shapes[0][0] if shapes[0] else 1
        launch = self.launches.get(padded)
        outputs = self._loosely(padded) if launch is None else launch.outputs
        whole = [self._staged_as(name, shape) for name, shape in zip(engine.inputs, padded, strict=True)]
        made = [self._staged_as(name, shape) for name, shape in zip(engine.outputs, outputs, strict=True)]
        short = padded != shapes
        return Prepared(
            padded,
            launch,
            {name: array[:rows] if short else array for name, array in zip(engine.inputs, whole, strict=True)},
            tuple(array[:rows] if short else array for array in made),
            tuple((array[rows:], array[rows - 1]) for array in whole) if short else (),
        )

    def _timed(self, launch: Any) -> float:
        found = []
        for _ in range(_TIMED):
            started = time.perf_counter()
            launch()
            self.wait()
            found.append(time.perf_counter() - started)
        return min(found)

    def run(self, batch: Prepared) -> None:
        """Run what is staged, and wait; the outputs are staged then. The interpreter is kept until the lease ends."""
        for missing, last in batch.filler:
            missing[:] = last  # a real row: made-up ones may index where nothing is
        interpreter.keep()
        self._launched(batch.launch or self._uncaptured(batch))
        self._ended()

    def run_from(self, batch: Prepared, items: Sequence[Laid]) -> bool:
        """The same of requests that lie in page-locked memory: nothing need be staged.

        Args:
            batch: a heavy one.
            items: whose rows it is of.

        Returns:
            Whether the GPU laid the answers where they are wanted; if not, the outputs are staged.
        """
        interpreter.keep()
        launch = batch.launch or self._uncaptured(batch)
        try:
            for name, shape in zip(self._engine.inputs, launch.shapes, strict=True):
                rows.fetch(items, name, self.buffers[name], shape[0], self.stream)
            self._in_turn(launch)
            given = have_room(items, dict(zip(self._engine.outputs, batch.outputs, strict=True)))
            if given:
                for name in self._engine.outputs:
                    rows.give(items, name, self.buffers[name], self.stream)
            else:
                self._copy_out(launch, self.stream)
        except BaseException:
            with suppress(cuda.CudaError):
                self.wait()  # their memory is others' as soon as they are told
            raise
        self._ended()
        return given

    def _ended(self) -> None:
        interpreter.share()
        self.wait()
        interpreter.keep()

    def _uncaptured(self, batch: Prepared) -> Launch:
        launch = Launch(self._loose, batch.shapes, self._loosely(batch.shapes), self._loose_profile)
        launch.heavy = self.heavy(batch.shapes)
        return launch

    def parts(self, batch: Prepared) -> Parts:
        """Run what is staged some more times, and see what it takes on the GPU, and its copies alone."""
        launch = batch.launch or self._uncaptured(batch)
        return Parts(
            copy_in=events.seconds(lambda: self._copy_in(launch, self.stream), self.stream),
            whole=events.seconds(lambda: self._launched(launch), self.stream),
            copy_out=events.seconds(lambda: self._copy_out(launch, self.stream), self.stream),
        )

    def wait(self) -> None:
        cuda.call("cudaStreamSynchronize", self.stream)

    def _loosely(self, shapes: Shapes) -> tuple[tuple[int, ...], ...]:
        """The outputs' shapes, once the context that is used for all other shapes has these."""
        (profile, *_) = self._engine.fitting(dict(zip(self._engine.inputs, shapes, strict=True)))
        if profile != self._loose_profile:
            if not self._loose.set_optimization_profile_async(profile, self.stream):
                raise PenstockError(f"TensorRT refuses profile {profile}")
            self._loose_profile = profile
        return self._shaped(self._loose, shapes)

    def _shaped(self, context: Any, shapes: Shapes) -> tuple[tuple[int, ...], ...]:
        for name, shape in zip(self._engine.inputs, shapes, strict=True):
            if not context.set_input_shape(name, shape):
                raise PenstockError(f"TensorRT refuses shape {list(shape)} for input {name!r}")
        found = tuple(tuple(context.get_tensor_shape(name)) for name in self._engine.outputs)
        for name, shape in zip(self._engine.outputs, found, strict=True):
            if min(shape, default=0) < 0 or self._bytes(name, shape) > self._staged[name].nbytes:
                raise PenstockError(f"output {name!r} has shape {list(shape)}, which leaves its buffer")
        return found

    def _bytes(self, name: str, shape: tuple[int, ...]) -> int:
        return int(np.prod(shape)) * int(self._engine.dtypes[name].itemsize)

    def _launched(self, launch: Launch) -> None:
        if launch.heavy:
            self._copy_in(launch, self.stream)
            self._in_turn(launch)
            self._copy_out(launch, self.stream)
        elif launch.graph is None:
            self._enqueue(launch)
        else:
            cuda.queue("cuGraphLaunch", launch.graph, self.stream)

    def _in_turn(self, launch: Launch) -> None:
        """A heavy launch's kernels, after those of the other lanes that were asked before."""
        turns = self._turns
        with turns.lock:
            if turns.last is not None:
                cuda.queue("cuStreamWaitEvent", self.stream, turns.last, 0)
            if launch.graph is None:
                self._compute(launch, self.stream)
            else:
                cuda.queue("cuGraphLaunch", launch.graph, self.stream)
            self._done.reverse()
            cuda.queue("cuEventRecord", self._done[0], self.stream)
            turns.last = self._done[0]

    def _enqueue(self, launch: Launch, stream: int | None = None) -> None:
        """Copies in, kernels, and copies out, on the lane's stream or one that records."""
        stream = self.stream if stream is None else stream
        self._copy_in(launch, stream)
        self._compute(launch, stream)
        self._copy_out(launch, stream)

    def _copy_in(self, launch: Launch, stream: int) -> None:
        for name, shape in zip(self._engine.inputs, launch.shapes, strict=True):
            if name not in launch.direct:
                size = self._bytes(name, shape)
                cuda.queue("cuMemcpyAsync", self.buffers[name], self._host[name], size, stream)

    def _compute(self, launch: Launch, stream: int) -> None:
        if not launch.context.execute_async_v3(stream):
            raise cuda.CudaError("TensorRT could not enqueue the batch")

    def _copy_out(self, launch: Launch, stream: int) -> None:
        for name, shape in zip(self._engine.outputs, launch.outputs, strict=True):
            if name not in launch.direct:
                size = self._bytes(name, shape)
                cuda.queue("cuMemcpyAsync", self._host[name], self.buffers[name], size, stream)

    def close(self) -> None:
        """Give everything back; whatever fails, the rest is given back all the same."""
        given = [("cudaGraphExecDestroy", launch.graph) for launch in self.launches.values()]
        if self._freed:
            given.insert(0, ("cudaStreamSynchronize", self.stream))
        self.launches.clear()
        self.ready.clear()
        self._loose = None
        for function, held in [*given, *reversed(self._freed)]:
            with suppress(cuda.CudaError):
                cuda.call(function, held)
        self._freed.clear()


def _rest(shapes: Shapes) -> Shapes:
    return tuple(shape[1:] for shape in shapes)
