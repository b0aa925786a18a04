"""Texts from CSV files: every error says which line."""

from __future__ import annotations

import csv
import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import data
from penstock.data.specs import CsvText
from penstock.errors import PenstockError

ROWS = "".join(f"good,fine film {n}\nbad,poor film {n}\n" for n in range(10))


def written(tmp_path: Path, content: str | bytes, name: str = "train.csv") -> str:
    raw = content.encode() if isinstance(content, str) else content
    (tmp_path / name).write_bytes(raw)
    return str(tmp_path / name)


def test_texts_and_their_classes_are_read_and_split(tmp_path: Path) -> None:
    parts = data.load(CsvText(train=written(tmp_path, "label,text\n" + ROWS)))
    assert {name: len(part) for name, part in parts.items()} == {"train": 14, "val": 2, "test": 4}
    lines = (tmp_path / "train.csv").read_text().splitlines()
    for part in parts.values():
        assert (part.kind, part.classes) == ("text", ("bad", "good"))
        assert part.labels.dtype == np.int64
        for row, text in enumerate(part.items):
            line = int(part.place(row).removeprefix("train.csv line "))
            assert lines[line - 1] == f"{part.classes[part.labels[row]]},{text}"


def test_files_of_their_own_are_the_parts(tmp_path: Path) -> None:
    spec = CsvText(
        train=written(tmp_path, "label,text\n" + ROWS),
        dev=written(tmp_path, "text,label,more\nwell,good,1\nugh,bad,2\n", "dev.csv"),
        test_file=written(tmp_path, 'text\tlabel\nso, so\tgood\n"two\nlines"\tbad\nlast\tbad\n', "test.tsv"),
    )
    parts = data.load(spec)
    assert [len(part) for part in parts.values()] == [20, 2, 3]
    assert list(parts["val"].items) == ["well", "ugh"]
    assert parts["val"].labels.tolist() == [1, 0]
    assert list(parts["test"].items) == ["so, so", "two\nlines", "last"]
    assert [parts["test"].place(row) for row in range(3)] == [f"test.tsv line {line}" for line in (2, 3, 5)]


def test_a_mark_at_the_beginning_and_other_line_ends_change_nothing(tmp_path: Path) -> None:
    plain = data.load(CsvText(train=written(tmp_path, "label,text\n" + ROWS)))["train"]
    for end in ("\r\n", "\r"):
        raw = b"\xef\xbb\xbf" + ("label,text\n" + ROWS).replace("\n", end).encode()
        assert list(data.load(CsvText(train=written(tmp_path, raw)))["train"].items) == list(plain.items)


def test_classes_that_are_numbers_are_ordered_by_value(tmp_path: Path) -> None:
    rows = "".join(f"{n % 12},film {n}\n" for n in range(240))
    classes = data.load(CsvText(train=written(tmp_path, "label,text\n" + rows)))["train"].classes
    assert classes == tuple(str(n) for n in range(12))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty; its first line must name the columns"),
        ("label,text\n", "holds a header and no rows"),
        ("lable,text\ngood,x\n", r"no column 'label', as dataset.label names it; its columns are 'lable', 'text'; the "
         "nearest is 'lable'"),
        ("label,text,label\n", "names column 'label' twice"),
        ("label,text\ngood,x\n\nbad\n", "line 4 has 1 value, not 2"),
        ("label,text\ngood,x\nbad,a, b\n", "line 3 has 3 values, not 2 as the header .* in double quotes"),
        ("label,text\ngood,x\n ,y\n", "line 3 has no label: column 'label' is empty"),
        ('label,text\ngood,x\nbad,"open\nand on\n', "line 3 of the table is no CSV: .* by line 4"),
        ('label,text\ngood,"x" y\n', "line 2 of the table is no CSV"),
        (b"label,text\ngood,x\nbad,\xff\n", "line 3 of the table is not UTF-8: byte 0xff"),
        ("label,text\ngood,x\n".encode("utf-16"), "line 1 of the table is not UTF-8: byte 0xff"),
        ("label,text\ngood," + "x" * 200_000, "line 2 of the table is no CSV: field larger"),
        ("label,text\ngood,x\ngood,y\n", "holds only the class 'good'"),
        ("label,text\n" + ROWS + "ugly,x\n", r"class 'ugly' \(1\)"),
    ],
)  # fmt: skip
def test_a_file_that_is_broken_is_refused_with_its_line(tmp_path: Path, content: str | bytes, words: str) -> None:
    file = written(tmp_path, content)
    with pytest.raises(PenstockError, match=f"(dataset.train {file}|dataset csv-text): .*{words}"):
        data.load(CsvText(train=file))


def test_a_line_without_an_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.tables._LONGEST_LINE", 1000)
    file = written(tmp_path, "label,text\ngood," + "x," * 2000)
    with pytest.raises(PenstockError, match="line 2 of the table has more than 1000 characters"):
        data.load(CsvText(train=file))


@pytest.mark.parametrize(("name", "words"), [("nowhere.csv", "no such file"), (".", "is no file")])
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(PenstockError, match=f"dataset.train {tmp_path / name}: {words}"):
        data.load(CsvText(train=str(tmp_path / name)))


def test_a_class_that_train_never_saw_is_refused_with_its_line(tmp_path: Path) -> None:
    train = written(tmp_path, "label,text\n" + ROWS)
    dev = written(tmp_path, "label,text\ngood,x\nGood,y\n", "dev.csv")
    with pytest.raises(PenstockError) as caught:
        data.load(CsvText(train=train, dev=dev))
    assert str(caught.value) == (
        f"dataset.dev {dev}: dev.csv line 3 is of class 'Good', of which train has nothing; its classes are bad, good; "
        "the nearest is 'good'"
    )


def test_a_class_that_dev_lacks_and_texts_without_a_word_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = written(tmp_path, "label,text\n" + ROWS)
    dev = written(tmp_path, "label,text\ngood,\n", "dev.csv")
    with caplog.at_level(logging.WARNING):
        data.load(CsvText(train=train, dev=dev))
    assert [record.getMessage() for record in caplog.records] == [
        f"dataset.dev {dev}: 1 text without a word, as line 2",
        f"dataset.dev {dev}: has nothing of class bad; figures of val say nothing of it",
    ]


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8).map(str.strip)


@settings(max_examples=50, deadline=None)
@given(st.lists(cells, min_size=1, max_size=4))
def test_what_python_writes_is_read_back(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    file = tmp_path_factory.mktemp("csv") / "train.csv"
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, quoting=csv.QUOTE_ALL)
        writer.writerow(["label", "text"])
        writer.writerows([label, text] for label in ("a", "b") for text in texts * 8)
    train = data.load(CsvText(train=str(file), dev=str(file), test_file=str(file)))["train"]
    assert list(train.items) == texts * 16
