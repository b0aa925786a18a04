"""Arrays gathered by one call lie behind one another, and nothing behind them is touched."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import gather as gathering
from penstock.gather import gather


@given(st.lists(st.integers(1, 5), min_size=4, max_size=30), st.sampled_from(["uint8", "float32", "int64"]))
def test_rows_of_several_arrays_become_one_array(rows: list[int], dtype: str) -> None:
    rng = np.random.default_rng(len(rows))
    arrays = [rng.integers(0, 100, (count, 70_000)).astype(dtype) for count in rows]
    into = np.zeros((sum(rows) + 1, 70_000), dtype)
    assert gather(arrays, into)
    assert np.array_equal(into[:-1], np.concatenate(arrays))
    assert not into[-1].any()


@pytest.mark.parametrize(
    "arrays",
    [
        [np.ones((1, 2**18), np.float32)] * 3,
        [np.ones((1, 8), np.float32)] * 8,
        [np.ones((1, 2**18), np.float64)] * 8,
        [np.ones((1, 2**19), np.float32)[:, ::2]] * 8,
        [np.ones((1, 2**18), np.float32)] * 9,
    ],
    ids=["few", "small", "another dtype", "not in order", "more than there is room for"],
)
def test_what_it_does_not_take_is_left_to_others(arrays: list[np.ndarray]) -> None:
    into = np.zeros((8, 2**18), np.float32)
    assert not gather(arrays, into)
    assert not into.any()


def test_where_the_call_is_forbidden_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "_read", lambda *_: -1)
    assert not gather([np.ones((1, 2**18), np.float32)] * 4, np.zeros((4, 2**18), np.float32))
