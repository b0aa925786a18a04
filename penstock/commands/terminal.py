"""The terminal: what a command says while it works."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from penstock.errors import Say, printable

_SILENCE_S = 1.0


def say(line: str) -> None:
    print(printable(line), flush=True)


@contextmanager
def one_interrupt() -> Iterator[None]:
    """In the block a signal that ends it counts once: of a key that is held down, or of many, the first does.

    Another one after a second of silence is meant, and counts again.
    """
    last = -_SILENCE_S

    def patient(before: Callable[[int, FrameType | None], Any]) -> Callable[[int, FrameType | None], None]:
        def heard(number: int, frame: FrameType | None) -> None:
            nonlocal last
            silence, last = time.monotonic() - last, time.monotonic()
            if silence >= _SILENCE_S:
                before(number, frame)

        return heard

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in handlers.items():
        if callable(handler):  # and not ignored, as in the background
            signal.signal(number, patient(handler))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def working(what: str) -> Iterator[Say]:
    """A spinner on stderr while the block runs, where a person may be looking; what it yields is told the stage."""
    if not sys.stderr.isatty():
        yield lambda stage: None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …") as shown:
        yield lambda stage: shown.update(f"{what}: {stage} …")
