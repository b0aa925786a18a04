"""Lanes: a stream, execution contexts of one engine and the buffers that they share, for one batch at a time.

Each lane copies in, computes and copies out on a stream of its own, so that one lane's copies overlap another's
computing. A batch's launch is one CUDA graph where its shapes have been captured: copies and kernels together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock import buckets, cuda
from penstock.errors import PenstockError

Shapes = tuple[tuple[int, ...], ...]
_TIMED = 3
# Shapes whose views are kept.
_MOST_PREPARED = 256


class Engine:
    """A deserialised engine on a device: its tensors' dtypes, profiles, and the bytes a context needs."""

    def __init__(self, trt: Any, engine: Any, inputs: tuple[str, ...], outputs: tuple[str, ...], device: int) -> None:
        self.trt, self.engine, self.inputs, self.outputs, self.device = trt, engine, inputs, outputs, device
        held = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        if held != {*inputs, *outputs}:
            raise PenstockError(
                f"the engine holds {', '.join(sorted(held))}; its signature says {', '.join((*inputs, *outputs))}"
            )
        self.dtypes = {name: np.dtype(trt.nptype(engine.get_tensor_dtype(name))) for name in (*inputs, *outputs)}
        self.profiles = [
            {name: tuple(tuple(shape) for shape in engine.get_tensor_profile_shape(name, index)) for name in inputs}
            for index in range(engine.num_optimization_profiles)
        ]
        wide = getattr(engine, "device_memory_size_v2", None)
        self.scratch = int(engine.device_memory_size if wide is None else wide)

    def profile(self, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        """The narrowest profile that takes these shapes, or None."""
        fits = [index for index, profile in enumerate(self.profiles) if _takes(profile, shapes)]
        return min(fits, key=lambda index: _breadth(self.profiles[index]), default=None)

    def context(self, scratch: int, profile: int, stream: int) -> Any:
        """An execution context over memory of the caller's.

        Raises:
            PenstockError: there is no memory for it.
        """
        strategies = getattr(self.trt, "ExecutionContextAllocationStrategy", None)
        if strategies is None:
            context = self.engine.create_execution_context_without_device_memory()
        else:
            context = self.engine.create_execution_context(strategies.USER_MANAGED)
        if context is None:
            raise PenstockError("TensorRT cannot make an execution context: not enough device memory")
        if hasattr(context, "set_device_memory"):
            context.set_device_memory(scratch, self.scratch)
        else:
            context.device_memory = scratch
        if len(self.profiles) > 1 and not context.set_optimization_profile_async(profile, stream):
            raise PenstockError(f"TensorRT refuses profile {profile}")
        return context


def _takes(profile: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return all(
        len(shape) == len(profile[name][0])
        and all(low <= size <= high for low, size, high in zip(profile[name][0], shape, profile[name][2], strict=True))
        for name, shape in shapes.items()
    )


def _breadth(profile: Mapping[str, Any]) -> int:
    return int(sum(np.prod(np.subtract(most, least) + 1, dtype=np.int64) for least, _, most in profile.values()))


class Launch:
    """A context with its input shapes set, and once it is captured, the CUDA graph of a whole batch."""

    def __init__(self, context: Any, shapes: Shapes, outputs: Shapes) -> None:
        self.context, self.shapes, self.outputs = context, shapes, outputs
        self.graph: Any = None
        self.plain_s = self.captured_s = float("inf")


@dataclass(frozen=True)
class Prepared:
    """A batch's views of a lane's page-locked memory, and the shapes that it is run in: its own or larger ones.

    `launch` is their capture, if there is one. `filler` are views of the rows that such a batch lacks, each with a view
    of the last row that it has.
    """

    shapes: Shapes
    launch: Launch | None
    inputs: dict[str, Any]
    outputs: tuple[Any, ...]
    filler: tuple[tuple[Any, Any], ...]


class Lane:
    """What one batch at a time needs; `lock` is held by whoever uses it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.lock = threading.Lock()
        self._freed: list[tuple[str, int]] = []
        self.launches: dict[Shapes, Launch] = {}
        self._prepared: dict[Shapes, Prepared] = {}
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

    def _device(self, size: int) -> int:
        address = int(cuda.call("cudaMalloc", max(1, size)))
        self._freed.append(("cudaFree", address))
        return address

    def _address(self, context: Any) -> None:
        for name, address in self.buffers.items():
            if not context.set_tensor_address(name, address):
                raise PenstockError(f"TensorRT refuses a buffer for {name!r}")

    def _staged_as(self, name: str, shape: tuple[int, ...]) -> Any:
        """The beginning of a tensor's page-locked buffer as an array of this shape."""
        dtype = self._engine.dtypes[name]
        count = int(np.prod(shape)) * dtype.itemsize
        return self._staged[name][:count].view(dtype).reshape(shape)

    def capture(self, shapes: Shapes) -> None:
        """Record a batch of these shapes as a CUDA graph. The lane is in use for some launches, not while recording."""
        if shapes in self.launches:
            return
        engine = self._engine
        cuda.call("cudaSetDevice", engine.device)
        profile = engine.profile(dict(zip(engine.inputs, shapes, strict=True)))
        if profile is None:
            raise ValueError(f"no profile takes {shapes}")
        context = engine.context(self._scratch, profile, self.stream)
        self._address(context)
        launch = Launch(context, shapes, self._shaped(context, shapes))
        with self.lock:
            # A first launch prepares what may not be recorded; the next ones tell how long it takes.
            self._enqueue(launch)
            self.wait()
            launch.plain_s = self._timed(lambda: self._enqueue(launch))
        recording = int(cuda.call("cudaStreamCreateWithFlags", cuda.runtime().cudaStreamNonBlocking))
        try:
            mode = cuda.runtime().cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
            cuda.call("cudaStreamBeginCapture", recording, mode)
            try:
                self._enqueue(launch, recording)
            finally:
                recorded = cuda.call("cudaStreamEndCapture", recording)
            launch.graph = cuda.call("cudaGraphInstantiate", recorded, 0)
            cuda.call("cudaGraphDestroy", recorded)
        finally:
            cuda.call("cudaStreamDestroy", recording)
        with self.lock:
            self._launched(launch)
            launch.captured_s = self._timed(lambda: self._launched(launch))
            self.launches[shapes] = launch
            self._prepared.clear()  # another size may fit better now

    def prepared(self, shapes: Shapes, *, batched: bool) -> Prepared:
        """Views for a batch of these shapes, in the captured size that it is best run in. The caller holds the lock."""
        held = self._prepared.get(shapes)
        if held is None:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            self._prepared[shapes] = held = self._views(shapes, self._best(shapes) if batched else shapes)
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
        """Run what is staged, and wait; the outputs are staged then. The caller holds the lock."""
        for missing, last in batch.filler:
            missing[:] = last  # a real row: made-up ones may index where nothing is
        if batch.launch is None:
            self._enqueue(Launch(self._loose, batch.shapes, self._loosely(batch.shapes)))
        else:
            self._launched(batch.launch)
        self.wait()

    def wait(self) -> None:
        cuda.call("cudaStreamSynchronize", self.stream)

    def _loosely(self, shapes: Shapes) -> tuple[tuple[int, ...], ...]:
        """The outputs' shapes, once the context that is used for all other shapes has these."""
        profile = self._engine.profile(dict(zip(self._engine.inputs, shapes, strict=True)))
        if profile != self._loose_profile:
            if not self._loose.set_optimization_profile_async(profile, self.stream):
                raise PenstockError(f"TensorRT refuses profile {profile}")
            self._loose_profile = profile or 0
        return self._shaped(self._loose, shapes)

    def _shaped(self, context: Any, shapes: Shapes) -> tuple[tuple[int, ...], ...]:
        for name, shape in zip(self._engine.inputs, shapes, strict=True):
            if not context.set_input_shape(name, shape):
                raise PenstockError(f"TensorRT refuses shape {list(shape)} for input {name!r}")
        return tuple(tuple(context.get_tensor_shape(name)) for name in self._engine.outputs)

    def _launched(self, launch: Launch) -> None:
        cuda.call("cudaGraphLaunch", launch.graph, self.stream)

    def _enqueue(self, launch: Launch, stream: int | None = None) -> None:
        """Copies in, kernels, and copies out, on the lane's stream or one that records."""
        engine, stream = self._engine, self.stream if stream is None else stream
        kinds = cuda.runtime().cudaMemcpyKind
        for name, shape in zip(engine.inputs, launch.shapes, strict=True):
            size = int(np.prod(shape)) * engine.dtypes[name].itemsize
            cuda.call(
                "cudaMemcpyAsync", self.buffers[name], self._host[name], size, kinds.cudaMemcpyHostToDevice, stream
            )
        if not launch.context.execute_async_v3(stream):
            raise cuda.CudaError("TensorRT could not enqueue the batch")
        for name, shape in zip(engine.outputs, launch.outputs, strict=True):
            size = int(np.prod(shape)) * engine.dtypes[name].itemsize
            cuda.call(
                "cudaMemcpyAsync", self._host[name], self.buffers[name], size, kinds.cudaMemcpyDeviceToHost, stream
            )

    def close(self) -> None:
        """Give everything back; the lane must be idle."""
        for launch in self.launches.values():
            cuda.call("cudaGraphExecDestroy", launch.graph)
        self.launches.clear()
        self._prepared.clear()
        self._loose = None
        for function, address in reversed(self._freed):
            cuda.call(function, address)
        self._freed.clear()


def _rest(shapes: Shapes) -> Shapes:
    return tuple(shape[1:] for shape in shapes)
