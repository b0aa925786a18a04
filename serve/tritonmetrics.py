"""Figures under the names that Triton gives them, so that what was made for Triton shows them too.

Names and meanings: docs/user_guide/metrics.md in Triton's server repository. Durations are microseconds in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from penstock.serve.statistics import Statistics

_LABELS = ("model", "version")


def families(models: Iterable[tuple[str, int, Statistics, int]]) -> Iterator[Metric]:
    """Triton's metrics of models.

    Args:
        models: of each its name, version, statistics, and how many of its requests wait.
    """
    counted = {
        "nv_inference_request_success": "Requests that were answered.",
        "nv_inference_request_failure": "Requests that were not.",
        "nv_inference_count": "Rows that were computed.",
        "nv_inference_exec_count": "Batches that were computed.",
        "nv_inference_request_duration_us": "From a request's inputs to its outputs, over all that were answered.",
        "nv_inference_queue_duration_us": "From queue to batch, over all that were answered.",
        "nv_inference_compute_input_duration_us": "Copies to the runtime are part of computing: always 0.",
        "nv_inference_compute_infer_duration_us": "The batches of all that were answered.",
        "nv_inference_compute_output_duration_us": "Copies from the runtime are part of computing: always 0.",
    }
    # Of a counter prometheus_client would write another name, one that ends in _total.
    found = {name: Metric(name, said, "unknown") for name, said in counted.items()}
    waiting = GaugeMetricFamily("nv_inference_pending_request_count", "Requests that wait.", labels=_LABELS)
    for name, version, told, pending in models:
        labels = {"model": name, "version": str(version)}
        waiting.add_metric(tuple(labels.values()), pending)
        values = (
            *(told.success.count, told.fail.count, told.rows, told.executions),
            *(told.success.ns // 1000, told.queue.ns // 1000, 0, told.compute.ns // 1000, 0),
        )
        for metric, value in zip(found.values(), values, strict=True):
            metric.add_sample(metric.name, labels, value)
    yield from found.values()
    yield waiting
