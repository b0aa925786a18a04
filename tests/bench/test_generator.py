"""A generator against a server that behaves as the test says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.bench import generator, runs, server
from penstock.bench.answers import Checker, Expected
from penstock.bench.connections import Connections, Endpoint
from penstock.bench.generator import LOST_S, Order, Run
from penstock.bench.tally import Tally, together

ROW = [1.0, 2.0, 3.0, 4.0]


def request(value: float = 1.0) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value * each for each in ROW]}
    body = json.dumps({"inputs": [tensor]}).encode()
    return b"POST /v2/models/double/infer HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def due(value: float = 1.0) -> Expected:
    tensor = {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [2 * value * each for each in ROW]}
    return Expected(json.dumps({"outputs": [tensor]}).encode(), None)


def run(
    port: int, *, precise: bool = False, timed: bool = False, stop: Callable[[], bool] = lambda: False, **told: Any
) -> Tally:
    order = Order(
        **{"begin": time.monotonic(), "warmup_s": 0.1, "seconds": 0.5, "timeout_s": 5.0, "slots": 2, "most": 64, **told}
    )
    road = Connections(Endpoint("127.0.0.1", port), [request(1), request(2)], precise=precise)
    checker = Checker([due(1), due(2)], 0.01)
    try:
        return Run(road, checker.right, 2, order, timed=timed, stop=stop).go()
    finally:
        road.close()


def test_a_closed_loop_has_one_request_under_way_on_each_connection(toy: Callable[..., Any]) -> None:
    tally = run(toy(delay_s=0.02).port, slots=4, seconds=1.0)
    assert tally.failures == {}
    # 4 connections, 20 ms each: 200 a second at most.
    assert 80 < tally.arrived <= 204
    assert np.median(tally.latencies) == pytest.approx(0.02, abs=0.015)
    assert tally.seconds == 1.0


@pytest.mark.parametrize("poisson", [False, True])
def test_an_open_loop_sends_when_it_is_due(toy: Callable[..., Any], poisson: bool) -> None:
    tally = run(toy(delay_s=0.01).port, rate_per_s=200.0, poisson=poisson, seconds=1.0, precise=True, seed=3)
    assert tally.failures == {}
    assert 150 < tally.requests < 260
    assert len(tally.latencies) == tally.requests
    moments = np.sort(tally.moments)
    assert moments[0] >= 0
    assert moments[-1] < 1.0
    if not poisson:
        assert np.diff(moments) == pytest.approx(np.full(len(moments) - 1, 0.005), abs=1e-6)


def test_a_stall_is_charged_for_all_who_would_have_come(toy: Callable[..., Any]) -> None:
    server = toy()
    server.behaviour.stall_at, server.behaviour.stall_s = time.monotonic() + 0.5, 0.4
    # One connection: while it stalls, those who come wait behind.
    tally = run(server.port, rate_per_s=100.0, seconds=1.0, slots=1, most=1)
    slow = np.array(tally.latencies) > 0.05
    assert 25 < slow.sum() < 60
    assert tally.backlogged >= 25


def test_more_connections_are_opened_where_they_are_needed(toy: Callable[..., Any]) -> None:
    tally = run(toy(delay_s=0.2).port, rate_per_s=100.0, slots=1, most=64)
    assert tally.backlogged == 0
    assert 15 < tally.opened < 50
    assert np.median(tally.latencies) == pytest.approx(0.2, abs=0.1)


def test_what_was_due_while_the_generator_had_no_core_is_sent_all_the_same(toy: Callable[..., Any]) -> None:
    end, slept = time.monotonic() + 0.6, list[float]()

    def sleep() -> bool:
        if not slept and time.monotonic() > end - 0.1:
            slept.append(0.2)
            time.sleep(0.2)
        return False

    tally = run(toy().port, rate_per_s=200.0, stop=sleep)
    assert slept
    assert tally.requests == pytest.approx(100, abs=1)
    assert tally.behind_s == 0.0


def test_a_rate_beyond_the_generator_s_reach_is_its_own_and_not_the_server_s(toy: Callable[..., Any]) -> None:
    began = time.monotonic()
    order = Order(0.0, 0.0, 0.5, 0.5, 2, 4, rate_per_s=2e7)
    tally = run(toy().port, rate_per_s=order.rate_per_s, timeout_s=0.5, warmup_s=0.0, most=4)
    assert time.monotonic() - began < 4
    assert tally.behind_s > 0.1
    assert len(tally.latencies) >= order.most  # of a server that shares the interpreter
    found = runs.described(tally, order, 1, None)
    assert "faster than the generator sends them" in found["void"]
    assert not server.silent({**found, "latencies_s": [], "failures": {"unsent": 9, "timeout": 2}})
    assert not server.silent({**found, "void": None, "latencies_s": [], "failures": {"unsent": 9}})
    assert server.silent({**found, "void": None, "latencies_s": [], "failures": {"unsent": 9, "timeout": 2}})


def test_a_wrong_answer_is_a_failure_and_one_that_is_near_is_none(toy: Callable[..., Any]) -> None:
    tally = run(toy(wrong_every=10, jitter=True).port)
    assert set(tally.failures) == {"wrong"}
    assert 0 < tally.failures["wrong"] < tally.requests / 5


def test_a_refusal_is_counted_by_its_status(toy: Callable[..., Any]) -> None:
    tally = run(toy(refuse_every=4).port)
    assert set(tally.failures) == {"status 503"}
    assert tally.failures["status 503"] == pytest.approx(tally.requests / 4, rel=0.1)


def test_an_answer_that_does_not_come_is_a_timeout(toy: Callable[..., Any]) -> None:
    began = time.monotonic()
    tally = run(toy(hang=True).port, timeout_s=0.3, warmup_s=0.0)
    assert time.monotonic() - began < 3
    assert set(tally.failures) == {"timeout"}
    assert not tally.latencies


@pytest.mark.parametrize("rate", [None, 100.0])
def test_who_hangs_from_the_warm_up_on_is_counted(toy: Callable[..., Any], rate: float | None) -> None:
    tally = run(toy(hang=True).port, timeout_s=0.8, warmup_s=0.2, slots=2, most=2, rate_per_s=rate)
    assert tally.failures["timeout"] >= 2
    assert sum(tally.failures.values()) == tally.requests


def test_one_that_hangs_among_others_is_counted(toy: Callable[..., Any]) -> None:
    server = toy(hang_at=3)
    tally = run(server.port, timeout_s=0.8, warmup_s=0.2)
    assert tally.failures == {"timeout": 1}
    assert tally.requests == len(tally.latencies) + 1


@pytest.mark.parametrize("told", [{"chunked": True}, {"closes": True}])
def test_other_ways_to_answer_are_read_too(toy: Callable[..., Any], told: dict[str, bool]) -> None:
    tally = run(toy(**told).port)
    assert tally.failures == {}
    assert len(tally.latencies) > 20


def test_a_server_that_dies_ends_the_run_and_what_there_was_is_kept(toy: Callable[..., Any]) -> None:
    server, began = toy(), time.monotonic()
    tally = run(server.port, seconds=30.0, stop=lambda: time.monotonic() > began + 0.7 and (server.die() or False))
    assert tally.lost
    assert time.monotonic() - began < 0.7 + LOST_S + 2
    assert tally.arrived > 20
    assert tally.seconds < 1.5
    assert set(tally.failures) <= {"connection", "refused"}


@pytest.mark.parametrize(
    ("raw", "kind"),
    [(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf", "truncated"), (b"junk\r\n\r\n", "malformed")],
)
def test_who_answers_badly_is_not_lost(
    toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, raw: bytes, kind: str
) -> None:
    monkeypatch.setattr(generator, "LOST_S", 0.2)
    tally = run(toy(raw=raw, closes=True).port)
    assert not tally.lost
    assert set(tally.failures) == {kind}
    assert not server.silent({"latencies_s": [], "failures": tally.failures, "ended": None, "void": None})


def test_a_server_that_comes_back_is_asked_again(toy: Callable[..., Any]) -> None:
    server = toy()
    dropped: list[int] = []

    def drop() -> bool:
        if not dropped and server.answered > 20:
            for connection in server.connections:
                connection.shutdown(2)
            dropped.append(server.answered)
        return False

    tally = run(server.port, stop=drop)
    assert not tally.lost
    assert dropped
    assert server.answered > dropped[0] + 20
    assert 0 <= tally.failures["connection"] <= 2


def test_a_run_that_is_stopped_says_so_and_counts_its_time(toy: Callable[..., Any]) -> None:
    began = time.monotonic()
    tally = run(toy().port, seconds=30.0, stop=lambda: time.monotonic() > began + 0.6)
    assert tally.stopped
    assert tally.seconds == pytest.approx(0.5, abs=0.3)
    assert len(tally.latencies) > 20


def test_a_run_ends_once_its_limit_cannot_be_kept(toy: Callable[..., Any]) -> None:
    tally = run(toy(delay_s=0.05).port, rate_per_s=100.0, seconds=30.0, hopeless_s=0.02, hopeless=5)
    assert tally.hopeless
    assert tally.seconds < 2


@pytest.mark.parametrize(("timing", "seconds"), [("total;dur=1.5, queue;dur=0.5", 0.0015), ("total;dur=1.2.3", None)])
def test_the_server_s_own_times_are_added_up_where_they_are_numbers(
    toy: Callable[..., Any], timing: str, seconds: float | None
) -> None:
    tally = run(toy(timing=timing).port, timed=True, seconds=0.2)
    assert tally.failures == {}
    assert tally.timed == (0 if seconds is None else len(tally.latencies))
    assert tally.sums["server_s"] == pytest.approx(tally.timed * (seconds or 0.0))


def test_tallies_pass_through_a_pipe_and_are_put_together(toy: Callable[..., Any]) -> None:
    one = run(toy(refuse_every=5).port)
    text, parts = one.frame()
    two = Tally.of((json.loads(json.dumps(text)), [bytes(part) for part in parts]))
    assert two == one
    both = together([one, two])
    assert both.requests == 2 * one.requests
    assert both.failures["status 503"] == 2 * one.failures["status 503"]
    assert len(both.latencies) == len(both.moments) == 2 * len(one.latencies)
    assert both.seconds == one.seconds
