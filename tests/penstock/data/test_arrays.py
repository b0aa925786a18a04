"""Arrays: whole numbers are classes without gaps, floats are numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import data, spool
from penstock.data.arrays import Inputs
from penstock.data.specs import Arrays
from penstock.errors import PenstockError


def saved(tmp_path: Path, **arrays: Any) -> Arrays:
    np.savez(tmp_path / "a.npz", **arrays)
    return Arrays(path=str(tmp_path / "a.npz"))


def test_rows_of_all_arrays_stay_with_their_labels(tmp_path: Path) -> None:
    labels = np.arange(60) % 3
    spec = saved(tmp_path, ids=np.arange(120).reshape(60, 2), mask=labels.astype(np.float32), labels=labels)
    parts = data.load(spec)
    assert {name: len(part) for name, part in parts.items()} == {"train": 42, "val": 6, "test": 12}
    for part in parts.values():
        assert part.kind == "arrays"
        assert part.classes == ("0", "1", "2")
        assert part.labels.dtype == np.int64
        assert part.items.arrays["ids"].dtype == np.int64
        for row, item in enumerate(part.items):
            assert item["mask"] == part.labels[row]
            assert item["ids"].tolist()[0] // 2 % 3 == part.labels[row]
            assert part.place(row) == f"a.npz row {item['ids'][0] // 2}"
    assert len(parts["test"].items[2:5]) == 3


def test_floats_are_numbers_of_any_width(tmp_path: Path) -> None:
    for shape in ((20,), (20, 3)):
        part = data.load(saved(tmp_path, x=np.zeros((20, 2)), labels=np.random.default_rng(0).random(shape)))["train"]
        assert part.classes is None
        assert part.labels.dtype == np.float32
        assert part.labels.shape == (14, *shape[1:])


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, np.float64])
def test_labels_that_are_held_or_not_are_numbers_of_any_dtype(dtype: Any, tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 2, (20, 3))
    spec = saved(tmp_path, x=labels.astype(np.float32), labels=labels.astype(dtype))
    for part in data.load(spec, "multilabel").values():
        assert part.classes is None
        assert part.labels.dtype == np.float32
        assert [item["x"].tolist() for item in part.items] == part.labels.tolist()


@pytest.mark.parametrize(("number", "task"), [(2, "multilabel"), (-1, "multilabel"), (1, "classification"), (1, None)])
def test_other_whole_numbers_in_several_columns_are_refused(number: int, task: str | None, tmp_path: Path) -> None:
    spec = saved(tmp_path, x=np.zeros((20, 2)), labels=np.full((20, 2), number))
    with pytest.raises(PenstockError, match="must be floats or, of task multilabel, 0 and 1"):
        data.load(spec, task)


def test_large_arrays_are_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.arrayfiles.LEAST", 1000)
    monkeypatch.setattr("penstock.spool.LEAST", 1000)
    rows = np.random.default_rng(0).random((50, 10)).astype(np.float32)
    parts = data.load(saved(tmp_path, x=rows, labels=np.arange(50) % 2))
    items = parts["test"].items
    assert isinstance(items, Inputs)
    assert isinstance(items.arrays["x"], spool.Spool)
    assert items[3]["x"].tolist() == rows[int(parts["test"].place(3).split()[-1])].tolist()


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array([0, 1, 3, 5] * 5), "no row is of class 2, 4, though labels go up to 5"),
        (np.array([0, 2**40] * 10), "no row is of class 1, 2, 3, 4, 5, 6, 7, 8 and 1 more, though"),
        (np.array([0, -1] * 10), "the label of row 1 is -1; class numbers are 0 and more"),
        (np.zeros(20, int), "only class 0"),
        (np.zeros((20, 2), int), r"whole numbers of shape \[20, 2\]; class numbers are one for each row"),
        (np.zeros(20, bool), "labels have dtype bool; classes must be integers, numbers floats"),
        (np.array([1.0] * 19 + [np.nan]), "the label of row 19 is nan, which is no finite"),
        (np.array([1.0] * 19 + [1e39]), r"the label of row 19 is 1e\+39, which is no finite"),
        (np.zeros((20, 2, 2)), r"labels have shape \[20, 2, 2\]; numbers must be \[n\] or \[n, k\]"),
        (np.zeros(19), "same number of rows"),
        (np.array(["a"] * 20), "'labels' holds no numbers"),
    ],
)
def test_labels_that_are_neither_are_refused(tmp_path: Path, labels: Any, words: str) -> None:
    spec = saved(tmp_path, x=np.zeros((20, 2)), labels=labels)
    with pytest.raises(PenstockError, match=f"dataset.path {spec.path}: .*{words}"):
        data.load(spec)


def test_a_file_without_labels_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="holds no `labels`, but x, y"):
        data.load(saved(tmp_path, x=np.zeros(3), y=np.zeros(3)))


def test_a_file_that_is_missing_is_told_by_its_setting(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=f"dataset.path {tmp_path / 'b.npz'}: no such file"):
        data.load(Arrays(path=str(tmp_path / "b.npz")))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("least", [spool.LEAST, 0])
def test_floats_of_any_width_are_taken_as_float32(
    tmp_path: Path, dtype: Any, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "LEAST", least)
    values = np.random.default_rng(0).random((600, 3)).astype(dtype)
    parts = data.load(saved(tmp_path, x=values, labels=np.arange(600) % 2))
    for part in parts.values():
        for row in (0, len(part) - 1):
            item = part.items[row]["x"]
            assert item.dtype == np.float32
            number = int(part.place(row).rpartition(" ")[2])
            assert np.array_equal(np.ravel(item), values[number].astype(np.float32))


@pytest.mark.parametrize(("number", "told"), [(np.nan, "nan"), (1e300, "inf")])
def test_an_input_that_is_no_number_is_refused_with_its_row(tmp_path: Path, number: float, told: str) -> None:
    values = np.zeros((600, 3))
    values[519, 2] = number
    with pytest.raises(PenstockError, match=rf"^dataset.path .*: row 519 of 'x' holds {told}, which is no finite"):
        data.load(saved(tmp_path, x=values, labels=np.arange(600) % 2))
