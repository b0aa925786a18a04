"""IRHeader: what stands in a picture's record before the picture, its labels and its number, as MXNet lays it out.

24 bytes, little-endian (`mxnet.recordio.IRHeader`): uint32 `flag`, float32 `label`, uint64 `id` and `id2`. With `flag`
over 0 so many float32 labels follow, and `label` says nothing. The rest is the picture, encoded.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError

_HEAD = struct.Struct("<IfQQ")
SIZE = _HEAD.size
_LABEL = np.dtype("<f4")


class BadHeader(PenstockError):
    """Bytes that do not begin with an IRHeader; the sentence has no place, which its reader knows."""


@dataclass(frozen=True)
class Header:
    """The labels of a record, and what MXNet calls its id and id2.

    `label` is a number, or float32 `[k]` where the record has an array of them; `size` are the bytes that the header
    takes.
    """

    label: float | NDArray[np.float32]
    id: int
    id2: int
    size: int


def size(beginning: bytes) -> int:
    """How many bytes a record's header takes, its labels included, by the first SIZE bytes of the record.

    Raises:
        BadHeader: there are less.
    """
    if len(beginning) < SIZE:
        raise BadHeader(f"has {len(beginning)} bytes; an IRHeader alone has {SIZE}")
    return SIZE + _LABEL.itemsize * int(_HEAD.unpack_from(beginning)[0])


def read(record: bytes) -> Header:
    """The header of a record, by as many of its first bytes as `size` says.

    Raises:
        BadHeader: there are less.
    """
    taken = size(record)
    flag, label, identity, other = _HEAD.unpack_from(record)
    if taken > len(record):
        raise BadHeader(f"has room for {(len(record) - SIZE) // _LABEL.itemsize} labels; its IRHeader says {flag}")
    if flag:
        label = np.frombuffer(record, _LABEL, flag, SIZE).astype(np.float32)
    return Header(label, identity, other, taken)


def unpack(record: bytes) -> tuple[Header, bytes]:
    """The header of a record, and what follows it.

    Raises:
        BadHeader: it has none, or more labels than bytes.
    """
    header = read(record)
    return header, record[header.size :]


def pack(label: float | Sequence[float] | NDArray[np.float32], picture: bytes, id: int = 0, id2: int = 0) -> bytes:
    """A record: a header with a label, or an array of at least one, and an encoded picture.

    Raises:
        ValueError: the array is not of one dimension, or is empty, or an id is none of 64 bits.
        OverflowError: a label is beyond float32.
    """
    if isinstance(label, float | int | np.number):
        return _packed(0, float(label), id, id2) + picture
    labels = np.asarray(label, _LABEL)
    if labels.ndim != 1 or not len(labels):
        raise ValueError(f"labels have shape {list(labels.shape)}; they must be a number, or [k] of them")
    return _packed(len(labels), 0.0, id, id2) + labels.tobytes() + picture


def _packed(flag: int, label: float, id: int, id2: int) -> bytes:
    try:
        return _HEAD.pack(flag, label, id, id2)
    except struct.error:
        raise ValueError(f"id {id}, id2 {id2}: must be from 0 to 2**64 - 1") from None
