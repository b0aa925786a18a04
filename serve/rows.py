"""Table rows as inputs: of a model each of whose inputs is a column, or whose one input is a row of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import tables
from penstock.serve.errors import RequestError
from penstock.serve.tensors import from_json, kind_of
from penstock.signature import Signature, Tensor

Inputs = dict[str, NDArray[np.generic]]
# Where a value stands, for the sentence that refuses it: from its row's and its column's number.
Place = Callable[[int, int], str]
_SHOWN = 12


@dataclass(frozen=True)
class Columns:
    """What one row is: an input for each column, named after it, or one input of `count` columns without names."""

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] | None
    count: int

    def tensor(self, column: int) -> Tensor:
        """The input that a column is of."""
        return self.tensors[column if self.names else 0]

    def __str__(self) -> str:
        if self.names is None:
            return f"a list of {self.count} values"
        more = ", …" if len(self.names) > _SHOWN else ""
        return f"a value for each of the columns {', '.join(self.names[:_SHOWN])}{more}"


def columns(signature: Signature) -> Columns | None:
    """The columns of a model that takes table rows, or None for one that takes something else."""
    tensors = signature.inputs
    if all(len(tensor.shape) == 1 or (len(tensor.shape) == 2 and tensor.shape[1] == 1) for tensor in tensors):
        return Columns(tensors, tuple(tensor.name for tensor in tensors), len(tensors))
    width = tensors[0].shape[1] if len(tensors) == 1 and len(tensors[0].shape) == 2 else None
    return Columns(tensors, None, width) if isinstance(width, int) else None


def from_rows(held: Columns, rows: Sequence[Any], most: int) -> Inputs:
    """Rows of JSON, each a list in the order of the columns or, where those have names, an object.

    Args:
        held: the model's columns.
        rows: the list.
        most: rows that are taken.

    Raises:
        RequestError: a row lacks a column, has one that is unknown, or holds what is not of the column's datatype.
    """
    if len(rows) > most:
        raise too_many("rows", most)
    found = [listed(held, row, f"rows[{index}]") for index, row in enumerate(rows)]

    def place(row: int, column: int) -> str:
        return f"rows[{row}].{held.names[column]}" if held.names else f"rows[{row}][{column}]"

    return _arrays(held, found, place)


def too_many(what: str, most: int) -> RequestError:
    """The refusal of more rows than may wait."""
    return RequestError(f"{what} holds more than {most} rows, as many as the queue; send fewer at once")


def listed(held: Columns, row: Any, where: str) -> list[Any]:
    """A row's values in the order of the columns.

    Raises:
        RequestError: it lacks a column, or has one that is unknown; `where` says which row it is.
    """
    if isinstance(row, dict):
        if held.names is None:
            raise RequestError(f"{where} is an object, and the model records no columns' names; a row is {held}")
        for name in row:
            if name not in held.names:
                raise RequestError(f"{where} has a column {name[:40]!r}, which is unknown; a row is {held}")
        for name in held.names:
            if name not in row:
                raise RequestError(f"{where} has no column {name[:40]!r}; a row is {held}")
        return [row[name] for name in held.names]
    if not isinstance(row, list):
        raise RequestError(f"{where} is neither a list nor an object; a row is {held}")
    if len(row) != held.count:
        raise RequestError(f"{where} has {len(row)} values; a row is {held}")
    return row


def _arrays(held: Columns, rows: Sequence[Sequence[Any]], place: Place) -> Inputs:
    found: Inputs = {}
    for first, tensor in enumerate(held.tensors):
        numbers = range(first, first + 1) if held.names else range(held.count)
        flat = [row[number] for row in rows for number in numbers]
        try:
            if any(isinstance(value, list) for value in flat):
                raise RequestError("a value is a list")
            array = from_json("a value", flat, tensor.dtype)
        except RequestError:
            raise _refused(flat, tensor, numbers, place) from None
        found[tensor.name] = array.reshape(len(rows), *[len(numbers)] * (len(tensor.shape) - 1))
    return found


def _refused(flat: list[Any], tensor: Tensor, numbers: range, place: Place) -> RequestError:
    """What is wrong with the first value that is wrong."""
    for index, value in enumerate(flat):
        where = place(index // len(numbers), numbers[index % len(numbers)])
        if isinstance(value, list):
            return RequestError(f"{where} is a list; it must be one value")
        try:
            from_json(where, [value], tensor.dtype)
        except RequestError as error:
            return error
    raise AssertionError("each value is right by itself")


def from_csv(held: Columns, data: bytes, most: int) -> Inputs:
    """Rows of CSV in UTF-8; a header names the columns, in any order, and may be missing where none have names.

    Args:
        held: the model's columns.
        data: the file.
        most: rows that are taken.

    Raises:
        RequestError, BadTable: naming the line, the column, the value and the rule.
    """
    lines: list[int] = []
    rows: list[list[Any]] = []
    order: list[int] | None = None
    for line, record in tables.records(data):
        heading = order is None and (held.names is not None or tables.names_columns(record))
        order = order or _order(held, record)
        if len(record) != held.count:
            raise RequestError(f"line {line} of the table has {len(record)} values; a row is {held}")
        if heading:
            continue
        if len(rows) == most:
            raise too_many("the table", most)
        cells = [record[place] for place in order]
        lines.append(line)
        rows.append([_value(held, cell, column, line) for column, cell in enumerate(cells)])
    if not rows:
        raise RequestError(f"the table has no row below its header; a row is {held}")
    return _arrays(held, rows, lambda row, column: _cell(held, column, lines[row]))


def _order(held: Columns, header: list[str]) -> list[int]:
    """Where each of the model's columns stands in the table."""
    if held.names is None:
        return list(range(held.count))
    for name in header:
        if name not in held.names:
            raise RequestError(f"the table's header has {name[:40]!r}, which is unknown; a row is {held}")
        if header.count(name) > 1:
            raise RequestError(f"the table's header has {name[:40]!r} twice")
    for name in held.names:
        if name not in header:
            raise RequestError(f"the table's header lacks {name[:40]!r}; a row is {held}")
    return [header.index(name) for name in held.names]


def _cell(held: Columns, column: int, line: int) -> str:
    return f"line {line}, column {held.names[column] if held.names else column + 1}"


def _value(held: Columns, text: str, column: int, line: int) -> Any:
    """A cell's text as JSON would have it."""
    kind = kind_of(held.tensor(column).dtype)
    if kind == "b" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in "iu" and text.lstrip("+-").isdigit() and tables.is_number(text):
        return int(text)
    if kind == "f" and tables.is_number(text) and math.isfinite(float(text)):
        return float(text)
    if kind not in "biuf":
        return text
    wanted = {"b": "true or false", "f": "a number"}.get(kind, "a whole number")
    raise RequestError(f"{_cell(held, column, line)} is {text[:40]!r}; it must be {wanted}")
