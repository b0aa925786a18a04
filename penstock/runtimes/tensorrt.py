"""Runs TensorRT engines, of TensorRT and of TensorRT for RTX, through cuda-bindings alone."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.runtimes import BaseRunner, InstanceDead
from penstock.signature import Arrays, Signature

# Import names of each flavor, the most wanted flavor first. Both speak one API.
FLAVORS = {"tensorrt": ("tensorrt",), "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}
INSTALL = (
    "pip install tensorrt (on a machine with an NVIDIA GPU), or pip install 'penstock[trt-rtx]' "
    "(TensorRT for RTX, which builds without a GPU)"
)


def flavor(wanted: str | None = None) -> tuple[str, ModuleType]:
    """The TensorRT that is installed here: its flavor, and its Python module.

    Args:
        wanted: a key of `FLAVORS`; None takes the first that is there.

    Raises:
        PenstockError: none is installed.
    """
    for name in [wanted] if wanted else FLAVORS:
        for module in FLAVORS[name]:
            try:
                return name, importlib.import_module(module)
            except ImportError:
                continue
    raise PenstockError(f"a TensorRT engine needs {wanted or 'TensorRT'}, which is not installed: {INSTALL}")


def gpu() -> dict[str, Any] | None:
    """The first NVIDIA GPU of this machine: `gpu`, `compute_capability`, `driver`; None where there is none."""
    try:
        cudart = _cudart()
        if _call(cudart.cudaGetDeviceCount()) == 0:
            return None
        properties = _call(cudart.cudaGetDeviceProperties(0))
        driver = _call(cudart.cudaDriverGetVersion())
    except (PenstockError, InstanceDead):
        return None
    name = properties.name.decode() if isinstance(properties.name, bytes) else str(properties.name)
    return {
        "gpu": name.rstrip("\0"),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda_driver": f"{driver // 1000}.{driver % 1000 // 10}",
    }


def unavailable(build: Mapping[str, Any]) -> str | None:
    """Why an engine cannot run here: no TensorRT of its flavor and version, no GPU, or another kind of GPU."""
    try:
        wanted, trt = flavor(build.get("flavor"))
    except PenstockError as error:
        return str(error)
    here = gpu()
    if here is None:
        return "a TensorRT engine needs an NVIDIA GPU, its driver and cuda-bindings; none was found on this machine"
    built_with = build.get("version")
    if built_with and built_with != trt.__version__:
        return f"the engine was built by {wanted} {built_with}; this machine has {trt.__version__}"
    capability = build.get("compute_capability")
    if capability and capability != here["compute_capability"]:
        return (
            f"the engine was built for compute capability {capability} ({build.get('gpu')}); this machine's GPU, "
            f"{here['gpu']}, has {here['compute_capability']}"
        )
    if wanted == "tensorrt_rtx" and here["compute_capability"] == "9.0":
        return f"TensorRT for RTX does not run on compute capability 9.0, which this machine's {here['gpu']} has"
    return None


class TensorRTRunner(BaseRunner):
    """One execution context, its stream, and device buffers as large as the engine's profile allows."""

    def __init__(self, engine: Any, signature: Signature, device: int) -> None:
        super().__init__(signature)
        self._cudart = _cudart()
        _call(self._cudart.cudaSetDevice(device))
        self._device = device
        self._context: Any = engine.create_execution_context()
        if self._context is None:
            raise PenstockError("TensorRT cannot make an execution context: not enough device memory")
        self._engine: Any = engine
        self._stream = _call(self._cudart.cudaStreamCreate())
        self._limits = {tensor.name: tuple(engine.get_tensor_profile_shape(tensor.name, 0)) for tensor in self.inputs}
        self._buffers: dict[str, int] = {}
        self._allocate()

    def _allocate(self) -> None:
        for tensor in self.inputs:
            self._context.set_input_shape(tensor.name, tuple(self._limits[tensor.name][2]))
        for tensor in (*self.inputs, *self.outputs):
            shape = tuple(self._context.get_tensor_shape(tensor.name))
            size = max(1, int(np.prod(shape)) * np.dtype(tensor.dtype).itemsize)
            self._buffers[tensor.name] = _call(self._cudart.cudaMalloc(size))
            self._context.set_tensor_address(tensor.name, self._buffers[tensor.name])

    def run(self, feeds: Arrays) -> dict[str, Any]:
        if self._context is None:
            raise RuntimeError("the runner is closed")
        cudart = self._cudart
        _call(cudart.cudaSetDevice(self._device))
        kinds = cudart.cudaMemcpyKind
        held = []  # host arrays must outlive their asynchronous copies
        for tensor in self.inputs:
            array = np.ascontiguousarray(feeds[tensor.name])
            least, _, most = self._limits[tensor.name]
            if not all(low <= size <= high for low, size, high in zip(least, array.shape, most, strict=True)):
                raise PenstockError(
                    f"input {tensor.name!r} has shape {list(array.shape)}; the engine's profile takes "
                    f"{list(least)} to {list(most)}"
                )
            self._context.set_input_shape(tensor.name, array.shape)
            held.append(array)
            _call(
                cudart.cudaMemcpyAsync(
                    self._buffers[tensor.name],
                    array.ctypes.data,
                    array.nbytes,
                    kinds.cudaMemcpyHostToDevice,
                    self._stream,
                )
            )
        if not self._context.execute_async_v3(int(self._stream)):
            raise InstanceDead("TensorRT could not enqueue the batch")
        answer = {}
        for tensor in self.outputs:
            out = np.empty(tuple(self._context.get_tensor_shape(tensor.name)), tensor.dtype)
            _call(
                cudart.cudaMemcpyAsync(
                    out.ctypes.data,
                    self._buffers[tensor.name],
                    out.nbytes,
                    kinds.cudaMemcpyDeviceToHost,
                    self._stream,
                )
            )
            answer[tensor.name] = out
        _call(cudart.cudaStreamSynchronize(self._stream))
        return answer

    def close(self) -> None:
        if self._context is None:
            return
        self._context = self._engine = None
        for pointer in self._buffers.values():
            self._cudart.cudaFree(pointer)
        self._buffers.clear()
        self._cudart.cudaStreamDestroy(self._stream)


def load(
    path: Path, signature: Signature, *, device: str = "cpu", threads: int | None = None, careful: bool = False
) -> TensorRTRunner:
    """Load a serialized engine onto `cuda:N` (`cpu`, the other runtimes' default, stands for `cuda:0` here).

    An engine is code: only load one whose digest its receipt vouches for.
    """
    blob = path.read_bytes()
    number = int(device.partition(":")[2] or 0)
    _call(_cudart().cudaSetDevice(number))
    problems = []
    for name in FLAVORS:
        try:
            _, trt = flavor(name)
        except PenstockError as error:
            problems.append(str(error))
            continue
        engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(blob)
        if engine is not None:
            return TensorRTRunner(engine, signature, number)
        problems.append(f"{name} {trt.__version__} refuses it")
    raise PenstockError(f"{path}: no TensorRT here loads this engine: {'; '.join(problems)}")


def _cudart() -> Any:
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError:
        raise PenstockError("running a TensorRT engine needs cuda-bindings: pip install cuda-bindings") from None


def _call(result: tuple[Any, ...]) -> Any:
    """The value of a CUDA runtime call, whose error becomes an exception that names it."""
    status, *values = result
    if int(status) != 0:
        raise InstanceDead(f"CUDA: {getattr(status, 'name', status)}")
    return values[0] if values else None
