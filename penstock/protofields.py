"""Fields of a protocol buffer, read off its bytes: without its package, and without what lies between them.

The encoding is protobuf.dev/programming-guides/encoding. Groups, which no ONNX file has, are refused; so is what two
readers could take for different messages: numbers that are too long, and where a caller asks, fields that come twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
# Fields without a length whose tags are of one byte: a forest of trees has millions, one after the other.
_NUMBERS = re.compile(
    rb"(?:[\x00\x08\x10\x18\x20\x28\x30\x38\x40\x48\x50\x58\x60\x68\x70\x78][\x80-\xff]{0,9}[\x00-\x7f]"
    rb"|[\x01\x09\x11\x19\x21\x29\x31\x39\x41\x49\x51\x59\x61\x69\x71\x79].{8}"
    rb"|[\x05\x0d\x15\x1d\x25\x2d\x35\x3d\x45\x4d\x55\x5d\x65\x6d\x75\x7d].{4}){1,1000}",
    re.DOTALL,
)
# Of a field's number with its kind, and of a length.
_MOST_TAG, _MOST_LENGTH = 2**32 - 1, 2**31 - 1


def walk(message: memoryview, numbers: bool = True) -> Iterator[tuple[int, int, memoryview | int]]:
    """The number, kind and content of each field, in their order: of a varint its number, of others their bytes.

    Args:
        message: its bytes.
        numbers: whether fields without a length are given; else they are passed over, a thousand at a time.

    Raises:
        ValueError: it is damaged.
    """
    at = 0
    while at < len(message):
        if not numbers and (run := _NUMBERS.match(message, at)):
            at = run.end()
            continue
        tag, at = varint(message, at)
        if tag > _MOST_TAG:
            raise ValueError("a field's number is too large")
        kind = tag & 7
        if kind == _LEN:
            size, at = varint(message, at)
            if size > _MOST_LENGTH or at + size > len(message):
                raise ValueError("a field goes on beyond its end")
            yield tag >> 3, kind, message[at : at + size]
            at += size
        elif kind == _VARINT:
            value, at = varint(message, at)
            yield tag >> 3, kind, value
        elif kind in (_I64, _I32):
            size = 8 if kind == _I64 else 4
            yield tag >> 3, kind, message[at : at + size]
            at += size
        else:
            raise ValueError(f"fields of kind {kind} are not ONNX's")


def fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """The number and content of each field: bytes of one that has a length, a number of a varint.

    Fields of four and eight bytes are passed over.
    """
    return ((number, content) for number, kind, content in walk(message) if kind in (_LEN, _VARINT))


def parts(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The number and content of each field that has a length."""
    for number, kind, content in walk(message, numbers=False):
        if kind == _LEN and not isinstance(content, int):
            yield number, content


def varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of 64 bits at most, and where it ends."""
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (2**64 - 1), at
    raise ValueError("a number does not end")


def packed(content: memoryview | int) -> Iterator[int]:
    """The numbers of a repeated field, which may be packed into one field or stand alone."""
    if isinstance(content, int):
        yield content
        return
    at = 0
    while at < len(content):
        value, at = varint(content, at)
        yield value


def signed(value: int) -> int:
    """A number as int64 has it."""
    return value - 2**64 if value >= 2**63 else value


def once(found: Iterable[memoryview]) -> memoryview:
    """The content of a field that is there once at most; empty where it is not.

    Raises:
        ValueError: it is there twice: readers differ in which of the two counts.
    """
    contents = list(found)
    if len(contents) > 1:
        raise ValueError("a field that may be there once is there twice")
    return contents[0] if contents else memoryview(b"")
