"""Contents of a RecordIO file: what its records hold, whatever that is, without decoding a picture."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from penstock import irheader
from penstock.errors import require
from penstock.preprocess import FORMATS
from penstock.progress import bar
from penstock.recordio import Reader, scan

# In so many of a record's first bytes a picture's size is nearly always told.
_FEW = 4096
NO_PICTURE = "no picture"


@dataclass
class Contents:
    """What a file's records hold, in numbers.

    Attributes:
        index: the file that says where they are; None where there is none.
        lengths: bytes of each record, in the file's order.
        headless: records that do not begin with an IRHeader.
        values: how often each scalar label is found.
        widths: how often arrays of so many labels are found.
        formats: how often each format of pictures is found, and NO_PICTURE.
        sides: how often pictures of so many pixels are found, width and height.
    """

    index: Path | None
    lengths: list[int]
    headless: int = 0
    values: Counter[float] = field(default_factory=Counter)
    widths: Counter[int] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    sides: Counter[tuple[int, int]] = field(default_factory=Counter)


def look(path: Path) -> Contents:
    """What is in a .rec file.

    Raises:
        PenstockError: it cannot be read or is damaged, its index is not its own, or Pillow is not installed.
    """
    require("PIL", "serve", "looking at pictures")
    reader = Reader(path)
    reader.check_index()
    found = Contents(reader.index, [length for _, length in scan(path)])
    with bar("looking at records", len(reader)) as advance:
        for number in range(len(reader)):
            _count(found, reader, number)
            advance()
    return found


def _count(found: Contents, reader: Reader, number: int) -> None:
    """Add one record."""
    try:
        beginning = reader.beginning(number, _FEW)
        beginning = reader.beginning(number, irheader.size(beginning) + _FEW)
        header = irheader.read(beginning)
    except irheader.BadHeader:
        found.headless += 1
        return
    if isinstance(header.label, float):
        found.values[header.label] += 1
    else:
        found.widths[len(header.label)] += 1
    seen = _head(beginning[header.size :]) or _head(reader[number][header.size :])
    if seen is None:
        found.formats[NO_PICTURE] += 1
        return
    found.formats[seen[0]] += 1
    found.sides[seen[1]] += 1


def _head(data: bytes) -> tuple[str, tuple[int, int]] | None:
    """The format and size of an encoded picture, by its first bytes; None where they do not tell."""
    from PIL import Image as Pillow

    try:
        image = Pillow.open(io.BytesIO(data), formats=FORMATS)
    except Exception:  # Pillow's readers of heads raise OSError, SyntaxError, ValueError, struct.error and more
        return None
    return str(image.format), image.size
