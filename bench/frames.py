"""What passes between the bench and its generators, over pipes: JSON, and bytes behind it; nothing is pickled."""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
Frame = tuple[dict[str, Any], list[bytes]]


class Ended(Exception):
    """The other end of the pipe is closed, or says nothing more."""


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


def read(pipe: int, until: float = float("inf")) -> Frame:
    """Wait for a frame, and read it.

    Args:
        pipe: where from.
        until: the moment (time.monotonic) at which the rest of it is given up.

    Raises:
        Ended: there is none to come, or not in time.
    """
    (size,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size, until))
    told = json.loads(_exactly(pipe, size, until))
    return told, [_exactly(pipe, length, until) for length in told.pop("sizes")]


def _exactly(pipe: int, size: int, until: float) -> bytes:
    parts, left = [], size
    watched = select.poll()
    watched.register(pipe, select.POLLIN)
    while left:
        wait_ms = None if until == float("inf") else max(0, int(1e3 * (until - time.monotonic())))
        if not watched.poll(wait_ms):
            raise Ended
        data = os.read(pipe, min(left, 1 << 20))
        if not data:
            raise Ended
        parts.append(data)
        left -= len(data)
    return b"".join(parts)
