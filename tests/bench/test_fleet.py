"""Several generators, of which some die or say nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock.bench import fleet, runs, server
from penstock.bench.fleet import Fleet, Goal
from penstock.bench.generator import Order
from tests.bench.test_generator import due, request

ORDER = Order(begin=0.0, warmup_s=0.1, seconds=0.8, timeout_s=0.5, slots=2, most=2)


@pytest.fixture
def two(toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(fleet, "LOST_S", 0.2)
    monkeypatch.setattr(fleet, "_GRACE_S", 0.5)
    goal = Goal("127.0.0.1", toy(delay_s=0.005).port)
    with Fleet(goal, [request()], [due()], 2, 0.5, 0.01) as made:
        yield made
        for process in made._started:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)


def soon(what: Callable[[], Any], after_s: float) -> None:
    threading.Timer(after_s, what).start()


def test_a_generator_that_dies_ends_the_run_and_what_the_other_saw_is_kept(two: Fleet) -> None:
    soon(two._started[0].kill, 0.5)
    began = time.monotonic()
    tally, ended = two.run(ORDER)
    assert time.monotonic() - began < 1.5
    assert not ended
    assert tally.missing == 1
    assert len(tally.latencies) > 10
    run = {**runs.described(tally, ORDER, 2, None), "purpose": "sweep"}
    assert run["void"].startswith("1 of 2 generators died")
    assert "dmesg" in runs.warnings(run, 2)[0]["remedy"]
    result = {"interrupted": False, "lost": False, "slo": None, "runs": [run]}
    assert server.exit_code(result) == 3


def test_half_of_a_run_is_not_told_as_the_whole_nor_in_the_next(two: Fleet) -> None:
    one = two._started[0].pid
    soon(lambda: os.kill(one, signal.SIGSTOP), 0.4)
    tally, _ = two.run(ORDER)
    assert tally.missing == 1
    os.kill(one, signal.SIGCONT)
    time.sleep(0.3)  # it tells of the first run now
    tally, _ = two.run(ORDER)
    assert tally.missing == 0
    assert max(tally.moments) < ORDER.seconds
    assert tally.requests == len(tally.latencies) < 400
    assert min(tally.moments) < 0.1
