"""Rows of tables, and the column that is to be told from the others, from CSV and Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from penstock.data import found
from penstock.data.columns import Columns, CsvColumns, Kind
from penstock.data.csvfiles import named, position
from penstock.data.found import Found
from penstock.data.parquet import SUFFIXES, ParquetColumns
from penstock.data.samples import Samples
from penstock.data.specs import CsvTable, Part
from penstock.data.views import Lines
from penstock.errors import PenstockError

# The squares of larger numbers have no sum in float64.
_MOST = 1e150
Row = dict[str, "str | float | None"]


class Table(Sequence[Row]):
    """Rows of columns `[n]`: numbers float64, text as objects; a row has None where NaN or None stands."""

    def __init__(self, columns: Mapping[str, NDArray[np.float64] | NDArray[np.object_]]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Table: ...

    def __getitem__(self, index: int | slice) -> Row | Table:
        if isinstance(index, slice):
            return Table({name: values[index] for name, values in self.columns.items()})
        return {name: _cell(values.item(index)) for name, values in self.columns.items()}


def _cell(value: str | float | None) -> str | float | None:
    return None if value != value else value  # NaN


def load(spec: CsvTable) -> dict[Part, Samples]:
    """The parts: rows as dicts of the columns that the target is told from; numbers are floats, missing values None.

    What holds only numbers in train's file is numbers in all files.

    Raises:
        PenstockError: a file cannot be read, lacks a column, or holds in a row what its column must not; a target is
            missing, is no number where those are wanted, or is of a class that train lacks; a part would be too small.
    """
    files = {part: _open(setting, path) for part, (setting, path) in named(spec).items()}
    features = _features(spec, files["train"])
    by = "dataset.train" if spec.columns is None else "dataset.columns"
    for file in files.values():
        for name in (spec.target, *features):
            position(file.where, file.columns, name, "dataset.target" if name == spec.target else by)
    kinds = files["train"].kinds(features)
    held = {part: _read(spec, file, kinds) for part, file in files.items()}
    return found.samples(spec, held, "row")


def _open(setting: str, path: Path) -> Columns:
    return ParquetColumns(setting, path) if path.suffix.lower() in SUFFIXES else CsvColumns(setting, path)


def _features(spec: CsvTable, train: Columns) -> tuple[str, ...]:
    """The columns that the target is told from."""
    if spec.columns is not None:
        return spec.columns
    position(train.where, train.columns, spec.target, "dataset.target")
    if "" in train.columns:
        raise PenstockError(
            f"{train.where}: column {train.columns.index('') + 1} has no name, as pandas writes its index; remove it "
            "(to_csv(index=False)), or list in dataset.columns those to tell from"
        )
    features = tuple(name for name in train.columns if name != spec.target)
    if not features:
        raise PenstockError(f"{train.where}: holds no column but {spec.target!r}, the target")
    return features


def _read(spec: CsvTable, file: Columns, kinds: Mapping[str, Kind]) -> Found:
    columns, rows = file.read({**kinds, spec.target: "text" if spec.kind == "classes" else "numbers"})
    target, places = columns.pop(spec.target), Lines(file.path.name, rows, file.unit)
    if not len(target):
        raise PenstockError(f"{file.where}: holds no rows")
    missing = np.flatnonzero(_missing(target))
    if missing.size:
        raise PenstockError(
            f"{file.where}: {file.unit} {rows[missing[0]]}: {spec.target!r}, the target, is missing; fill it in, or "
            f"leave out such {file.unit}s, of which there {'is 1' if missing.size == 1 else f'are {missing.size}'}"
        )
    for name, values in columns.items():
        _see_moderate(file, name, values, rows)
    return Found(file.where, Table(columns), _labels(spec, file, target, rows), places)


def _see_moderate(file: Columns, name: str, values: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """Refuse a column's first number of which there is no standard deviation."""
    if values.dtype == object:
        return
    beyond = np.flatnonzero(np.abs(values) > _MOST)
    if beyond.size:
        row = beyond[0]
        raise PenstockError(
            f"{file.where}: {file.unit} {rows[row]}: {name!r} is {values[row]:g}, too large to standardise; correct "
            "it, leave it empty, or leave the column out of those that dataset.columns lists"
        )


def _labels(
    spec: CsvTable, file: Columns, target: NDArray[np.object_] | NDArray[np.float64], rows: NDArray[np.int64]
) -> Sequence[str] | NDArray[np.float32]:
    if spec.kind == "classes":
        return list(target)
    with np.errstate(over="ignore"):
        numbers = target.astype(np.float32)
    beyond = np.flatnonzero(np.isinf(numbers))
    if beyond.size:
        row = beyond[0]
        raise PenstockError(
            f"{file.where}: {file.unit} {rows[row]}: {spec.target!r} is {target[row]}, which float32 does not reach"
        )
    return numbers


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a column has no value."""
    return np.array([value is None for value in values], bool) if values.dtype == object else np.isnan(values)
