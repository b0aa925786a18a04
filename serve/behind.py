"""The HTTP server behind a connection: uvicorn's, lent the connection for requests that are not answered in front."""

from __future__ import annotations

import sys
from typing import Any, Protocol

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MOST_HEAD = 65_536
_MOST_FRAMING = 16
# The event loop looks at others each time that so much has come of one client: it would go on as long as there is more,
# and an answer takes some five of its turns, each as long as all clients take who send much. With four times as much,
# three of them made every 50th answer of others wait 5 ms and more; theirs come no later (bench/serving/soak.txt).
TURN = 2**17
LONG_HEAD = f"the headers are over the limit of {MOST_HEAD} bytes"


class Front(Protocol):
    """Whoever lends the connection."""

    @property
    def leaving(self) -> bool: ...

    def given_back(self) -> None: ...

    def forgotten(self) -> None: ...


class Behind(HttpToolsProtocol):
    """uvicorn's HTTP server, which has a connection while it answers, and then gives it back."""

    def __init__(self, config: Any, server_state: Any, app_state: Any, loop: Any, front: Front) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._front = front
        self._within = self._heading = self._went_on = self._given_up = False
        self._received = self._bodied = self._of_turn = 0
        self._begun = 0.0
        self._ended_with: Any = None
        # The request that is being answered, or was last; `cycle` is the one that came last, which may wait for it.
        self._running: Any = None

    def given(self, transport: Any, data: bytes) -> None:
        """Take a connection, and what was received by it."""
        if self.transport is None:
            self.connection_made(transport)
        self.connections.add(self)
        self.data_received(data)

    @property
    def receiving_since(self) -> float | None:
        """When a request began that is not whole yet; None too while it is not read on, since that is not its fault."""
        return self._begun if self._within and not self.flow.read_paused else None

    def give_up(self, status: int, why: str) -> None:
        """Wait no longer for a request; what has been answered early is not answered again.

        Requests before it are answered first: what is said of this one would be taken for their answer.
        """
        in_body = self._within and not self._heading
        self._given_up, self._within, self._heading = True, False, False
        if in_body and not self.pipeline:  # no other is unanswered
            if self.cycle.response_started:
                self.transport.close()
            else:
                refuse(self.transport, status, why)
            return
        if in_body:  # it waits for those before it, and is never begun
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running
        if self.cycle is None or self.cycle.response_complete:
            refuse(self.transport, status, why)
        else:
            self.cycle.keep_alive = False
            self.flow.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pipeline.clear()  # nobody is there to be answered
        self.cycle = self._running  # which is told so
        super().connection_lost(exc)
        self._front.forgotten()

    def data_received(self, data: bytes) -> None:
        if self._given_up:  # whoever answers an earlier request may have had it read on
            self.flow.pause_reading()
            return
        self._went_on = self._within
        super().data_received(data)
        self._of_turn += len(data)
        if self._of_turn >= TURN and not self.transport.is_closing():
            self._of_turn = 0
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)
        # A piece in which a request begins is not counted: most of it may be of the one before.
        if self._went_on and self._within:
            # What is no body is a head, trailers, or the sizes of chunks: a few bytes for each of a body's.
            self._received += len(data)
            if self._received >= MOST_HEAD + _MOST_FRAMING * self._bodied:
                self.give_up(431, LONG_HEAD)

    def _read_on(self) -> None:
        """Others have had their turn."""
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the form of all other refusals, and in the parser's words."""
        error = sys.exc_info()[1]
        if isinstance(error, httptools.HttpParserCallbackError):
            error = error.__context__
        why = f": {error}" if isinstance(error, httptools.HttpParserError) else ""
        self.give_up(400, f"the request is not HTTP/1.1{why}")

    def on_body(self, body: bytes) -> None:
        self._bodied += len(body)
        super().on_body(body)

    def on_message_begin(self) -> None:
        self._within = self._heading = True
        self._went_on = False
        self._received = self._bodied = 0
        self._begun = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():  # sent ahead; its body would be taken for the next request
            self.give_up(400, "Upgrade is not taken in a request that is sent ahead")
            return
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and self.parser.get_http_version() == "1.1":  # RFC 9112, section 3.2
            raise httptools.HttpParserError("Duplicate Host" if hosts else "Missing Host")
        super().on_headers_complete()
        self._heading = False  # only now is there a cycle of its own: what its path says may be refused there
        if self._front.leaving:
            self.shutdown()

    def shutdown(self) -> None:
        """Told that the server ends: the answer to the last request that has begun to come is to say so."""
        if self._heading or self.cycle is None or self.cycle.response_complete:
            return
        if (former := self._ended_with) is not None and former is not self.cycle and not former.response_started:
            former.keep_alive = True
        self.cycle.keep_alive, self._ended_with = False, self.cycle

    @property
    def owed(self) -> int:
        """How many requests were received, and have not been answered to the end."""
        if self.cycle is None or self.cycle.response_complete:
            return int(self.transport.get_write_buffer_size() > 0)
        return 1 + len(self.pipeline)

    def cut(self) -> None:
        """End the connection, whatever is under way."""
        self.transport.abort()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._within = False

    def on_response_complete(self) -> None:
        if self.flow.read_paused:
            self._begun = self.loop.time()  # of what is read on from now
        idle = not self._within and not self.pipeline and not self.flow.write_paused
        super().on_response_complete()
        if idle and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self.connections.discard(self)
            self._front.given_back()


def refuse(transport: Any, status: int, why: str) -> None:
    """Answer a request that is not waited for any longer, and close the connection."""
    text = orjson.dumps({"error": why})
    lines = (b"content-type: application/json", b"content-length: %d" % len(text), b"connection: close", b"", text)
    transport.write(STATUS_LINE[status] + b"\r\n".join(lines))
    transport.close()
