"""What passes between the bench and its generators, over pipes: JSON, and bytes behind it; nothing is pickled."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
Frame = tuple[dict[str, Any], list[bytes]]


class Ended(Exception):
    """The other end of the pipe is closed."""


def write(pipe: int, told: dict[str, Any], parts: Sequence[bytes | memoryview] = ()) -> None:
    """Send a frame.

    Raises:
        BrokenPipeError: nobody reads.
    """
    sizes = [memoryview(part).nbytes for part in parts]
    text = json.dumps({**told, "sizes": sizes}).encode()
    for part in (_LENGTH.pack(len(text)), text, *parts):
        left = memoryview(part).cast("B")
        while left:
            left = left[os.write(pipe, left) :]


def read(pipe: int) -> Frame:
    """Wait for a frame, and read it.

    Raises:
        Ended: there is none to come.
    """
    (size,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    told = json.loads(_exactly(pipe, size))
    return told, [_exactly(pipe, length) for length in told.pop("sizes")]


def _exactly(pipe: int, size: int) -> bytes:
    parts, left = [], size
    while left:
        data = os.read(pipe, min(left, 1 << 20))
        if not data:
            raise Ended
        parts.append(data)
        left -= len(data)
    return b"".join(parts)
