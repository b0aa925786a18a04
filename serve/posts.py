"""A post: a batch function, and the thread that calls it; held to a limit, given another function, let go."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.laid import Memory
from penstock.serve.batches import Item
from penstock.serve.outcomes import Hung
from penstock.serve.threads import CallThread

log = logging.getLogger(__name__)
BatchFunction = Callable[[list[Any]], list[Any]]


class Post:
    """One batch function and the single thread that calls it, while the event loop does not.

    What a function says of itself (`well`, `gone`, `steady`, `light`) and can do beside (`settled`, `kill`, `close`) is
    asked of it where it has it; see `penstock.serve.instances`.
    """

    def __init__(self, function: BatchFunction) -> None:
        self.function = function
        # When its call under way began, of `time.monotonic`, and when the last one did, of `time.perf_counter`.
        self.busy_since: float | None = None
        self.began = 0.0
        self._call: asyncio.Future[Any] | None = None
        self._thread = CallThread("penstock-instance")

    def says(self, name: str, otherwise: bool) -> bool:
        """What the function says of itself."""
        return bool(getattr(self.function, name, otherwise))

    def run_here(self, items: Sequence[Item]) -> tuple[list[Any], float]:
        """The results of a batch, and the seconds that it took; in the thread of whoever calls."""
        started = time.perf_counter()
        results = self.function([item.payload for item in items])
        if len(results) != len(items):
            raise RuntimeError(f"the batch function gave {len(results)} results for {len(items)} items")
        return results, time.perf_counter() - started

    def begin(self, items: Sequence[Item], limit_s: float | None) -> asyncio.Future[Any]:
        """The same in its own thread, begun now.

        Raises:
            Hung: from what is awaited: it takes longer than the limit. The function is ended if it can be, and left to
                its thread.
        """
        call = self._call = self._thread.call(self.run_here, items)
        self.busy_since, self.began = time.monotonic(), time.perf_counter()
        call.add_done_callback(self._note_end)
        if limit_s is not None:
            timer = asyncio.get_running_loop().call_later(limit_s, self._hang, call, items, limit_s)
            call.add_done_callback(lambda _: timer.cancel())
        return call

    def _note_end(self, call: asyncio.Future[Any]) -> None:
        if call is self._call:  # it may be told late, when the next has begun
            self.busy_since = self._call = None

    def _hang(self, call: asyncio.Future[Any], items: Sequence[Item], limit_s: float) -> None:
        if call.done():
            return
        if (kill := getattr(self.function, "kill", None)) is not None:
            kill()
        back = self._thread.call(_close, self.function)  # should the call come back after all
        back.add_done_callback(lambda _: _leave(items))
        self._thread.abandon()
        self.function, self._thread = _nothing, CallThread("penstock-instance")
        call.set_exception(Hung(f"a batch did not come back within {limit_s:g} s (--run-limit-s)"))

    def prepare(self, memory: Memory) -> None:
        """Tell the function of memory that requests will lie in, where it wants to know."""
        prepare = getattr(self.function, "prepare", None)
        if prepare is not None:
            prepare(memory)

    def settled(self, timeout_s: float) -> bool:
        """Wait until what the function still prepares in the background is done; False if that takes longer."""
        wait = getattr(self.function, "settled", None)
        return wait is None or bool(wait(max(0.0, timeout_s)))

    def release(self) -> asyncio.Future[Any]:
        """Give back what the function holds, once the thread has come to it."""
        return self._thread.call(self._let_go)

    def replace(self, make: Callable[[], BatchFunction]) -> asyncio.Future[Any]:
        """Give it a new function, made in its thread; also if nobody waits any more: it is let go in the end."""
        return self._thread.call(self._take, make)

    def end(self) -> None:
        """Let the thread end after what it has been given."""
        self._thread.end()

    def _take(self, make: Callable[[], BatchFunction]) -> None:
        self.function = make()

    def _let_go(self) -> None:
        _close(self.function)


def _leave(items: Sequence[Item]) -> None:
    for item in items:
        item.leave()


def _close(function: BatchFunction) -> None:
    close = getattr(function, "close", None)
    if close is not None:
        try:
            close()
        except Exception as error:  # what is dead may not close well either
            log.warning("a batch function could not be closed: %s", error)


def _nothing(payloads: list[Any]) -> list[Any]:
    """In the place of a function that hangs."""
    raise RuntimeError("the instance is being replaced")
