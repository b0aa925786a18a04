"""The latency curve: never over what a batch has taken of late, and silent where it knows nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.serve.curves import Curve


def test_nothing_is_known_of_what_was_never_run() -> None:
    curve = Curve()
    assert curve.at_least("k", 1, 0.0) == 0.0
    curve.told("k", 4, 0.2, 0.0)
    assert curve.at_least("other", 4, 0.0) == 0.0


def test_the_shortest_of_as_many_rows_or_more_counts() -> None:
    curve = Curve()
    for rows, seconds in ((1, 0.01), (8, 0.08), (8, 0.05), (32, 0.3)):
        curve.told("k", rows, seconds, 0.0)
    assert curve.at_least("k", 1, 0.0) == 0.01
    assert curve.at_least("k", 8, 0.0) == 0.05
    assert curve.at_least("k", 20, 0.0) == 0.3


def test_more_rows_than_were_ever_run_take_no_less_than_the_most_that_were() -> None:
    curve = Curve()
    curve.told("k", 2, 0.02, 0.0)
    assert curve.at_least("k", 64, 0.0) == 0.02


def test_a_large_batch_that_was_quicker_than_small_ones_bounds_them_too() -> None:
    curve = Curve()
    curve.told("k", 1, 0.5, 0.0)
    curve.told("k", 8, 0.1, 0.0)
    assert curve.at_least("k", 1, 0.0) == 0.1


def test_what_was_slow_once_is_forgotten() -> None:
    curve = Curve()
    curve.told("k", 1, 5.0, 0.0)
    assert curve.at_least("k", 1, 19.0) == 5.0
    assert curve.at_least("k", 1, 21.0) == 0.0


def test_what_has_become_slow_is_believed_after_a_while() -> None:
    curve = Curve()
    for second in range(12):
        curve.told("k", 1, 0.01, float(second))
    for second in range(12, 45):
        curve.told("k", 1, 2.0, float(second))
    assert curve.at_least("k", 1, 45.0) == 2.0


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.001, 10), st.floats(0, 5)), min_size=1), st.integers(1, 64))
def test_it_is_never_over_a_batch_of_as_many_rows_or_more_that_was_just_run(
    told: list[tuple[int, float, float]], rows: int
) -> None:
    curve, now = Curve(), 0.0
    for count, seconds, later in told:
        now += later
        curve.told("k", count, seconds, now)
    count, seconds, _ = told[-1]
    if count.bit_length() >= rows.bit_length():
        assert curve.at_least("k", rows, now) <= seconds
