"""Data sets: the same split everywhere; .npz and .npy files read strictly; pictures as a server would take them."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydantic import TypeAdapter
from sklearn.datasets import load_digits

from penstock import data, datasets
from penstock.data.samples import Samples
from penstock.data.specs import DatasetSpec, Digits
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess, decode_image

DIGITS = Digits()
GREY = ImagePreprocess(input="image", mode="L", height=8, width=8, mean=(0.3,), std=(0.37,))


def keyed(part: Samples) -> Counter[tuple[bytes, int]]:
    return Counter((image.tobytes(), int(label)) for image, label in zip(part.items, part.labels, strict=True))


def test_the_parts_together_are_the_whole_and_share_no_sample() -> None:
    parts = data.load(DIGITS)
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
    images = data.load(DIGITS)["train"].items
    assert images.dtype == np.uint8
    assert len(np.unique(images)) == 17
    assert set(np.unique(np.rint(images * (16 / 255)))) == set(range(17))


def test_every_class_has_its_share_of_every_part() -> None:
    parts = data.load(DIGITS)
    whole = np.bincount(load_digits().target)
    for part in parts.values():
        expected = whole * (len(part.labels) / whole.sum())
        assert np.abs(np.bincount(part.labels, minlength=10) - expected).max() <= 1.5


def test_one_spec_gives_one_split_and_another_seed_another() -> None:
    first, again = data.load(DIGITS)["test"], data.load(DIGITS)["test"]
    other = data.load(Digits(seed=1))["test"]
    assert first.items.tobytes() == again.items.tobytes()
    assert keyed(first) != keyed(other)


def test_rows_are_normalised_samples_with_their_labels() -> None:
    samples = data.load(DIGITS)["val"]
    rows = datasets.rows(samples, GREY)
    assert list(rows.inputs) == ["image"]
    assert np.array_equal(rows.inputs["image"], GREY.normalize(samples.items))
    assert np.array_equal(rows.labels, samples.labels)


def test_samples_of_another_size_than_the_model_takes_do_not_pass_as_they_are() -> None:
    larger = GREY.model_copy(update={"height": 16, "width": 16})
    samples = data.load(DIGITS)["val"]
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
        (
            {"x": np.ones(3), "labels": np.ones((3, 2), np.int64)},
            "labels have shape [3, 2]; they must be one for each row",
        ),
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
        Digits(seed=seed)
    data.load(Digits(seed=2**32 - 1))


@pytest.mark.parametrize("shares", [{"val": 0.5, "test": 0.5}, {"val": 0.0}, {"test": 1.5}, {"val": -0.1}])
def test_shares_that_leave_a_part_empty_are_refused_by_name(shares: dict[str, float]) -> None:
    with pytest.raises((PenstockError, ValueError)) as caught:
        Digits(**shares)
    assert any(name in str(caught.value) for name in shares)


def test_the_largest_shares_that_leave_something_to_train_on_are_taken() -> None:
    parts = data.load(Digits(val=0.2, test=0.7))
    assert all(len(part.labels) > 0 for part in parts.values())
    with pytest.raises(ValueError, match="val \\+ test is 1; it must be under 1"):
        Digits(val=0.3, test=0.7)


def test_an_unknown_data_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="digits"):
        TypeAdapter(DatasetSpec).validate_python({"name": "mnist"})


def draw(file: Path, level: int = 0, size: tuple[int, int] = (9, 7), kind: str = "PNG") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level, level, level)).save(file, kind)
    return file


def levels(rows: Rows) -> list[int]:
    """The grey levels that one-coloured pictures were drawn with."""
    pixels: NDArray[np.float64] = rows.inputs["image"][:, 0, 0, 0].astype(np.float64)
    return [int(level) for level in np.rint((pixels * 0.37 + 0.3) * 255)]


def test_pictures_are_read_as_a_server_reads_them_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name, kind in {"c.png": "PNG", "a.jpg": "JPEG", "b.WEBP": "WEBP", "e.bmp": "BMP", "d.gif": "GIF"}.items():
        draw(tmp_path / name, 10 + ord(name[0]), kind=kind)
    rows = datasets.read(tmp_path, GREY, None)
    assert list(rows.inputs) == ["image"]
    assert rows.labels is None
    files = sorted(tmp_path.iterdir())
    expected = np.concatenate([GREY.apply(decode_image(file.read_bytes())) for file in files])
    assert rows.inputs["image"].dtype == np.float32
    assert np.array_equal(rows.inputs["image"], expected)
    assert len(rows) == 5


def test_files_that_are_no_pictures_and_hidden_ones_are_passed_over(tmp_path: Path) -> None:
    draw(tmp_path / "a" / "0.png", 5)
    draw(tmp_path / ".hidden" / "0.png")
    for name in ("._0.png", "notes.txt", "labels.csv", "a/._0.png", "a/Thumbs.db"):
        (tmp_path / name).write_text("not a picture")
    (tmp_path / "folder.png").mkdir()
    draw(tmp_path / "a" / "deeper" / "0.png")
    assert levels(datasets.read(tmp_path, GREY, None)) == [5]


@pytest.mark.parametrize(
    ("folders", "labels", "expected"),
    [
        (["cat", "dog"], ("dog", "owl", "cat"), [2, 0]),
        (["cat", "dog"], None, None),
        (["cat", "dog"], ("cat", "owl"), None),
        (["cat", "dog"], ("cat", "dog", "dog"), None),  # two classes of one name
        (["0", "2"], None, [0, 2]),
        (["0", "2"], ("a", "b", "c"), [0, 2]),
        (["0", "3"], ("a", "b", "c"), None),
        (["00", "01"], ("a", "b"), [0, 1]),
        (["7", "8"], ("8", "7"), [1, 0]),  # names go before numbers
        (["0", "1"], ("1", "2"), None),  # 0 is no name, and 1 is one
        (["00", "01"], ("0", "1"), [0, 1]),
        (["1", "x"], None, None),
        (["20251128093000"], None, None),
        (["²"], None, None),
    ],
)
def test_a_folders_name_is_its_class_by_name_or_by_number(
    tmp_path: Path, folders: list[str], labels: tuple[str, ...] | None, expected: list[int] | None
) -> None:
    for folder in folders:
        draw(tmp_path / folder / "x.png")
    rows = datasets.read(tmp_path, GREY, labels)
    assert len(rows) == len(folders)
    if expected is None:
        assert rows.labels is None
    else:
        assert rows.labels is not None
        assert rows.labels.dtype == np.int64
        assert rows.labels.tolist() == expected


@pytest.mark.parametrize("labels", [("a",), (".", "a"), None])
def test_pictures_outside_the_folders_have_no_class_and_so_none_has(
    tmp_path: Path, labels: tuple[str, ...] | None
) -> None:
    draw(tmp_path / "a" / "1.png", 1)
    draw(tmp_path / "z.png", 2)
    rows = datasets.read(tmp_path, GREY, labels)
    assert (levels(rows), rows.labels) == ([1, 2], None)


def test_the_name_of_the_outermost_folder_is_no_class(tmp_path: Path) -> None:
    draw(tmp_path / "1" / "a.png")
    for labels in (("0", "1"), None):
        assert datasets.read(tmp_path / "1", GREY, labels).labels is None


def test_of_more_pictures_than_the_limit_some_are_taken_evenly_from_all(tmp_path: Path) -> None:
    for number in range(20):
        draw(tmp_path / str(number // 10) / f"{number:02}.png", number)
    rows = datasets.read(tmp_path, GREY, ("0", "1"), limit=6)
    assert levels(rows) == [0, 3, 6, 10, 13, 16]
    assert rows.labels is not None
    assert rows.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert levels(datasets.read(tmp_path, GREY, None, limit=20)) == list(range(20))
    assert levels(datasets.read(tmp_path, GREY, None, limit=19)) == list(range(19))


def test_a_class_that_the_limit_leaves_out_still_counts_among_the_names(tmp_path: Path) -> None:
    draw(tmp_path / "0" / "a.png")
    draw(tmp_path / "x" / "a.png")
    assert datasets.read(tmp_path, GREY, None, limit=1).labels is None


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n"])
def test_a_picture_that_cannot_be_decoded_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    draw(tmp_path / "a" / "0.png")
    (tmp_path / "a" / "1.png").write_bytes(content)
    with pytest.raises(PenstockError, match=f"--data {tmp_path / 'a' / '1.png'}: the "):
        datasets.read(tmp_path, GREY, None)


def test_a_picture_too_thin_to_resize_is_refused_by_its_name(tmp_path: Path) -> None:
    draw(tmp_path / "thin.png", size=(60000, 1))
    with pytest.raises(PenstockError, match=r"thin\.png: the image of 60000x1 pixels would have"):
        datasets.read(tmp_path, GREY.model_copy(update={"resize_shorter": 224}), None)


def test_a_picture_that_cannot_be_read_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    draw(tmp_path / "0.png")
    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(PenstockError) as caught:
        datasets.read(tmp_path, GREY, None)
    assert str(caught.value) == f"--data {tmp_path / '0.png'}: cannot be read: Permission denied"


def test_pictures_for_a_model_without_preprocessing_are_refused_with_what_to_give(tmp_path: Path) -> None:
    draw(tmp_path / "0.png")
    with pytest.raises(PenstockError) as caught:
        datasets.read(tmp_path, None, ("a",))
    assert str(caught.value).startswith(f"--data {tmp_path}: holds pictures, and how this model wants them is not ")
    assert "give the numbers it takes, an .npz file with an array for each input" in str(caught.value)


def test_a_folder_of_npy_files_is_read_by_name_with_its_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "input_ids.npy", np.arange(6).reshape(3, 2))
    np.save(tmp_path / "attention_mask.npy", np.ones((3, 2), np.int64))
    np.save(tmp_path / "labels.npy", np.array([1, 0, 1], np.int32))
    (tmp_path / ".x.npy").write_bytes(b"")
    for preprocess in (None, GREY):
        rows = datasets.read(tmp_path, preprocess, None, limit=1)
        assert sorted(rows.inputs) == ["attention_mask", "input_ids"]
        assert rows.inputs["input_ids"].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert rows.labels is not None
        assert rows.labels.tolist() == [1, 0, 1]
        assert rows.labels.dtype == np.int64


def test_npy_files_that_are_no_rows_are_refused_as_in_an_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(3))
    np.save(tmp_path / "y.npy", np.ones(4))
    with pytest.raises(PenstockError, match=f"--data {tmp_path}: arrays must have the same number of rows"):
        datasets.read(tmp_path, None, None)


@pytest.mark.parametrize("kind", ["text", "empty", "half", "npz", "pickled"])
def test_files_that_are_no_npy_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.array([{}, {}]) if kind == "pickled" else np.random.default_rng(0).random((50, 8)))
    if kind == "npz":
        with file.open("wb") as opened:
            np.savez(opened, x=np.ones(3))
    contents = {"text": b"hello, world", "empty": b"", "half": file.read_bytes()[: file.stat().st_size // 2]}
    if kind in contents:
        file.write_bytes(contents[kind])
    with pytest.raises(PenstockError, match=f"--data {file}: not an .npy file of one plain array"):
        datasets.read(tmp_path, None, None)


def test_pictures_and_npy_files_in_one_folder_are_refused(tmp_path: Path) -> None:
    draw(tmp_path / "a" / "0.png")
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(PenstockError, match=r"holds pictures and \.npy files; give a folder of the one or the other"):
        datasets.read(tmp_path, GREY, None)


def test_an_empty_folder_is_refused_with_what_it_might_hold(tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as caught:
        datasets.read(tmp_path, GREY, None)
    assert f"--data {tmp_path}: holds no .npy files, and no pictures (.png, .jpg" in str(caught.value)


def test_a_file_is_read_as_an_npz(tmp_path: Path) -> None:
    file = write(tmp_path / "a.npz", x=np.ones((3, 2), np.float32), labels=np.arange(3))
    rows = datasets.read(file, GREY, ("a",))
    assert list(rows.inputs) == ["x"]
    assert rows.labels is not None
    for bad in (tmp_path / "missing", draw(tmp_path / "0.png")):
        with pytest.raises(PenstockError, match=f"--data {bad}: "):
            datasets.read(bad, GREY, None)


def test_samples_of_the_models_size_are_cropped_where_its_preprocessing_crops() -> None:
    cropped = GREY.model_copy(update={"resize_shorter": 10})
    samples = data.load(DIGITS)["val"]
    rows = datasets.rows(samples, cropped)
    assert np.array_equal(rows.inputs["image"][:1], cropped.apply(Image.fromarray(samples.items[0])))
    assert not np.array_equal(rows.inputs["image"], GREY.normalize(samples.items))


def test_pictures_are_read_as_pixels_where_those_are_taken(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", 7)
    image = ImagePreprocess(input="image", mode="RGB", height=4, width=6, mean=(0,) * 3, std=(1,) * 3, dtype="uint8")
    (pixels,) = datasets.read(tmp_path, image, None).inputs.values()
    assert (pixels.dtype, pixels.shape) == (np.uint8, (1, 4, 6, 3))
    assert np.unique(pixels).tolist() == [7]
