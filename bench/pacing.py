"""Waits where a server is asked more often than a key may, as long as it says, so long in all."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.errors import PenstockError

# A run is prepared by some 70 requests; a key of one request a second has time for them.
_MOST_S = 120.0
# Where a server says nothing of when to come again.
_PAUSE_S = 1.0
# Each of up to 64 payloads, some of them twice, and what is asked of the server and its model.
_PREPARING = 75


class TooSlow(PenstockError):
    """A key may not ask as often as a measurement has to."""


class Pacing:
    """Waits for a server that says when to ask again.

    Args:
        most_s: seconds that all waits may take together.
        sleep: what waits.
    """

    def __init__(self, most_s: float = _MOST_S, sleep: Callable[[float], None] = time.sleep) -> None:
        self.waited_s = 0.0
        self._most_s, self._sleep = most_s, sleep

    def wait(self, asked_s: float | None, refusal: str) -> None:
        """Wait once.

        Args:
            asked_s: for how long, as the server says; None where it does not.
            refusal: how it was refused.

        Raises:
            TooSlow: that would take too long.
        """
        pause = _PAUSE_S if asked_s is None else asked_s
        if self.waited_s + pause > self._most_s:
            raise TooSlow(
                f"{refusal}; up to {_PREPARING} requests come before the first run, and the waits for the key's rate "
                f"may take {self._most_s:g} s in all: give a key without --rate, or with --burst {_PREPARING}"
            )
        self.waited_s += pause
        self._sleep(pause)
