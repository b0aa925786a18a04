"""Tables: columns of numbers and of text, from CSV and Parquet alike; every error says which line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import data
from penstock.data.specs import CsvTable
from penstock.errors import PenstockError

HEADER = "age,town,fare,survived\n"
ROWS = "".join(
    f"{20 + n},{'Bonn' if n % 3 else ''},{n / 4 if n % 5 else 'NaN'},{'yes' if n % 2 else 'no'}\n" for n in range(20)
)


def written(tmp_path: Path, content: str, name: str = "train.csv") -> str:
    (tmp_path / name).write_text(content)
    return str(tmp_path / name)


def spec(train: str, **more: Any) -> CsvTable:
    return CsvTable.model_validate({"train": train, "target": "survived", "kind": "classes", **more})


def test_rows_are_numbers_and_text_with_none_where_nothing_is(tmp_path: Path) -> None:
    parts = data.load(spec(written(tmp_path, HEADER + ROWS)))
    assert {name: len(part) for name, part in parts.items()} == {"train": 14, "val": 2, "test": 4}
    for part in parts.values():
        assert (part.kind, part.classes) == ("row", ("no", "yes"))
        for row, item in enumerate(part.items):
            n = int(part.place(row).removeprefix("train.csv line ")) - 2
            expected = {"age": 20.0 + n, "town": "Bonn" if n % 3 else None, "fare": n / 4 if n % 5 else None}
            assert item == expected
            assert {type(value) for value in item.values()} <= {float, str, type(None)}
            assert part.labels[row] == n % 2


def test_chosen_columns_are_the_rows_and_their_order(tmp_path: Path) -> None:
    item = data.load(spec(written(tmp_path, HEADER + ROWS), columns=("fare", "age")))["train"].items[0]
    assert list(item) == ["fare", "age"]


def test_a_target_of_numbers_is_float32(tmp_path: Path) -> None:
    parts = data.load(spec(written(tmp_path, HEADER + ROWS), target="age", kind="numbers"))
    labels = np.concatenate([part.labels for part in parts.values()])
    assert labels.dtype == np.float32
    assert sorted(labels.tolist()) == list(range(20, 40))
    assert parts["train"].classes is None
    assert list(parts["train"].items[0]) == ["town", "fare", "survived"]


def test_one_cell_that_is_no_number_makes_text_of_the_column_in_all_files(tmp_path: Path) -> None:
    train = written(tmp_path, HEADER + ROWS + "x,Bonn,1,no\n")
    dev = written(tmp_path, HEADER + "007,Bonn,1,no\n" * 2, "dev.csv")
    assert data.load(spec(train, dev=dev))["val"].items[0] == {"age": "007", "town": "Bonn", "fare": 1.0}


@pytest.mark.parametrize(
    ("content", "more", "words"),
    [
        (HEADER, {}, "holds no rows"),
        (
            HEADER + ROWS,
            {"target": "surived"},
            "no column 'surived', as dataset.target names it; .*the nearest is 'surv",
        ),
        (HEADER + ROWS, {"columns": ("agee",)}, "no column 'agee', as dataset.columns names it; .*nearest is 'age'"),
        (HEADER + ROWS + "1,a,2\n", {}, "line 22 has 3 values, not 4"),
        (HEADER + ROWS + "1,a,2,\n", {}, "line 22: 'survived', the target, is missing"),
        (HEADER + ROWS, {"kind": "numbers"}, "line 2: 'survived' is 'no', where a number must be"),
        (HEADER + ROWS, {"kind": "numbers", "target": "fare"}, "line 2: 'fare', the target, is missing"),
        (
            HEADER + ROWS + "-1e300,a,2,no\n",
            {},
            "line 22: 'age' is -1e.300, too large to standardise; correct it, leave",
        ),
        (HEADER + ROWS + "1e999,a,2,no\n", {}, "line 22: 'age' is 1e999, which is out of a float's range"),
        (
            HEADER + ROWS + "1e39,a,2,no\n",
            {"kind": "numbers", "target": "age"},
            "line 22: 'age' is 1e.39, which float32",
        ),
        (",survived\n0,no\n", {}, "column 1 has no name, as pandas writes its index"),
        ("survived\nno\n", {}, "holds no column but 'survived', the target"),
        ("age,age,survived\n1,2,no\n", {}, "names column 'age' twice"),
    ],
)
def test_a_table_that_is_broken_is_refused_with_its_line(
    tmp_path: Path, content: str, more: dict[str, Any], words: str
) -> None:
    file = written(tmp_path, content)
    with pytest.raises(PenstockError, match=f"dataset.train {file}: .*{words}"):
        data.load(spec(file, **more))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("age,town,survived\n1,a,no\n", "has no column 'fare', as dataset.train names it"),
        (HEADER + "1,a,2,no\n\nold,a,2,no\n", "line 4: 'age' is 'old', where a number must be"),
        (HEADER + "1,a,2,No\n", "dev.csv line 2 is of class 'No', of which train has nothing"),
    ],
)
def test_a_file_beside_train_is_held_to_it(tmp_path: Path, content: str, words: str) -> None:
    dev = written(tmp_path, content, "dev.csv")
    with pytest.raises(PenstockError, match=f"dataset.dev {dev}: {words}"):
        data.load(spec(written(tmp_path, HEADER + ROWS), dev=dev))


@pytest.mark.parametrize(
    ("columns", "words"),
    [((), "columns is empty"), (("a", "survived"), "'survived', the target"), (("a", "a"), "'a' twice")],
)
def test_columns_that_cannot_be_told_from_are_refused_by_the_spec(columns: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spec("x.csv", columns=columns)


def parquet(tmp_path: Path, columns: dict[str, Any], name: str = "train.parquet") -> str:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), tmp_path / name, row_group_size=7)
    return str(tmp_path / name)


def test_parquet_and_csv_of_the_same_table_are_the_same_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    towns = [" Bonn" if n % 3 else "" for n in range(20)]
    file = parquet(
        tmp_path,
        {
            "age": pyarrow.array([20 + n for n in range(20)], pyarrow.int16()),
            "town": pyarrow.array(towns).dictionary_encode(),
            "fare": pyarrow.array([n / 4 if n % 5 else None for n in range(20)]),
            "survived": pyarrow.array(["yes" if n % 2 else "no" for n in range(20)], pyarrow.large_string()),
        },
    )
    from_parquet, from_csv = data.load(spec(file)), data.load(spec(written(tmp_path, HEADER + ROWS)))
    for part, samples in from_csv.items():
        assert list(from_parquet[part].items) == list(samples.items)
        assert np.array_equal(from_parquet[part].labels, samples.labels)
        assert from_parquet[part].classes == samples.classes
    first = from_parquet["train"]
    assert first.place(0) == f"train.parquet row {int(first.items[0]['age']) - 19}"


def test_parquet_s_other_numbers_are_numbers_and_null_and_nan_are_missing(tmp_path: Path) -> None:
    import decimal

    pyarrow = pytest.importorskip("pyarrow")
    file = parquet(
        tmp_path,
        {
            "flag": [True, None] * 10,
            "price": pyarrow.array([decimal.Decimal("1.25")] * 20),
            "big": pyarrow.array([2**63 + 1] * 20, pyarrow.uint64()),
            "nan": [float("nan"), 1.0] * 10,
            "none": pyarrow.nulls(20),
            "codes": pyarrow.array([3, 4] * 10).dictionary_encode(),
            "survived": [0, 1] * 10,
        },
    )
    parts = data.load(spec(file, dev=file))
    assert parts["val"].classes == ("0", "1")
    assert list(parts["val"].items)[:2] == [
        {"flag": "true", "price": 1.25, "big": 2.0**63, "nan": None, "none": None, "codes": 3.0},
        {"flag": None, "price": 1.25, "big": 2.0**63, "nan": 1.0, "none": None, "codes": 4.0},
    ]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ([[1]] * 20, "column 'x' is of type list.*numbers, strings and booleans are read"),
        ([1.0] * 19 + [float("inf")], "row 20: 'x' is inf, which is no finite number"),
        ([b"a"] * 20, "column 'x' is of type binary"),
    ],
)
def test_parquet_columns_that_are_neither_are_refused(tmp_path: Path, column: list[Any], words: str) -> None:
    file = parquet(tmp_path, {"x": column, "survived": [0, 1] * 10})
    with pytest.raises(PenstockError, match=f"dataset.train {file}: {words}"):
        data.load(spec(file))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "row 20: 'survived', the target, is missing"),
        (float("nan"), "row 20: 'survived', the target, is missing"),
        (0.5, "row 20: 'survived' is 0.5, where a class or text must be"),
        (float("inf"), "row 20: 'survived' is inf, where a class or text must be"),
    ],
)
def test_a_parquet_target_that_is_missing_or_no_class_is_refused_with_its_row(
    tmp_path: Path, value: float | None, words: str
) -> None:
    file = parquet(tmp_path, {"x": range(20), "survived": [0.0] * 19 + [value]})
    with pytest.raises(PenstockError, match=words):
        data.load(spec(file))


def test_text_in_parquet_where_train_has_numbers_is_refused(tmp_path: Path) -> None:
    train = parquet(tmp_path, {"x": range(20), "survived": [True, False] * 10})
    dev = parquet(tmp_path, {"x": ["a"] * 2, "survived": [True, False]}, "dev.parquet")
    assert data.load(spec(train))["train"].classes == ("false", "true")
    with pytest.raises(PenstockError, match=f"dataset.dev {dev}: column 'x' holds text, where numbers must be"):
        data.load(spec(train, dev=dev))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"hello, world", b"PAR1" + bytes(50) + b"PAR1"])
def test_a_file_that_is_no_parquet_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(PenstockError, match=f"dataset.train {tmp_path / 'a.parquet'}: cannot be read as Parquet: "):
        data.load(spec(str(tmp_path / "a.parquet")))


def test_a_parquet_file_cut_short_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    file = Path(parquet(tmp_path, {"x": np.random.default_rng(0).random(100), "survived": [0, 1] * 50}))
    whole = file.read_bytes()
    for length in range(0, len(whole), len(whole) // 12):
        file.write_bytes(whole[:length])
        with pytest.raises(PenstockError, match=str(file)):
            data.load(spec(str(file)))


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        PenstockError, match=r"needs pyarrow, which is not installed: pip install 'penstock\[parquet\]'"
    ):
        data.load(spec(str(tmp_path / "a.parquet")))


def test_a_column_of_numbers_that_a_slip_makes_text_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"{number},{'inf' if number == 30 else number},{'xy'[number % 2]},{number % 2}" for number in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,y", *rows]))
    data.load(CsvTable(train=str(tmp_path / "t.csv"), target="y", kind="classes"))
    (told,) = caplog.messages
    assert told.endswith("line 32: 'b' is 'inf', where 30 lines before hold numbers; the column is taken for text")
