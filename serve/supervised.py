"""A process of a server that runs as a family: what it hears of the one that began it, and says to it.

Messages are of JSON, with file descriptors beside them: the connections of clients, ends of ways to other processes,
memory. The process ends with whoever began it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import orjson
import uvicorn

from penstock.parents import end_with_parent
from penstock.serve.certificates import tls_limits
from penstock.serve.drain import DrainingServer

MOST_MESSAGE, MOST_DESCRIPTORS = 2**17, 4
Heard = Callable[[dict[str, Any], list[int]], None]


_under_way: set[asyncio.Task[Any]] = set()


def keep(work: Coroutine[Any, Any, Any]) -> None:
    """Have something done that nobody waits for."""
    task = asyncio.get_running_loop().create_task(work)
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)


class Control:
    """One end of the socket between a process and the one that began it."""

    def __init__(self, held: socket.socket) -> None:
        self.socket = held
        held.setblocking(False)

    def fileno(self) -> int:
        return self.socket.fileno()

    def tell(self, what: str, descriptors: Sequence[int] = (), **content: Any) -> bool:
        """Say something; False if the other end does not listen, or too slowly."""
        try:
            socket.send_fds(self.socket, [orjson.dumps({"what": what, **content})], list(descriptors))
        except OSError:
            return False
        return True

    def hear(self) -> tuple[dict[str, Any], list[int]] | None:
        """What the other end has said, and the descriptors that came with it; None if it is gone.

        Raises:
            BlockingIOError: it has said nothing.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, MOST_MESSAGE, MOST_DESCRIPTORS)
        except ConnectionError:
            return None
        return (orjson.loads(data), descriptors) if data else None

    def follow(self, heard: Heard) -> None:
        """Have each message heard on the running event loop, from now on; the process ends with the other end."""
        asyncio.get_running_loop().add_reader(self.socket.fileno(), self._hear_all, heard)

    def _hear_all(self, heard: Heard) -> None:
        with suppress(BlockingIOError):
            while True:
                found = self.hear()
                if found is None:
                    os._exit(1)
                heard(*found)


def begin(descriptor: int) -> Control:
    """Be a process of a family: a terminal's and the operator's signals are for the one that began it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    return Control(socket.socket(fileno=descriptor))


class DealtServer(DrainingServer):
    """A server whose connections are dealt to it by the process that began it, which also says when it is to end."""

    control: Control
    # Connections that were taken, and of those the ones that are still to be made, as TLS takes a while to.
    dealt = made = 0
    started_with: Callable[[], None] = staticmethod(lambda: None)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.started_with()

    def install_signal_handlers(self) -> None:
        """None: signals are for the family's head."""

    def deal(self, descriptor: int, *, is_over: bool = False) -> None:
        """Take a client's connection; one that is over the limit is told so."""
        self.dealt += 1
        keep(_accepted(self.config, self, socket.socket(fileno=descriptor), is_over))

    @property
    def open(self) -> int:
        """How many connections there are, those to be made among them."""
        return len(self.server_state.connections) + self.dealt - self.made

    def leave(self) -> None:
        """Ask clients to leave, while they are still answered."""
        self._told_at, self._answered_before = time.monotonic(), self._answered
        self._repository.ending = self._connections.leaving = True

    def end(self, *, at_once: bool = False) -> None:
        """Answer what is under way, and end; or end at once."""
        self.should_exit = True
        self.force_exit = self.force_exit or at_once

    def _tell(self) -> None:
        self.control.tell("drained", answered=self._answered - self._answered_before, lost=self.lost)


async def _accepted(config: uvicorn.Config, server: DealtServer, held: socket.socket, is_over: bool) -> None:
    def made() -> asyncio.Protocol:
        kind: Any = config.http_protocol_class
        protocol: Any = kind(config=config, server_state=server.server_state, app_state=server.lifespan.state)
        protocol.is_over = is_over
        return protocol  # type: ignore[no-any-return]

    loop = asyncio.get_running_loop()
    with suppress(OSError):
        await loop.connect_accepted_socket(made, held, ssl=config.ssl, **(tls_limits(loop) if config.ssl else {}))
    server.made += 1
