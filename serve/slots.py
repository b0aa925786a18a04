"""Places in a piece of memory that two processes share: whose they are is decided by one of the two alone.

`Places` says which bytes are free, and knows of no memory; `Slots` hands them out as arrays of bytes, and takes each
back when the last view of it is gone. So whoever still looks at a request, or waits for its answer, keeps its slot by
keeping a view; nobody has to give anything back, and nothing is left taken if they fail to.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.laid import address
from penstock.serve.errors import RequestError
from penstock.serve.outcomes import QueueFull

ALIGNED = 64
"""Where slots begin, in bytes: as memory for vector instructions is aligned."""
_MOST_RECEIVED = 4 * 2**20


class Places:
    """Which bytes of so many are free: the lowest that fit are taken, so that few pages are in use.

    Neighbours that are free are one place. A first fit in the order of addresses (Knuth, The Art of Computer
    Programming, volume 1, section 2.5).
    """

    def __init__(self, size: int) -> None:
        self.free = size - size % ALIGNED
        self._starts = [0]
        self._ends = [self.free]

    def take(self, size: int) -> int | None:
        """Where so many bytes begin that are free no more; None where no place has as many."""
        size = rounded(size)
        for number, start in enumerate(self._starts):
            left = self._ends[number] - start - size
            if left < 0:
                continue
            if left:
                self._starts[number] = start + size
            else:
                del self._starts[number], self._ends[number]
            self.free -= size
            return start
        return None

    def give(self, start: int, size: int) -> None:
        """Have bytes back that were taken."""
        end = start + rounded(size)
        number = bisect.bisect_left(self._starts, start)
        joins_left = number > 0 and self._ends[number - 1] == start
        joins_right = number < len(self._starts) and self._starts[number] == end
        if joins_left and joins_right:
            self._ends[number - 1] = self._ends[number]
            del self._starts[number], self._ends[number]
        elif joins_left:
            self._ends[number - 1] = end
        elif joins_right:
            self._starts[number] = start
        else:
            self._starts.insert(number, start)
            self._ends.insert(number, end)
        self.free += end - start


class Slots:
    """Memory to hand out, of a Linux memfd: it is no file, so that nothing is left of it.

    Args:
        size: of the memory, in bytes; its pages are taken as they are first used.
    """

    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("penstock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.size = size
        self._all = mapped(self.fd)
        self._begin = address(self._all)
        self._places = Places(size)
        self._held: dict[int, weakref.ref[Any]] = {}
        # The last view may go at any moment, in any thread, and amid whatever is done here.
        self._gone: deque[tuple[int, int]] = deque()

    @property
    def taken(self) -> int:
        """How many slots there are views of."""
        self._settle()
        return len(self._held)

    @property
    def free(self) -> int:
        """Bytes that are in no slot."""
        self._settle()
        return self._places.free

    def take(self, size: int) -> memoryview | None:
        """So many bytes of the memory; None where there is no place for them. To be called in one thread alone."""
        held = self.take_at(size)
        return None if held is None else held[1]

    def take_at(self, size: int) -> tuple[int, memoryview] | None:
        """The same, and before them where they begin."""
        self._settle()
        start = self._places.take(size)
        if start is None:
            return None
        slot, gone = np.frombuffer(self._all, np.uint8, size, start), self._gone
        self._held[start] = weakref.ref(slot, lambda _: gone.append((start, size)))
        return start, slot.data  # which holds the slot, as does whatever is made of it

    def refusal(self, size: int) -> PenstockError:
        """Why there is no place for so many bytes: for now, or because there never is."""
        if size > self.size:
            return RequestError(f"its tensors take {size} bytes; {self.size} are the most here (--slots-mb)", 413)
        return QueueFull("all memory for requests is taken; try again soon (--slots-mb)")

    def _settle(self) -> None:
        while self._gone:
            start, size = self._gone.popleft()
            del self._held[start]
            self._places.give(start, size)

    def receive(self, size: int, aligned: int) -> memoryview | None:
        """Memory for what a client sends, whose arrays begin at `aligned`; None where it is long, or little is left.

        What is announced may never come. So the last of the memory is for requests that are there.
        """
        self._settle()
        if size > _MOST_RECEIVED or self._places.free - size < self.size // 4:
            return None
        start = -aligned % ALIGNED
        held = self.take(start + size)
        return None if held is None else held[start:]

    def place(self, array: NDArray[np.generic]) -> int | None:
        """Where an array lies in this memory; None where it lies elsewhere, or not in order."""
        if not array.flags.c_contiguous:
            return None
        start = address(array) - self._begin
        return start if start >= 0 and start + array.nbytes <= self.size else None


def mapped(fd: int) -> mmap.mmap:
    """The memory behind a file descriptor."""
    return mmap.mmap(fd, 0)


def rounded(size: int) -> int:
    """Bytes that a slot for so many takes."""
    return -(-size // ALIGNED) * ALIGNED or ALIGNED
