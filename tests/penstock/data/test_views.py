"""Views of items, and where they came from."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from penstock.data.samples import Samples
from penstock.data.views import Chosen, Lines


def test_chosen_items_are_read_from_where_they_lie() -> None:
    chosen = Chosen(["a", "b", "c", "d"], np.array([3, 0, 2]))
    assert list(chosen) == ["d", "a", "c"]
    assert list(chosen[1:]) == ["a", "c"]
    assert chosen[-1] == "c"
    assert len(chosen[:2]) == 2
    with pytest.raises(IndexError):
        chosen[3]
    assert list(pickle.loads(pickle.dumps(chosen))) == list(chosen)


def test_lines_say_where_a_row_stands() -> None:
    lines = Lines("train.csv", [2, 5, 9])
    assert list(lines) == ["train.csv line 2", "train.csv line 5", "train.csv line 9"]
    assert list(lines[1:]) == ["train.csv line 5", "train.csv line 9"]
    assert Lines("a.parquet", [1], "row")[0] == "a.parquet row 1"


def test_a_sample_without_a_place_goes_by_its_number() -> None:
    assert Samples(["a"], np.zeros(1, np.int64)).place(0) == "item 0"
    assert Samples(["a"], np.zeros(1, np.int64), places=["x.png"]).place(0) == "x.png"
