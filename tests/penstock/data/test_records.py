"""RecordIO as a data set: real pictures and their labels, read back as they were written; files that break a rule."""

from __future__ import annotations

import io
import logging
import multiprocessing
import operator
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

from penstock import data, irheader
from penstock.data.records import names_path
from penstock.data.samples import Samples
from penstock.data.specs import Records
from penstock.errors import PenstockError
from penstock.preprocess import BadImage, decode_image
from penstock.recordio import Writer, index_path

COUNT = 300
DIGITS = load_digits()
SCANS = np.rint(DIGITS.images[:COUNT] * (255 / 16)).astype(np.uint8)
LABELS = DIGITS.target[:COUNT]


def encoded(pixels: Any, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


PICTURES = [encoded(scan) for scan in SCANS]
PHOTO = encoded(load_sample_image("flower.jpg")[::4, ::4], "JPEG")


def written(path: Path, labels: Sequence[Any], pictures: Sequence[bytes] = PICTURES) -> Path:
    with Writer(path) as writer:
        for number, (label, picture) in enumerate(zip(labels, pictures, strict=True)):
            writer.write(irheader.pack(label, picture, id=number))
    return path


def load(path: Path, **other: Any) -> dict[Any, Samples]:
    return data.load(Records(path=str(path), **other))


def pairs(part: Samples) -> Counter[tuple[bytes, Any]]:
    return Counter(zip(part.items, map(tuple, np.reshape(part.labels, (len(part), -1))), strict=True))


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    return written(tmp_path / "digits.rec", LABELS)


def test_the_parts_together_are_the_file_s_pictures_with_their_labels(digits: Path) -> None:
    parts = load(digits)
    assert {name: len(part) for name, part in parts.items()} == {"train": 210, "val": 30, "test": 60}
    whole = sum(map(pairs, parts.values()), Counter())
    assert whole == Counter((picture, (label,)) for picture, label in zip(PICTURES, LABELS, strict=True))
    assert {(part.kind, part.classes, part.labels.dtype.name) for part in parts.values()} == {
        ("image", tuple("0123456789"), "int64")
    }
    for part in parts.values():
        assert np.abs(np.bincount(part.labels) - np.bincount(LABELS) * len(part) / COUNT).max() <= 1.5


def test_an_item_is_the_picture_that_its_place_names(digits: Path) -> None:
    offsets = [int(line.split("\t")[1]) for line in index_path(digits).read_text().splitlines()]
    for part in load(digits).values():
        for index in range(len(part)):
            number = PICTURES.index(part.items[index])
            assert part.place(index) == f"{digits} record {number} at byte {offsets[number]}"
            assert np.array_equal(np.asarray(decode_image(part.items[index])), SCANS[number])
            assert part.labels[index] == LABELS[number]


def test_a_file_without_an_index_is_the_same_data_set_and_a_seed_another_split(digits: Path) -> None:
    with_index = load(digits)
    index_path(digits).unlink()
    without, other = load(digits), load(digits, seed=1)
    for name, part in with_index.items():
        assert list(part.items) == list(without[name].items)
        assert np.array_equal(part.labels, without[name].labels)
        assert pairs(part) != pairs(other[name])


def test_items_are_read_when_they_are_asked_for_also_by_processes_that_are_sent_them(digits: Path) -> None:
    part = load(digits)["val"]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(operator.getitem, [part.items] * len(part), range(len(part)))) == list(part.items)
    assert list(part.items[3:5]) == [part.items[3], part.items[4]]
    assert part.items[-1] == part.items[len(part) - 1]
    digits.write_bytes(b"")
    with pytest.raises(PenstockError, match="was cut off while it was read"):
        part.items[0]


def test_names_of_classes_are_the_lines_of_the_file_beside_it(digits: Path) -> None:
    names_path(digits).write_text("zero\none\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n")
    classes = load(digits)["train"].classes
    assert classes is not None
    assert (classes[0], classes[9], classes[10], len(classes)) == ("zero", "nine", "ten", 11)
    names_path(digits).write_text("zero\none\ntwo\n")
    first = int(np.flatnonzero(LABELS >= 3)[0])
    with pytest.raises(PenstockError, match=f"record {first} at byte .* has class number 3; .* names 3 classes"):
        load(digits)
    for text in ("zero\n\none\n", "zero\none\nzero\n", ""):
        names_path(digits).write_text(text)
        with pytest.raises(PenstockError, match="names of classes must differ, and not be empty"):
            load(digits)


def test_arrays_of_labels_are_numbers_without_classes(tmp_path: Path) -> None:
    labels = np.stack([LABELS % 2, LABELS > 4, LABELS / 4], 1).astype(np.float32)
    parts = load(written(tmp_path / "a.rec", list(labels)))
    whole = sum(map(pairs, parts.values()), Counter())
    assert whole == Counter((picture, tuple(row)) for picture, row in zip(PICTURES, labels, strict=True))
    assert {(part.classes, part.labels.dtype.name, part.labels.shape[1:]) for part in parts.values()} == {
        (None, "float32", (3,))
    }


def test_arrays_of_more_labels_than_are_read_at_first_are_read_whole(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).normal(size=(COUNT, 100)).astype(np.float32)
    part = load(written(tmp_path / "a.rec", list(labels)))["val"]
    numbers = [PICTURES.index(item) for item in part.items]
    assert np.array_equal(part.labels, labels[numbers])


def test_an_array_of_one_label_is_a_class_number(tmp_path: Path) -> None:
    parts = load(written(tmp_path / "a.rec", [[label] for label in LABELS]))
    assert parts["train"].classes == tuple("0123456789")
    assert np.array_equal(parts["test"].labels, load(written(tmp_path / "b.rec", LABELS))["test"].labels)


