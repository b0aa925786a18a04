"""Buckets: captured sizes span the range, and padding is taken only where it is quicker."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock import buckets


@given(st.tuples(*(st.integers(1, 512) for _ in range(3))).map(sorted))
def test_sizes_hold_both_ends_and_the_usual_size_and_stay_between(sizes: list[int]) -> None:
    least, usual, most = sizes
    found = buckets.sizes(least, usual, most)
    assert {least, usual, most} <= set(found)
    assert list(found) == sorted(set(found))
    assert least == found[0]
    assert most == found[-1]
    # Whatever comes, a bucket at most twice as large takes it.
    assert all(larger <= 2 * smaller for smaller, larger in pairwise(found))


@given(st.tuples(*(st.integers(1, 512) for _ in range(3))).map(sorted))
def test_from_16_on_no_batch_is_padded_by_more_than_a_quarter_of_its_rows(bounds: list[int]) -> None:
    sizes = buckets.sizes(*bounds)
    finer = buckets.finer(sizes)
    assert not finer.keys() & set(sizes)
    assert all(size < larger and larger in sizes for size, larger in finer.items())
    for smaller, larger in pairwise(sorted({*sizes, *finer})):
        assert smaller < 16 or larger - smaller <= -(-smaller // 4)


def test_between_powers_of_two_lie_three_sizes_each() -> None:
    assert buckets.finer((1, 8, 16, 32, 128)) == {20: 32, 24: 32, 28: 32, 56: 128, 80: 128, 104: 128}
    assert buckets.finer((1, 16, 18)) == {17: 18}


CAPTURED = {1: 0.5, 8: 1.0, 64: 4.0}
PLAIN = {1: 1.0, 8: 1.4, 64: 4.2}


def test_a_batch_of_a_captured_size_is_run_in_it() -> None:
    assert [buckets.best(rows, CAPTURED, PLAIN) for rows in (1, 8, 64)] == [1, 8, 64]


def test_a_small_batch_is_padded_where_the_launch_is_what_costs() -> None:
    assert buckets.best(5, CAPTURED, PLAIN) == 8


def test_a_batch_far_under_its_bucket_is_launched_as_it_is() -> None:
    assert buckets.best(9, CAPTURED, PLAIN) is None


def test_launching_kernel_by_kernel_must_be_worth_the_processors_time() -> None:
    assert buckets.best(58, CAPTURED, PLAIN) == 64  # 3.9 for 4.0
    assert buckets.best(44, CAPTURED, PLAIN) is None  # 3.2


def test_a_batch_near_its_bucket_is_padded_even_where_that_is_large() -> None:
    assert buckets.best(62, CAPTURED, PLAIN) == 64


def test_before_anything_is_captured_and_over_the_largest_nothing_is_padded() -> None:
    assert buckets.best(4, {}, {}) is None
    assert buckets.best(65, CAPTURED, PLAIN) is None
