"""Token buckets: bounds on what is let through, held to any times of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve.rates import TokenBucket

RATES = st.floats(0.01, 1e4)
BURSTS = st.floats(1, 1e3)
GAPS = st.lists(st.floats(0, 10) | st.just(0.0), max_size=120)


def times(gaps: list[float]) -> list[float]:
    found, now = [], 1000.0
    for gap in gaps:
        now += gap
        found.append(now)
    return found


@given(RATES, BURSTS, GAPS)
def test_in_any_time_no_more_pass_than_the_burst_and_the_rate_s(rate: float, burst: float, gaps: list[float]) -> None:
    bucket = TokenBucket(rate, burst, 1000.0)
    passed = [now for now in times(gaps) if not bucket.take(now)]
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + rate * (passed[last] - passed[first]) + 1e-3


@given(RATES, BURSTS, GAPS)
def test_whoever_waits_as_long_as_told_passes(rate: float, burst: float, gaps: list[float]) -> None:
    bucket, late = TokenBucket(rate, burst, 1000.0), 0.0
    for now in times(gaps):
        if wait_s := bucket.take(now + late):
            if rate * wait_s > 1e-3:  # what is shorter is a rounding
                assert bucket.take(now + late + wait_s / 2) > 0
            late += wait_s
            assert bucket.take(now + late) == 0


@given(RATES, BURSTS, st.lists(st.floats(0, 3), max_size=100))
def test_whoever_keeps_to_the_rate_is_never_refused(rate: float, burst: float, more: list[float]) -> None:
    bucket, now = TokenBucket(rate, burst, 0.0), 0.0
    for extra in more:
        assert bucket.take(now) == 0
        now += (1 + extra) / rate


def test_a_full_bucket_lets_its_burst_pass_at_once_and_then_says_when() -> None:
    bucket = TokenBucket(4.0, 3.0, 0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [0, 0, 0, pytest.approx(0.25)]


@given(BURSTS, BURSTS, st.integers(0, 50))
def test_another_rate_gives_nothing_back(burst: float, other: float, used: int) -> None:
    bucket = TokenBucket(1.0, burst, 0.0)
    taken = sum(not bucket.take(0.0) for _ in range(used))
    changed = bucket.changed(2.0, other, 0.0)
    left = sum(not changed.take(0.0) for _ in range(2000))
    assert left <= min(other, burst - taken) + 1e-3
