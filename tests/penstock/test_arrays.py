"""Named arrays: what is taken apart comes together again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.arrays import join, take


@given(st.integers(1, 20), st.integers(1, 7))
def test_parts_in_order_are_the_whole(rows: int, most: int) -> None:
    whole = {"a": np.arange(rows * 2).reshape(rows, 2), "b": np.arange(rows)}
    joined = join([take(whole, slice(start, start + most)) for start in range(0, rows, most)])
    assert list(joined) == ["a", "b"]
    for name, array in whole.items():
        np.testing.assert_array_equal(joined[name], array)


def test_rows_are_taken_by_index_too() -> None:
    np.testing.assert_array_equal(take({"b": np.arange(5)}, np.array([4, 0, 4]))["b"], [4, 0, 4])
