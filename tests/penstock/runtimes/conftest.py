"""A GPU in host memory behind `cuda.call`, and an engine on it: what is enqueued runs when its stream is waited for."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock import cuda
from penstock.lanes import Engine

Operation = Callable[[], None]
CONTEXTS = (7, 8)  # of two GPUs


class Gpu:
    """Streams, graphs and memory. `held` are allocations and streams that were not given back.

    Profiles that are `slow` take longer; of those that are `full` nobody gets a context. `together` is how many batches
    were in their kernels at once, at most. A copy takes `copy_s`, and kernels `far_s` for each tensor of the host's.
    """

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.streams: dict[int, list[Operation]] = {}
        self.owners: dict[int, int] = {}
        self.graphs: dict[int, list[Operation]] = {}
        self.broken: str | None = None
        self.slow: set[int] = set()
        self.full: set[int] = set()
        self.launches = self.contexts = 0
        self.events: dict[int, threading.Event] = {}
        self.times: dict[int, float] = {}
        self.computing = self.together = 0
        self.seen: set[int] = set()
        self.hosted: set[int] = set()
        self.copied = self.fetched = self.given = 0
        self.locked: dict[int, int] = {}
        self.copy_s = self.far_s = 0.0
        self._numbers = itertools.count(1)
        self._lock, self._thread = threading.Lock(), threading.local()

    def engine(self, *profiles: tuple[int, int, int], device: int = 0) -> Engine:
        """An engine with these profiles, each a least, usual and largest batch."""
        return Engine(Trt, Plan(self, *profiles), ("x", "n"), ("y", "total"), device)

    def call(self, name: str, *arguments: Any) -> Any:
        if self.broken == name:
            raise cuda.CudaError(f"{name}: cudaErrorIllegalAddress")
        return getattr(self, name)(*arguments)

    def queue(self, name: str, *arguments: Any) -> None:
        """Of the driver; a thread is refused that has no context, or that of another GPU than the stream's."""
        context = getattr(self._thread, "context", None)
        stream = None if name.startswith("cuCtx") else arguments[0 if name == "cuStreamWaitEvent" else -1]
        if name != "cuCtxSetCurrent" and context not in ({*CONTEXTS} if stream is None else {self.owners[stream]}):
            raise cuda.CudaError(f"{name}: CUDA_ERROR_INVALID_CONTEXT")
        self.call(name, *arguments)

    def cudaGetDeviceCount(self) -> int:
        return 2

    def cudaSetDevice(self, device: int) -> None:
        self.cuCtxSetCurrent(CONTEXTS[device])

    def cuCtxSetCurrent(self, context: int) -> None:
        assert context in CONTEXTS
        self._thread.context = context

    def cuCtxGetCurrent(self, into: Any) -> None:
        into[0] = self._thread.context

    def cudaStreamCreateWithFlags(self, flags: Any) -> int:
        stream = next(self._numbers)
        self.streams[stream] = self.held[stream] = []
        self.owners[stream] = self._thread.context
        return stream

    def cudaStreamDestroy(self, stream: int) -> None:
        del self.held[stream]

    def cudaMalloc(self, size: int) -> int:
        buffer = (ctypes.c_uint8 * size)()
        ctypes.memset(buffer, 0xA5, size)  # nobody may count on zeros
        self.held[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def cudaHostAlloc(self, size: int, flags: int) -> int:
        address = self.cudaMalloc(size)
        self.hosted.add(address)
        return address

    def cudaFree(self, address: int) -> None:
        del self.held[address]

    def cudaFreeHost(self, address: int) -> None:
        self.hosted.remove(address)
        self.cudaFree(address)

    def cuMemcpyAsync(self, to: int, source: int, size: int, stream: int) -> None:
        for address in (to, source):
            assert size <= ctypes.sizeof(self.held[address]), "a copy leaves its buffer"

        def copy() -> None:
            time.sleep(self.copy_s)
            ctypes.memmove(to, source, size)
            self.copied += 1

        self.streams[stream].append(copy)

    def cudaDriverGetVersion(self) -> int:
        return 13000

    def cudaHostRegister(self, address: int, size: int, flags: int) -> None:
        self.locked[address] = size

    def cudaHostUnregister(self, address: int) -> None:
        del self.locked[address]

    def cuMemcpyBatchAsync(
        self, to: Any, sources: Any, sizes: Any, count: int, attrs: Any, at: Any, few: int, failed: Any, stream: int
    ) -> None:
        assert count == len(to) == len(sources) == len(sizes)
        assert (attrs.tolist(), at.tolist(), few, len(failed)) == ([1, 0, 0, 0, 0, 0], [0], 1, 1)
        copies = list(zip(to.tolist(), sources.tolist(), sizes.tolist(), strict=True))
        fetches = int(to[0]) in self.held
        held = {begin: ctypes.sizeof(space) for begin, space in self.held.items() if isinstance(space, ctypes.Array)}
        for place, source, size in copies:
            ours, theirs = (place, source) if fetches else (source, place)
            assert self._within(theirs, size, self.locked), "memory that is not page-locked"
            assert self._within(ours, size, held), "a copy leaves its buffer"

        def copy() -> None:
            for place, source, size in copies:
                ctypes.memmove(place, source, size)
            if fetches:
                self.fetched += count
            else:
                self.given += count

        self.streams[stream].append(copy)

    @staticmethod
    def _within(address: int, size: int, spaces: dict[int, int]) -> bool:
        return any(begin <= address <= address + size <= begin + whole for begin, whole in spaces.items())

    def cudaStreamBeginCapture(self, stream: int, mode: Any) -> None:
        assert not self.streams[stream]

    def cudaStreamEndCapture(self, stream: int) -> list[Operation]:
        recorded, self.streams[stream] = self.streams[stream], []
        return recorded

    def cudaGraphInstantiate(self, recorded: list[Operation], flags: int) -> int:
        graph = next(self._numbers)
        self.graphs[graph] = recorded
        return graph

    def cudaGraphDestroy(self, recorded: Any) -> None:
        pass

    def cudaGraphExecDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    def cuGraphLaunch(self, graph: int, stream: int) -> None:
        self.launches += 1
        self.streams[stream] += self.graphs[graph]

    def cudaEventCreateWithFlags(self, flags: Any) -> int:
        event = next(self._numbers)
        self.held[event] = self.events[event] = threading.Event()
        return event

    def cudaEventDestroy(self, event: int) -> None:
        del self.held[event]

    def cudaEventRecord(self, event: int, stream: int) -> None:
        assert event in self.held
        self.events[event] = recorded = threading.Event()

        def happen() -> None:
            self.times[event] = time.perf_counter()
            recorded.set()

        self.streams[stream].append(happen)

    cuEventRecord = cudaEventRecord

    def cudaEventElapsedTime(self, start: int, end: int) -> float:
        return 1e3 * (self.times[end] - self.times[start])

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        assert event in self.held
        recorded = self.events[event]

        def wait() -> None:
            assert recorded.wait(10), "a stream waits for what is never done"

        self.streams[stream].append(wait)

    def cudaStreamSynchronize(self, stream: int) -> None:
        waiting, self.streams[stream] = self.streams[stream], []
        for operation in waiting:
            operation()


class Plan:
    """TensorRT's side: `x`, float32 [batch, 3], and `n`, int32 [batch], to `y`, x times 2 plus n, and its `total`.

    A profile is a least, usual and largest batch.
    """

    num_io_tensors = 4
    device_memory_size = 64
    names = ("x", "n", "y", "total")
    rest = ((3,), (), (3,), ())

    def __init__(self, gpu: Gpu, *profiles: tuple[int, int, int]) -> None:
        self.gpu, self.profiles = gpu, profiles
        self.num_optimization_profiles = len(profiles)

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_dtype(self, name: str) -> Any:
        return np.int32 if name == "n" else np.float32

    def get_tensor_profile_shape(self, name: str, index: int) -> list[tuple[int, ...]]:
        return [(size, *self.rest[self.names.index(name)]) for size in self.profiles[index]]

    def create_execution_context_without_device_memory(self) -> Context:
        self.gpu.contexts += 1
        return Context(self)


class Context:
    """An execution context; it computes on what its addresses hold when its stream gets there."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.profile, self.rows = plan, 0, 0
        self.addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self.profile = profile
        return profile not in self.plan.gpu.full

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self.plan.profiles[self.profile]
        self.rows = shape[0]
        return least <= shape[0] <= most

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return (self.rows, *self.plan.rest[self.plan.names.index(name)])

    def execute_async_v3(self, stream: int) -> bool:
        rows, profile = self.rows, self.profile

        def compute() -> None:
            gpu = self.plan.gpu
            gpu.computing += 1
            gpu.together = max(gpu.together, gpu.computing)
            if profile in gpu.slow:
                time.sleep(0.01)
            time.sleep(gpu.far_s * len(gpu.hosted.intersection(self.addresses.values())))
            gpu.computing -= 1
            x, n, y, total = (self._array(name, rows) for name in self.plan.names)
            gpu.seen.update(n.tolist())
            y[:] = 2 * x + n[:, None]
            total[:] = y.sum(axis=1)

        self.plan.gpu.streams[stream].append(compute)
        return True

    def _array(self, name: str, rows: int) -> Any:
        shape = (rows, *self.plan.rest[self.plan.names.index(name)])
        dtype = np.dtype(self.plan.get_tensor_dtype(name))
        size = int(np.prod(shape)) * dtype.itemsize
        held = self.plan.gpu.held[self.addresses[name]]
        assert size <= ctypes.sizeof(held), "the engine leaves its buffer"
        return np.frombuffer(held, np.uint8, size).view(dtype).reshape(shape)


class Trt:
    """The module, as far as an engine asks it anything."""

    @staticmethod
    def nptype(dtype: Any) -> Any:
        return dtype


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(cuda, "call", made.call)
    monkeypatch.setattr(cuda, "queue", made.queue)
    return made
