"""Statistics of one model, in the words of the protocol's statistics extension.

Counts and nanoseconds since the model was loaded; see extension_statistics.md in Triton's server repository.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.serve.scheduler import Observer
from penstock.serve.times import Times


@dataclass
class Figure:
    """How often, and how long in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds

    @property
    def ns(self) -> int:
        """The same in nanoseconds."""
        return round(1e9 * self.seconds)

    def as_dict(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


@dataclass
class Statistics:
    """What one model has done; an `Observer` of its scheduler. All calls come on the event loop."""

    last_ms: int = 0
    rows: int = 0
    executions: int = 0
    success: Figure = field(default_factory=Figure)
    fail: Figure = field(default_factory=Figure)
    queue: Figure = field(default_factory=Figure)
    compute: Figure = field(default_factory=Figure)
    batches: dict[int, Figure] = field(default_factory=lambda: defaultdict(Figure))

    def batch(self, rows: int, waits_s: list[float], compute_s: float) -> None:
        self.executions += 1
        self.rows += rows
        self.batches[rows].add(compute_s)
        self.last_ms = time.time_ns() // 1_000_000

    def closed(self, reason: str) -> None:
        """Why batches were closed is none of the extension's figures."""

    def request(self, seconds: float, times: Times | None = None, *, answered: bool) -> None:
        """Count a request that was answered, or that failed; of the former, its times in the queue and in its batch."""
        (self.success if answered else self.fail).add(seconds)
        if answered and times is not None:
            self.queue.add(times.queue_s)
            self.compute.add(times.compute_s)

    def answered(self, requests: Sequence[Times], now: float) -> None:
        """Count several that were answered by now, a moment of `time.perf_counter`."""
        count = len(requests)
        self.success.add(sum([now - request.started for request in requests]), count)
        self.queue.add(sum([request.queue_s for request in requests]), count)
        self.compute.add(sum([request.compute_s for request in requests]), count)

    def as_dict(self, name: str, version: int) -> dict[str, Any]:
        """The extension's `model_stat`. Copies to and from the runtime are part of what its runner takes."""
        within, none = {"count": self.compute.count, "ns": 0}, {"count": 0, "ns": 0}
        return {
            "name": name,
            "version": str(version),
            "last_inference": self.last_ms,
            "inference_count": self.rows,
            "execution_count": self.executions,
            "inference_stats": {
                "success": self.success.as_dict(),
                "fail": self.fail.as_dict(),
                "queue": self.queue.as_dict(),
                "compute_input": within,
                "compute_infer": self.compute.as_dict(),
                "compute_output": within,
                "cache_hit": none,
                "cache_miss": none,
            },
            "batch_stats": [
                {
                    "batch_size": size,
                    "compute_input": {"count": figure.count, "ns": 0},
                    "compute_infer": figure.as_dict(),
                    "compute_output": {"count": figure.count, "ns": 0},
                }
                for size, figure in sorted(self.batches.items())
            ],
            "memory_usage": [],
        }


class Told:
    """Observers that are told the same."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def batch(self, rows: int, waits_s: list[float], compute_s: float) -> None:
        for observer in self._observers:
            observer.batch(rows, waits_s, compute_s)

    def closed(self, reason: str) -> None:
        for observer in self._observers:
            observer.closed(reason)
