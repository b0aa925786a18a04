"""Which of the waiting items run next, together: a pure function over the queue."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.serve import deadlines
from penstock.serve.times import Times


class Reply(Protocol):
    """Told once how an item ended, on the event loop, and must not raise; an asyncio.Future is one."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


class Item:
    """One caller's rows. Items with different keys never share a batch; those of one `kind` take alike long.

    `arrived` is of the event loop's clock, whose steps may be a whole millisecond; waits are measured from `entered`.
    `reply` is told how it ended, and says when nobody wants to know any more. It may expire while it is `running`: then
    what `reply` has as `left` is told once its batch has let go of it: of one that hangs, when its thread comes back.
    `deadline` is its entry among those of the scheduler, if it has one, and `timeout_s` what it was then given.
    """

    __slots__ = (
        *("arrived", "deadline", "entered", "key", "kind", "number", "payload", "priority", "queued", "reply"),
        *("returned", "rows", "running", "times", "timeout_s", "urgent"),
    )

    def __init__(
        self,
        payload: Any,
        rows: int,
        key: Hashable,
        priority: int,
        arrived: float,
        urgent: bool,
        reply: Reply,
        number: int,
        times: Times | None = None,
        kind: Hashable = None,
    ) -> None:
        self.payload, self.rows, self.key, self.kind = payload, rows, key, kind
        self.priority, self.number = priority, number
        self.arrived, self.urgent, self.entered = arrived, urgent, time.perf_counter()
        self.reply, self.times = reply, times
        self.deadline: list[Any] | None = None
        self.timeout_s = 0.0
        self.returned = self.queued = self.running = False

    def leave(self) -> None:
        """Told that its batch is over."""
        self.running = False
        if self.reply.done() and (left := getattr(self.reply, "left", None)) is not None:
            left()

    def withdraw(self) -> None:
        """Nobody is to be told anything of it any more."""
        if self.deadline is not None:
            deadlines.over(self.deadline)

    def succeed(self, result: Any) -> None:
        """Tell whoever waits what the answer is."""
        self.withdraw()
        self.reply.set_result(result)

    def fail(self, error: Exception) -> None:
        """Tell whoever waits that there is no answer, if anybody still does."""
        if not self.reply.done():
            self.withdraw()
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
    for key in _keys(queue):
        items, full = _gather((item for item in queue if item.key == key), max_batch)
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


def _keys(queue: Sequence[Item]) -> Iterator[Hashable]:
    """The keys in the queue; no more of a long one is looked at than is asked for."""
    seen: set[Hashable] = set()
    for item in queue:
        if item.key not in seen:
            seen.add(item.key)
            yield item.key


def _gather(items: Iterable[Item], max_batch: int) -> tuple[list[Item], bool]:
    """The items that fit one batch, in order, and whether it is full: nobody overtakes one that did not fit."""
    found: list[Item] = []
    rows = 0
    for item in items:
        rows += item.rows
        if rows > max_batch and found:
            return found, True
        found.append(item)
        if rows >= max_batch:
            return found, True
    return found, False


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
