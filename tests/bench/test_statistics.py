"""Statistics: percentiles only from samples enough, intervals that hold what they say, ratios of rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench import statistics
from penstock.bench.statistics import needed, percentile, ratio

QS = (50.0, 90.0, 95.0, 99.0)
seconds = st.floats(1e-6, 10.0)


def at_most(k: int, n: int, p: float) -> float:
    """P(binomial(n, p) <= k), term by term."""
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


# --- How many samples ------------------------------------------------------------------------------------------------


def test_the_rule_for_the_usual_percentiles_is_mlperf_s() -> None:
    assert [needed(q) for q in QS] == [11, 64, 130, 662]
    assert needed(10.0) == needed(90.0)


@pytest.mark.parametrize("q", QS)
def test_no_fewer_samples_would_have_two_beyond_the_percentile_for_certain(q: float) -> None:
    tail = 1 - q / 100
    assert at_most(1, needed(q), tail) <= 0.01 < at_most(1, needed(q) - 1, tail)


@pytest.mark.parametrize("q", [0.0, 100.0, -1.0, 101.0, math.nan])
def test_what_is_no_percentile_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="above 0 and below 100"):
        needed(q)


@pytest.mark.parametrize("q", QS)
def test_too_few_samples_give_none(q: float) -> None:
    assert percentile([1.0] * (needed(q) - 1), q) is None
    found = percentile([1.0] * needed(q), q)
    assert found is not None
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


# --- Percentiles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", QS)
@pytest.mark.parametrize("more", [0, 1, 7, 60])
def test_the_ends_are_the_samples_nearest_the_middle_that_miss_in_two_and_a_half_percent(q: float, more: int) -> None:
    n = needed(q) + more
    found = percentile(np.arange(n, dtype=np.float64), q)
    assert found is not None
    low, high = int(found.low), int(found.high)
    # The sample at place k is above the percentile if at most k are below that, and below it if more are.
    assert at_most(low, n, q / 100) <= 0.025 < at_most(low + 1, n, q / 100)
    assert 1 - at_most(high, n, q / 100) <= 0.025 < 1 - at_most(high - 1, n, q / 100)


@given(st.lists(seconds, min_size=64, max_size=300), st.sampled_from((50.0, 90.0)))
def test_a_percentile_lies_in_its_interval_whatever_the_order(samples: list[float], q: float) -> None:
    found, turned = percentile(samples, q), percentile(samples[::-1], q)
    assert found is not None
    assert found == turned
    assert min(samples) <= found.low <= found.value <= found.high <= max(samples)
    assert found.value == pytest.approx(np.percentile(samples, q))


def test_a_million_samples_have_a_narrow_interval() -> None:
    found = percentile(np.linspace(0, 1, 1_000_001), 99.0)
    assert found is not None
    half = 1.96 * math.sqrt(0.99 * 0.01 / 1e6)  # by the normal approximation, which is exact enough here
    assert (found.low, found.high) == pytest.approx((0.99 - half, 0.99 + half), abs=2e-6)


def test_intervals_hold_the_true_percentile_as_often_as_they_say() -> None:
    drawn = np.random.default_rng(1)
    held = 0
    for _ in range(1000):
        found = percentile(drawn.lognormal(size=200), 90.0)
        assert found is not None
        held += found.low <= math.exp(1.2815515655) <= found.high
    assert 935 <= held <= 985  # 95 % at least, and not all: the counts are whole


# --- Ratios ----------------------------------------------------------------------------------------------------------


def noisy(drawn: np.random.Generator, factor: float, rounds: int = 10) -> tuple[list[list[float]], list[list[float]]]:
    """Rounds of two, the second `factor` as slow, under a drift that hits both and noise that does not."""
    drift = np.exp(np.cumsum(drawn.normal(0, 0.05, rounds)))
    mine = [[float(step * math.exp(drawn.normal(0, 0.02)))] * 3 for step in drift]
    theirs = [[float(factor * step * math.exp(drawn.normal(0, 0.02)))] * 3 for step in drift]
    return mine, theirs


@given(st.lists(st.lists(seconds, min_size=1, max_size=5), min_size=5, max_size=8), st.floats(0.1, 10.0))
def test_drift_that_hits_whole_rounds_moves_no_paired_ratio(rounds: list[list[float]], factor: float) -> None:
    found = ratio(rounds, [[factor * run for run in part] for part in rounds])
    assert (found.low, found.value, found.high) == pytest.approx((factor, factor, factor))


def test_paired_intervals_hold_the_truth_as_often_as_they_say() -> None:
    drawn = np.random.default_rng(2)
    found = [ratio(*noisy(drawn, 1.5)) for _ in range(300)]
    assert sum(one.low <= 1.5 <= one.high for one in found) >= 279  # 93 %, three standard deviations under 97 %
    assert np.median([one.high - one.low for one in found]) < 0.15


def test_unpaired_ratios_resample_both_sides_and_need_not_be_as_many() -> None:
    drawn = np.random.default_rng(3)
    held = 0
    for _ in range(300):
        mine, theirs = ([[math.exp(drawn.normal(0, 0.03))] for _ in range(rounds)] for rounds in (8, 12))
        found = ratio(mine, theirs, paired=False)
        assert found.low <= found.value <= found.high
        held += not found.differs
    assert held >= 279
    assert ratio([[1.0]] * 5, [[2.0]] * 9, paired=False).value == 2.0


def test_a_ratio_differs_where_its_interval_leaves_1_out() -> None:
    drawn = np.random.default_rng(4)
    assert all(ratio(*noisy(drawn, 1.1)).differs for _ in range(20))
    assert ratio([[1.0]] * 9, [[1.0]] * 9).differs is False


@pytest.mark.parametrize("paired", [True, False])
def test_too_few_rounds_say_nothing_for_certain(paired: bool) -> None:
    few, enough = [[1.0]] * 4, [[1.0]] * 5
    found = ratio(few, [[9.0]] * 4, paired=paired)
    assert (found.value, found.low, found.high, found.differs) == (9.0, 0.0, math.inf, False)
    assert ratio(enough, [[9.0]] * 5, paired=paired).differs


def test_more_confidence_is_a_wider_interval() -> None:
    mine, theirs = noisy(np.random.default_rng(5), 1.2)
    narrow, wide = ratio(mine, theirs, confidence=0.8), ratio(mine, theirs, confidence=0.999)
    assert wide.low <= narrow.low <= narrow.value == wide.value <= narrow.high <= wide.high
    assert wide.high - wide.low > narrow.high - narrow.low


def test_rounds_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rounds cannot be compared with 1"):
        ratio([[1.0], [1.0]], [[1.0]])
    with pytest.raises(ValueError, match="0 rounds"):
        ratio([], [])


@pytest.mark.parametrize(
    ("tail", "freedom", "expected"), [(0.025, 4, 2.776), (0.025, 9, 2.262), (0.005, 9, 3.250), (0.05, 1, 6.314)]
)
def test_student_s_quantiles_are_those_of_the_tables(tail: float, freedom: int, expected: float) -> None:
    assert statistics._student(tail, freedom) == pytest.approx(expected, rel=1e-3)
