"""CUDA: the calls that penstock makes of its runtime, by cuda-bindings, and of its driver; errors by their names."""

from __future__ import annotations

import ctypes
import importlib
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError


class CudaError(Exception):
    """A call failed; the argument names the call and CUDA's error. The process's context may be lost with it."""


@cache
def runtime() -> Any:
    """cuda-bindings' module of the runtime API.

    Raises:
        PenstockError: it is not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError:
        raise PenstockError("running a TensorRT engine needs cuda-bindings: pip install cuda-bindings") from None


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the runtime, `cudaMalloc`; its value, or None where it has none.

    Raises:
        CudaError: it fails.
    """
    answer = _function(name)(*arguments)
    if answer[0] != 0:
        status = answer[0]
        raise CudaError(f"{name}: {getattr(status, 'name', status)}{_told(status)}")
    return answer[1] if len(answer) > 1 else None


@cache
def _function(name: str) -> Any:
    return getattr(runtime(), name)


def _told(status: Any) -> str:
    with suppress(Exception):
        return f" ({runtime().cudaGetErrorString(status)[1].decode()})"
    return ""


def queue(name: str, *arguments: Any) -> None:
    """Call a function of the driver that only queues work, `cuGraphLaunch`, and keep the interpreter meanwhile.

    cuda-bindings let go of it for each call; where an event loop is at work in another thread, having it back takes
    longer than the call. While another thread allocates or page-locks memory, the driver may have the call wait for
    that, and all other threads with it: some milliseconds, as when a model is loaded or a front end begins.

    Args:
        name: of a function that waits for nothing that the GPU does.
        arguments: numbers, handles of the runtime's, or arrays of what the function takes by their address.

    Raises:
        CudaError: it fails.
    """
    status = _driver_function(name)(*[_pointer(argument) for argument in arguments])
    if status != 0:
        raise CudaError(f"{name}: {_error_name(status)}")


def context() -> int:
    """The driver's handle of the thread's context: what `cuCtxSetCurrent` takes."""
    found = np.zeros(1, np.uint64)
    queue("cuCtxGetCurrent", found)
    return int(found[0])


def _pointer(argument: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(argument.ctypes.data if isinstance(argument, np.ndarray) else int(argument))


@cache
def _driver_function(name: str) -> Any:
    try:
        return getattr(ctypes.PyDLL("libcuda.so.1"), name)
    except (AttributeError, OSError) as error:
        raise CudaError(f"{name}: {error}") from None


def _error_name(status: int) -> str:
    found = ctypes.c_char_p()
    with suppress(CudaError):
        _driver_function("cuGetErrorName")(status, ctypes.byref(found))
    return found.value.decode() if found.value else str(status)


def number(device: str) -> int:
    """The number in `cuda:1`; 0 for `cuda`, and for `cpu` where a GPU is meant in any case."""
    found = re.fullmatch(r"cuda:(\d{1,3})", device)
    return int(found[1]) if found else 0


def count() -> int:
    """How many NVIDIA GPUs can be used; 0 where `problem` says why."""
    with suppress(CudaError, PenstockError):
        return int(call("cudaGetDeviceCount"))
    return 0


def problem() -> str | None:
    """Why no NVIDIA GPU can be used here, or None."""
    try:
        found = call("cudaGetDeviceCount")
    except PenstockError:
        return "cuda-bindings is not installed: pip install cuda-bindings"
    except CudaError as error:
        # Without a driver CUDA calls it insufficient.
        return f"CUDA answers {error}" if driver() else "no GPU was found on this machine"
    return None if found else "no GPU was found on this machine"


def facts(device: int = 0) -> dict[str, Any] | None:
    """A GPU's name, compute capability, and driver as CUDA's version and NVIDIA's own; None if it is not there."""
    if device >= count():
        return None
    try:
        properties, cuda = call("cudaGetDeviceProperties", device), call("cudaDriverGetVersion")
    except CudaError:
        return None
    name = properties.name.decode() if isinstance(properties.name, bytes) else str(properties.name)
    return {
        "gpu": name.rstrip("\0"),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        **({"driver": held} if (held := driver()) else {}),
    }


def driver() -> str | None:
    """The version of NVIDIA's driver, 580.159.04; None where there is none."""
    with suppress(OSError):
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", Path("/proc/driver/nvidia/version").read_text())
        return found[1] if found else None
    return None


def pinned(shape: tuple[int, ...], dtype: Any) -> tuple[int, Any]:
    """Page-locked memory, which the GPU copies from by itself: its address, and an array over it, zeroed."""
    size = max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
    address = int(call("cudaHostAlloc", size, 0))
    array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    array[:] = 0
    return address, array


def memory_used(device: int = 0) -> int:
    """Bytes of a GPU's memory that are taken, by whomever."""
    call("cudaSetDevice", device)
    status, free, total = runtime().cudaMemGetInfo()
    if int(status) != 0:
        raise CudaError(f"cudaMemGetInfo: {status.name}")
    return int(total) - int(free)
