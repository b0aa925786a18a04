"""Arrays copied behind one another by a single system call, during which other threads run.

numpy lets go of the interpreter for each array that it copies, and has to wait for it after each: where an event loop
is at work in another thread, a batch of a hundred rows waits a hundred times. process_vm_readv(2), of this process's
own memory, copies all of them at once.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Fewer arrays or bytes are not worth the call; of more pieces the kernel takes none (UIO_MAXIOV).
_FEW, _SMALL, _MOST = 4, 2**18, 1024


def gather(arrays: Sequence[NDArray[np.generic]], into: NDArray[np.generic]) -> bool:
    """Copy arrays, one after the other, to the beginning of another array; False if they must be copied another way.

    Args:
        arrays: in order in memory, of the dtype of `into`.
        into: in order in memory, and large enough.
    """
    if _read is None or not _FEW <= len(arrays) <= _MOST:
        return False
    pieces = np.empty((len(arrays), 2), np.uint64)
    for number, array in enumerate(arrays):
        if array.dtype != into.dtype or not array.flags.c_contiguous:
            return False
        pieces[number] = array.__array_interface__["data"][0], array.nbytes
    size = int(pieces[:, 1].sum())
    if size < _SMALL or size > into.nbytes or not into.flags.c_contiguous:
        return False
    whole = np.array([[into.__array_interface__["data"][0], size]], np.uint64)
    # Where containers forbid the call, or it copies less, numpy copies all of it.
    return bool(_read(os.getpid(), whole.ctypes.data, 1, pieces.ctypes.data, len(arrays), 0) == size)


def _found() -> Any:
    try:
        found = ctypes.CDLL(None).process_vm_readv
    except (AttributeError, OSError):  # not Linux
        return None
    found.restype = ctypes.c_ssize_t
    pointer, count = ctypes.c_void_p, ctypes.c_ulong
    found.argtypes = [ctypes.c_int, pointer, count, pointer, count, count]
    return found


_read = _found()
