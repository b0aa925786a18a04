"""When requests are of no more use, all on one timer: most are answered long before, and one of its own costs each."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

# So many may be past before they are looked through.
_LEAST = 256


class Deadlines:
    """Moments of the running event loop's clock, of which the earliest has the timer.

    Args:
        late: told what was to be over at a moment, and is not.
    """

    def __init__(self, late: Callable[[Any], None]) -> None:
        self._late = late
        # Of each its moment, a number that no other has, and what it is of: None once that is over.
        self._heap: list[list[Any]] = []
        self._most = _LEAST
        self._timer: asyncio.TimerHandle | None = None
        self._next = float("inf")

    def add(self, at: float, number: int, held: Any) -> list[Any]:
        """Have `late` told of what is held at a moment; what is given back is for `over`."""
        if len(self._heap) >= self._most:
            self._heap = [entry for entry in self._heap if entry[2] is not None]
            heapq.heapify(self._heap)
            self._most = max(_LEAST, 2 * len(self._heap))
        entry = [at, number, held]
        heapq.heappush(self._heap, entry)
        if at < self._next:
            self._wait(at)
        return entry

    def close(self) -> None:
        """Tell nobody of anything any more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next, self._timer = at, asyncio.get_running_loop().call_at(at, self._look)

    def _look(self) -> None:
        self._next, self._timer = float("inf"), None
        now = asyncio.get_running_loop().time()
        while self._heap and (self._heap[0][2] is None or self._heap[0][0] <= now):
            held = heapq.heappop(self._heap)[2]
            if held is not None:
                self._late(held)
        if self._heap:
            self._wait(self._heap[0][0])


def over(entry: list[Any]) -> None:
    """What was to be over at a moment is over by now, and held no more."""
    entry[2] = None
