"""When requests of an open loop are due."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench import schedule

RATES = st.floats(0.5, 50_000)


@given(RATES, st.integers(1, 8))
def test_processes_take_turns_at_a_constant_rate(rate: float, parts: int) -> None:
    dues = [due for part in range(parts) for due in islice(schedule.constant(rate, part, parts), 20)]
    assert np.diff(sorted(dues)) == pytest.approx(np.full(20 * parts - 1, 1 / rate), rel=1e-6)
    assert min(dues) == 0


@settings(max_examples=20, deadline=None)
@given(RATES, st.integers(1, 8), st.integers(0, 100))
def test_a_poisson_schedule_keeps_the_rate_and_never_goes_back(rate: float, parts: int, seed: int) -> None:
    ends = []
    for part in range(parts):
        dues = np.array(list(islice(schedule.poisson(rate, part, parts, seed), 2000)))
        assert np.all(np.diff(dues) > 0)
        ends.append(dues[-1])
    # 2000 gaps of mean parts / rate: six standard deviations of their sum.
    assert np.array(ends) * rate / parts == pytest.approx(2000, abs=6 * np.sqrt(2000))


def test_gaps_of_a_poisson_schedule_are_exponential() -> None:
    dues = np.array(list(islice(schedule.poisson(100.0), 20_000)))
    gaps = np.sort(np.diff(dues))
    told = 1 - np.exp(-100.0 * gaps)
    # Kolmogorov and Smirnov's distance: 1.95 / sqrt(n) is passed by one of a thousand.
    assert np.abs(told - np.arange(1, len(gaps) + 1) / len(gaps)).max() < 1.95 / np.sqrt(len(gaps))


def test_seeds_and_parts_draw_for_themselves() -> None:
    drawn = {tuple(islice(schedule.poisson(10, part, 2, seed), 3)) for part in (0, 1) for seed in (0, 1)}
    assert len(drawn) == 4
    assert list(islice(schedule.poisson(10), 3)) == list(islice(schedule.poisson(10), 3))
