"""Memory that was freed, given back to the machine."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_ARENA_MAX = -8  # of mallopt, in malloc.h


def keep_together() -> None:
    """Have threads that begin from now on allocate from one arena; where the C library is not glibc, nothing changes.

    Of arenas beside the main one, malloc_trim leaves the free memory at the top: up to twice the largest block that
    was ever freed, 64 MiB an arena at most. Which threads' arenas a model lay in differs from load to load.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def give_back() -> None:
    """Let the C library return what it keeps of freed memory, in every thread's arena; where it is not glibc, nothing.

    A model's weights are many blocks of megabytes, which glibc keeps for the next of their size once it has seen them
    freed: the process would stay as large as all the models that it ever held at once.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
