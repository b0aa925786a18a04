"""Table rows as a model takes them: the recorded way from a record of named values to its row of numbers.

Training and the torch-free server call this one implementation, so that a record gives the same row bit for bit
wherever it is read. A value means the same from CSV, where all are text, from JSON and from Parquet.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import PenstockError, listed
from penstock.signature import Tensor
from penstock.tables import is_number

Record = Mapping[str, Any]
"""A table row by the names of its columns; a value is text, a number, a truth, or None."""
_SHOWN = 40
# The whole number of a float that is none: 3.0 is written so where a column has gaps, or came through JSON.
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+", re.ASCII)
# From here on Python writes a float with an exponent.
_EXPONENT = 1e16
_LARGEST = float(np.finfo(np.float32).max)
# Of a column whose cells are numbers by this share or more, the others are slips and no categories.
_SLIPS = 0.9


class BadRow(PenstockError):
    """A record that has no such row; `index` is its place among those given, `column` the one that is at fault."""

    def __init__(self, index: int, column: str, why: str) -> None:
        super().__init__(f"row {index}, column {column[:_SHOWN]!r} {why}")
        self.index, self.column, self.why = index, column, why


class _NoNumber(Exception):
    """A value that is neither a number nor missing, and why."""


@lru_cache(maxsize=1024)
def _places(categories: tuple[str, ...]) -> dict[str, int]:
    return {category: place for place, category in enumerate(categories)}


class Column(BaseModel):
    """One column: a number becomes (value − mean) ÷ std, and 0, the mean, where it is missing.

    A category becomes a 1 at its place among `categories`, which are sorted, and 0 at all others; one that is unknown
    or missing 0 everywhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    name: str
    kind: Literal["number", "category"]
    mean: float = 0.0
    std: float = Field(default=1.0, gt=0)
    categories: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _of_its_kind(self) -> Column:
        if self.kind == "number" and self.categories:
            raise ValueError(f"column {self.name!r} is a number; it has no categories")
        if self.kind == "category" and not self.categories:
            raise ValueError(f"column {self.name!r} is a category; it must have at least one in categories")
        if len(set(self.categories)) < len(self.categories):
            raise ValueError(f"column {self.name!r} has a category twice")
        return self

    @property
    def width(self) -> int:
        """Numbers that one value becomes."""
        return 1 if self.kind == "number" else len(self.categories)

    def fill(self, into: NDArray[np.float32], values: Sequence[Any]) -> None:
        """Write what values become into zeros float32 `[n, width]`.

        Raises:
            BadRow: a value is none of the column's.
        """
        places = _places(self.categories)
        for row, value in enumerate(values):
            try:
                if self.kind == "number":
                    number = _number(value)
                    into[row, 0] = 0.0 if number is None else self._scaled(number)
                elif (place := places.get(category(value))) is not None:
                    into[row, place] = 1.0
            except _NoNumber as error:
                raise BadRow(row, self.name, str(error)) from None

    def _scaled(self, number: float) -> float:
        scaled = (number - self.mean) / self.std
        if not abs(scaled) <= _LARGEST:
            raise _NoNumber(f"is {number:g}; that is too large beside the mean {self.mean:g} and std {self.std:g}")
        return scaled


