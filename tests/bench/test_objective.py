"""The search for --slo-ms by runs that are made up, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.bench import objective
from penstock.bench.generator import Order


def orders(*, rate: float | None = None, seconds: float = 1.0) -> Order:
    return Order(0.0, 0.0, seconds, 1.0, 4, 4, rate)


def runs_of(
    server_per_s: float, generator_per_s: float, made: list[dict[str, Any]]
) -> Callable[[Order, str], dict[str, Any]]:
    """Runs of a server that keeps 1 ms up to a rate, by a generator that is void beyond one of its own."""

    def carry_out(order: Order, purpose: str) -> dict[str, Any]:
        rate = order.rate_per_s or 0.0
        latency = 1e-3 if rate <= server_per_s else 1.0
        made.append(
            {
                **{"purpose": purpose, "rate_per_s": order.rate_per_s, "requests": 1000, "failures": {}},
                **{"latencies_s": [latency] * 1000, "p99_s": latency, "ended": None, "throughput_per_s": 100.0},
                "void": "late" if rate > generator_per_s else None,
            }
        )
        return made[-1]

    return carry_out


def test_a_void_run_does_not_keep_the_limit_whatever_its_latencies_were() -> None:
    made: list[dict[str, Any]] = []
    found = objective.sought(20.0, 1.0, orders, runs_of(900, 500, made), 1)
    assert 470 < found["rate_per_s"] <= 500
    assert found["generator_bound"]
    assert 500 < found["generator_gives_out_per_s"] < 530
    assert made[-1]["void"] is None
    (warning,) = objective.warnings(found, 1)
    assert f"the generator gives out at {found['generator_gives_out_per_s']:,.6g}/s" in warning["text"]
    assert "--processes 2" in warning["remedy"]
    assert "gives out at" in objective.verdict(found, objective.tried(made))


def test_a_run_that_only_a_neighbour_made_void_is_made_once_more() -> None:
    made: list[dict[str, Any]] = []
    carry_out, delayed = runs_of(300, 1e9, made), set[float]()

    def disturbed(order: Order, purpose: str) -> dict[str, Any]:
        run = carry_out(order, purpose)
        if order.rate_per_s is not None and order.rate_per_s <= 300 and order.rate_per_s not in delayed:
            delayed.add(order.rate_per_s)
            run["void"] = "late"
        return run

    found = objective.sought(20.0, 1.0, orders, disturbed, 1)
    assert 280 < found["rate_per_s"] <= 300
    assert not found["generator_bound"]


def test_where_the_server_is_the_limit_the_generator_is_not_blamed() -> None:
    found = objective.sought(20.0, 1.0, orders, runs_of(300, 500, []), 1)
    assert (found["generator_bound"], found["generator_gives_out_per_s"]) == (False, None)
    assert found["p99_s"] == 1e-3
    assert objective.warnings(found, 1) == []
    assert objective.verdict(found, [300.0]).startswith("p99 under 20 ms: kept up to ")


def test_where_no_rate_kept_the_limit_those_that_were_tried_are_told() -> None:
    made: list[dict[str, Any]] = []
    found = objective.sought(0.05, 1.0, orders, runs_of(0, 500, made), 1)
    assert found["rate_per_s"] is None
    said = objective.verdict(found, objective.tried(made))
    assert said == "p99 under 0.05 ms: kept at no rate that was tried, from 1 to 60/s"


def test_a_rate_that_only_a_probe_kept_is_told_as_that() -> None:
    made: list[dict[str, Any]] = []
    carry_out = runs_of(100, 1e9, made)

    def lucky(order: Order, purpose: str) -> dict[str, Any]:
        run = carry_out(order, purpose)
        return {**run, "latencies_s": [1.0] * 1000} if purpose == "confirm" else run

    found = objective.sought(20.0, 1.0, orders, lucky, 1)
    kept = max(run["rate_per_s"] for run in made if run["purpose"] == "probe" and run["rate_per_s"] <= 100)
    assert (found["rate_per_s"], found["probed_per_s"]) == (None, kept)
    assert len(found["refuted_per_s"]) == 5
    assert objective.verdict(found, objective.tried(made)) == (
        f"p99 under 20 ms: a probe kept {kept:,.6g}/s, and 5 longer runs from {0.95**4 * kept:,.6g} to {kept:,.6g}/s "
        "did not; run it again on a machine that is idle, or with longer --seconds"
    )


def test_a_search_of_before_that_has_no_longer_runs_is_told_as_it_was() -> None:
    said = objective.verdict({"slo_ms": 20, "rate_per_s": None}, [5.0, 50.0])
    assert said == "p99 under 20 ms: kept at no rate that was tried, from 5 to 50/s"


def test_a_search_that_did_not_end_says_so_and_judges_nothing() -> None:
    said = objective.verdict(objective.begun(20.0), [60.0, 96.0])
    assert said == "p99 under 20 ms: not known, the search did not end; runs at a rate so far: 2"
    assert "kept" not in said


@pytest.mark.parametrize("purpose", ["sweep", "guess", "rate"])
def test_only_runs_of_the_search_count_as_tried(purpose: str) -> None:
    assert objective.tried([{"purpose": purpose, "rate_per_s": 5.0}]) == []