@pytest.mark.parametrize(
    ("label", "told"),
    [
        (2.5, "has label 2.5; class numbers are whole, and from 0 on"),
        (-1, "has label -1; class numbers are whole"),
        (float("nan"), "has label nan; labels must be finite"),
        (float("inf"), "has label inf; labels must be finite"),
        (300, "has class number 300; there are 300 records; more classes than records need their names in "),
        ([1, 2], "has an array of 2 labels, and record 0 has one label; all must have as many"),
    ],
)
def test_a_label_that_breaks_its_rule_is_told_with_its_record(tmp_path: Path, label: Any, told: str) -> None:
    path = written(tmp_path / "a.rec", [*LABELS[:7], label, *LABELS[8:]])
    offset = index_path(path).read_text().splitlines()[7].split("\t")[1]
    with pytest.raises(PenstockError) as caught:
        load(path)
    assert f"{path} record 7 at byte {offset}: {told}" in str(caught.value)


def test_a_test_file_is_the_test_part_and_a_share_of_the_other_is_kept_to_validate(
    digits: Path, tmp_path: Path
) -> None:
    test = written(tmp_path / "test.rec", LABELS[:50], PICTURES[:50])
    parts = load(digits, test_file=str(test))
    assert {name: len(part) for name, part in parts.items()} == {"train": 270, "val": 30, "test": 50}
    assert list(parts["test"].items) == PICTURES[:50]
    assert np.array_equal(parts["test"].labels, LABELS[:50])
    assert parts["test"].classes == parts["train"].classes == tuple("0123456789")


def test_a_test_file_of_other_classes_or_labels_is_refused(tmp_path: Path) -> None:
    train = written(tmp_path / "train.rec", [number % 3 * 2 for number in range(COUNT)])
    test = tmp_path / "test.rec"
    for label, told in (
        (5, "has class number 5; .*train.rec has 5 classes"),
        (3, "is of class '3', of which .*train.rec"),
    ):
        written(test, [0, 2, label], PICTURES[:3])
        with pytest.raises(PenstockError, match=f"{test} record 2 at byte .*: {told}"):
            load(train, test_file=str(test))
    written(test, [[0, 1]], PICTURES[:1])
    with pytest.raises(
        PenstockError, match=r"test\.rec: each record has an array of 2 labels; in .*train.rec it has one label"
    ):
        load(train, test_file=str(test))
    written(test, [0], PICTURES[:1])
    names_path(train).write_text("a\nb\nc\nd\ne\n")
    assert load(train, test_file=str(test))["test"].classes == tuple("abcde")
    names_path(test).write_text("e\nb\nc\nd\na\n")
    with pytest.raises(
        PenstockError, match=r"test.classes.txt: names other classes than those of .*, or in another order"
    ):
        load(train, test_file=str(test))


def with_faults() -> list[bytes]:
    """Pictures of which the third is none, the sixth ends in its middle, the ninth is empty, the last a photograph."""
    return [
        *PICTURES[:2],
        b"no picture at all",
        *PICTURES[3:5],
        PHOTO[:2000],
        *PICTURES[6:8],
        b"",
        *PICTURES[9:-1],
        PHOTO,
    ]


def test_what_is_no_picture_ends_it_with_its_record_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.rec", LABELS, with_faults())
    offset = index_path(path).read_text().splitlines()[2].split("\t")[1]
    with pytest.raises(PenstockError, match=f"a.rec record 2 at byte {offset}: what follows its labels is no picture"):
        load(path)


def test_a_picture_that_is_damaged_behind_its_head_shows_when_it_is_decoded(tmp_path: Path) -> None:
    pictures = [*PICTURES[:5], PHOTO[:2000], *PICTURES[6:]]
    damaged = []
    for part in load(written(tmp_path / "a.rec", LABELS, pictures)).values():
        for index, item in enumerate(part.items):
            try:
                decode_image(item)
            except BadImage:
                damaged.append(part.place(index))
    assert [place.split(" at ")[0] for place in damaged] == [f"{tmp_path / 'a.rec'} record 5"]


def test_with_skip_only_pictures_that_can_be_decoded_are_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "a.rec", LABELS, with_faults())
    with caplog.at_level(logging.WARNING):
        parts = load(path, unreadable="skip")
    kept = [number for number in range(COUNT) if number not in (2, 5, 8)]
    whole = sum(map(pairs, parts.values()), Counter())
    assert whole == Counter((with_faults()[number], (LABELS[number],)) for number in kept)
    told = [record.getMessage() for record in caplog.records]
    assert [line.split(" at byte ")[0] for line in told[:3]] == [f"{path} record {number}" for number in (2, 5, 8)]
    assert told[3:] == [f"{path}: 3 of 300 records are left out"]


def test_a_file_without_a_picture_or_a_record_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.rec", [0, 1], [b"", b"no"])
    with pytest.raises(PenstockError, match="holds 2 records, and in none a picture that can be decoded"):
        load(path, unreadable="skip")
    with pytest.raises(PenstockError, match=r"a\.rec: holds no records"):
        load(written(path, [], []))
    with Writer(path) as writer:
        writer.write(b"short")
    with pytest.raises(PenstockError, match="record 0 at byte 0: has 5 bytes; an IRHeader alone has 24"):
        load(path)


def test_a_file_that_has_grown_since_its_index_was_made_is_found_out(digits: Path, tmp_path: Path) -> None:
    more = written(tmp_path / "more.rec", [1], PICTURES[:1])
    digits.write_bytes(digits.read_bytes() + more.read_bytes())
    with pytest.raises(PenstockError, match=r"digits.idx: has 300 lines for the 301 records of"):
        load(digits)
