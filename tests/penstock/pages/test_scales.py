"""Scales: every value has a place, ticks are few and round, numbers are short."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pages import scales

POSITIVE = st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=20)


@given(POSITIVE)
def test_a_logarithmic_scale_holds_its_values_in_order(values: list[float]) -> None:
    made = scales.logarithmic("x", values)
    places = [made.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(0 < place < 1 for place in places)
    assert len(made.ticks) <= 6
    assert all(made.low <= tick <= made.high for tick, _ in made.ticks)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20), st.booleans())
def test_a_linear_scale_holds_its_values_in_order(values: list[float], zero: bool) -> None:
    made = scales.linear("x", values, zero=zero)
    places = [made.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(-1e-6 <= place <= 1 + 1e-6 for place in places)
    assert 2 <= len(made.ticks) <= 9
    assert not zero or made.low <= 0 <= made.high


@given(POSITIVE)
def test_ticks_at_values_are_some_of_them_and_never_crowd(values: list[float]) -> None:
    made = scales.at("x", values)
    assert {tick for tick, _ in made.ticks} <= set(values)
    places = [made.place(tick) for tick, _ in made.ticks]
    assert all(right - left >= 0.089 for left, right in itertools.pairwise(places))


def test_scales_of_nothing_are_scales() -> None:
    for made in (scales.logarithmic("x", []), scales.linear("x", []), scales.at("x", [])):
        assert 0 <= made.place(1.0) <= 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.05, "0.05"), (12.5, "12.5"), (800, "800"), (5000, "5000"), (20_000, "20k"), (3e6, "3M"), (0, "0"), (2e9, "2G")],
)
def test_ticks_are_short(value: float, shown: str) -> None:
    assert scales.number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0"),
        (0.06612, "0.0661"),
        (1.0, "1.00"),
        (12.34, "12.3"),
        (12345.6, "12,346"),
        (1e-7, "0.000000100"),
    ],
)
def test_figures_have_three_digits_that_count(value: float | None, shown: str) -> None:
    assert scales.figure(value) == shown


@pytest.mark.parametrize("ends", [(1.0, 1.0 + 2**-52), (1e15, 1e15 + 0.125)])
def test_ends_that_floats_hardly_tell_apart_have_places_all_the_same(ends: tuple[float, float]) -> None:
    made = scales.linear("x", ends, zero=False)
    assert all(0 < made.place(value) < 1 for value in ends)
