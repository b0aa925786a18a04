"""What passes between a front end and an engine on a Unix socket: frames, of which a request's are a few numbers.

Arrays lie in slots of memory that both have; a frame says where. What all requests of a kind have in common, its form,
is told once: the model, and where in a slot each array begins, of which dtype and shape.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.errors import PenstockError
from penstock.laid import Place
from penstock.serve.slots import rounded
from penstock.serve.tensors import array_bytes, from_bytes
from penstock.signature import SERVED_DTYPES, Arrays, dtype_name

_HEAD = struct.Struct("<IB")
# A request's number, its form, where its inputs and its answer's room begin, seconds that are left, its priority.
ASKED = struct.Struct("<QIQQdi")
# A request's number, seconds in the queue and in the runner.
ANSWERED = struct.Struct("<Qdd")
NUMBER = struct.Struct("<Q")
_SIZE = struct.Struct("<I")
NOWHERE = 2**64 - 1
"""In the place of room for an answer, where there is none."""
MOST_FRAME = 2**30

# From a front end: a form; requests of forms; one of none; one is given up; what it counted; a model's request that was
# refused there; a trace; an answer that a shadow may be asked about.
FORM, ASKS, ASK_ALONE, GIVE_UP, FIGURES, REFUSED, TRACED, SHADOWED = range(8)
# From an engine: what it serves; answers in their room; one that is all here; a failure; what was counted?
# One that failed before its batch let go of its slot is left now.
STATE, ANSWERS, ANSWER_HERE, FAILURE, TELL, LEFT = range(16, 22)


def frame(kind: int, *content: Buffer) -> bytes:
    """A frame of what is in several pieces, perhaps.

    Raises:
        PenstockError: it is longer than any may be.
    """
    size = sum(memoryview(piece).nbytes for piece in content)
    if size > MOST_FRAME:
        raise PenstockError(
            f"{size} bytes are more than what passes between the processes of a server with front ends, {MOST_FRAME}; "
            "serve with --workers 0"
        )
    return b"".join([_HEAD.pack(size, kind), *content])


def told(kind: int, content: Any) -> bytes:
    """A frame of JSON."""
    return frame(kind, orjson.dumps(content))


class Frames:
    """Takes a stream of bytes apart, however long its frames are: each byte is copied a few times and no more."""

    def __init__(self) -> None:
        # What has come of a frame that is not whole, and how long it is, as far as that is known.
        self._held, self._size = bytearray(), 0

    def feed(self, data: bytes) -> list[tuple[int, memoryview]]:
        """The kind and the content of each frame that is whole by now.

        Raises:
            PenstockError: one is longer than any may be.
        """
        found: list[tuple[int, memoryview]] = []
        come: bytes | bytearray = data
        if self._held:
            self._held += data
            if len(self._held) < self._size:
                return found
            come, self._held = self._held, bytearray()
        view, at, whole = memoryview(come), 0, len(come)
        while at < whole:
            end = at + _HEAD.size
            if end <= whole:
                size, kind = _HEAD.unpack_from(view, at)
                if size > MOST_FRAME:
                    raise PenstockError(f"a frame of {size} bytes, where {MOST_FRAME} are the most")
                end += size
            if end > whole:
                self._held, self._size = bytearray(view[at:]), end - at
                break
            found.append((kind, view[end - size : end]))
            at = end
        return found


def places(arrays: list[tuple[str, str, tuple[int, ...]]]) -> tuple[tuple[Place, ...], int]:
    """Where arrays of these names, dtypes and shapes lie one after the other, and how many bytes they take."""
    found, at = [], 0
    for name, dtype, shape in arrays:
        found.append(Place(name, np.dtype(dtype), shape, at))
        at += rounded(found[-1].end - at)
    return tuple(found), at


def written(held: tuple[Place, ...]) -> list[Any]:
    """Places as JSON has them."""
    return [[place.name, place.dtype.name, place.shape, place.start] for place in held]


def read(listed: Any) -> tuple[Place, ...]:
    """Places out of JSON.

    Raises:
        PenstockError: there are no such.
    """
    try:
        found = tuple(
            Place(str(name), np.dtype(dtype), tuple(map(int, shape)), int(start))
            for name, dtype, shape, start in listed
            if dtype in SERVED_DTYPES and dtype != "object"
        )
    except (TypeError, ValueError) as error:
        raise PenstockError(f"arrays are not as the other process says: {error}") from None
    if len(found) != len(listed) or any(place.start < 0 or min(place.shape, default=0) < 0 for place in found):
        raise PenstockError("arrays are not as the other process says")
    return found


def packed(arrays: Arrays) -> tuple[list[Any], list[Buffer]]:
    """Arrays as JSON says of them, and their bytes: what lies in no slot, text above all."""
    parts = [array_bytes(array) for array in arrays.values()]
    listed = [
        [name, dtype_name(array.dtype), array.shape, memoryview(part).nbytes]
        for (name, array), part in zip(arrays.items(), parts, strict=True)
    ]
    return listed, parts


def unpacked(listed: Any, data: memoryview) -> dict[str, NDArray[np.generic]]:
    """The arrays that were packed.

    Raises:
        PenstockError: they are not as it is said of them.
    """
    found, at = {}, 0
    for name, dtype, shape, size in listed:
        if dtype not in SERVED_DTYPES:
            raise PenstockError(f"array {name!r} is of {dtype!r}, as none is")
        found[name] = from_bytes(name, data[at : at + size], dtype, tuple(shape))
        at += size
    return found


def told_with(kind: int, content: dict[str, Any], arrays: Arrays) -> bytes:
    """A frame of JSON, and of arrays behind it."""
    listed, parts = packed(arrays)
    text = orjson.dumps({**content, "arrays": listed})
    return frame(kind, _SIZE.pack(len(text)), text, *parts)


def read_with(content: bytes | memoryview) -> tuple[dict[str, Any], dict[str, NDArray[np.generic]]]:
    """The JSON and the arrays of such a frame."""
    (size,) = _SIZE.unpack_from(content)
    begin, data = _SIZE.size, memoryview(content)
    held: dict[str, Any] = orjson.loads(data[begin : begin + size])
    return held, unpacked(held["arrays"], data[begin + size :])


def fill(memory: Any, slot: int, held: tuple[Place, ...], arrays: Arrays) -> None:
    """Copy arrays to where they lie in a slot."""
    for place in held:
        place.at(memory, slot)[...] = arrays[place.name]
