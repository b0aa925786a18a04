"""What is looked up when `/metrics` is asked for: instances and files of models, and the server's own process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from penstock.serve.model import Model

# /proc/self, as prometheus_client names it for every Python process: process_resident_memory_bytes and others.
_PROCESS = ProcessCollector(registry=None)


def processes(pids: Mapping[str, int]) -> Iterator[Metric]:
    """The same of each process of a server of several, by its name: one series each, which begins anew as it does."""
    found: dict[str, Any] = {}
    for name, pid in pids.items():
        for held in ProcessCollector(registry=None, pid=lambda: pid).collect():  # noqa: B023
            kind: Any = type(held)
            family = kind(f"penstock_{held.name}", held.documentation, labels=("process",))
            found.setdefault(held.name, family).add_metric((name,), held.samples[0].value)
    yield from found.values()


def families(models: Iterable[Model]) -> Iterator[Metric]:
    """Families of models, and of the process that serves them."""
    labels = ("model", "version")
    instances = GaugeMetricFamily(
        "penstock_instances", "Instances that compute, wait for work, or died.", labels=(*labels, "state")
    )
    restarts = CounterMetricFamily(
        "penstock_instance_restarts", "Instances that died or hung, and were replaced.", labels=labels
    )
    waiting = GaugeMetricFamily("penstock_pending_rows", "Rows that wait for a batch.", labels=labels)
    sizes = GaugeMetricFamily("penstock_model_file_bytes", "A model's files on disk, in bytes.", labels=labels)
    for model in models:
        key = model.name, str(model.version)
        for state, count in model.scheduler.states.items():
            instances.add_metric((*key, state), count)
        restarts.add_metric(key, model.scheduler.restarts)
        waiting.add_metric(key, model.scheduler.pending_rows)
        sizes.add_metric(key, model.file_bytes)
    yield from (instances, restarts, waiting, sizes)
    yield from _PROCESS.collect()
