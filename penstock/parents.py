"""Processes that end with the one that began them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VARIABLE = "PENSTOCK_PARENT"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def environment() -> dict[str, str]:
    """What a process is to be begun with that calls `end_with_parent`."""
    return {**os.environ, _VARIABLE: str(os.getpid())}


@contextmanager
def deaf() -> Iterator[None]:
    """Processes that are begun in the block do not hear ^C, which a terminal sends to all of them, even as they begin.

    It is for the one that began them, and is to end them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Have Linux kill this process when the *thread* that began it ends, which is to wait for it meanwhile.

    It holds whatever this process does then, native code that holds the interpreter included. A parent that is gone
    already ends it at once. Without `environment`'s word, or on another system, nothing is changed.
    """
    parent = os.environ.pop(_VARIABLE, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if str(os.getppid()) != parent:
        os._exit(1)


def fate(code: int) -> str:
    """How a process ended, by what `subprocess` has as its return code."""
    return f"died of {signal_name(code)}" if code < 0 else f"ended with exit code {code}"


def signal_name(code: int) -> str:
    """The signal that a process died of, by that return code; those for real time have numbers alone."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def is_stopped(pid: int) -> bool:
    """Whether a process is there and does not run, as after SIGSTOP."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False
