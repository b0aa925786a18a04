"""Spools: rows of one array in a file, of which only those asked for are in memory."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Arrays of fewer bytes are kept in memory.
LEAST = 1 << 24


class Spool:
    """An array `[n, …]` read from a file row by row: slices and indices give arrays, `len` and `shape` are as theirs.

    The file has no name any more: it is gone when the spool is. It is read, not mapped, since mapped pages count as the
    process's memory.
    """

    def __init__(self, handle: int, dtype: np.dtype[Any], shape: tuple[int, ...], index: NDArray[np.intp]) -> None:
        self._file, self.dtype, self._row, self._index = _File(handle), dtype, shape, index

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self._index), *self._row)

    @property
    def ndim(self) -> int:
        return 1 + len(self._row)

    def __len__(self) -> int:
        return len(self._index)

    def view(self, rows: Any) -> Spool:
        """The same rows of the file, others or over again, without reading them."""
        other = Spool.__new__(Spool)
        other._file, other.dtype, other._row, other._index = self._file, self.dtype, self._row, self._index[rows]
        return other

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        wanted = np.atleast_1d(self._index[rows])
        found = np.empty((len(wanted), *self._row), self.dtype)
        length = math.prod(self._row) * self.dtype.itemsize
        for place, row in enumerate(wanted):
            found[place] = np.frombuffer(os.pread(self._file.handle, length, int(row) * length), self.dtype).reshape(
                self._row
            )
        return found if np.ndim(self._index[rows]) else found[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype)


class _File:
    """A handle that is closed with the last spool that reads it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __del__(self) -> None:
        os.close(self.handle)


def spooled(parts: Iterable[NDArray[Any]], count: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Rows that come in parts as one array: in memory where that is small, else in a spool.

    Args:
        parts: `[k, …]` each, `count` rows in all; taken one at a time.
        count: rows.
        dtype: of every part.
        shape: of a row.
    """
    if count * math.prod(shape) * dtype.itemsize < LEAST:
        return np.concatenate([np.empty((0, *shape), dtype), *parts])
    with tempfile.TemporaryFile(prefix="penstock-") as file:
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype).tobytes())
        file.flush()
        return Spool(os.dup(file.fileno()), dtype, shape, np.arange(count))


def pick(array: Any, rows: Any) -> Any:
    """Rows of an array; of a spool as another one, unread."""
    return array.view(rows) if isinstance(array, Spool) else array[rows]
