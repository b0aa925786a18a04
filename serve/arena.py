"""Memory that two processes share, in which arrays are laid: it is no file, so that nothing is left of it.

A Linux memfd (memfd_create(2)): both have it mapped, it grows when there is need, and never shrinks, which it is sealed
against: a page that was taken from under a reader would kill it.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401 (with it numpy knows bfloat16)
import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.serve.tensors import from_bytes, text_bytes
from penstock.signature import SERVED_DTYPES, dtype_name

# Where an array begins: as memory for vector instructions is aligned.
_ALIGNED = 64
_FIRST_BYTES = 2**20
Laid = list[Any]
"""Where an array lies: its name, dtype, shape, offset and bytes; of JSON, since it crosses between processes."""


class Arena:
    """One end of the shared memory behind a file descriptor, which stays with whoever opened it.

    Args:
        fd: the memory; without one, new memory is made.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _created() if fd is None else fd
        self._map = mmap.mmap(self.fd, 0)

    def lay(self, name: str, parts: Sequence[NDArray[np.generic]], at: int) -> tuple[Laid, int]:
        """Copy the rows of arrays, one after the other, to the first good place from `at` on.

        Returns:
            Where they lie, as one array, and where there is room for the next.
        """
        dtype = dtype_name(parts[0].dtype)
        shape = parts[0].shape if len(parts) == 1 else (sum(map(len, parts)), *parts[0].shape[1:])
        start = -(-at // _ALIGNED) * _ALIGNED
        if dtype == "object":
            text = b"".join(map(text_bytes, parts))
            self._reach(start + len(text))
            self._map[start : start + len(text)] = text
            return [name, dtype, list(shape), start, len(text)], start + len(text)
        size = math.prod(shape) * parts[0].dtype.itemsize
        self._reach(start + size)
        room = np.frombuffer(self._map, parts[0].dtype, math.prod(shape), start).reshape(shape)
        if len(parts) == 1:
            room[...] = parts[0]
        else:
            np.concatenate(parts, out=room)
        return [name, dtype, list(shape), start, size], start + size

    def found(self, laid: Laid) -> tuple[str, NDArray[np.generic]]:
        """An array that the other end has laid, by its name: a view, but for text.

        Raises:
            PenstockError: what is said of it cannot be true.
        """
        try:
            name, dtype, shape, start, size = laid
            if dtype not in SERVED_DTYPES or not 0 <= start <= start + size <= self._reach(start + size, grow=False):
                raise ValueError(f"{dtype} at {start}")
            return str(name), from_bytes(str(name), memoryview(self._map)[start : start + size], dtype, tuple(shape))
        except (ValueError, TypeError, PenstockError) as error:
            raise PenstockError(f"an array in shared memory is not as the other process says: {error}") from None

    def close(self) -> None:
        """Give the memory back, once nobody holds a view of it."""
        os.close(self.fd)
        with contextlib.suppress(BufferError):  # then it goes with the last view
            self._map.close()

    def _reach(self, end: int, *, grow: bool = True) -> int:
        """Have as much memory mapped, as far as there is; how much that is."""
        if end > len(self._map):
            held = os.fstat(self.fd).st_size
            if grow and end > held:
                held = max(end, 2 * held)
                os.ftruncate(self.fd, held)
            if held > len(self._map):
                self._map = mmap.mmap(self.fd, held)
        return len(self._map)


def _created() -> int:
    fd = os.memfd_create("penstock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, _FIRST_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd
