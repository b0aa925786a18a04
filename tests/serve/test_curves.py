"""The latency curve: never over what a batch has taken of late, and silent where it knows nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve.curves import Curve


def test_nothing_is_known_of_what_was_never_run() -> None:
    curve = Curve()
    assert curve.at_least("k", 1, 0.0) == 0.0
    told(curve, 4, 0.2)
    assert curve.at_least("other", 4, 0.0) == 0.0


def told(curve: Curve, rows: int, seconds: float, now: float = 0.0, times: int = 3) -> None:
    for _ in range(times):
        curve.told("k", rows, seconds, now)


def test_the_shortest_of_the_largest_size_up_to_it_counts() -> None:
    curve = Curve()
    for rows, seconds in ((1, 0.01), (8, 0.08), (8, 0.05), (32, 0.3)):
        told(curve, rows, seconds)
    assert curve.at_least("k", 1, 0.0) == 0.01
    assert curve.at_least("k", 8, 0.0) == 0.05
    assert curve.at_least("k", 20, 0.0) == 0.05
    assert curve.at_least("k", 32, 0.0) == 0.3


def test_larger_batches_say_nothing_of_how_long_a_smaller_one_takes_at_least() -> None:
    curve = Curve()
    told(curve, 32, 0.2)
    assert curve.at_least("k", 1, 0.0) == 0.0
    assert curve.at_least("k", 31, 0.0) == 0.0


def test_two_measurements_are_too_few() -> None:
    curve = Curve()
    told(curve, 1, 0.5, times=2)
    assert curve.at_least("k", 1, 0.0) == 0.0
    told(curve, 1, 0.5, times=1)
    assert curve.at_least("k", 1, 0.0) == 0.5


def test_more_rows_than_were_ever_run_take_no_less_than_the_most_that_were() -> None:
    curve = Curve()
    told(curve, 2, 0.02)
    assert curve.at_least("k", 64, 0.0) == 0.02


def test_a_large_batch_that_was_quicker_than_small_ones_bounds_them_too() -> None:
    curve = Curve()
    told(curve, 1, 0.5)
    told(curve, 8, 0.1)
    assert curve.at_least("k", 1, 0.0) == 0.1


def test_what_was_slow_once_is_forgotten() -> None:
    curve = Curve()
    told(curve, 1, 5.0)
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
def test_it_is_never_over_what_a_batch_of_as_many_rows_or_more_has_just_taken(
    measured: list[tuple[int, float, float]], rows: int
) -> None:
    curve, now = Curve(), 0.0
    for count, seconds, later in measured:
        now += later
        curve.told("k", count, seconds, now)
    count, seconds, _ = measured[-1]
    if count >= rows:
        assert curve.at_least("k", rows, now) <= seconds


@given(st.lists(st.integers(1, 64), min_size=1), st.integers(1, 64))
def test_where_more_rows_take_longer_it_is_never_over_the_truth(sizes: list[int], rows: int) -> None:
    curve = Curve()
    for size in sizes:
        told(curve, size, 0.001 * size)
    assert curve.at_least("k", rows, 0.0) <= 0.001 * rows


_STEPS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([0.01, 0.02, 0.5, 2.0]), st.sampled_from([0.0, 0.25, 3.0, 7.5, 12.0])),
    max_size=40,
)


@given(_STEPS)
def test_what_it_has_found_before_is_what_it_would_find_now(steps: list[tuple[int, float, float]]) -> None:
    curve, now, before = Curve(), 0.0, list[tuple[int, float, float]]()
    for rows, seconds, later in steps:
        now += later
        curve.told("k", rows, seconds, now)
        before.append((rows, seconds, now))
        other = Curve()  # that was never asked before
        for each in before:
            other.told("k", *each)
        assert [curve.at_least("k", most, now) for most in range(7)] == [
            other.at_least("k", most, now) for most in range(7)
        ]


@given(_STEPS, st.lists(st.sampled_from([0.0, 4.0, 9.0, 20.5]), max_size=6))
def test_nor_does_it_hold_on_to_what_is_forgotten(steps: list[tuple[int, float, float]], later: list[float]) -> None:
    curve, now = Curve(), 0.0
    for rows, seconds, after in steps:
        now += after
        curve.told("k", rows, seconds, now)
    for wait in later:
        now += wait
        found = curve.at_least("k", 3, now)
        curve._asked.clear()
        assert found == curve.at_least("k", 3, now)


def test_sizes_are_looked_through_once_and_not_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    curve, looked = Curve(), list[int]()
    look = Curve._look
    monkeypatch.setattr(Curve, "_look", lambda self, *about: looked.append(1) or look(self, *about))
    for rows in range(1, 129):
        told(curve, rows, 0.001 * rows)
    for number in range(1000):  # as requests come while batches end
        assert curve.at_least("k", 1, 0.001 * number) == 0.001
        assert curve.at_least("k", 128, 0.001 * number) == 0.128
        curve.told("k", 1 + number % 128, 1.0, 0.001 * number)
    assert len(looked) == 2
