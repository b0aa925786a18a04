"""Locks on files and folders, which the system takes from a process that ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock on a file or folder that is there.

    Args:
        path: of it.
        wait: for whoever holds it.

    Raises:
        BlockingIOError: somebody else holds it, and is not waited for.
        OSError: it cannot be opened, or its file system has no locks.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)
