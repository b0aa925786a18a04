"""Which batches are run on the event loop: in less time than it takes to wake a thread, or while nobody else waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence

from penstock.serve.batches import Item

_QUICK_S = 200e-6
# One that comes alone may take longer. Whoever comes so soon after another does not come alone, and for a while then
# none is taken to.
_LONE_S, _SOON_S, _COMPANY_S = 2e-3, 100e-6, 50e-3
# A batch that holds up the event loop for so long was no quick one: none is for a while, which doubles each time.
_SLOW_S, _PAUSE_S, _LONGEST_PAUSE_S = 20e-3, 1.0, 60.0
_MOST = 1024


class Quick:
    """By the kind of items: the most rows of a batch that was quick.

    Only what takes as long whatever the values are may be judged by its kind: whoever tells of a batch sees to that.

    Args:
        most_s: seconds that a quick batch takes at most.
    """

    def __init__(self, most_s: float | None = None) -> None:
        self._most_s = _QUICK_S if most_s is None else most_s
        self._rows: dict[Hashable, int] = {}
        self._pause_s, self._until = _PAUSE_S, 0.0

    def holds(self, items: Sequence[Item]) -> bool:
        """Whether a batch of as many rows of the kind has been quick."""
        return sum(item.rows for item in items) <= self._rows.get(items[0].kind, 0)

    def told(self, items: Sequence[Item], seconds: float) -> None:
        """How long a batch took in a thread, beside whatever else ran."""
        kind, rows = items[0].kind, sum(item.rows for item in items)
        if seconds > self._most_s or kind is None or time.monotonic() < self._until:
            return
        if rows > self._rows.get(kind, 0) and (kind in self._rows or len(self._rows) < _MOST):
            self._rows[kind] = rows

    def held_up(self, items: Sequence[Item], seconds: float) -> None:
        """How long a batch held up whoever relied on it to be quick."""
        if seconds > _SLOW_S:
            self._rows.clear()
            self._until = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        elif seconds > 5 * self._most_s:
            self._rows.pop(items[0].kind, None)

    def failed(self, items: Sequence[Item], seconds: float) -> None:
        """How long a batch took that failed: what fails is run again, and by whoever sees to that."""
        self.held_up(items, seconds)
        self._rows.pop(items[0].kind, None)


class Company:
    """Whether batches of a process come alone: told of all that come to its event loop, whosever they are."""

    def __init__(self) -> None:
        self._in_threads = 0
        self._none_there: asyncio.Future[None] | None = None
        self._last = self._met = float("-inf")

    def entered(self, *, waiting: bool) -> None:
        """An item came, and found others waiting or not."""
        now = time.monotonic()
        if waiting or self._in_threads or now - self._last < _SOON_S:
            self._met = now
        self._last = now

    def begun(self) -> None:
        """A thread is given work."""
        self._in_threads += 1
        if self._none_there is not None:
            self._none_there.cancel()
            self._none_there = None

    def ended(self) -> None:
        """And has done it."""
        self._in_threads -= 1

    def begins(self) -> asyncio.Future[None]:
        """What is over as soon as a thread is given work; to be asked for on the event loop, while none has any."""
        if self._none_there is None:
            self._none_there = asyncio.get_running_loop().create_future()
        return self._none_there

    def held_up(self) -> None:
        """The loop was at a batch until now: whoever comes at once came meanwhile."""
        self._last = time.monotonic()

    @property
    def alone(self) -> bool:
        """Whether no thread is at work, and nobody has met another for a while."""
        return not self._in_threads and time.monotonic() - self._met > _COMPANY_S


class Lone(Quick):
    """The same of batches that come alone: nobody waits while the event loop runs them.

    A thread is to be woken for a batch, waits for the interpreter after each call of the device's library, and has to
    wake the loop in its turn, which for a lone request may take as long as its batch.

    Args:
        company: of the process.
    """

    def __init__(self, company: Company) -> None:
        super().__init__(_LONE_S)
        self._company = company

    def holds(self, items: Sequence[Item]) -> bool:
        return self._company.alone and super().holds(items)

    def held_up(self, items: Sequence[Item], seconds: float) -> None:
        super().held_up(items, seconds)
        self._company.held_up()
