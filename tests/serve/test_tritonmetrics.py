"""Triton's names for what was counted."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from penstock.serve.metrics import Metrics
from penstock.serve.statistics import Statistics
from penstock.serve.times import Times
from penstock.serve.tritonmetrics import families


def test_statistics_stand_under_triton_s_names() -> None:
    told = Statistics()
    told.batch(3, [0.001, 0.002], 0.5)
    told.batch(1, [0.0], 0.25)
    told.request(0.6, Times(queue_s=0.001, compute_s=0.5), answered=True)
    told.request(0.7, Times(queue_s=0.002, compute_s=0.75), answered=True)
    told.request(0.1, Times(queue_s=0.1), answered=False)
    text = Metrics().text(families([("m", 2, told, 5)])).decode()
    found = {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    values = {
        "request_success": 2,
        "request_failure": 1,
        "count": 4,
        "exec_count": 2,
        "request_duration_us": 1_300_000,
        "queue_duration_us": 3_000,
        "compute_input_duration_us": 0,
        "compute_infer_duration_us": 1_250_000,
        "compute_output_duration_us": 0,
        "pending_request_count": 5,
    }
    labels = {"model": "m", "version": "2"}
    assert found == {f"nv_inference_{name}": (labels, value) for name, value in values.items()}
