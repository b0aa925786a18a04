"""Parts of MXNet's RecordIO: how a record's bytes stand in a `.rec` file.

The format is dmlc-core's (`include/dmlc/recordio.h`). A part is three things: the magic word; a word with a flag in its
upper 3 bits and the length of the data in the other 29; the data, padded with zeros to 4 bytes. Words are little-endian
uint32. Where a record holds the magic word itself at a multiple of 4 bytes, the word is left out and the record goes on
in another part, so that whoever looks for the magic word at multiples of 4 finds beginnings of parts alone. Flag 0 is a
whole record, 1 its first part, 2 one in its middle, 3 its last.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

MAGIC = 0xCED7230A
# The longest record that dmlc-core writes.
LONGEST = (1 << 29) - 1
_WORD = struct.pack("<I", MAGIC)
_HEAD = struct.Struct("<II")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


class BadRecords(PenstockError):
    """A file that is no RecordIO, or a damaged one, or an index that is not its own."""


def parts(record: bytes) -> Iterator[bytes]:
    """A record as it stands in a file: heads, data, and what pads it."""
    start, found = 0, record.find(_WORD)
    while found >= 0:
        if found % 4:
            found = record.find(_WORD, found + 1)
            continue
        yield _HEAD.pack(MAGIC, (_MIDDLE if start else _FIRST) << 29 | found - start)
        yield record[start:found]
        start = found + len(_WORD)
        found = record.find(_WORD, start)
    yield _HEAD.pack(MAGIC, (_LAST if start else _WHOLE) << 29 | len(record) - start)
    yield record[start:]
    yield bytes(-len(record) % 4)


class RecordFile:
    """A .rec file's records by where they begin; opened anew, on use, in a process that it is sent to.

    Bytes are asked for by place, so that threads, and processes that were forked, share no position. Every method but
    `close` raises BadRecords where the file is damaged, by its path, the byte and the rule.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, -1
        self._file: io.FileIO | None = None
        self.size = os.fstat(self._opened().fileno()).st_size

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def measure(self, offset: int) -> tuple[int, int]:
        """How many bytes the record has that begins at a byte, and where the next one begins."""
        total, stop = -len(_WORD), offset
        for _, length, after in self._parts(offset):
            total, stop = total + len(_WORD) + length, after
        return total, stop

    def read(self, offset: int, most: int = LONGEST) -> bytes:
        """The record that begins at a byte, or the first `most` bytes of it."""
        record = io.BytesIO()
        for start, length, _ in self._parts(offset):
            if start > offset + _HEAD.size:
                record.write(_WORD)
            record.write(self._bytes(start, min(length, max(0, most - record.tell()))))
            if record.tell() >= most:
                break
        return record.getvalue()[:most]

    def _parts(self, offset: int) -> Iterator[tuple[int, int, int]]:
        """The parts of the record that begins at a byte: where each one's data begins, its length, where it ends."""
        flag, length, stop = self._part(offset)
        if flag not in (_WHOLE, _FIRST):
            raise BadRecords(f"{self.path}: byte {offset}: a record begins with flag {flag}; it must be 0 or 1")
        yield offset + _HEAD.size, length, stop
        total = length
        while flag not in (_WHOLE, _LAST):
            start = stop
            flag, length, stop = self._part(start)
            if flag not in (_MIDDLE, _LAST):
                raise BadRecords(
                    f"{self.path}: byte {start}: flag {flag} within the record that begins at byte {offset}; it must "
                    "be 2 or 3"
                )
            total += len(_WORD) + length
            if total > LONGEST:
                raise BadRecords(f"{self.path}: byte {offset}: a record of over {LONGEST} bytes, RecordIO's most")
            yield start + _HEAD.size, length, stop

    def _part(self, offset: int) -> tuple[int, int, int]:
        """The flag of the part that begins at a byte, its length, and where it ends."""
        left = self.size - offset
        if left < _HEAD.size:
            raise BadRecords(
                f"{self.path}: byte {offset}: the file ends after {max(left, 0)} of the {_HEAD.size} bytes that a "
                "record begins with; it is cut off"
            )
        magic, word = _HEAD.unpack(self._bytes(offset, _HEAD.size))
        if magic != MAGIC:
            what = "" if offset else "; it is no RecordIO file"
            raise BadRecords(f"{self.path}: byte {offset}: {magic:#010x}, where a record begins with {MAGIC:#x}{what}")
        flag, length = word >> 29, word & LONGEST
        padded = length + -length % 4
        if left < _HEAD.size + padded:
            raise BadRecords(
                f"{self.path}: byte {offset}: the file ends after {left - _HEAD.size} of a record's {padded} bytes; it "
                "is cut off"
            )
        return flag, length, offset + _HEAD.size + padded

    def _bytes(self, offset: int, count: int) -> bytes:
        handle = self._opened().fileno()
        data = os.pread(handle, count, offset)
        while len(data) < count:  # file systems over a network may give less at once
            more = os.pread(handle, count - len(data), offset + len(data))
            if not more:
                raise BadRecords(f"{self.path}: byte {offset + len(data)}: the file was cut off while it was read")
            data += more
        return data

    def _opened(self) -> io.FileIO:
        file = self._file
        if file is None:
            file = open_file(self.path)
            size = os.fstat(file.fileno()).st_size
            if self.size not in (-1, size):
                raise BadRecords(f"{self.path}: has {size} bytes; it had {self.size} when it was first opened")
            self._file = file
        return file


def open_file(path: Path) -> io.FileIO:
    """Open a file to read.

    Raises:
        BadRecords: it cannot be, or is none.
    """
    if path.exists() and not path.is_file():  # a pipe would wait for its writer
        raise BadRecords(f"{path}: is no file")
    try:
        return io.FileIO(path)
    except OSError as error:
        raise BadRecords(f"{path}: cannot be read: {error.strerror}") from None
