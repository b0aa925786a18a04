"""Histograms: counts that hang on the values alone, and thresholds that are what their methods promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from scipy import stats

from penstock.export.precision.histogram import BINS, Histogram, _divergence

Values = NDArray[np.float32]
METHODS = ("entropy", "max", "percentile", "percentile=75")
# int8 has this many steps on each side of zero.
STEPS = 128
# Magnitudes over many binades, so that tops double and bins merge; zeros of both signs.
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0]),
    st.floats(-1000, 1000, width=32, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 2.0**-100),
    st.builds(math.ldexp, st.floats(0.5, 1, width=16, exclude_max=True), st.integers(-90, 127)),
    st.builds(math.ldexp, st.floats(-1, -0.5, width=16, exclude_min=True), st.integers(-90, 127)),
)
ARRAYS = hnp.arrays(np.float32, st.integers(1, 60), elements=FLOATS)


def counted(*chunks: Values) -> Histogram:
    found = Histogram()
    for chunk in chunks:
        found.add(chunk)
    return found


def facts(held: Histogram) -> tuple[object, ...]:
    return (held.low, held.high, held.top, held.zeros, held.counts.tolist())


def thresholds(held: Histogram) -> list[float]:
    return [held.threshold(method) for method in METHODS]


def gaussian(count: int, seed: int = 0) -> Values:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


@st.composite
def regrouped(draw: st.DrawFn) -> tuple[Values, list[Values]]:
    """Values, and the same in another order and in chunks, some of them empty."""
    values = draw(ARRAYS)
    shuffled = values[np.array(draw(st.permutations(range(len(values)))))]
    cuts = sorted(draw(st.lists(st.integers(0, len(values)), max_size=8)))
    return values, np.split(shuffled, cuts)


# --- Counting -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(regrouped())
def test_neither_order_nor_grouping_of_values_changes_anything(case: tuple[Values, list[Values]]) -> None:
    values, chunks = case
    one_by_one, at_once = counted(*chunks), counted(values)
    assert facts(one_by_one) == facts(at_once)
    assert thresholds(one_by_one) == thresholds(at_once)


@settings(deadline=None)
@given(ARRAYS)
def test_each_value_is_in_the_bin_of_its_magnitude(values: Values) -> None:
    held = counted(*values.reshape(-1, 1))
    magnitudes = [Fraction(float(value)) for value in np.abs(values) if value]
    assert held.zeros == len(values) - len(magnitudes)
    assert held.counts.sum() + held.zeros == len(values)
    if not magnitudes:
        return
    top = Fraction(held.top)
    assert math.frexp(held.top)[0] == 0.5  # a power of two
    assert top / 2 <= max(magnitudes) < top
    expected = np.bincount([int(value * BINS / top) for value in magnitudes], minlength=BINS)
    assert held.counts.tolist() == expected.tolist()


@settings(deadline=None)
@given(ARRAYS)
def test_the_ends_are_exact(values: Values) -> None:
    held = counted(values)
    assert (held.low, held.high) == (min(0.0, float(values.min())), max(0.0, float(values.max())))
    assert held.most == held.threshold("max") == float(np.abs(values).max())


@pytest.mark.parametrize("shape", [(24,), (2, 3, 4), (24, 1)])
def test_the_shape_of_an_array_changes_nothing(shape: tuple[int, ...]) -> None:
    values = gaussian(24)
    assert facts(counted(values.reshape(shape))) == facts(counted(values))


def test_an_array_that_is_not_contiguous_is_counted_as_it_reads() -> None:
    values = gaussian(24).reshape(4, 6)
    assert facts(counted(values.T[::2])) == facts(counted(np.ascontiguousarray(values.T[::2])))


@pytest.mark.parametrize("largest", [np.finfo(np.float32).max, 2.0**127, 2.0**-100])
def test_the_largest_and_very_small_numbers_are_counted(largest: float) -> None:
    values = np.array([largest, -largest / 2, largest / 4], np.float32)
    held = counted(values)
    assert held.counts.sum() == 3
    assert held.threshold("max") == float(values[0])


@pytest.mark.parametrize("empty", [np.zeros(0, np.float32), np.zeros((3, 0, 2), np.float32)])
def test_an_empty_array_changes_nothing(empty: Values) -> None:
    assert facts(counted(empty)) == facts(Histogram())
    values = gaussian(10)
    assert facts(counted(empty, values, empty)) == facts(counted(values))


@settings(deadline=None)
@given(ARRAYS, st.integers(0, 59), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_nan_and_inf_are_refused_and_nothing_of_their_array_is_counted(values: Values, place: int, bad: float) -> None:
    held = counted(values)
    before = facts(held)
    damaged = values.copy()
    damaged[place % len(values)] = bad
    with pytest.raises(ValueError, match="NaN or Inf"):
        held.add(damaged)
    assert facts(held) == before


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("method", METHODS)
def test_data_of_zeros_has_no_magnitude(count: int, method: str) -> None:
    held = counted(np.zeros(count, np.float32))
    assert (held.zeros, held.counts.sum(), held.most, held.threshold(method)) == (count, 0, 0.0, 0.0)


@settings(deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 20), elements=st.integers(-(2**23) + 1, 2**23 - 1)))
def test_subnormals_alone_are_as_good_as_zeros_but_their_largest_is_kept(steps: Values) -> None:
    values = steps * np.float32(2.0**-149)
    held = counted(values)
    assert (held.zeros, held.counts.sum()) == (len(values), 0)
    for method in METHODS:
        assert held.threshold(method) == float(np.abs(values).max()) == float(np.abs(steps).max()) * 2.0**-149


# --- Percentiles --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    values=hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-50, 50, width=16)),
    zeros=st.integers(0, 300),
    share=st.sampled_from(["75", "87.5", "99", "99.9", "100", ""]),
)
def test_a_percentile_is_the_first_edge_that_has_its_share_of_all_values(
    values: Values, zeros: int, share: str
) -> None:
    held = counted(values, np.zeros(zeros, np.float32))
    assume(held.counts.any())
    threshold = held.threshold(f"percentile={share}" if share else "percentile")
    magnitudes = np.abs(np.r_[values, np.zeros(zeros)]).astype(np.float64)
    wanted = Fraction(share or "99.99") / 100 * len(magnitudes)
    assert 0 < threshold <= magnitudes.max()
    assert np.count_nonzero(magnitudes <= threshold) >= wanted
    below = threshold - held.top / BINS
    if below > 0:
        assert np.count_nonzero(magnitudes < below) < wanted


def test_zeros_count_for_a_percentile() -> None:
    values = np.arange(1, 101, dtype=np.float32)
    alone, among = counted(values), counted(values, np.zeros(900, np.float32))
    width = alone.top / BINS
    assert alone.threshold("percentile=99") == pytest.approx(99, abs=width)
    # 990 of 1000: 900 zeros and the numbers up to 90.
    assert among.threshold("percentile=99") == pytest.approx(90, abs=width)
    assert among.threshold("percentile=100") == 100


def test_percentile_alone_leaves_out_one_in_ten_thousand() -> None:
    held = counted(np.arange(1, 100_001, dtype=np.float32))
    assert held.threshold("percentile") == pytest.approx(99_990, abs=held.top / BINS)


# --- Entropy ------------------------------------------------------------------------------------------------------


def steps_of(edge: int) -> list[range]:
    """The bins of each of 128 equal steps of `edge` bins, by exact fractions."""
    bounds = [math.ceil(Fraction(edge * step, STEPS)) for step in range(STEPS + 1)]
    return [range(*pair) for pair in pairwise(bounds)]


def divergence(counts: Sequence[int], edge: int) -> float:
    """Migacz's definition, step by step; what Q lacks has the floor that the histogram documents."""
    p = np.array(counts[:edge], np.float64)
    q = np.zeros(edge)
    for step in steps_of(edge):
        used = [place for place in step if counts[place]]
        if used:
            q[used] = sum(counts[place] for place in used) / len(used)
    q /= q.sum()
    p[-1] += sum(counts[edge:])
    p /= p.sum()
    q[(p > 0) & (q == 0)] = 1e-12
    return float(stats.entropy(p, q))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    edge=st.one_of(st.sampled_from([STEPS, STEPS + 1, 2 * STEPS, BINS]), st.integers(STEPS, BINS)),
    filled=st.sampled_from([0.01, 0.5, 1.0]),
    most=st.sampled_from([2, 1000]),
)
def test_the_divergence_is_that_of_scipy(seed: int, edge: int, filled: float, most: int) -> None:
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, most, BINS) * (generator.random(BINS) < filled)
    counts[0] += 1  # something is always under the edge
    assert _divergence(counts, edge) == pytest.approx(divergence(counts.tolist(), edge), rel=1e-9, abs=1e-9)


