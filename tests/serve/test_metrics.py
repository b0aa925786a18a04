"""The server's figures in Prometheus' text format."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.runtimes.fake import FakeRunner
from penstock.serve.batches import REASONS
from penstock.serve.instances import RunnerBatches
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model
from penstock.signature import Signature


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


MODEL = (("model", "m"), ("version", "3"))


def test_a_batch_is_counted_in_rows_seconds_and_waits() -> None:
    metrics = Metrics()
    observer = metrics.observer("m", 3)
    observer.batch(6, [0.25, 0.5, 0.0], 0.125)
    found = samples(metrics)
    assert found["penstock_batch_rows_sum", MODEL] == 6
    assert found["penstock_batch_rows_count", MODEL] == 1
    assert found["penstock_compute_seconds_sum", MODEL] == 0.125
    assert found["penstock_queue_seconds_sum", MODEL] == 0.75
    assert found["penstock_queue_seconds_count", MODEL] == 3


def test_batches_are_counted_by_why_they_were_closed() -> None:
    metrics = Metrics()
    observer = metrics.observer("m", 3)
    for reason in ("full", "idle", "full"):
        observer.closed(reason)
    found = samples(metrics)
    counts = {
        reason: found["penstock_batches_closed_total", (MODEL[0], ("reason", reason), MODEL[1])] for reason in REASONS
    }
    assert counts == {"full": 2, "key": 0, "idle": 1, "delay": 0, "free": 0, "shared": 0}


def test_two_servers_in_one_process_do_not_share_figures() -> None:
    one, other = Metrics(), Metrics()
    one.answered("m", 200, 0.1)
    counted = ("penstock_requests_total", (("code", "200"), ("model", "m")))
    assert samples(one)[counted] == 1
    assert counted not in samples(other)


def test_every_metric_carries_the_product_s_prefix() -> None:
    metrics = Metrics()
    metrics.observer("m", 3)
    families = {family.name for family in text_string_to_metric_families(metrics.text().decode())}
    assert families >= {"penstock_requests", "penstock_request_seconds", "penstock_queue_seconds"}
    assert all(name.startswith("penstock_") for name in families)


def test_a_model_feeds_the_figures_as_it_answers(pair_signature: Signature) -> None:
    metrics = Metrics()
    model = Model("m", 3, pair_signature, None, lambda: RunnerBatches(FakeRunner(pair_signature)), Limits(), metrics)
    inputs = {"ids": np.ones((5, 2), np.int64), "weight": np.ones(5, np.float32)}
    asyncio.run(model.infer(inputs))
    found = samples(metrics)
    assert found["penstock_batch_rows_sum", MODEL] == 5
    assert found["penstock_queue_seconds_count", MODEL] == 1


def test_a_value_counts_in_every_bucket_whose_bound_it_does_not_exceed() -> None:
    metrics = Metrics()
    for seconds in (0.0, 0.0001, 0.00011, 30.0, 31.0):
        metrics.answered("m", 200, seconds)
    found = samples(metrics)

    def bucket(end: str) -> float:
        return found["penstock_request_seconds_bucket", (("le", end), ("model", "m"))]

    assert [bucket(end) for end in ("0.0001", "0.00025", "10.0", "30.0", "+Inf")] == [2, 3, 3, 4, 5]
    assert found["penstock_request_seconds_count", (("model", "m"),)] == 5
    assert found["penstock_request_seconds_sum", (("model", "m"),)] == pytest.approx(61.00021)


def test_models_that_answer_and_those_that_do_not_are_told_apart() -> None:
    metrics = Metrics()
    metrics.ready("good", is_ready=True)
    metrics.ready("bad", is_ready=False)
    found = samples(metrics)
    assert found["penstock_model_ready", (("model", "good"),)] == 1
    assert found["penstock_model_ready", (("model", "bad"),)] == 0


def test_figures_of_versions_that_another_took_the_place_of_are_dropped() -> None:
    metrics = Metrics()
    for version in (1, 2):
        metrics.observer("m", version).batch(1, [0.0], 0.1)
    metrics.observer("unloaded", 7).batch(1, [0.0], 0.1)
    metrics.forget("m", 1)
    metrics.readiness({"m": True, "unloaded": False})
    found = {labels for name, labels in samples(metrics) if name == "penstock_batch_rows_count"}
    assert found == {(("model", "m"), ("version", "2")), (("model", "unloaded"), ("version", "7"))}
    assert samples(metrics)["penstock_model_ready", (("model", "unloaded"),)] == 0