class TablePreprocess(BaseModel):
    """A table row becomes float32 `[features]`: what its columns become, one beside the other in their order."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["table"] = "table"
    input: str = "row"
    columns: tuple[Column, ...]

    @field_validator("columns")
    @classmethod
    def _of_different_names(cls, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        names = [column.name for column in columns]
        if not names:
            raise ValueError("columns is empty; there must be at least one")
        if len(set(names)) < len(names):
            raise ValueError(f"columns must have different names, not {', '.join(names)}")
        return columns

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def features(self) -> int:
        """Numbers in a row."""
        return sum(column.width for column in self.columns)

    @property
    def told(self) -> str:
        """Which columns are numbers, and which categories, of how many values: "numbers: age; categories: city (3)"."""
        numbers = [column.name for column in self.columns if column.kind == "number"]
        others = [f"{column.name} ({column.width})" for column in self.columns if column.kind == "category"]
        kinds = {"numbers": numbers, "categories": others}
        return "; ".join(f"{kind}: {listed(names, 20)}" for kind, names in kinds.items() if names)

    def tensors(self) -> tuple[Tensor, ...]:
        """The input that rows become."""
        return (Tensor(name=self.input, dtype="float32", shape=("batch", self.features)),)

    def rows(self, records: Sequence[Record]) -> dict[str, NDArray[np.float32]]:
        """Records -> the model's input by name, float32 `[n, features]`; columns that are not the model's are left.

        Raises:
            BadRow: a record lacks a column, or a value is none of the column's.
        """
        found = np.zeros((len(records), self.features), np.float32)
        start = 0
        for column in self.columns:
            for row, record in enumerate(records):
                if column.name not in record:
                    raise BadRow(row, column.name, "is not there; a value that is missing is empty, or null")
            values = [record[column.name] for record in records]
            column.fill(found[:, start : start + column.width], values)
            start += column.width
        return {self.input: found}


def _number(value: Any) -> float | None:
    """The number that a value is, or None for one that is missing: None, NaN, or empty text.

    Raises:
        _NoNumber: it is neither.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        text = value.strip()
        if _is_missing(text):
            return None
        if not is_number(text):
            raise _NoNumber(f"is {value[:_SHOWN]!r}; it must be a number")
        value = float(text)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _NoNumber(f"is {str(value)[:_SHOWN]}, a {type(value).__name__}; it must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number):
        return None
    if math.isinf(number):
        raise _NoNumber("is infinite; it must be a number that is not")
    return number


def category(value: Any) -> str:
    """The text of a category, which is empty for a value that is missing: 3, 3.0, "3" and "3.0" are one, as true and
    "True" are.

    Raises:
        _NoNumber: the value is none, but a list or an object.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        value = str(int(value)) if value.is_integer() and abs(value) < _EXPONENT else repr(value)
    elif isinstance(value, int):
        value = str(value)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _NoNumber(f"is {str(value)[:_SHOWN]}, a {type(value).__name__}; it must be text or a number")
    text = value.strip()
    if _is_missing(text):
        return ""
    whole = _WHOLE.fullmatch(text)
    text = whole[1] if whole else text
    if text == "-0":
        return "0"
    return text.lower() if text.lower() in ("true", "false") else text


def _is_missing(text: str) -> bool:
    return text == "" or text.lower() == "nan"


def fit(
    records: Sequence[Record],
    names: Sequence[str],
    categories: Collection[str] = (),
    most_categories: int = 1000,
    input: str = "row",
    place: Callable[[int], str] = "row {}".format,
) -> TablePreprocess:
    """The columns as they are in records: numbers by their mean and standard deviation, categories sorted.

    A column is a number where all its values are, but for missing ones, and is not in `categories`. One of a single
    value has the deviation 1. Where nine values of ten are numbers the others are slips, and are refused: taken for
    categories, every number would become one.

    Args:
        records: of the training part.
        names: the columns to take, in this order.
        categories: those whose numbers are names.
        most_categories: how many a column may have.
        input: the name of the model's input.
        place: where a record stands, for errors: `train.csv line 12`.

    Raises:
        PenstockError: a column is not there, holds no value, too many categories, or a few words among numbers.
    """
    strange = [name for name in categories if name not in names]
    if strange:
        raise PenstockError(f"categories: {strange[0]!r} is no column; those are {', '.join(names)}")
    columns = []
    for name in names:
        for row, record in enumerate(records):
            if name not in record:
                raise BadRow(row, name, "is not there; a value that is missing is empty, or null")
        values = [record[name] for record in records]
        if name not in categories:
            _see_no_slips(name, values, categories, place)
        columns.append(_fitted(name, values, most_categories, named=name in categories))
    return TablePreprocess(input=input, columns=tuple(columns))


def _see_no_slips(name: str, values: Sequence[Any], categories: Collection[str], place: Callable[[int], str]) -> None:
    """Refuse a column of numbers in which a few cells hold something else, by the first of them."""
    slips, numbers = [], 0
    for row, value in enumerate(values):
        try:
            numbers += _number(value) is not None
        except _NoNumber:
            slips.append(row)
    if not slips or numbers < _SLIPS * (numbers + len(slips)):
        return
    # Rows are in the order of a split; of places in one file the shorter, with the smaller number, comes first.
    first = min(slips, key=lambda row: (len(place(row)), place(row)))
    many = "no number" if len(slips) == 1 else f"the first of {len(slips):,} cells that are no numbers"
    named = shlex.quote(f"preprocess.categories={json.dumps([*categories, name], ensure_ascii=False)}")
    raise PenstockError(
        f"{place(first)}, column {name[:_SHOWN]!r} is {str(values[first])[:_SHOWN]!r}, {many}, where {numbers:,} "
        "others are numbers; correct the cell, leave it empty, which is missing, or, if the numbers are names, make "
        f"the column one of categories: --set {named}"
    )


def _fitted(name: str, values: Sequence[Any], most: int, *, named: bool) -> Column:
    """A column of these values; with `named` it is one of categories, whatever they are."""
    why = "categories names it"
    if not named:
        try:
            return _standardised(name, [number for number in map(_number, values) if number is not None])
        except _NoNumber as error:
            why = f"a value {error}"
    found = set()
    for row, value in enumerate(values):
        try:
            found.add(category(value))
        except _NoNumber as error:
            raise BadRow(row, name, str(error)) from None
    found.discard("")
    if not found:
        raise _empty(name)
    if len(found) > most:
        raise PenstockError(
            f"column {name!r} holds {len(found)} categories ({why}); most_categories is {most}: leave the column out, "
            "or raise it"
        )
    return Column(name=name, kind="category", categories=tuple(sorted(found)))


def _standardised(name: str, numbers: Sequence[float]) -> Column:
    if not numbers:
        raise _empty(name)
    held = np.asarray(numbers, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(held.mean()), float(held.std())
    if not math.isfinite(mean) or not math.isfinite(std):
        raise PenstockError(f"column {name!r} holds numbers up to {np.abs(held).max():g}, too large to standardise")
    if held.min() == held.max():  # of which mean and deviation have rounding errors
        mean, std = numbers[0], 1.0
    return Column(name=name, kind="number", mean=mean, std=std or 1.0)


def _empty(name: str) -> PenstockError:
    return PenstockError(f"column {name!r} holds no value in the training part; leave it out of columns")
