"""Which of the waiting items run next, together: a pure function over the queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.serve.times import Times


class Reply(Protocol):
    """Told once how an item ended, on the event loop, and must not raise; an asyncio.Future is one."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


@dataclass(eq=False)
class Item:
    """One caller's rows. Items with different keys never share a batch; those of one `kind` take alike long.

    `arrived` is of the event loop's clock, whose steps may be a whole millisecond; waits are measured from `entered`.
    `reply` is told how it ended, and says when nobody wants to know any more. It may expire while it is `running`: then
    `left` is told once its batch has let go of it, which the thread of one that hangs never does.
    """

    payload: Any
    rows: int
    key: Hashable
    priority: int
    arrived: float
    urgent: bool
    reply: Reply
    number: int
    times: Times | None = None
    kind: Hashable = None
    returned: bool = False
    queued: bool = False
    running: bool = False
    left: Callable[[], None] | None = None
    timer: asyncio.TimerHandle | None = None
    entered: float = field(default_factory=time.perf_counter)

    def leave(self) -> None:
        """Told that its batch is over."""
        self.running = False
        if self.left is not None and self.reply.done():
            self.left()

    def succeed(self, result: Any) -> None:
        """Tell whoever waits what the answer is."""
        if self.timer is not None:
            self.timer.cancel()
        self.reply.set_result(result)

    def fail(self, error: Exception) -> None:
        """Tell whoever waits that there is no answer, if anybody still does."""
        if not self.reply.done():
            if self.timer is not None:
                self.timer.cancel()
            self.reply.set_exception(error)


# From this priority on an item gives way: it leaves the queue where there is no room for another.
LAST = 2**31
# Why a batch was closed: it is full; what else waits is of another key; one of its items met an idle instance; its
# items had waited as long as they may; an instance fell free, and they may not wait. Or it was shared among instances.
REASONS = ("full", "key", "idle", "delay", "free", "shared")


def order(item: Item) -> tuple[int, int]:
    """Where an item stands in the queue."""
    return item.priority, item.number


@dataclass(frozen=True)
class Choice:
    """What to run now (nothing, if empty) and why already, one of `REASONS`; or else when to look again."""

    items: tuple[Item, ...] = ()
    look_again: float | None = None
    reason: str = ""


def choose(queue: Sequence[Item], max_batch: int, now: float, max_delay_s: float = 0.0) -> Choice:
    """The next batch: the first items of one key, as many as fit; of the keys that are due, the one that came first.

    Args:
        queue: waiting items, in order of priority and arrival.
        max_batch: rows that one batch may hold; an item alone may hold no more.
        now: the time, on the clock of `Item.arrived`.
        max_delay_s: how long an item that is not urgent may wait for company.
    """
    postponed: list[float] = []
    for key in dict.fromkeys(item.key for item in queue):
        items, full = _gather([item for item in queue if item.key == key], max_batch)
        due = min(item.arrived for item in items) + max_delay_s
        urgent = any(item.urgent for item in items)
        if full or urgent or now >= due:
            alike = len(items) == len(queue)
            reason = (
                "full" if full else "key" if not alike else "idle" if urgent else "delay" if max_delay_s else "free"
            )
            return Choice(tuple(items), reason=reason)
        postponed.append(due)
    return Choice(look_again=min(postponed, default=None))


def _gather(items: list[Item], max_batch: int) -> tuple[list[Item], bool]:
    """The items that fit one batch, in order, and whether it is full: nobody overtakes one that did not fit."""
    rows = 0
    for index, item in enumerate(items):
        rows += item.rows
        if rows > max_batch and index:
            return items[:index], True
    return items, rows >= max_batch


def share(items: Sequence[Item], instances: int) -> list[Item]:
    """The first of a batch's items, so many that as many idle instances have about as much each."""
    left = -(-sum(item.rows for item in items) // instances)
    taken: list[Item] = []
    for item in items:
        if left <= 0:
            break
        taken.append(item)
        left -= item.rows
    return taken
