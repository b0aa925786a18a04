"""Data sets: the same split everywhere, and .npz files read strictly."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from penstock import datasets
from penstock.datasets import DatasetSpec, Rows, Samples
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess

DIGITS = DatasetSpec(name="digits")
GREY = ImagePreprocess(input="image", mode="L", height=8, width=8, mean=(0.3,), std=(0.37,))


def keyed(part: Samples) -> Counter[tuple[bytes, int]]:
    return Counter((image.tobytes(), int(label)) for image, label in zip(part.images, part.labels, strict=True))


def test_the_parts_together_are_the_whole_and_share_no_sample() -> None:
    parts = datasets.load(DIGITS)
    scans = load_digits()
    images = np.rint(scans.images * 255 / 16).astype(np.uint8)
    whole = keyed(Samples(images, scans.target))
    assert sum((keyed(part) for part in parts.values()), Counter()) == whole
    assert {name: len(part.labels) for name, part in parts.items()} == {
        "train": 1257,
        "val": 180,
        "test": 360,
    }


def test_eight_bit_grey_keeps_all_seventeen_levels_of_ink() -> None:
    images = datasets.load(DIGITS)["train"].images
    assert images.dtype == np.uint8
    assert len(np.unique(images)) == 17
    assert set(np.unique(np.rint(images * (16 / 255)))) == set(range(17))


def test_every_class_has_its_share_of_every_part() -> None:
    parts = datasets.load(DIGITS)
    whole = np.bincount(load_digits().target)
    for part in parts.values():
        expected = whole * (len(part.labels) / whole.sum())
        assert np.abs(np.bincount(part.labels, minlength=10) - expected).max() <= 1.5


def test_one_spec_gives_one_split_and_another_seed_another() -> None:
    first, again = datasets.load(DIGITS)["test"], datasets.load(DIGITS)["test"]
    other = datasets.load(DatasetSpec(name="digits", seed=1))["test"]
    assert first.images.tobytes() == again.images.tobytes()
    assert keyed(first) != keyed(other)


def test_rows_are_normalised_samples_with_their_labels() -> None:
    samples = datasets.load(DIGITS)["val"]
    rows = datasets.rows(samples, GREY)
    assert list(rows.inputs) == ["image"]
    assert np.array_equal(rows.inputs["image"], GREY.normalize(samples.images))
    assert np.array_equal(rows.labels, samples.labels)


def test_samples_of_another_size_than_the_model_takes_do_not_pass_as_they_are() -> None:
    larger = GREY.model_copy(update={"height": 16, "width": 16})
    samples = datasets.load(DIGITS)["val"]
    try:
        rows = datasets.rows(samples, larger)
    except PenstockError:
        return
    assert rows.inputs["image"].shape[1:] == (1, 16, 16)


def test_taking_rows_keeps_inputs_and_labels_together() -> None:
    rows = Rows({"a": np.arange(5), "b": np.arange(10).reshape(5, 2)}, np.arange(5))
    taken = rows.take(3)
    assert len(taken) == 3
    assert taken.inputs["b"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert taken.labels is not None
    assert taken.labels.tolist() == [0, 1, 2]


def write(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_an_npz_is_read_by_name_with_its_labels(tmp_path: Path) -> None:
    file = write(tmp_path / "a.npz", x=np.ones((3, 2), np.float32), labels=np.array([1, 2, 3], np.int32))
    rows = datasets.read_npz(file)
    assert list(rows.inputs) == ["x"]
    assert rows.inputs["x"].dtype == np.float32
    assert rows.labels is not None
    assert rows.labels.dtype == np.int64
    assert rows.labels.tolist() == [1, 2, 3]


def test_an_npz_without_labels_has_none(tmp_path: Path) -> None:
    assert datasets.read_npz(write(tmp_path / "a.npz", x=np.ones(3))).labels is None


@pytest.mark.parametrize(
    ("arrays", "rule"),
    [
        ({"labels": np.arange(3)}, "holds no input arrays"),
        ({"x": np.ones(3), "y": np.ones(4)}, "same number of rows"),
        ({"x": np.ones(3), "labels": np.arange(4)}, "'labels': 4"),
        ({"x": np.ones((0, 2))}, "at least 1"),
        ({"x": np.float32(1)}, "same number of rows"),
        ({"x": np.ones(3), "labels": np.ones(3)}, "labels have dtype float64; they must be integers"),
        ({"x": np.ones(3), "labels": np.ones((3, 2), np.int64)}, "same number of rows"),
        ({"x": np.array([{}, {}])}, "plain arrays"),
        ({"x": np.array(["a", "b"])}, "'x' holds no numbers"),
        ({"x": np.array([b"a", b"b"])}, "'x' holds no numbers"),
        ({"x": np.array(["2020-01-01"], "datetime64[D]")}, "'x' holds no numbers"),
        ({"x": np.zeros(2, [("a", "i4")])}, "'x' holds no numbers"),
        ({"x": np.ones(2), "labels": np.array(["a", "b"])}, "'labels' holds no numbers"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(tmp_path: Path, arrays: dict[str, Any], rule: str) -> None:
    file = write(tmp_path / "bad.npz", **arrays)
    with pytest.raises(PenstockError) as caught:
        datasets.read_npz(file)
    assert f"--data {file}" in str(caught.value)
    assert rule in str(caught.value)


def test_files_that_are_no_npz_are_refused_by_name(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.npz", x=np.random.default_rng(0).random((50, 8))).read_bytes()
    contents = {
        "text": b"hello",
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "flipped": whole[:900] + b"!!" + whole[902:],
    }
    for name, content in contents.items():
        file = tmp_path / f"{name}.npz"
        file.write_bytes(content)
        with pytest.raises(PenstockError, match=f"--data {file}"):
            datasets.read_npz(file)
    np.save(tmp_path / "array.npy", np.ones(3))
    for file in (tmp_path / "array.npy", tmp_path, tmp_path / "missing.npz"):
        with pytest.raises(PenstockError, match=f"--data {file}"):
            datasets.read_npz(file)


def test_a_file_that_is_missing_is_told_as_that(tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as caught:
        datasets.read_npz(tmp_path / "missing.npz")
    assert str(caught.value) == f"--data {tmp_path / 'missing.npz'}: no such file"


def test_an_entry_that_is_no_array_is_refused_by_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"hello")
    with pytest.raises(PenstockError, match=f"--data {tmp_path / 'a.npz'}: 'x' holds no numbers"):
        datasets.read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
def test_numbers_of_every_kind_are_read_as_they_are(tmp_path: Path, dtype: str) -> None:
    rows = datasets.read_npz(write(tmp_path / "a.npz", x=np.ones((2, 3), dtype)))
    assert rows.inputs["x"].dtype == np.dtype(dtype)


@pytest.mark.parametrize("seed", [-1, 2**32, 2**64])
def test_a_seed_that_no_generator_takes_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        DatasetSpec(name="digits", seed=seed)
    datasets.load(DatasetSpec(name="digits", seed=2**32 - 1))


@pytest.mark.parametrize("shares", [{"val": 0.5, "test": 0.5}, {"val": 0.0}, {"test": 1.5}, {"val": -0.1}])
def test_shares_that_leave_a_part_empty_are_refused_by_name(shares: dict[str, float]) -> None:
    with pytest.raises((PenstockError, ValueError)) as caught:
        DatasetSpec(name="digits", **shares)
    assert any(name in str(caught.value) for name in shares)


def test_the_largest_shares_that_leave_something_to_train_on_are_taken() -> None:
    parts = datasets.load(DatasetSpec(name="digits", val=0.2, test=0.7))
    assert all(len(part.labels) > 0 for part in parts.values())
    with pytest.raises(ValueError, match="val \\+ test is 1; it must be under 1"):
        DatasetSpec(name="digits", val=0.3, test=0.7)


def test_an_unknown_data_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="digits"):
        DatasetSpec.model_validate({"name": "mnist"})
