"""Memory that was freed, given back to the machine."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back() -> None:
    """Let the C library return what it keeps of freed memory, in every thread's arena; where it is not glibc, nothing.

    A model's weights are many blocks of megabytes, which glibc keeps for the next of their size once it has seen them
    freed: the process would stay as large as all the models that it ever held at once.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
