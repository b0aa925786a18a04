"""Runs: which give a capacity, and what helps where they are doubtful."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bench import runs


def closed(rate: float, connections: int, **more: Any) -> dict[str, Any]:
    found = {"mode": "closed", "throughput_per_s": rate, "concurrency": connections, "rate_per_s": None}
    generator = {"processes": 2, "busiest_core": 0.1, "waited_for_core": 0.0, "cores": 0.2, "backlogged": 0}
    told = {"void": None, "ended": None, "failures": {}, "requests": 1000, "latencies_s": [], "p99_s": 1.0}
    return {**found, **told, "generator": generator, "answers": {"first_wrong": None}, **more}


@pytest.mark.parametrize("told", [{"ended": "stopped"}, {"void": "late"}, {"failures": {"wrong": 1}}])
def test_a_capacity_is_of_whole_runs_that_count_and_did_not_fail(told: dict[str, Any]) -> None:
    better = closed(900.0, 8, **told)
    assert runs.capacity([closed(500.0, 1), better]) == {"rate_per_s": 500.0, "concurrency": 1}
    assert runs.capacity([better]) is None


def test_requests_that_were_never_sent_are_not_looked_for_in_the_server_s_log() -> None:
    (found,) = runs.warnings(closed(1.0, 1, failures={"unsent": 593}), 512)
    assert "lower --rate" in found["remedy"]
    assert "log" not in found["remedy"]


def test_each_kind_of_failure_has_its_remedy() -> None:
    (found,) = runs.warnings(closed(1.0, 1, failures={"wrong": 3, "status 429": 90}), 512)
    assert "compare a single request" in found["remedy"]
    assert "the key is over its --rate; give a key without one" in found["remedy"]
    (found,) = runs.warnings(closed(1.0, 1, failures={"status 429": 90}), 512)
    assert found["remedy"].startswith("status 429: the key is over its --rate")


@pytest.mark.parametrize(("form", "told"), [("v2-binary", False), ("image", False), ("v2-json", True), ("grpc", True)])
def test_another_form_is_recommended_only_where_it_costs_less(form: str, told: bool) -> None:
    (found,) = runs.warnings(closed(1.0, 1, void="late"), 512, form)
    assert ("--form v2-binary" in found["remedy"]) is told


@pytest.mark.parametrize(("late", "void"), [(0.029, True), (0.002, False)])
def test_a_run_that_was_given_up_is_void_where_the_generator_was_what_was_slow(late: float, void: bool) -> None:
    run = closed(1.0, 1, ended="hopeless", p99_s=None, latencies_s=[0.035] * 245)
    run["generator"]["late_p99_s"] = late
    assert (runs.void(run) is not None) is void
