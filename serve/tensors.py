"""Tensors off the wire: bytes and JSON numbers as arrays of a declared dtype, strictly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.serve.errors import RequestError
from penstock.signature import V2_DTYPES


def from_bytes(name: str, data: memoryview, dtype: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Little-endian, row-major bytes as an array; a view, not a copy."""
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if len(data) != expected:
        raise RequestError(
            f"binary_data_size of input {name!r} is {len(data)}; shape {list(shape)} of {V2_DTYPES[dtype]} "
            f"takes {expected}"
        )
    array = np.frombuffer(data, dtype).reshape(shape)
    if dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
        raise RequestError(f"binary data of input {name!r} holds a byte over 1; BOOL is 0 or 1")
    return array


def mentions_truth(body: bytes, length: int) -> bool:
    """Whether the first `length` bytes hold `true` or `false`, outside strings or in them: a quick first look."""
    return body.find(b"true", 0, length) >= 0 or body.find(b"false", 0, length) >= 0


def from_json(
    field: str, data: Any, dtype: str, shape: tuple[int, ...] | None = None, *, truths: bool = True
) -> NDArray[np.generic]:
    """Flat or nested JSON numbers as an array of `dtype`, and of `shape` where one is given.

    Args:
        field: what to call it in an error.
        data: lists of numbers, as they were parsed.
        dtype: numpy's name of it.
        shape: None takes the shape of the lists.
        truths: whether `data` may hold true or false, which numpy would quietly count as 1 and 0.

    Raises:
        RequestError: they are no numbers, out of the dtype's range, ragged, or not as many as the shape takes.
    """
    try:
        array = np.array(data)
    except (ValueError, OverflowError, TypeError):
        raise RequestError(f"{field} is ragged, or nested too deep; it must be a regular list of numbers") from None
    if truths and array.dtype.kind in "fiu" and _any(data, bool):
        array = array.astype(object)
    if dtype == "uint64" and array.dtype.kind == "f" and not _any(data, float):
        array = _unsigned(field, data)  # numpy takes whole numbers on both sides of 2^63 for floats
    array = _cast(field, array, np.dtype(dtype))
    if shape is None:
        return array
    if array.size != math.prod(shape) or (array.ndim != 1 and array.shape != shape):
        raise RequestError(f"{field} has shape {list(array.shape)}; 'shape' says {list(shape)}")
    return array.reshape(shape)


def _any(data: Any, kind: type) -> bool:
    return any(_any(part, kind) for part in data) if isinstance(data, list) else isinstance(data, kind)


def _unsigned(field: str, data: Any) -> NDArray[Any]:
    array = np.array(data, object)
    if array.size and (array.min() < 0 or array.max() >= 2**64):
        raise RequestError(f"{field} holds a number out of UINT64's 0 to {2**64 - 1}")
    return array.astype(np.uint64)


def _cast(field: str, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.generic]:
    kinds = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}[dtype.kind]
    if array.size == 0 and array.dtype.kind == "f":  # an empty list has no kind of its own
        return array.astype(dtype)
    if array.dtype.kind not in kinds:
        wanted = {"f": "numbers", "b": "true or false"}.get(dtype.kind, "whole numbers")
        raise RequestError(f"{field} must hold {wanted} only, for {V2_DTYPES[dtype.name]}")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise RequestError(f"{field} holds a number out of {V2_DTYPES[dtype.name]}'s {limits.min} to {limits.max}")
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if dtype.kind == "f" and not np.isfinite(cast).all():
        raise RequestError(f"{field} holds a number out of {V2_DTYPES[dtype.name]}'s range")
    return cast
