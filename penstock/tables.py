"""Tables in CSV: records with their lines, whether the first of them names the columns, cells that are no formulas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.errors import PenstockError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_FORMULA = "=+-@\t\r\n"


class BadTable(PenstockError):
    """Bytes that are no CSV."""


def records(data: bytes) -> Iterator[tuple[int, list[str]]]:
    """The records of a CSV file that are not empty, each with the number of its last line, from 1 on.

    Raises:
        BadTable: it is not UTF-8, or a quote is not closed, stands amid a value, or holds too much.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadTable(f"the table is not UTF-8: byte {data[error.start]:#04x} at position {error.start}") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for record in reader:
            if record:
                yield reader.line_num, [cell.strip() for cell in record]
    except csv.Error as error:
        raise BadTable(f"line {reader.line_num} of the table is no CSV: {error}") from None


def is_number(text: str) -> bool:
    """Whether a cell holds a decimal number; `nan` and `inf` are none."""
    return len(text) <= 400 and _NUMBER.fullmatch(text) is not None


def inert(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: text that begins like one has an apostrophe before it."""
    if not isinstance(value, str) or len(value) < 2 or value[0] not in _FORMULA or is_number(value):
        return value
    return f"'{value}"


def names_columns(record: Sequence[str]) -> bool:
    """Whether a table's first record is its header: numbers are no names."""
    return not all(map(is_number, record))
