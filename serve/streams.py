"""Streams of requests over gRPC: answered in their order, and nothing of one outlives its call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from penstock.serve.drain import Calls

# Requests of one stream that are under way at once; more wait in the connection.
MOST = 64


class Stream:
    """One stream: its requests are computed as they come, and answered one after the other.

    Args:
        requests: what the client sends.
        begin: given a request, what gives its answer.
        write: sends an answer; fails where the client is gone.
        counted: told of what came, was answered, and was left by the client.
    """

    def __init__(
        self,
        requests: AsyncIterator[Any],
        begin: Callable[[Any], Coroutine[Any, Any, Any]],
        write: Callable[[Any], Awaitable[None]],
        counted: Calls,
    ) -> None:
        self._requests, self._begin, self._write, self._counted = requests, begin, write, counted
        self._places = asyncio.Semaphore(MOST)
        # In the order of the requests; None where no more may come.
        self._waiting: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._owed = 0
        self._ending = False
        self.whole = False

    async def run(self) -> None:
        """Answer until the client ends the stream, which is `whole` then, or `end` is called.

        Whatever happens, no task is left: one that outlives the call would ask a call that is no more, and gRPC answers
        that with a crash.
        """
        self._tasks.add(asyncio.ensure_future(self._take()))
        try:
            while (task := await self._waiting.get()) is not None or not self._waiting.empty():
                if task is not None and not await self._give(task):
                    break
        except asyncio.CancelledError:  # by the client, or by a server that has counted what it owes
            self._leave()
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def end(self) -> None:
        """Read nothing more; what has been read is answered."""
        self._ending = True
        self._waiting.put_nowait(None)

    async def _take(self) -> None:
        """Read requests. A place comes before a request, so that one that was read never waits to be kept."""
        try:
            while await self._places.acquire() and not self._ending:
                if (request := await anext(self._requests, None)) is None:
                    self.whole = True
                    return
                self._counted.begun += 1
                self._owed += 1
                task = asyncio.ensure_future(self._begin(request))
                self._tasks.add(task)
                self._waiting.put_nowait(task)
        finally:
            self._waiting.put_nowait(None)

    async def _give(self, task: asyncio.Task[Any]) -> bool:
        """Send an answer once it is there; whether there is a client to take it."""
        answer = await task
        try:
            await self._write(answer)
        except Exception:
            self._leave()
            return False
        self._tasks.discard(task)
        self._counted.answered += 1
        self._owed -= 1
        self._places.release()
        return True

    def _leave(self) -> None:
        self._counted.gone += self._owed
        self._owed = 0
