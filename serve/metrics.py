"""Prometheus metrics of one server.

Every figure is told of on the event loop, many times for each request, so counting takes no locks and looks nothing
up; prometheus_client writes them down when they are asked for.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from penstock.serve.batches import REASONS

_SECONDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PARTS = 12


def _divided(bounds: Sequence[float]) -> Iterator[float]:
    """The bounds, and others between each two of them, a tenth at most above the one before."""
    yield bounds[0]
    for low, high in itertools.pairwise(bounds):
        yield from (low * (high / low) ** (part / _PARTS) for part in range(1, _PARTS))
        yield high


SECONDS = tuple(_divided(_SECONDS))
"""By which seconds are counted, so that percentiles can be told; Prometheus is told fewer."""


class Distribution:
    """How many values fell into each bucket, bounds included, and what they add up to.

    Args:
        bounds: of the buckets, rising; above the last there is one more.
        told: those that Prometheus is told of, if not all.
    """

    __slots__ = ("_bounds", "_counts", "_sum", "_told")

    def __init__(self, bounds: Sequence[float], told: Sequence[float] | None = None) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0
        self._told = bounds if told is None else told

    @property
    def counts(self) -> list[int]:
        """How many values fell into each bucket."""
        return self._counts

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def taken(self) -> list[float]:
        """The counts and the sum since this was last asked, from which it begins anew."""
        found = [*self._counts, self._sum]
        self._counts, self._sum = [0] * len(self._counts), 0.0
        return found

    def add(self, taken: Sequence[float]) -> None:
        """Count what another of the same bounds has counted."""
        *counts, total = taken
        self._counts = [held + int(more) for held, more in zip(self._counts, counts, strict=True)]
        self._sum += total

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Write it down as Prometheus has it: each bucket holds those below it too."""
        *below, total = itertools.accumulate(self._counts)
        held = dict(zip(self._bounds, below, strict=True))
        ends = zip(map(floatToGoString, self._told), map(held.__getitem__, self._told), strict=True)
        family.add_metric(labels, [*ends, ("+Inf", total)], self._sum)


def _of_seconds() -> Distribution:
    return Distribution(SECONDS, _SECONDS)


@dataclass(eq=False)
class _Families(Collector):
    """Families that are there already."""

    held: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.held


class Metrics:
    """The server's own figures, so that two servers in one process do not share them."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], int] = {}
        self._seconds: dict[str, Distribution] = {}
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self._ready: dict[str, bool] = {}
        self._others: list[Callable[[], Iterable[Metric]]] = []

    def include(self, others: Callable[[], Iterable[Metric]]) -> None:
        """Write down, too, what others count, who are asked each time."""
        self._others.append(others)

    def observer(self, name: str, version: int) -> ModelMetrics:
        """The metrics that one model's scheduler feeds."""
        return self._models.setdefault((name, str(version)), ModelMetrics())

    def answered(self, model: str, status: int, seconds: float) -> None:
        """Count a request: the model's name, empty for one that is not served, and how it ended."""
        key = model, str(status)
        self._requests[key] = self._requests.get(key, 0) + 1
        held = self._seconds.get(model)
        if held is None:
            held = self._seconds[model] = _of_seconds()
        held.observe(seconds)

    def taken(self) -> dict[str, Any]:
        """Requests that were counted since this was last asked, as JSON may have it; they are counted no more here."""
        requests, self._requests = self._requests, {}
        seconds, self._seconds = self._seconds, {}
        return {
            "requests": [[*key, count] for key, count in requests.items()],
            "seconds": {model: held.taken() for model, held in seconds.items()},
        }

    def add(self, taken: Mapping[str, Any]) -> None:
        """Count requests that another process has counted."""
        for model, status, count in taken["requests"]:
            self._requests[model, status] = self._requests.get((model, status), 0) + count
        for model, more in taken["seconds"].items():
            self._seconds.setdefault(model, _of_seconds()).add(more)

    def of(self, model: str, version: int) -> dict[str, Any]:
        """What was counted of one model, as JSON may have it: requests by how they ended, and seconds in `SECONDS`.

        Its requests are those of all its versions, and its batches this version's.
        """
        requests, seconds = self._requests, self._seconds.get(model)
        figures = self._models.get((model, str(version)))
        return {
            "codes": {code: count for (name, code), count in requests.items() if name == model},
            "seconds": [] if seconds is None else seconds.counts,
            "queue": [] if figures is None else figures.queue.counts,
            "compute": [] if figures is None else figures.compute.counts,
        }

    def ready(self, model: str, *, is_ready: bool) -> None:
        """Whether a model answers."""
        self._ready[model] = is_ready

    def readiness(self, models: dict[str, bool]) -> None:
        """Whether each model answers, of all that there are now."""
        self._ready = models

    def forget(self, name: str, version: int) -> None:
        """Drop the figures of a version that another took the place of: a server may see thousands of them."""
        self._models.pop((name, str(version)), None)

    def text(self, more: Iterable[Metric] = ()) -> bytes:
        """All figures, in Prometheus' text format, and more that others have."""
        registry = CollectorRegistry()
        others = itertools.chain.from_iterable(families() for families in self._others)
        registry.register(_Families([*self.collect(), *others, *more]))
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Every family, as prometheus_client wants it of a collector."""
        requests = CounterMetricFamily("penstock_requests", "Answered requests.", labels=("model", "code"))
        for key, count in self._requests.items():
            requests.add_metric(key, count)
        yield requests
        spent = "From the request to its answer; of infer requests, once they are whole."
        seconds = HistogramMetricFamily("penstock_request_seconds", spent, labels=("model",))
        for model, held in self._seconds.items():
            held.add_to(seconds, (model,))
        yield seconds
        yield from self._of_models()
        ready = GaugeMetricFamily("penstock_model_ready", "1 if the model answers, else 0.", labels=("model",))
        for model, is_ready in self._ready.items():
            ready.add_metric((model,), is_ready)
        yield ready

    def _of_models(self) -> Iterator[Metric]:
        labels = ("model", "version")
        queue = HistogramMetricFamily("penstock_queue_seconds", "From queue to batch.", labels=labels)
        compute = HistogramMetricFamily("penstock_compute_seconds", "One batch in its runner.", labels=labels)
        rows = HistogramMetricFamily("penstock_batch_rows", "Rows of a batch.", labels=labels)
        closed = CounterMetricFamily(
            "penstock_batches_closed", "Batches, by why they were closed.", labels=(*labels, "reason")
        )
        for key, figures in list(self._models.items()):  # models are loaded beside the event loop
            figures.queue.add_to(queue, key)
            figures.compute.add_to(compute, key)
            figures.rows.add_to(rows, key)
            for reason, count in figures.reasons.items():
                closed.add_metric((*key, reason), count)
        yield from (queue, compute, rows, closed)


class ModelMetrics:
    """One model's figures; an `Observer` of its scheduler."""

    def __init__(self) -> None:
        self.queue, self.compute = _of_seconds(), _of_seconds()
        self.rows = Distribution(_ROWS)
        self.reasons = dict.fromkeys(REASONS, 0)

    def batch(self, rows: int, waits_s: list[float], compute_s: float) -> None:
        self.rows.observe(rows)
        self.compute.observe(compute_s)
        for wait in waits_s:
            self.queue.observe(wait)

    def closed(self, reason: str) -> None:
        self.reasons[reason] += 1
