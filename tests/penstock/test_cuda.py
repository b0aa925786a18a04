"""Functions of CUDA's driver, called by what their library has: handles as numbers, arrays by their address."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock import cuda


class Library:
    """A driver of two functions: one copies a number to where it is wanted, and one fails."""

    def __init__(self, name: str) -> None:
        assert name == "libcuda.so.1"

    @staticmethod
    def cuCopy(into: ctypes.c_void_p, number: ctypes.c_void_p, handle: ctypes.c_void_p) -> int:
        ctypes.c_uint64.from_address(into.value or 0).value = (number.value or 0) + (handle.value or 0)
        return 0

    @staticmethod
    def cuFail(*_: Any) -> int:
        return 700

    @staticmethod
    def cuGetErrorName(status: int, into: Any) -> int:
        into._obj.value = {700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}[status]
        return 0


class Handle:
    def __int__(self) -> int:
        return 2**40


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ctypes, "PyDLL", Library)
    cuda._driver_function.cache_clear()
    yield
    cuda._driver_function.cache_clear()


def test_numbers_handles_and_arrays_are_passed_as_pointers(library: None) -> None:
    into = np.zeros(1, np.uint64)
    cuda.queue("cuCopy", into, 2**41, Handle())
    assert int(into[0]) == 2**41 + 2**40


def test_an_error_of_the_drivers_carries_its_name(library: None) -> None:
    with pytest.raises(cuda.CudaError, match=r"^cuFail: CUDA_ERROR_ILLEGAL_ADDRESS$"):
        cuda.queue("cuFail", 0)


def test_a_function_that_the_driver_lacks_is_an_error_of_cudas(library: None) -> None:
    with pytest.raises(cuda.CudaError, match=r"^cuMemcpyBatchAsync: "):
        cuda.queue("cuMemcpyBatchAsync", 0)


def test_a_machine_without_a_driver_is_an_error_of_cudas(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "PyDLL", missing)
    cuda._driver_function.cache_clear()
    with pytest.raises(cuda.CudaError, match=r"^cuGraphLaunch: libcuda\.so\.1: cannot open"):
        cuda.queue("cuGraphLaunch", 0, 0)
