"""MXNet's RecordIO: records of bytes in a `.rec` file, read in turn or by number, and written with their index.

How they stand there is in `penstock.recordparts`, and what the record of a picture holds in `penstock.irheader`. The
index, `.idx`, is text: a line for each record, its key and the byte that it begins at, with a tab between them.
"""

from __future__ import annotations

import errno
import io
import os
import re
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from penstock.files import write_whole
from penstock.recordparts import LONGEST, BadRecords, RecordFile, open_file, parts

_LINE = re.compile(rb"([0-9]{1,18})\t([0-9]{1,18})\r?\n?")


def index_path(path: Path) -> Path:
    """Where the index of a .rec file is looked for, and written."""
    return path.with_suffix(".idx")


def scan(path: Path) -> Iterator[tuple[int, int]]:
    """Where each record of a file begins, and how many bytes it has, in the file's order; of its data nothing is read.

    Raises:
        BadRecords: the file cannot be read, or is damaged at or behind the record that was to be next.
    """
    file = RecordFile(path)
    offset = 0
    while offset < file.size:
        length, stop = file.measure(offset)
        yield offset, length
        offset = stop


def records(path: Path) -> Iterator[bytes]:
    """The records of a file one after another, in its order, without an index.

    Raises:
        BadRecords: as `scan`.
    """
    file = RecordFile(path)
    offset = 0
    while offset < file.size:
        yield file.read(offset)
        offset = file.measure(offset)[1]


def read_index(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The keys and offsets of an index, int64 `[n]` each, in the order of its lines.

    Raises:
        BadRecords: it cannot be read, or a line is none of an index, or has a key that another has.
    """
    keys, offsets = array("q"), array("q")
    with open_file(path) as raw, io.BufferedReader(raw) as file:
        number = 0
        while line := file.readline(64):  # the longest that may be has 39 bytes
            number += 1
            found = _LINE.fullmatch(line)
            if found is None or int(found[2]) % 4:
                raise BadRecords(
                    f"{path}: line {number}: {line[:40]!r}; must be a key, a tab and an offset, whole numbers of up to "
                    "18 digits, the offset a multiple of 4"
                )
            keys.append(int(found[1]))
            offsets.append(int(found[2]))
    lines = np.frombuffer(keys, np.int64) if keys else np.empty(0, np.int64)
    order = np.argsort(lines, kind="stable")
    again = np.flatnonzero(np.diff(lines[order]) == 0)
    if len(again):
        first, second = order[again[0]], order[again[0] + 1]
        raise BadRecords(f"{path}: lines {first + 1} and {second + 1}: both have key {lines[first]}; keys must differ")
    return lines, np.frombuffer(offsets, np.int64) if offsets else np.empty(0, np.int64)


class Reader:
    """The records of a file by number: in the order of the index's lines or, where there is no index, of the file.

    Takes as much memory as the index; what is read is the record that is asked for. It may be used by many threads, by
    processes that were forked with it, and by those that it is sent to, which open the file when they read. Whether an
    index is its file's own shows where a record is read, or in `check_index`.

    Args:
        path: the .rec file.
        index: its index; None is the .idx file beside it, if there is one.

    Raises:
        BadRecords: a file cannot be read, is damaged, or is no index.
    """

    def __init__(self, path: Path, index: Path | None = None) -> None:
        self._file = RecordFile(path)
        self.path = path
        self.index = index or (index_path(path) if index_path(path).is_file() else None)
        if self.index is None:
            self.offsets = np.fromiter((offset for offset, _ in scan(path)), np.int64)
            self.keys = np.arange(len(self.offsets))
        else:
            self.keys, self.offsets = read_index(self.index)

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, number: int) -> bytes:
        return self._file.read(int(self.offsets[number]))

    def __iter__(self) -> Iterator[bytes]:
        return (self[number] for number in range(len(self)))

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; it is opened again if it is read again."""
        self._file.close()

    def beginning(self, number: int, most: int) -> bytes:
        """The first `most` bytes of a record, of which no more are read, or all if it has no more."""
        return self._file.read(int(self.offsets[number]), most)

    def place(self, number: int) -> str:
        """A record in words, for errors: its file, number and offset."""
        return f"{self.path} record {number} at byte {self.offsets[number]}"

    def check_index(self) -> None:
        """See that the index names every record of the file once, by reading where each begins.

        Raises:
            BadRecords: it leaves some out, or names what is no beginning, or the file is damaged.
        """
        if self.index is None:
            return
        found = np.fromiter((offset for offset, _ in scan(self.path)), np.int64)
        named = np.sort(self.offsets)
        if np.array_equal(found, named):
            return
        odd = np.setdiff1d(named, found)
        wrong = f"byte {odd[0]}, where none begins" if len(odd) else "some twice, or not all"
        raise BadRecords(
            f"{self.index}: has {len(named)} lines for the {len(found)} records of {self.path}, and names {wrong}; "
            "make the index anew, or take it away: records are then found without one"
        )


class Writer:
    """Writes a .rec file and its index, whole or not at all: they appear when the block ends without an error.

    What was under their names is replaced, the index first, so that a .rec file is never there before its index.

    Args:
        path: the .rec file; the index goes beside it.

    Raises:
        OSError: from the block's beginning, `write`, or its end: the system refused it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.end = 0
        self._offsets = array("q")
        self._keys: dict[int, None] = {}

    def __enter__(self) -> Writer:
        self._place = self.path.resolve()  # of a link: renaming onto it would replace the link
        if self._place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self.path))
        handle, temporary = tempfile.mkstemp(dir=self._place.parent, prefix=f".{self._place.name}.")
        self._temporary, self._file = Path(temporary), os.fdopen(handle, "wb")
        return self

    def write(self, record: bytes, key: int | None = None) -> int:
        """Append a record, and return its offset.

        Args:
            record: its bytes, 2**29 - 1 at most.
            key: in the index, from 0 to 10**18 - 1, and no other record's; None is its number in the file.

        Raises:
            BadRecords: the record or the key breaks its rule.
        """
        key = len(self._keys) if key is None else key
        if not 0 <= key < 10**18 or key in self._keys:
            raise BadRecords(f"{self.path}: key {key}: must be from 0 to 10**18 - 1, and no other record's")
        if len(record) > LONGEST:
            raise BadRecords(f"{self.path}: a record of {len(record)} bytes; RecordIO takes {LONGEST} at most")
        offset = self.end
        for part in parts(record):
            self._file.write(part)
            self.end += len(part)
        self._keys[key] = None
        self._offsets.append(offset)
        return offset

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._file.close()
            if kind is None:
                lines = zip(self._keys, self._offsets, strict=True)
                write_whole(index_path(self.path), "".join(f"{key}\t{offset}\n" for key, offset in lines).encode())
                self._temporary.chmod(0o644)
                self._temporary.replace(self._place)
        finally:
            self._temporary.unlink(missing_ok=True)
