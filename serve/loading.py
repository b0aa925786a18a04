"""Loading a model while others answer: checked, replayed and warm, in a thread that nobody waits for at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.serve import declared, memory
from penstock.serve.errors import RequestError
from penstock.serve.model import Model
from penstock.serve.threads import CallThread

ENDING = "the server is shutting down"
# What a runner prepares behind its first answers is waited for so long before a new version takes the old one's place.
_SETTLE_S, _STEP_S = 300.0, 0.2


class Loader:
    """Loads one model at a time, for as long as the server runs."""

    def __init__(self) -> None:
        self._thread: CallThread | None = None
        self._at_work = self._closed = False

    async def load(self, open: Callable[[Path], Model], path: Path, name: str) -> Model:
        """The model at a path, which `open` loads; it must bear the name.

        Raises:
            PenstockError: it does not, or cannot be loaded. RequestError: the server ends.
        """
        self._thread = self._thread or CallThread("penstock-load")
        self._at_work = True
        try:
            model: Model = await self._thread.call(self._warm, open, path, name)
        finally:
            self._at_work = False
        if self._closed:
            await model.scheduler.close()
            raise RequestError(ENDING, 503)
        return model

    def close(self) -> None:
        """Load nothing more; what is being loaded is not waited for."""
        self._closed = True
        if self._thread is not None:
            (self._thread.abandon if self._at_work else self._thread.end)()

    def _warm(self, open: Callable[[Path], Model], path: Path, name: str) -> Model:
        try:
            model = declared.opened(open, path, name)
            settle([model], _SETTLE_S, lambda: self._closed)
            return model
        finally:
            memory.give_back()  # what reading the file took


def settle(models: Iterable[Model], most_s: float, is_over: Callable[[], bool]) -> None:
    """Give models some seconds together for what they still prepare in the background, unless all is over."""
    until = time.monotonic() + most_s
    for model in models:
        while not (is_over() or model.scheduler.settled(_STEP_S) or time.monotonic() > until):
            pass


async def release(former: Model) -> None:
    """Let a model finish what it was asked, and give back its memory."""
    await former.scheduler.close()
    await asyncio.to_thread(memory.give_back)
