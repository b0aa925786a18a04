"""Tables in CSV: records with their lines, whether the first of them names the columns, cells that are no formulas."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from penstock.errors import PenstockError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_UNDECODED = re.compile("[\udc80-\udcff]")
_LONGEST_LINE = 1 << 24
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


def stream(path: Path, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """As `records`, of a file that is read as they are asked for; each comes with the number of its first line.

    Raises:
        BadTable: as `records`, or a line has more than 16 Mi characters.
        OSError: the file cannot be read.
    """
    # What is no UTF-8 is decoded to lone surrogates: an error would name no line, since files are decoded in blocks.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader, first = csv.reader(_lines(file), delimiter=delimiter, strict=True), 1
        try:
            for record in reader:
                if record:
                    yield first, [cell.strip() for cell in record]
                first = reader.line_num + 1
        except csv.Error as error:
            last = f", by line {reader.line_num}" if reader.line_num > first else ""
            raise BadTable(f"line {first} of the table is no CSV: {error}{last}") from None


def _lines(file: TextIO) -> Iterator[str]:
    for number in itertools.count(1):
        line = file.readline(_LONGEST_LINE)
        if not line:
            return
        if not line.isascii() and (byte := _UNDECODED.search(line)):
            raise BadTable(f"line {number} of the table is not UTF-8: byte {ord(byte[0]) - 0xDC00:#04x}")
        if len(line) == _LONGEST_LINE and line[-1] not in "\r\n":
            raise BadTable(f"line {number} of the table has more than {_LONGEST_LINE} characters")
        yield line


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
