"""Splits: stratified where there are classes, and a class that is too small is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.data.specs import Arrays, Part
from penstock.data.split import split, split_off
from penstock.errors import PenstockError

BOTH: dict[Part, float] = {"val": 0.1, "test": 0.2}


def test_numbers_are_split_without_a_look_at_them() -> None:
    parts = split("table", 50, 0, BOTH, None)
    assert [len(index) for index in parts.values()] == [35, 5, 10]
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(50))


def test_a_class_with_one_sample_is_named_with_what_to_do() -> None:
    classes = np.array([0] * 30 + [1] + [2] * 30)
    with pytest.raises(PenstockError) as caught:
        split("pets", len(classes), 0, BOTH, classes, ("cat", "okapi", "dog"))
    assert str(caught.value) == (
        "dataset pets: too few samples of class 'okapi' (1) to split val 0.1 and test 0.2 off and leave one to train "
        "on; add samples, leave the class out, or give each part files of its own"
    )


def test_a_class_is_called_by_its_number_where_it_has_no_name() -> None:
    with pytest.raises(PenstockError, match=r"class '1' \(1\)"):
        split("pets", 21, 0, {"val": 0.1}, np.array([0] * 20 + [1]))


def test_a_part_too_small_for_all_classes_is_refused() -> None:
    classes = np.repeat(np.arange(20), 3)
    with pytest.raises(PenstockError, match="leave too little"):
        split("pets", 60, 0, {"val": 0.1}, classes)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    val=st.floats(0.05, 0.45),
    test=st.floats(0.05, 0.45),
    seed=st.integers(0, 5),
)
def test_train_has_every_class_and_parts_share_nothing_or_it_is_refused(
    counts: list[int], val: float, test: float, seed: int
) -> None:
    classes = np.repeat(np.arange(len(counts)), counts)
    try:
        parts = split("any", len(classes), seed, {"val": val, "test": test}, classes)
    except PenstockError:
        return
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(classes)))
    assert set(classes[parts["train"]]) == set(classes)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((), {"train": 70, "val": 10, "test": 20}),
        (("train", "val"), {"train": 80, "test": 20}),
        (("train", "test"), {"train": 90, "val": 10}),
        (("train", "val", "test"), {"train": 100}),
    ],
)
def test_only_parts_without_samples_of_their_own_are_split_off(own: tuple[Part, ...], expected: dict[str, int]) -> None:
    parts = split_off(Arrays(path="x"), own, 100, None, None)
    assert {part: len(index) for part, index in parts.items()} == expected
