"""Tensors off the wire: bytes and JSON numbers as arrays of a declared dtype, strictly."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import ml_dtypes  # noqa: F401 (with it numpy knows bfloat16)
import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.serve.errors import RequestError
from penstock.serve.rooms import room
from penstock.signature import SERVED_DTYPES

_MAX_RANK = 32
_MOST_TEXTS = 2**20
# What JSON may hold for each kind of dtype, and what to call it.
_ALLOWED: dict[str, tuple[set[type], str]] = {
    "f": ({int, float}, "numbers"),
    "i": ({int}, "whole numbers"),
    "u": ({int}, "whole numbers"),
    "b": ({bool}, "true or false"),
    "O": ({str}, "strings"),
}
# Of these JSON has no numbers, by the protocol.
BINARY_ONLY = ("float16", "bfloat16")


def kind_of(dtype: str) -> str:
    """numpy's letter for a kind of dtype, by which bfloat16 is as floating as the others."""
    return "f" if dtype == "bfloat16" else np.dtype(dtype).kind


def from_bytes(name: str, data: memoryview, dtype: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Little-endian, row-major bytes as an array: a view, not a copy, but for text and for what lies askew.

    A runtime may go over what is not aligned to its elements another way, and so answer the same tensor otherwise.
    """
    if dtype == "object":
        return _texts(name, data, shape)
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if len(data) != expected:
        raise RequestError(
            f"binary_data_size of input {name!r} is {len(data)}; shape {list(shape)} of {SERVED_DTYPES[dtype]} "
            f"takes {expected}"
        )
    array = np.frombuffer(data, dtype).reshape(shape)
    if not array.flags.aligned:  # behind another input, whose elements are smaller
        held = room(len(data))
        held[:] = data
        array = np.frombuffer(held, dtype).reshape(shape)
    if dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
        raise RequestError(f"binary data of input {name!r} holds a byte over 1; BOOL is 0 or 1")
    return array


def _texts(name: str, data: memoryview, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Elements of BYTES: each its length in four bytes, then itself."""
    count, start = math.prod(shape), 0
    if count > _MOST_TEXTS:
        raise RequestError(
            f"shape of input {name!r} is {list(shape)}; at most {_MOST_TEXTS} elements of BYTES are taken"
        )
    found = np.empty(count, object)
    for index in range(count):
        body = start + 4
        end = body + int.from_bytes(data[start:body], "little")
        if end > len(data) or body > len(data):
            raise RequestError(
                f"binary data of input {name!r} ends within element {index} of {count}; an element of BYTES is its "
                "length in 4 bytes, then so many bytes"
            )
        found[index], start = bytes(data[body:end]), end
    if start != len(data):
        raise RequestError(
            f"binary data of input {name!r} goes on for {len(data) - start} bytes after its last element"
        )
    return found.reshape(shape)


def text_bytes(array: NDArray[np.generic]) -> bytes:
    """An array of bytes objects as elements of BYTES."""
    return b"".join(struct.pack("<I", len(text)) + text for text in array.reshape(-1).tolist())


def array_bytes(array: NDArray[np.generic]) -> Buffer:
    """An array's bytes as `from_bytes` takes them: in memory as they are, where they lie in order and are no text."""
    return text_bytes(array) if array.dtype == object else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def from_json(field: str, data: Any, dtype: str, shape: tuple[int, ...] | None = None) -> NDArray[np.generic]:
    """Flat or nested JSON numbers as an array of `dtype`, and of `shape` where one is given.

    Args:
        field: what to call it in an error.
        data: lists of numbers, as they were parsed.
        dtype: numpy's name of it.
        shape: None takes the shape of the lists.

    Raises:
        RequestError: they are no numbers, out of the dtype's range, ragged, or not as many as the shape takes.
    """
    flat, nested = _flatten(field, data)
    array = _typed(field, flat, np.dtype(dtype))
    if shape is None:
        return array.reshape(nested)
    if array.size != math.prod(shape) or (len(nested) != 1 and nested != shape):
        raise RequestError(f"{field} has shape {list(nested)}; 'shape' says {list(shape)}")
    return array.reshape(shape)


def _flatten(field: str, data: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Nested lists as one list, and their shape. numpy would do it, but takes strings and truths for numbers."""
    if not isinstance(data, list):
        return [data], ()
    shape = [len(data)]
    while data and isinstance(data[0], list):
        lengths = {len(part) if isinstance(part, list) else -1 for part in data}
        if len(lengths) != 1 or len(shape) >= _MAX_RANK:
            raise RequestError(f"{field} is ragged, or nested too deep; it must be a regular list of numbers")
        shape.append(lengths.pop())
        data = list(itertools.chain.from_iterable(data))
    return data, tuple(shape)


def _typed(field: str, flat: list[Any], dtype: np.dtype[Any]) -> NDArray[np.generic]:
    kind = kind_of(dtype.name)
    allowed, wanted = _ALLOWED[kind]
    kinds = set(map(type, flat))
    if list in kinds:
        raise RequestError(f"{field} is ragged, or nested too deep; it must be a regular list of numbers")
    if not kinds <= allowed:
        raise RequestError(f"{field} must hold {wanted} only, for {SERVED_DTYPES[dtype.name]}")
    if kind == "O":
        return _encoded(field, flat)
    if kind in "iu" and flat:
        limits = np.iinfo(dtype)
        if min(flat) < limits.min or max(flat) > limits.max:
            name = SERVED_DTYPES[dtype.name]
            wrong = next(number for number in flat if not limits.min <= number <= limits.max)
            raise RequestError(f"{field} holds {wrong}; {name} is {limits.min} to {limits.max}")
    with np.errstate(over="ignore"):
        given = np.array(flat, np.float64 if kind == "f" else dtype)
        array = given.astype(dtype, copy=False)
    if kind == "f" and (beyond := np.isfinite(given) & ~np.isfinite(array)).any():
        raise RequestError(f"{field} holds {given[beyond][0]:g}, which is out of {SERVED_DTYPES[dtype.name]}'s range")
    return array


def _encoded(field: str, flat: list[str]) -> NDArray[np.generic]:
    if len(flat) > _MOST_TEXTS:
        raise RequestError(f"{field} has {len(flat)} strings; at most {_MOST_TEXTS} are taken")
    try:
        return np.array([text.encode() for text in flat], object)
    except UnicodeEncodeError:
        raise RequestError(f"{field} holds half of a surrogate pair, which is no text") from None
