"""Columns of tables: of numbers, or of text; and those of CSV files.

A CSV column holds numbers if each cell does, or is missing: empty or, among numbers, `nan`.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.data.csvfiles import CsvFile, position
from penstock.errors import PenstockError
from penstock.tables import is_number

Kind = Literal["numbers", "text"]
log = logging.getLogger(__name__)
# After so many numbers a column is one of numbers to whoever wrote it, and what is none a slip.
_MANY = 20
_MISSING = ("", "nan")  # in lower case, as penstock.tabular has it


class Columns(Protocol):
    """The columns of a file. `where` is the setting and the path, for errors; `unit` what a row is called there."""

    where: str
    path: Path
    unit: str
    columns: tuple[str, ...]

    def kinds(self, names: Iterable[str]) -> dict[str, Kind]:
        """What these columns hold.

        Raises:
            PenstockError: one is not there, or holds what is neither.
        """

    def read(self, kinds: Mapping[str, Kind]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        """Columns as what they are told to be, and where each row stands, int64 `[n]`.

        Numbers are float64 `[n]`, NaN where they are missing; text is str or None, in an array of objects.

        Raises:
            PenstockError: one is not there, or a row holds something else.
        """


class CsvColumns:
    """The columns of a CSV file, which is read anew for each question."""

    unit = "line"

    def __init__(self, setting: str, path: Path) -> None:
        self._file = CsvFile(setting, path)
        self.path, self.where, self.columns = path, self._file.where, self._file.columns

    def kinds(self, names: Iterable[str]) -> dict[str, Kind]:
        places = self._places(names)
        numbers = dict.fromkeys(places, 0)
        texts: set[str] = set()
        for line, cells in self._file:
            for name, place in places.items():
                if name in texts or cells[place].lower() in _MISSING:
                    continue
                if is_number(cells[place]):
                    numbers[name] += 1
                    continue
                texts.add(name)
                if numbers[name] >= _MANY:
                    log.warning(
                        "%s: line %d: %r is %r, where %d lines before hold numbers; the column is taken for text",
                        *(self.where, line, name, cells[place][:60], numbers[name]),
                    )
        return {name: "text" if name in texts else "numbers" for name in places}

    def read(self, kinds: Mapping[str, Kind]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        places, lines = self._places(kinds), array("q")
        numbers = {name: array("d") for name, kind in kinds.items() if kind == "numbers"}
        texts: dict[str, list[str | None]] = {name: [] for name, kind in kinds.items() if kind == "text"}
        known: dict[str, str] = {}  # one string for all cells that are alike
        for line, cells in self._file:
            lines.append(line)
            for name, values in numbers.items():
                values.append(self._number(line, name, cells[places[name]]))
            for name, held in texts.items():
                cell = cells[places[name]]
                held.append(known.setdefault(cell, cell) or None)
        found: dict[str, NDArray[Any]] = {
            name: np.array(numbers[name], np.float64) if name in numbers else np.array(texts[name], object)
            for name in kinds
        }
        return found, np.array(lines, np.int64)

    def _places(self, names: Iterable[str]) -> dict[str, int]:
        return {name: position(self.where, self.columns, name, "the recipe") for name in names}

    def _number(self, line: int, name: str, cell: str) -> float:
        if is_number(cell):
            value = float(cell)
            if math.isfinite(value):
                return value
            raise PenstockError(f"{self.where}: line {line}: {name!r} is {cell:.60}, which is out of a float's range")
        if cell.lower() in _MISSING:
            return math.nan
        raise PenstockError(f"{self.where}: line {line}: {name!r} is {cell[:60]!r}, where a number must be")
