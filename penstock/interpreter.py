"""Python's interpreter among threads: how soon one hands it to another that waits for it.

Each time a thread is made to hand it on, another has to be woken to have it, and it to be woken again: some 40 us each
in a virtual machine. What launches a batch, or lays its answers, takes hardly longer than that itself, and is left to
finish. How soon is one number for the process: until then other threads, too, may keep the interpreter for as long.
"""

from __future__ import annotations

import sys

_KEPT_S = 0.5e-3
_turn_s = _KEPT_S


def take_turns(turn_s: float) -> None:
    """Have each thread hand the interpreter on after so many seconds, from now on, in all of this process."""
    global _turn_s
    _turn_s = turn_s
    sys.setswitchinterval(turn_s)


def keep() -> None:
    """Be left to finish, until `share`, where threads take shorter turns: for what takes a fraction of a millisecond.

    It may be called twice, and threads may call it at once: it ends with the first `share`.
    """
    if _turn_s < _KEPT_S:
        sys.setswitchinterval(_KEPT_S)


def share() -> None:
    """End that; to be called before anything that waits for long."""
    if _turn_s < _KEPT_S:
        sys.setswitchinterval(_turn_s)
