"""Sheets: CSV and Parquet files of texts or table rows behind `--data`, with their answers where they have them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import tables
from penstock.data import parquet
from penstock.data.specs import CsvTable, CsvText, DatasetSpec
from penstock.errors import PenstockError
from penstock.tables import BadTable
from penstock.tabular import BadRow, TablePreprocess
from penstock.textual import BadText, TextPreprocess

TEXT, LABEL = "text", "label"
SUFFIXES = (".csv", *parquet.SUFFIXES)
_SHOWN = 12
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Sheet:
    """A table's header, and its records with the lines that they end in."""

    path: Path
    header: list[str]
    lines: list[int]
    rows: list[list[str]]
    unit: str = "line"

    def column(self, name: str) -> list[str]:
        place = self.header.index(name)
        return [row[place] for row in self.rows]

    def place(self, row: int) -> str:
        return f"--data {self.path}, {self.unit} {self.lines[row]}"


def text_columns(dataset: DatasetSpec | None) -> tuple[str, ...]:
    """The names that a column of texts may have: the one of the data set that the model was trained on, and `text`."""
    own = (dataset.text,) if isinstance(dataset, CsvText) else ()
    return (*own, TEXT)


def answer_columns(dataset: DatasetSpec | None) -> tuple[str, ...]:
    """The names that a column of answers may have: the one of the data set, and `label`."""
    own = (dataset.label,) if isinstance(dataset, CsvText) else ()
    own = (dataset.target,) if isinstance(dataset, CsvTable) else own
    return (*own, LABEL)


def read(
    path: Path,
    preprocess: TextPreprocess | TablePreprocess,
    labels: Sequence[str] | None,
    task: str | None,
    dataset: DatasetSpec | None,
) -> tuple[Mapping[str, NDArray[Any]], NDArray[Any] | None]:
    """The inputs in a CSV or Parquet file by name, and its answers: class numbers int64 `[n]`, or float32 `[n]`.

    Args:
        path: the file, whose header names a column of texts or all of the model's; others are passed over.
        preprocess: how they become the model's inputs.
        labels: the names of the model's classes, if they are known.
        task: the model's; a regression's answers are numbers.
        dataset: that the model was trained on, which names the columns of texts and answers.

    Raises:
        PenstockError: naming the file, the line, the column, the value and the rule.
    """
    sheet = _opened(path)
    taken = preprocess.names if isinstance(preprocess, TablePreprocess) else ()
    try:
        inputs: Mapping[str, NDArray[Any]]
        if isinstance(preprocess, TextPreprocess):
            inputs = preprocess.rows(sheet.column(_text_column(sheet, text_columns(dataset))))
        else:
            _see_all(sheet, taken)
            inputs = preprocess.rows([dict(zip(sheet.header, row, strict=True)) for row in sheet.rows])
    except BadText as error:
        raise PenstockError(f"{sheet.place(error.index)} {error.why}") from None
    except BadRow as error:
        raise PenstockError(f"{sheet.place(error.index)}, column {error.column!r} {error.why}") from None
    named = [name for name in answer_columns(dataset) if name in sheet.header and name not in taken]
    if not named or task == "multilabel":  # several answers have no place in one cell
        return inputs, None
    return inputs, _numbers(sheet, named[0]) if task == "regression" else _classes(sheet, named[0], labels)


def _opened(path: Path) -> Sheet:
    if path.suffix.lower() in parquet.SUFFIXES:
        names, cells = parquet.sheet("--data", path)
        if not cells:
            raise PenstockError(f"--data {path}: holds no row")
        return Sheet(path, names, list(range(1, len(cells) + 1)), cells, "row")
    try:
        found = list(tables.records(path.read_bytes()))
    except BadTable as error:
        raise PenstockError(f"--data {path}: {error}") from None
    except FileNotFoundError:
        raise PenstockError(f"--data {path}: no such file") from None
    except OSError as error:
        raise PenstockError(f"--data {path}: cannot be read: {error.strerror}") from None
    if len(found) < 2:
        raise PenstockError(f"--data {path}: holds no row below a header that names the columns")
    _, header = found[0]
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise PenstockError(f"--data {path}: its header has {twice[0]!r} twice")
    for line, row in found[1:]:
        if len(row) != len(header):
            raise PenstockError(f"--data {path}, line {line}: has {len(row)} values; the header has {len(header)}")
    return Sheet(path, header, [line for line, _ in found[1:]], [row for _, row in found[1:]])


def _text_column(sheet: Sheet, names: Sequence[str]) -> str:
    for name in names:
        if name in sheet.header:
            return name
    told = " or ".join(map(repr, dict.fromkeys(names)))
    raise PenstockError(f"--data {sheet.path}: its header has no column {told}; it has {some(sheet.header)}")


def _see_all(sheet: Sheet, names: Sequence[str]) -> None:
    lacking = [name for name in names if name not in sheet.header]
    if lacking:
        raise PenstockError(
            f"--data {sheet.path}: its header has no column {lacking[0]!r}; the model's are {some(names)}"
        )


def some(names: Sequence[str]) -> str:
    """The first of many names."""
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _numbers(sheet: Sheet, name: str) -> NDArray[np.float32]:
    found = []
    for row, text in enumerate(sheet.column(name)):
        number = float(text) if tables.is_number(text) else math.nan
        if not abs(number) <= _LARGEST:
            raise PenstockError(f"{sheet.place(row)}, column {name!r} is {text[:40]!r}; it must be a number")
        found.append(number)
    return np.asarray(found, np.float32)


def may_be_numbers(labels: Sequence[str]) -> bool:
    """Whether a number may stand for a class: not where other classes are named so, as 0 beside the names 1 and 2."""
    return not any(map(tables.is_number, labels)) or list(labels) == [str(number) for number in range(len(labels))]


def _classes(sheet: Sheet, name: str, labels: Sequence[str] | None) -> NDArray[np.int64]:
    """Class numbers of names or, where those may be meant, of numbers."""
    numbers = {label: number for number, label in enumerate(labels or ())}
    counted = may_be_numbers(labels or ())
    most = len(labels) - 1 if labels else 10**9
    found = []
    for row, text in enumerate(sheet.column(name)):
        number = numbers.get(text)
        if number is None and counted and text.isascii() and text.isdigit() and len(text) < 10:
            number = int(text)
        if number is None or number > most:
            rule = f"one of {some(labels)}{', or its number' * counted}" if labels else "a class number from 0 on"
            raise PenstockError(f"{sheet.place(row)}, column {name!r} is {text[:40]!r}; it must be {rule}")
        found.append(number)
    return np.asarray(found, np.int64)
