"""Threads that functions of an event loop's are called in, and that nobody waits for at the end."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_abandoned: list[threading.Thread] = []
_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


def any_stuck() -> bool:
    """Whether a thread that was abandoned is still in its call.

    A process that ends by itself then may be ended by that call's library, of which things are taken down under it.
    """
    return any(thread.is_alive() for thread in _abandoned)


_endings: list[Callable[[], None]] = []


def before_hard_end(do: Callable[[], None]) -> None:
    """Have something done before the process ends without taking anything down."""
    _endings.append(do)


def hard_end(status: int) -> None:
    """End the process at once: a thread may be in a library that would crash if things were taken down under it."""
    for do in _endings:
        do()
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)


class CallThread:
    """One thread, which makes the calls that it is given, one after the other.

    The interpreter ends without it: a call that never returns must not keep the process.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """What the call gives or raises, once the thread has come to it; to be awaited on the running event loop."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._calls.put((loop, future, function, arguments))
        return future

    def end(self) -> None:
        """Let the thread end after the calls that it has been given."""
        self._calls.put(None)

    def abandon(self) -> None:
        """Leave the thread to a call that does not return."""
        _abandoned.append(self._thread)
        self.end()

    def _work(self) -> None:
        while (held := self._calls.get()) is not None:
            loop, future, function, arguments = held
            try:
                told = future.set_result, function(*arguments)
            except BaseException as error:  # whoever awaits it is to see it
                told = future.set_exception, error
            with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
                loop.call_soon_threadsafe(_tell, future, *told)
            del held, future, told, function, arguments  # not kept until the next call


def _tell(future: asyncio.Future[Any], tell: Callable[[Any], None], value: Any) -> None:
    if not future.done():
        tell(value)
