"""One client's connection: infer requests are answered from here, all others by the HTTP server behind it.

A body is received into the memory that its arrays are then views of, and arrays are sent as they lie. What is unusual
in any way (other paths and methods, bodies in chunks, heads that are damaged or long) is left to the server behind,
which is uvicorn's: nothing is decided here that it would decide otherwise.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import Buffer
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from penstock.serve.heads import Head, read_head
from penstock.serve.wire import Infer

_PREFIX = b"POST /v2/models/"
_END = b"\r\n\r\n"
_MOST_HEAD = 65_536
_ALIGNED = 64
# Joined before they are written; more is not worth the copy.
_JOINED = 65_536


class Connections:
    """Makes the protocol of every connection of one server, as uvicorn asks for it.

    Args:
        infer: answers the requests.
        most_bytes: the largest body received here.
    """

    def __init__(self, infer: Infer, most_bytes: int) -> None:
        self.infer = infer
        self.most_bytes = most_bytes
        # What is received goes here until it is known what it is; it is read before the next connection's is.
        self.scratch = memoryview(bytearray(_MOST_HEAD))

    def __call__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> Connection:
        loop = _loop or asyncio.get_running_loop()
        behind = functools.partial(Behind, config, server_state, app_state, loop)
        return Connection(self, behind, server_state, loop, config.timeout_keep_alive)


class Connection(asyncio.BufferedProtocol):
    """What one client sends and is sent, a request at a time; requests that come early wait for their turn."""

    def __init__(
        self, server: Connections, behind: Callable[[Connection], Behind], state: Any, loop: Any, keep_alive_s: float
    ) -> None:
        self._server, self._make_behind, self._state, self._loop = server, behind, state, loop
        self._keep_alive_s = keep_alive_s
        self._behind: Behind | None = None
        self._transport: Any = None
        self._waiting = b""
        self._head: Head | None = None
        self._body = memoryview(b"")
        self._filled = 0
        self._task: asyncio.Task[None] | None = None
        self._clogged = self._paused = self._ending = self._handed = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._state.connections.add(self)
        self._idle_since = self._loop.time()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self.forgotten()
        if self._task is not None:
            self._task.cancel()  # nobody is there to read the answer

    def forgotten(self) -> None:
        """The connection has ended, here or behind."""
        self._behind = None
        if self._timer is not None:
            self._timer.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._body[self._filled :] if self._receiving else self._server.scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._receiving:
            self._filled += nbytes
            if self._filled == len(self._body):
                self._start()
            return
        self._waiting += bytes(self._server.scratch[:nbytes])
        if self._task is None:
            self._next()
        elif len(self._waiting) >= _MOST_HEAD:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """Closes the connection: a client that will send nothing more is taken for one that went away."""

    def pause_writing(self) -> None:
        self._clogged = True

    def resume_writing(self) -> None:
        self._clogged = False
        self._next()

    def shutdown(self) -> None:
        """Told by the server that stops: finish what is under way, and close."""
        self._ending = True
        if self._task is None and not self._receiving:
            self._transport.close()

    @property
    def _receiving(self) -> bool:
        """Whether a head is there and its body is not yet."""
        return self._head is not None and self._task is None

    def _next(self) -> None:
        """Begin the next request, if what has been received so far holds one."""
        if not self._waiting or self._task is not None or self._head is not None or self._clogged or self._ending:
            return
        start = self._waiting[: len(_PREFIX)]
        end = self._waiting.find(_END) + len(_END)
        if not _PREFIX.startswith(start):
            self._hand_over()
            return
        if end < len(_END):
            if len(self._waiting) >= _MOST_HEAD:
                refuse_long_head(self._transport)
            return
        head = read_head(self._waiting[:end])
        if head is None or head.length > self._server.most_bytes:
            self._hand_over()
            return
        self._head, self._body = head, _room(head.length, head.json_length)
        here = min(head.length, len(self._waiting) - end)
        self._body[:here] = self._waiting[end : end + here]
        self._filled, self._waiting = here, self._waiting[end + here :]
        if here == head.length:
            self._start()

    def _start(self) -> None:
        assert self._head is not None
        head, body, self._body = self._head, self._body, memoryview(b"")
        self._task = self._loop.create_task(self._respond(head, body))
        self._state.tasks.add(self._task)

    async def _respond(self, head: Head, body: memoryview) -> None:
        try:
            status, headers, parts = await self._server.infer.answer(head.name, head.version, head.headers, body)
        finally:
            self._state.tasks.discard(self._task)
            self._task = self._head = None
        self._state.total_requests += 1
        if self._transport.is_closing():
            return
        kept = head.keep_alive and not self._ending
        self._write(status, headers, parts, kept=kept)
        self._idle_since = self._loop.time()
        if not kept:
            self._transport.close()
            return
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._next()

    def _write(self, status: int, headers: Mapping[str, str], parts: Sequence[Buffer], *, kept: bool) -> None:
        length = sum(map(_size, parts))
        lines = [_first_lines(status, tuple(headers.items()), length, kept=kept)]
        lines += [b"%b: %b\r\n" % line for line in self._state.default_headers]
        lines.append(b"\r\n")
        if length <= _JOINED:
            self._transport.write(b"".join([*lines, *parts]))
        else:
            self._transport.writelines([b"".join(lines), *parts])

    def _hand_over(self) -> None:
        """Let the server behind have the connection until it has answered what is there."""
        data, self._waiting = self._waiting, b""
        self._handed = True
        self._state.connections.discard(self)
        if self._behind is None:
            self._behind = self._make_behind(self)
        self._transport.set_protocol(self._behind)
        self._behind.given(self._transport, data)

    def given_back(self) -> None:
        """Told by the server behind: its requests are answered."""
        self._handed = False
        self._state.connections.add(self)
        self._idle_since = self._loop.time()
        self._transport.set_protocol(self)

    def _watch(self) -> None:
        """Close the connection once it has been idle for too long."""
        idle = self._task is None and not self._receiving and not self._handed
        left = self._idle_since + self._keep_alive_s - self._loop.time()
        if idle and left <= 0:
            self._transport.close()
            return
        self._timer = self._loop.call_later(left if left > 0 else self._keep_alive_s, self._watch)


class Behind(HttpToolsProtocol):
    """uvicorn's HTTP server, which has a connection while it answers, and then gives it back."""

    def __init__(self, config: Any, server_state: Any, app_state: Any, loop: Any, front: Connection) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._front = front
        self._within = self._heading = False
        self._headed = 0

    def given(self, transport: Any, data: bytes) -> None:
        """Take a connection, and what was received by it."""
        if self.transport is None:
            self.connection_made(transport)
        self.connections.add(self)
        self.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._front.forgotten()

    def data_received(self, data: bytes) -> None:
        went_on = self._heading
        super().data_received(data)
        if went_on and self._heading:
            self._headed += len(data)
            if self._headed >= _MOST_HEAD:
                refuse_long_head(self.transport)

    def on_message_begin(self) -> None:
        self._within = self._heading = True
        self._headed = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._heading = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._within = False

    def on_response_complete(self) -> None:
        idle = not self._within and not self.pipeline and not self.flow.write_paused
        super().on_response_complete()
        if idle and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self.connections.discard(self)
            self._front.given_back()


@functools.lru_cache(256)
def _first_lines(status: int, headers: tuple[tuple[str, str], ...], length: int, *, kept: bool) -> bytes:
    """The head of an answer, as far as it is the same for many."""
    named = [f"{name.lower()}: {value}\r\n" for name, value in headers]
    named += [f"content-length: {length}\r\n", *([] if kept else ["connection: close\r\n"])]
    return STATUS_LINE[status] + "".join(named).encode("latin-1")


def refuse_long_head(transport: Any) -> None:
    """Answer a head that does not end, and close the connection: uvicorn itself would keep all of it."""
    text = b'{"error":"the headers are over the limit of %d bytes"}' % _MOST_HEAD
    lines = (b"content-type: application/json", b"content-length: %d" % len(text), b"connection: close", b"", text)
    transport.write(STATUS_LINE[431] + b"\r\n".join(lines))
    transport.close()


def _room(length: int, json_length: int) -> memoryview:
    """Memory for a body, in which what follows the JSON lies as arrays should."""
    held = np.empty(length + _ALIGNED, np.uint8)
    start = -(held.__array_interface__["data"][0] + json_length) % _ALIGNED
    return held.data[start : start + length]


def _size(part: Buffer) -> int:
    return memoryview(part).nbytes
