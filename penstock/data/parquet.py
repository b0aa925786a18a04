"""Columns of Parquet files, by pyarrow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.data.columns import Kind
from penstock.data.csvfiles import position, see_named_once
from penstock.errors import PenstockError, first_line, printable, require

SUFFIXES = (".parquet", ".pq")


def sheet(setting: str, path: Path) -> tuple[list[str], list[list[str]]]:
    """A file as a CSV file would have it: the header, and rows of text, empty where a value is missing.

    Columns of other kinds than numbers, strings and booleans are left out.

    Raises:
        PenstockError: as `ParquetColumns`.
    """
    held = ParquetColumns(setting, path)
    kinds = {name: kind for name in held.columns if (kind := held.kind(name)) is not None}
    columns, _ = held.read(kinds)
    return list(kinds), [list(map(_cell, row)) for row in zip(*columns.values(), strict=True)]


def _cell(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    if value != value:  # NaN
        return ""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


class ParquetColumns:
    """The columns of a Parquet file: numbers, and strings and booleans, which are text; NaN and null are missing.

    Raises:
        PenstockError: pyarrow is not installed, or the file cannot be read.
    """

    unit = "row"

    def __init__(self, setting: str, path: Path) -> None:
        self.path, self.where = path, f"{setting} {printable(str(path))}"
        require("pyarrow.parquet", "parquet", self.where)
        if not path.is_file():
            raise PenstockError(f"{self.where}: {'is no file' if path.exists() else 'no such file'}")
        with self._reading() as file:
            self._schema = file.schema_arrow
        self.columns = tuple(self._schema.names)
        see_named_once(self.where, self.columns)

    def kinds(self, names: Iterable[str]) -> dict[str, Kind]:
        return {name: self._kind(name) for name in names}

    def read(self, kinds: Mapping[str, Kind]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        held = self.kinds(kinds)
        with self._reading() as file:
            table = file.read(columns=list(kinds))
            found = {
                name: self._numbers(name, table.column(name), held[name])
                if kind == "numbers"
                else self._texts(name, table.column(name))
                for name, kind in kinds.items()
            }
        return found, np.arange(1, table.num_rows + 1)

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        import pyarrow
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(self.path) as file:
                yield file
        except PenstockError:
            raise
        except (pyarrow.ArrowException, OSError) as error:
            raise PenstockError(f"{self.where}: cannot be read as Parquet: {first_line(error)}") from None

    def _type(self, name: str) -> Any:
        from pyarrow import types

        place = position(self.where, self.columns, name, "the recipe")
        found = self._schema.field(place).type
        return found.value_type if types.is_dictionary(found) else found

    def kind(self, name: str) -> Kind | None:
        """What a column holds; None where it is neither numbers nor text."""
        from pyarrow import types

        found = self._type(name)
        numbers = types.is_integer, types.is_floating, types.is_decimal, types.is_null
        if any(test(found) for test in numbers):
            return "numbers"
        texts = types.is_string, types.is_large_string, types.is_boolean
        if any(test(found) for test in texts):
            return "text"
        return None

    def _kind(self, name: str) -> Kind:
        found = self.kind(name)
        if found is None:
            raise PenstockError(
                f"{self.where}: column {name!r} is of type {self._type(name)}; numbers, strings and booleans are read: "
                "write it as one of them, or leave it out of dataset.columns"
            )
        return found

    def _numbers(self, name: str, column: Any, held: Kind) -> NDArray[np.float64]:
        import pyarrow

        if held == "text":
            raise PenstockError(f"{self.where}: column {name!r} holds text, where numbers must be")
        plain = column.cast(self._type(name)).cast(pyarrow.float64(), safe=False)
        values = np.asarray(plain.to_numpy(), np.float64)
        if np.isinf(values).any():
            row = int(np.flatnonzero(np.isinf(values))[0])
            raise PenstockError(f"{self.where}: row {row + 1}: {name!r} is {values[row]}, which is no finite number")
        return values

    def _texts(self, name: str, column: Any) -> NDArray[Any]:
        known: dict[Any, str | None] = {None: None}
        texts: list[str | None] = []
        for row, value in enumerate(column.to_pylist(), start=1):
            if value not in known:
                known[value] = self._text(row, name, value)
            texts.append(known[value])
        return np.array(texts, object)

    def _text(self, row: int, name: str, value: Any) -> str | None:
        """Text without spaces around it, whole numbers and truths as they are written; None for a missing value."""
        if isinstance(value, str):
            return value.strip() or None
        if isinstance(value, bool):
            return str(value).lower()
        if value != value:  # NaN
            return None
        if not math.isfinite(value) or value != int(value):
            raise PenstockError(f"{self.where}: row {row}: {name!r} is {value}, where a class or text must be")
        return str(int(value))
