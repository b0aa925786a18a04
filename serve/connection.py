"""One client's connection: infer requests are answered from here, all others by the HTTP server behind it.

A body is received into the memory that its arrays are then views of, and arrays are sent as they lie. What is unusual
in any way (other paths and methods, bodies in chunks, heads that are damaged or long) is left to the server behind,
which is uvicorn's: nothing is decided here that it would decide otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import Buffer

from penstock.serve import records
from penstock.serve.behind import LONG_HEAD, MOST_HEAD, TURN, Behind, refuse
from penstock.serve.gate import Gate
from penstock.serve.heads import Head, answer_lines, read_head, without_upgrade
from penstock.serve.leaving import LOOK_S, QUIET_S, leave, unread
from penstock.serve.rights import INFER
from penstock.serve.rooms import Room, room
from penstock.serve.wire import Infer, refused

_PREFIX = b"POST /v2/models/"
_NEEDED = (INFER,)
_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d{1,18})")
_IN_CHUNKS = re.compile(rb"(?i)\r\ntransfer-encoding:")
# Joined before they are written; more is not worth the copy.
_JOINED = 65_536
# What is read while it is not known what comes: of a long body the less of it is copied from there, the better.
_FIRST = 16_384
# Bytes of a body that are read at once, a picture's in one step, and before others have their first turn.
_AT_ONCE, _FIRST_TURN = 262_144, 2**20


@dataclass(frozen=True)
class ConnectionLimits:
    """The largest body received here, how many connections there may be, and how long each may be idle, in seconds.

    A request must be whole `receive_s` after its first byte: a client that drips bytes holds memory and a place.
    """

    body_bytes: int = 64 * 2**20
    connections: int = 4096
    idle_s: float = 75.0
    receive_s: float = 60.0


class Connections:
    """Makes the protocol of every connection of one server, as uvicorn asks for it.

    Args:
        infer: answers the requests.
        limits: what clients are given.
        gate: of API keys, if those are asked for.
        take: gives memory for a body of a length whose arrays begin at a place in it; None where it has none.
    """

    def __init__(
        self,
        infer: Infer,
        limits: ConnectionLimits,
        gate: Gate | None = None,
        take: Callable[[int, int], memoryview | None] | None = None,
    ) -> None:
        self.infer = infer
        self._take = take
        self.limits = limits
        self._gate = gate
        # What is received goes here until it is known what it is; it is read before the next connection's is.
        self.scratch = memoryview(bytearray(_FIRST))
        # Of a server that ends: every answer asks its client to leave, and then the idle ones are closed too.
        self.leaving = self.closing = False
        # Requests that came on connections which had been closed for being idle.
        self.late = 0

    def takes(self, head: Head) -> bool:
        """Whether a request is to be received here; what is too long or not allowed is refused behind."""
        if head.length > self.limits.body_bytes:
            return False
        return self._gate is None or self._gate.fault(head.headers.get(b"authorization"), _NEEDED) is None

    def taken(self, length: int, aligned: int) -> memoryview | None:
        """Memory for a body that others see too, if there is any; its arrays begin at `aligned`."""
        return None if self._take is None else self._take(length, aligned)

    def __call__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> Connection:
        loop = _loop or asyncio.get_running_loop()
        behind = functools.partial(Behind, config, server_state, app_state, loop)
        return Connection(self, behind, server_state, loop)


class Connection(asyncio.BufferedProtocol):
    """What one client sends and is sent, a request at a time; requests that come early wait for their turn.

    `is_over` is set of one that is over the limit by another's count, before it is made.
    """

    is_over = False

    def __init__(self, server: Connections, behind: Callable[[Connection], Behind], state: Any, loop: Any) -> None:
        self._server, self._make_behind, self._state, self._loop = server, behind, state, loop
        self._behind: Behind | None = None
        self._transport: Any = None
        self._waiting = b""
        self._head: Head | None = None
        self._room: Room | None = None
        self._unsent = self._pause_at = 0
        self._task: asyncio.Task[None] | None = None
        self._clogged = self._paused = self._handed = self._left = False
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        most = self._server.limits.connections
        if self.is_over or len(self._state.connections) >= most:
            refuse(transport, 503, f"{most} connections are open, as many as there may be (--max-connections)")
            return
        self._state.connections.add(self)
        self._since = self._loop.time()
        self._watch()
        if self._server.closing:
            self.shutdown()

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
        return self._server.scratch if self._room is None else self._room.free()[:_AT_ONCE]

    def buffer_updated(self, nbytes: int) -> None:
        if self._room is not None:
            self._room.took(nbytes)
            if self._room.whole:
                body, self._room = self._room.content(), None
                self._start(body)
            elif self._room.filled >= self._pause_at:
                self._pause_at = self._room.filled + TURN
                self._transport.pause_reading()
                self._loop.call_soon(self._read_on)
            return
        if not self._waiting:
            self._since = self._loop.time()
        self._waiting += bytes(self._server.scratch[:nbytes])
        self._next()
        if len(self._waiting) >= MOST_HEAD and (self._task is not None or self._clogged):
            self._paused = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Others have had their turn."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> None:
        """Closes the connection: a client that will send nothing more is taken for one that went away."""

    def pause_writing(self) -> None:
        self._clogged = True
        self._unsent = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self._clogged = False
        self._go_on()

    def shutdown(self) -> None:
        """Told by the server that ends: leave once there is nothing to do, and has been nothing for a while."""
        if self._handed or self._left or self._transport.is_closing():
            return
        busy = self._task is not None or self._head is not None or bool(self._waiting) or self._clogged
        left = self._since + QUIET_S - self._loop.time()
        if busy or left > 0 or unread(self._transport):
            self._loop.call_later(max(left, LOOK_S), self.shutdown)
        else:
            self._leave(told=False)

    @property
    def owed(self) -> int:
        """How many requests were received here, and have not been answered to the end."""
        ahead = begun(self._waiting)
        if self._head is not None or ahead:
            return ahead + (self._head is not None)
        return int(self._transport.get_write_buffer_size() > 0)

    def cut(self) -> None:
        """End the connection, whatever is under way."""
        self._transport.abort()

    @property
    def leaving(self) -> bool:
        """Whether the server ends, and answers ask their clients to leave."""
        return self._server.leaving

    def _next(self) -> None:
        """Begin the next request, if what has been received so far holds one."""
        busy = self._task is not None or self._head is not None or self._clogged
        if not self._waiting or busy or self._transport.is_closing():
            return
        end = self._waiting.find(_END) + len(_END)
        if end < len(_END):
            if not self._waiting[:1].isalpha() or b"\n\n" in self._waiting:
                self._hand_over()  # which refuses it
            elif len(self._waiting) >= MOST_HEAD:
                refuse(self._transport, 431, LONG_HEAD)
            return
        if end > MOST_HEAD:
            refuse(self._transport, 431, LONG_HEAD)
            return
        head = read_head(self._waiting[:end]) if self._waiting.startswith(_PREFIX) else None
        if head is None or not self._server.takes(head):
            self._waiting = without_upgrade(self._waiting[:end]) + self._waiting[end:]
            self._hand_over()
            return
        self._head, here = head, len(self._waiting) - end
        if here >= head.length:
            body = self._server.taken(head.length, head.json_length)
            if body is None:
                body = room(head.length, head.json_length)
            end += head.length
            body[:] = self._waiting[end - head.length : end]
            self._waiting = self._waiting[end:]
            self._start(body)
        else:
            taken = self._server.taken(head.length, head.json_length)
            self._room = Room(head.length, head.json_length, taken)
            self._room.add(self._waiting[end:])
            self._pause_at = _FIRST_TURN
            self._waiting = b""

    def _start(self, body: memoryview) -> None:
        assert self._head is not None
        self._task = self._loop.create_task(self._respond(self._head, body))
        self._state.tasks.add(self._task)
        # Not by the task itself: one that is cancelled before it begins does nothing.
        self._task.add_done_callback(self._state.tasks.discard)

    def _peer(self) -> Any:
        return self._transport.get_extra_info("peername")

    async def _respond(self, head: Head, body: memoryview) -> None:
        road = records.INFER if head.version is None else records.VERSIONED
        record = records.Record(headers=head.headers, peer=self._peer, road=road)
        try:
            status, headers, parts = await self._server.infer.answer(
                head.name, head.version, head.headers, body, record
            )
        except Exception as error:  # an answer there must be, or the next would be taken for it
            status, headers, parts = refused(error)
        finally:
            self._task = self._head = None
        self._state.total_requests += 1
        if self._transport.is_closing():
            return
        # What was sent ahead is answered, and the last of it with word to leave.
        kept = head.keep_alive and not (self._server.leaving and not self._waiting)
        self._write(status, headers, parts, kept=kept)
        self._since = self._loop.time()
        if kept:
            self._go_on()
        elif self._server.leaving:
            self._leave(told=True)
        else:
            self._transport.close()

    def _leave(self, *, told: bool) -> None:
        self._left = True
        leave(self._transport, self.connection_lost, None if told else self._note_late)

    def _note_late(self) -> None:
        self._server.late += 1

    def _go_on(self) -> None:
        """Take what came early, now that there is nothing in the way."""
        if self._paused and self._task is None and not self._clogged:
            self._paused = False
            self._transport.resume_reading()
        self._next()

    def _write(self, status: int, headers: Mapping[str, str], parts: Sequence[Buffer], *, kept: bool) -> None:
        length = sum(map(_size, parts))
        lines = [answer_lines(status, headers, length, kept=kept)]
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
        self._since = self._loop.time()
        self._transport.set_protocol(self)
        if self._server.closing:
            self.shutdown()

    def _note_progress(self, now: float) -> None:
        """A client that still reads an answer, however slowly, is not idle."""
        if self._clogged:
            unsent, self._unsent = self._unsent, self._transport.get_write_buffer_size()
            if self._unsent < unsent:
                self._since = now

    def _watch(self) -> None:
        """Close the connection once it has been idle, or a request on its way, for too long."""
        limits, now = self._server.limits, self._loop.time()
        late = f"the request was not whole after {limits.receive_s:g} s (--receive-limit-s)"
        left = min(limits.idle_s, limits.receive_s)
        if self._behind is not None and self._handed:
            if (begun := self._behind.receiving_since) is not None:
                left = begun + limits.receive_s - now
                if left <= 0:
                    self._behind.give_up(408, late)
                    return
        elif self._task is None:
            self._note_progress(now)
            on_its_way = not self._clogged and (self._room is not None or bool(self._waiting))
            left = min(left, self._since + (limits.receive_s if on_its_way else limits.idle_s) - now)
            if left <= 0:
                if on_its_way:
                    refuse(self._transport, 408, late)
                elif self._clogged:
                    self._transport.abort()  # closing would wait for it to read what it was answered
                else:
                    self._transport.close()
                return
        self._timer = self._loop.call_later(left, self._watch)


def begun(received: bytes) -> int:
    """How many requests have a whole head in what was received; of a body in chunks, and what is behind, it is one."""
    found = start = 0
    while (end := received.find(_END, start)) >= 0:
        if received.startswith(b"\r\n", start):  # between requests, where parsers pass over it
            start += 2
            continue
        head = received[start : end + len(_END)]
        if not head[:1].isalpha():
            break
        found += 1
        if _IN_CHUNKS.search(head):
            break
        said = _LENGTH.search(head)
        start = end + len(_END) + (0 if said is None else int(said[1]))
    return found


def _size(part: Buffer) -> int:
    return memoryview(part).nbytes
