"""Memory for bodies, taken as they come: a head alone takes none for all that it says.

It grows without being copied. Copying tens of megabytes, and faulting in the pages they are copied to, keeps an event
loop from everybody else for as long as a tenth of a second.
"""

from __future__ import annotations

import mmap
from collections.abc import AsyncIterator

import numpy as np

_ALIGNED = 64
_FIRST = 2**20
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def room(length: int, aligned: int = 0) -> memoryview:
    """Memory of a length, in which what lies from `aligned` on lies as arrays should."""
    held = np.empty(length + _ALIGNED, np.uint8)
    start = -(held.__array_interface__["data"][0] + aligned) % _ALIGNED
    return held.data[start : start + length]


class Room:
    """Memory that is filled a piece at a time, and grows as it is.

    Args:
        most: bytes that it may come to hold.
        aligned: where what lies from there on lies as arrays should.
        whole: memory for all of it, if that is there already.
    """

    def __init__(self, most: int, aligned: int = 0, whole: memoryview | None = None) -> None:
        self.most, self.filled = most, 0
        self._start = -aligned % _ALIGNED
        self._map: mmap.mmap | None = None
        if whole is not None:
            self._view = whole
        elif most <= _FIRST:
            self._view = room(most, aligned)
        else:
            self._grow(_FIRST)

    @property
    def whole(self) -> bool:
        """Whether it holds all that it may."""
        return self.filled >= self.most

    def free(self) -> memoryview:
        """Where the next bytes go: at least one, as long as it is not whole. What it gave before must be let go of."""
        if self.filled == len(self._view) and not self.whole:
            self._double()
        return self._view[self.filled : self.most]

    def took(self, count: int) -> None:
        """So many bytes have been put where they go."""
        self.filled += count

    def add(self, data: bytes | memoryview) -> None:
        """Put bytes behind what is there.

        Raises:
            ValueError: they are more than it may hold.
        """
        end = self.filled + len(data)
        if end > self.most:
            raise ValueError(f"{len(data)} bytes more than {self.filled} are over {self.most}")
        while end > len(self._view):
            self._double()
        self._view[self.filled : end] = data
        self.filled = end

    def content(self) -> memoryview:
        """What it holds."""
        return self._view[: self.filled]

    def _double(self) -> None:
        self._grow(min(self.most, 2 * len(self._view)))

    def _grow(self, size: int) -> None:
        if self._map is None:
            self._map = mmap.mmap(-1, self._start + size, flags=_PRIVATE)
        else:
            self._view.release()
            self._map.resize(self._start + size)  # moves pages, not bytes
        self._view = memoryview(self._map)[self._start :]


async def gathered(pieces: AsyncIterator[bytes], most: int, aligned: int = 0) -> memoryview:
    """All pieces as one, which come to no more than `most` bytes; what lies from `aligned` on lies as arrays should."""
    first, held = b"", None
    async for piece in pieces:
        if held is None and not first:
            first = piece
        elif piece:
            if held is None:
                held = Room(most, aligned)
                held.add(first)
            held.add(piece)
    if held is None:  # of a known length
        held = Room(len(first), aligned)
        held.add(first)
    return held.content()
