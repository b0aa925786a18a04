"""The end of a server's life: not ready, then no new connections, then no requests left, then no models.

SIGTERM makes the server not ready at once, and every answer from then on asks its client to leave. It goes on answering
for the lame-duck period, in which a balancer takes it out; SIGINT is a developer's, who waits for nobody. Then it takes
no connections, answers whatever had begun to arrive over HTTP and gRPC, and closes its models. A second signal ends it
at once. What was received and not answered by then is lost, and counted.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

import uvicorn

from penstock.serve import threads
from penstock.serve.connection import Connections
from penstock.serve.repository import Repository

# How long after the last word of a kind clients may still be connecting: their handshakes end meanwhile.
_HANDSHAKES_S = 0.1
_TICK_S = 0.02
# What models are given to close when time is up.
_LEAST_CLOSING_S = 1.0
# <asm-generic/socket.h>; Python has no name for it.
_SO_ATTACH_FILTER = 26
# Of classic BPF, over a TCP segment: load byte 13, its flags; drop it if SYN (2) is set, take it otherwise.
_NO_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 2), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


@dataclass(frozen=True)
class DrainLimits:
    """Seconds for which a server that was told to end goes on as before, and those for what has begun by then."""

    lame_duck_s: float = 0.0
    drain_s: float = 31.0


@dataclass
class Calls:
    """gRPC's requests: how many came, were answered, lost their client; and what stops gRPC within seconds."""

    begun: int = 0
    answered: int = 0
    gone: int = 0
    stop: Callable[[float], Awaitable[None]] | None = None

    @property
    def owed(self) -> int:
        """How many are under way."""
        return self.begun - self.answered - self.gone


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which ends as the module's text says; `lost` is how many requests got no answer.

    Args:
        config: uvicorn's.
        connections: makes the connections of HTTP.
        repository: told that the server is not ready any more.
        calls: gRPC's requests.
        limits: how long everything may take.
        say: told in one line how it ended.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        repository: Repository,
        calls: Calls,
        limits: DrainLimits,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self._connections, self._repository, self._calls = connections, repository, calls
        self._limits, self._say = limits, say
        self._told_at, self._duck_s, self._answered_before = time.monotonic(), 0.0, 0
        self.lost = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called amid whatever the main thread does, so it only leaves word."""
        if self.should_exit:
            self.force_exit = True
            return
        self._told_at, self._answered_before = time.monotonic(), self._answered
        self._duck_s = self._limits.lame_duck_s if sig == signal.SIGTERM else 0.0
        self._repository.ending = self._connections.leaving = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._until(lambda: False, self._told_at + self._duck_s)
        await self._stop_taking(sockets or [])
        deadline = time.monotonic() + self._limits.drain_s
        stop = self._calls.stop
        # Later than ours: what is under way then is to be counted before it is cut.
        stopping = None if stop is None else asyncio.ensure_future(stop(self._limits.drain_s + 60))
        await self._until(lambda: self._is_quiet and (stopping is None or stopping.done()), deadline)
        self.lost = self._owed
        self._cut()
        if not self.force_exit:
            closing = asyncio.ensure_future(self._close())
            await self._until(closing.done, max(deadline, time.monotonic() + _LEAST_CLOSING_S))
        self._tell()
        if self.force_exit or not closing.done():
            end_process(self.lost)

    async def _stop_taking(self, listeners: list[socket.socket]) -> None:
        """Take no more connections, and lose none that a client has: one that is not taken yet would be reset."""
        if not self.force_exit:
            for listener in listeners:
                turn_away(listener)
            await self._until(lambda: False, time.monotonic() + _HANDSHAKES_S)
        for server in self.servers:
            server.close()
        for listener in listeners:
            listener.close()
        self._connections.closing = True
        for connection in list(self.server_state.connections):
            connection.shutdown()

    async def _close(self) -> None:
        if self._calls.stop is not None:
            await self._calls.stop(0)
        await self.lifespan.shutdown()

    async def _until(self, over: Callable[[], bool], deadline: float) -> None:
        """Wait until it is over, or time is up, or a second signal comes."""
        while not self.force_exit and not over() and (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(_TICK_S, left))

    def _cut(self) -> None:
        # uvicorn would log each that is cancelled, with a traceback; they are counted and told below.
        logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
        for connection in list(self.server_state.connections):
            connection.cut()  # type: ignore[union-attr] # ours all have it
        for task in list(self.server_state.tasks):
            task.cancel()

    def _tell(self) -> None:
        answered, took = self._answered - self._answered_before, time.monotonic() - self._told_at
        why = ""
        if self.lost:
            why = (
                " (a second signal cut them)" if self.force_exit else f" (cut after --drain-s {self._limits.drain_s:g})"
            )
        self._say(f"drained in {took:.1f} s: {answered} requests answered meanwhile, {self.lost} lost{why}")

    @property
    def _is_quiet(self) -> bool:
        return not self.server_state.connections and not self.server_state.tasks

    @property
    def _answered(self) -> int:
        return self.server_state.total_requests + self._calls.answered

    @property
    def _owed(self) -> int:
        """Requests that were received and have no answer: over HTTP, over gRPC, and on connections that had ended."""
        over_http = sum(connection.owed for connection in self.server_state.connections)  # type: ignore[union-attr]
        return int(over_http) + self._calls.owed + self._connections.late


def _is_no_cut(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def end_process(lost: int) -> None:
    """Exit without taking anything down."""
    threads.hard_end(min(lost, 1))


def turn_away(listener: socket.socket) -> None:
    """Let no new connection begin, while those that have begun are still taken.

    A client that knocks hears nothing, knocks again a second later, and is then refused. Where the kernel does not let
    us, a client that connects in the very moment of closing may be reset.
    """
    steps = b"".join(struct.pack("HBBI", *step) for step in _NO_SYN)
    held = ctypes.create_string_buffer(steps)
    with suppress(OSError):
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(_NO_SYN), ctypes.addressof(held))
        )
