"""Prometheus metrics of one server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each figure, which nobody reads

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


class Metrics:
    """The server's own registry, so that two servers in one process do not share figures."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # Looked up once: finding a labelled child costs more than observing it.
        self._answered: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        model = ("model", "version")
        self.requests = Counter("penstock_requests", "Answered requests.", ("model", "code"), registry=self.registry)
        self.seconds = Histogram(
            "penstock_request_seconds",
            "From the request's first line to its answer.",
            ("model",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.queue = Histogram(
            "penstock_queue_seconds", "From queue to batch.", model, buckets=_SECONDS, registry=self.registry
        )
        self.compute = Histogram(
            "penstock_compute_seconds",
            "One batch in its runner.",
            model,
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.rows = Histogram("penstock_batch_rows", "Rows of a batch.", model, buckets=_ROWS, registry=self.registry)
        self.pending = Gauge("penstock_pending_rows", "Rows that wait for a batch.", model, registry=self.registry)
        self.ready = Gauge(
            "penstock_model_ready", "1 if the model answers, else 0.", ("model",), registry=self.registry
        )

    def observer(self, name: str, version: int) -> ModelMetrics:
        """The metrics that one model's scheduler feeds."""
        return ModelMetrics(self, name, str(version))

    def answered(self, model: str, status: int, seconds: float) -> None:
        """Count a request: the model's name, empty for one that is not served, and how it ended."""
        held = self._answered.get((model, status))
        if held is None:
            held = self._answered[model, status] = self.requests.labels(model, str(status)), self.seconds.labels(model)
        held[0].inc()
        held[1].observe(seconds)

    def text(self) -> bytes:
        """All figures, in Prometheus' text format."""
        return generate_latest(self.registry)


class ModelMetrics:
    """One model's figures; an `Observer` of its scheduler."""

    def __init__(self, metrics: Metrics, name: str, version: str) -> None:
        self._queue = metrics.queue.labels(name, version)
        self._compute = metrics.compute.labels(name, version)
        self._rows = metrics.rows.labels(name, version)
        self._pending = metrics.pending.labels(name, version)

    def batch(self, rows: int, waits_s: list[float], compute_s: float) -> None:
        self._rows.observe(rows)
        self._compute.observe(compute_s)
        for wait in waits_s:
            self._queue.observe(wait)

    def pending(self, rows: int) -> None:
        self._pending.set(rows)
