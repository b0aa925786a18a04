"""Which batches are run in less time than it takes to wake a thread for them."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

from penstock.serve.batches import Item

_QUICK_S = 200e-6
# A batch that holds up the event loop for so long was no quick one: none is for a while, which doubles each time.
_SLOW_S, _PAUSE_S = 20e-3, 1.0
_MOST = 1024


class Quick:
    """By the kind of items: the most rows of a batch that was quick.

    Only what takes as long whatever the values are may be judged by its kind: whoever tells of a batch sees to that.
    """

    def __init__(self) -> None:
        self._rows: dict[Hashable, int] = {}
        self._pause_s, self._until = _PAUSE_S, 0.0

    def holds(self, items: Sequence[Item]) -> bool:
        """Whether a batch of as many rows of the kind has been quick."""
        return sum(item.rows for item in items) <= self._rows.get(items[0].kind, 0)

    def told(self, items: Sequence[Item], seconds: float) -> None:
        """How long a batch took in a thread, beside whatever else ran."""
        kind, rows = items[0].kind, sum(item.rows for item in items)
        if seconds > _QUICK_S or kind is None or time.monotonic() < self._until:
            return
        if rows > self._rows.get(kind, 0) and (kind in self._rows or len(self._rows) < _MOST):
            self._rows[kind] = rows

    def held_up(self, items: Sequence[Item], seconds: float) -> None:
        """How long a batch held up whoever relied on it to be quick."""
        if seconds > _SLOW_S:
            self._rows.clear()
            self._until, self._pause_s = time.monotonic() + self._pause_s, 2 * self._pause_s
        elif seconds > 5 * _QUICK_S:
            self._rows.pop(items[0].kind, None)

    def failed(self, items: Sequence[Item], seconds: float) -> None:
        """How long a batch took that failed: what fails is run again, and by whoever sees to that."""
        self.held_up(items, seconds)
        self._rows.pop(items[0].kind, None)
