"""Intervals of shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.shares import wilson


def test_it_is_wilson_s_as_tables_have_it() -> None:
    assert wilson(81, 263, 0.95) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson(0, 20, 0.95) == pytest.approx((0.0, 0.1611), abs=1e-4)


@given(st.integers(1, 10_000).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))), st.floats(0.5, 0.9999))
def test_the_share_lies_in_its_interval(counted: tuple[int, int], confidence: float) -> None:
    count, of = counted
    low, high = wilson(count, of, confidence)
    assert 0 <= low <= count / of + 1e-12
    assert count / of - 1e-12 <= high <= 1
