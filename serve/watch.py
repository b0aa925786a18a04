"""Watching requests: each that has ended is told to the metrics, and to whoever else wants to know of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.serve.metrics import Metrics
from penstock.serve.records import Record
from penstock.serve.slow import Slow

Told = Callable[[Record], None]


class Watch:
    """Told of every inference request when it has ended, over HTTP and gRPC alike.

    Args:
        metrics: which count it.
        told: what else is told of it, such as a log; each call costs the request's client its time.
    """

    def __init__(self, metrics: Metrics, told: tuple[Told, ...] = ()) -> None:
        self.slow = Slow()
        self._metrics, self._told, self._slow = metrics, told, self.slow.models

    def ended(self, record: Record, model: str, status: int) -> None:
        """Told of an end.

        Args:
            record: the request.
            model: the name that was asked for, empty for one that is not served. It is counted under the model's that
                answered, where the name is a route's.
            status: HTTP's, or what HTTP would have said.
        """
        now = time.perf_counter()
        total = now - record.started
        record.status, record.total_s = status, total
        if not record.model:
            record.model = model
        elif record.model != model:
            record.route, model = model, record.model
        self._metrics.answered(model, status, total)
        for told in self._told:
            told(record)
        slow = self._slow.get(model)
        if slow is None or total > slow.least or now >= slow.ends:
            self.slow.note(record, now)
