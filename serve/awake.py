"""Staying awake: an event loop that expects something soon looks for it instead of sleeping until it is woken.

A core that sleeps takes 10 to 50 us to be woken, more in a virtual machine (bench/studies/wakeups.py), and a lone
request of a family waits for six wakings. Known as busy polling.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Awake:
    """Keeps the running event loop awake while something is awaited.

    Args:
        most_s: seconds for which it is kept awake at most; 0 lets it sleep.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._awaited: asyncio.Future[Any] | None = None
        self._until = 0.0

    def until(self, awaited: asyncio.Future[Any]) -> None:
        """Keep the loop awake until this is there, in place of what it was kept awake for before."""
        if not self._most_s:
            return
        loop = asyncio.get_running_loop()
        turns = self._awaited is not None
        self._awaited, self._until = awaited, loop.time() + self._most_s
        if not turns:
            self._turn(loop)

    def end(self) -> None:
        """Let it sleep, whatever is awaited."""
        self._until = 0.0

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """What is to be called at once has the loop look for all else without a wait."""
        if self._awaited is None or self._awaited.done() or loop.time() >= self._until:
            self._awaited = None
        else:
            loop.call_soon(self._turn, loop)
