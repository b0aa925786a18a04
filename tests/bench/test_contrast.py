"""Contrasts: how often they are wrong, and that one spoilt round does not decide."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench import contrast
from penstock.bench.contrast import Contrast, between, of_intervals

ANEW = math.hypot(contrast.LOADING, contrast.CLOCK)
ROUNDS = st.lists(st.floats(1e-6, 10.0), min_size=contrast.FEWEST, max_size=30)


@settings(deadline=None)  # the first call imports scipy
@given(ROUNDS, ROUNDS, st.floats(0.5, 0.9999))
def test_the_value_lies_in_its_interval_and_all_are_positive(old: list[float], new: list[float], sure: float) -> None:
    found = between(old, new, sure)
    assert 0 <= found.low <= found.value <= found.high
    assert math.isfinite(found.high)


@settings(deadline=None)  # the first call imports scipy
@given(ROUNDS, ROUNDS)
def test_exchanging_the_two_inverts_the_contrast(old: list[float], new: list[float]) -> None:
    there, back = between(old, new, 0.9), between(new, old, 0.9)
    assert there.value * back.value == pytest.approx(1)
    if there.low > 1e-200 and there.high < 1e200:
        assert there.low * back.high == pytest.approx(1)


@settings(deadline=None)  # the first call imports scipy
@given(ROUNDS, ROUNDS, st.floats(0.01, 100))
def test_a_unit_changes_nothing(old: list[float], new: list[float], unit: float) -> None:
    plain = between(old, new, 0.9)
    scaled = between([value * unit for value in old], [value * unit for value in new], 0.9)
    assert scaled.value == pytest.approx(plain.value, rel=1e-9)


def test_more_confidence_is_a_wider_interval() -> None:
    rng = np.random.default_rng(0)
    old, new = np.exp(rng.normal(0, 0.02, (2, 10))).tolist()
    narrow, wide = between(old, new, 0.9), between(old, new, 0.999)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_the_interval_is_yuen_s_where_starting_anew_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stats: Any = pytest.importorskip("scipy.stats")
    monkeypatch.setattr(contrast, "LOADING", 0.0)
    monkeypatch.setattr(contrast, "CLOCK", 0.0)
    rng = np.random.default_rng(1)
    old, new = np.exp(rng.normal(0, 0.05, 10)), np.exp(rng.normal(0.1, 0.02, 12))
    found = between(old.tolist(), new.tolist(), 0.95)
    told = stats.ttest_ind(np.log(new), np.log(old), equal_var=False, trim=0.2).confidence_interval(0.95)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((told.low, told.high))


@pytest.mark.parametrize("spoilt", [1, 2])
def test_a_round_or_two_that_neighbours_spoilt_decide_nothing(spoilt: int) -> None:
    rng = np.random.default_rng(2)
    old, new = np.exp(rng.normal(0, 0.01, (2, 10)))
    new[:spoilt] *= 3
    found = between(old.tolist(), new.tolist(), 0.99)
    assert found.value == pytest.approx(1, abs=0.02)
    assert not found.slower(0.05)
    assert between(old.tolist(), (new * 1.1).tolist(), 0.99).slower(0.05)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    held, times = 0, 1500
    for _ in range(times):
        anew = rng.normal(0, ANEW, 2)
        rounds = np.exp(rng.normal(0, 0.02, (2, 10)) + anew[:, None])
        found = between(rounds[0].tolist(), (rounds[1] * 1.1).tolist(), 0.95)
        held += found.low <= 1.1 <= found.high
    assert 0.935 <= held / times <= 0.985


def test_few_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="4 and 10 rounds"):
        between([1.0] * 4, [1.0] * 10, 0.9)


def test_rounds_that_are_all_alike_still_have_an_interval() -> None:
    found = between([1.0] * 10, [1.1] * 10, 0.99)
    assert found.low < found.value < found.high
    assert found.slower(0.05)


@pytest.mark.parametrize(
    ("found", "slower", "faster"),
    [
        (Contrast(1.10, 1.02, 1.18), True, False),
        (Contrast(1.10, 0.99, 1.22), False, False),
        (Contrast(1.04, 1.02, 1.06), False, False),
        (Contrast(0.90, 0.85, 0.98), False, True),
        (Contrast(0.97, 0.96, 0.98), False, False),
    ],
)
def test_what_counts_is_beyond_noise_and_at_least_the_threshold(found: Contrast, slower: bool, faster: bool) -> None:
    assert found.slower(0.05) is slower
    assert found.faster(0.05) is faster


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 0.2), st.floats(0.5, 2))
def test_intervals_of_two_figures_give_one_of_their_contrast(width: float, ratio: float) -> None:
    old, new = (1.0, math.exp(-width), math.exp(width)), (ratio, ratio * math.exp(-width), ratio * math.exp(width))
    found = of_intervals(old, new, 0.95, 0.95)
    assert found.value == pytest.approx(ratio)
    expected = math.hypot(width * math.sqrt(2), 1.96 * math.sqrt(2) * ANEW)
    assert math.log(found.high / found.value) == pytest.approx(expected, rel=1e-3)