def test_nothing_is_lost_where_every_bin_has_a_step_of_its_own_or_a_step_is_level() -> None:
    counts = np.zeros(BINS, np.int64)
    counts[:STEPS] = np.arange(1, STEPS + 1)
    assert _divergence(counts, STEPS) == pytest.approx(0, abs=1e-12)
    assert _divergence(np.full(BINS, 3), BINS) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_entropy_chooses_the_edge_of_least_divergence(seed: int) -> None:
    generator = np.random.default_rng(seed)
    held = counted(generator.laplace(size=5000).astype(np.float32))
    counts = held.counts.tolist()
    last = max(place for place, count in enumerate(counts) if count) + 1
    # No more than a hundredth is clipped.
    least = next(edge for edge in range(STEPS, last) if 100 * sum(counts[edge:]) <= sum(counts))
    losses = {edge: divergence(counts, edge) for edge in [*range(least, last, 8), last]}
    chosen = held.threshold("entropy") * BINS / held.top
    edge = last if chosen > last - 1 else round(chosen)
    assert losses[edge] == pytest.approx(min(losses.values()), rel=1e-9)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.98])
@pytest.mark.parametrize("gap", [2, 20, 200])
def test_entropy_clips_no_cluster_of_values_away(share: float, gap: float) -> None:
    near = np.random.default_rng(0).uniform(0.5, 1, 5000)
    far = np.random.default_rng(1).uniform(0.5, 1, round(5000 / share) - 5000) * gap
    values = np.r_[near, far].astype(np.float32)
    held = counted(values)
    over = int(np.count_nonzero(values > held.threshold("entropy")))
    assert 100 * over <= len(values)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("far", [60.0, 250.0])
