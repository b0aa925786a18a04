"""The queue of one scheduler: items in order of priority and arrival, counted and bounded in rows."""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Mapping, Sequence

from penstock.serve.batches import LAST, Item, order
from penstock.serve.curves import Curve
from penstock.serve.outcomes import QueueFull, Unmeetable


class Queue:
    """What waits for an instance.

    Args:
        max_rows: rows that may wait; more are refused.
        max_batch: rows of one batch at most.
    """

    def __init__(self, max_rows: int, max_batch: int) -> None:
        self.items: list[Item] = []
        # Rows that wait, and those of them that wait behind a batch, as part of the next.
        self.rows = self.handed = 0
        self.max_rows = max_rows
        self._max_batch = max_batch
        # Rows by priority, key and kind: whoever has a deadline is held against them, and a queue may be long.
        self._groups: dict[tuple[int, Hashable, Hashable], int] = {}

    def admit(self, rows: int, taken: int) -> None:
        """Make room for rows, where those who give way leave enough.

        Args:
            rows: how many.
            taken: rows of the queue that idle instances are about to take, which do not wait.

        Raises:
            QueueFull: there is none.
        """
        over = self.rows + rows - self.max_rows - taken
        while over > 0 and self.items and self.items[-1].priority >= LAST:
            item = self.items[-1]
            self.discard(item)
            item.fail(QueueFull("it gave way to others"))
            over -= item.rows
        if over > 0:
            raise QueueFull(f"{self.rows} rows are waiting and the queue holds {self.max_rows}; try again soon")

    def enter(self, item: Item) -> None:
        item.queued = True
        self._count(item, item.rows)
        if not self.items or ((last := self.items[-1]).priority <= item.priority and last.number < item.number):
            self.items.append(item)  # as nearly all do
        else:
            bisect.insort(self.items, item, key=order)

    def leave(self, items: Sequence[Item]) -> None:
        """Take out several that wait."""
        self._take_out(items)
        self._count_out(items)

    def hand(self, items: Sequence[Item]) -> None:
        """Take out several that wait on, behind a batch; they count until that is over, which `begun` is told."""
        self._take_out(items)
        self.handed += sum(item.rows for item in items)

    def begun(self, items: Sequence[Item]) -> None:
        """Those that were handed on wait no longer."""
        self._count_out(items)
        self.handed -= sum(item.rows for item in items)

    def discard(self, item: Item) -> None:
        """Take an item out, if it still waits."""
        if item.queued:
            self.leave([item])

    def _take_out(self, items: Sequence[Item]) -> None:
        if all(item is held for item, held in zip(items, self.items, strict=False)):
            del self.items[: len(items)]  # as nearly all do
        else:
            for item in items:
                del self.items[bisect.bisect_left(self.items, order(item), key=order)]
        for item in items:
            item.queued = False

    def meet(self, item: Item, timeout_s: float, curve: Curve, instances: int) -> None:
        """Refuse an item that could not be answered in time, however well everything goes.

        Raises:
            Unmeetable: by the shortest that such batches have taken of late, its own and those before it.
        """
        if timeout_s > curve.longest_s * (2 + self.rows):
            return
        ahead: dict[tuple[Hashable, Hashable], int] = {}
        for (priority, key, kind), count in self._groups.items():
            if priority <= item.priority:
                ahead[key, kind] = ahead.get((key, kind), 0) + count
        own_s = curve.at_least(item.kind, item.rows, item.arrived)
        before_s = self._least_s(ahead, item, curve) / instances
        if own_s + before_s <= timeout_s:
            return
        rows = sum(ahead.values())
        if not own_s:  # nothing is known of such a batch
            raise Unmeetable(
                f"no answer is possible within the timeout of {timeout_s:g} s: {rows} rows wait before it, and those "
                f"take {before_s:.2g} s at the least"
            )
        raise Unmeetable(
            f"no answer is possible within the timeout of {timeout_s:g} s: {rows} rows wait before it, and such a "
            f"batch takes {own_s:.2g} s at the least"
        )

    def _least_s(self, ahead: Mapping[tuple[Hashable, Hashable], int], item: Item, curve: Curve) -> float:
        """Seconds that the batches take at least that go before an item's own, one after the other."""
        total_s = 0.0
        for (key, kind), count in ahead.items():
            # Its own batch takes along those of its key that fill none.
            batches = count // self._max_batch if key == item.key else -(-count // self._max_batch)
            total_s += batches * curve.at_least(kind, min(count, self._max_batch), item.arrived)
        return total_s

    def _count_out(self, items: Sequence[Item]) -> None:
        """Count several no longer: those of a batch at once, which are of one group mostly."""
        if not items:
            return
        rows, first = 0, items[0]
        for item in items:
            if item.kind == first.kind and item.key == first.key and item.priority == first.priority:
                rows += item.rows
            else:
                self._count(item, -item.rows)
        self._count(first, -rows)

    def _count(self, item: Item, rows: int) -> None:
        self.rows += rows
        group = item.priority, item.key, item.kind
        count = self._groups.get(group, 0) + rows
        if count:
            self._groups[group] = count
        else:
            del self._groups[group]
