"""What a data set holds, in a line."""

from __future__ import annotations

import numpy as np

from penstock import data
from penstock.data.facts import summary
from penstock.data.samples import Samples
from penstock.data.specs import Digits


def test_the_digits_in_a_line() -> None:
    line = summary(data.load(Digits()))
    assert line == "1,257 train, 180 val, 360 test; 10 classes, 121 (8) to 128 (1) of each in train"


def test_few_classes_are_counted_by_name() -> None:
    part = Samples(["a", "b", "c"], np.array([0, 1, 1]), "text", ("bad", "good"))
    assert summary({"train": part}) == "3 train; 2 classes: 1 bad, 2 good in train"


def test_many_classes_of_one_size() -> None:
    names = tuple(f"c{n}" for n in range(12))
    part = Samples([""] * 24, np.arange(24) % 12, "text", names)
    assert summary({"train": part}) == "24 train; 12 classes (c0, c1, c2 and 9 more), 2 of each in train"


def test_numbers_are_told_by_their_range() -> None:
    part = Samples([""] * 4, np.array([1, 2, 3, 4], np.float32), "row")
    assert summary({"train": part}) == "4 train; numbers, 1 to 4, 2.5 ± 1.1 in train"
    wide = Samples([""] * 4, np.array([[0, 1.5]] * 4, np.float32), "row")
    assert summary({"train": wide, "val": wide}) == "4 train, 4 val; 2 numbers each, 0 to 1.5 in train"


def test_several_labels_a_row_are_counted() -> None:
    held = np.array([[1, 0, 1], [1, 0, 0], [1, 1, 1], [1, 0, 0]], np.float32)
    part = Samples([0] * 4, held, "arrays")
    assert summary({"train": part}, "multilabel") == "4 train; 3 labels, held by 1 to 4 rows, 1.8 by each in train"