def test_entropy_clips_a_few_far_outliers_of_a_gaussian(seed: int, far: float) -> None:
    outliers = np.array([far, -far * 1.1, far * 1.2], np.float32)
    held = counted(gaussian(20_000, seed), outliers)
    # Some standard deviations hold all of a gaussian that counts, and none of these; 128 bins are the least kept.
    assert 2 < held.threshold("entropy") <= max(6.0, STEPS * held.top / BINS)
    assert held.threshold("max") == float(np.abs(outliers).max())


@pytest.mark.parametrize("scale", [0.001, 1.0, 1.1, 1.9, 1e6])
@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_entropy_keeps_the_whole_range_of_uniform_data(scale: float, low: float) -> None:
    values = (np.random.default_rng(0).uniform(low, 1, 20_000) * scale).astype(np.float32)
    held = counted(values)
    assert 0.95 * held.most < held.threshold("entropy") <= held.most


@settings(deadline=None, max_examples=30)
@given(ARRAYS)
def test_every_threshold_is_over_zero_and_no_higher_than_the_largest(values: Values) -> None:
    assume(values.any())
    held = counted(values)
    for method in METHODS:
        assert 0 < held.threshold(method) <= float(np.abs(values).max())


@pytest.mark.parametrize("value", [1.0, -3.0, 0.7])
@pytest.mark.parametrize("method", METHODS)
def test_one_value_alone_is_its_own_threshold(value: float, method: str) -> None:
    assert counted(np.full(50, value, np.float32)).threshold(method) == float(np.float32(abs(value)))


@pytest.mark.parametrize("power", [-20, -1, 1, 30])
@pytest.mark.parametrize("method", METHODS)
def test_a_power_of_two_scales_the_threshold_exactly(power: int, method: str) -> None:
    values = gaussian(5000)
    assert counted(values * np.float32(2.0**power)).threshold(method) == 2.0**power * counted(values).threshold(method)
