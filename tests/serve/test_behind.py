"""The server behind a connection: requests sent ahead and their refusals, and what a client leaves or is refused."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from penstock.serve.behind import TURN, Behind


class Pipe:
    """A transport that counts how often it is told to read no more; once broken, it takes nothing."""

    def __init__(self) -> None:
        self.paused, self.pauses, self.sent = False, 0, b""
        self.closed = self.broken = False

    def pause_reading(self) -> None:
        self.paused = True
        self.pauses += 1

    def resume_reading(self) -> None:
        self.paused = False

    def write(self, data: bytes) -> None:
        if self.broken:
            raise RuntimeError("the handler is closed")
        if not self.closed:
            self.sent += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed or self.broken

    def get_extra_info(self, name: str) -> None:
        return None

    def set_protocol(self, protocol: Any) -> None: ...


async def refusing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class App:
    """Answers each request with its path and body, once it is whole and the path is let go."""

    def __init__(self, *held: str) -> None:
        self.held = {path: asyncio.Event() for path in held}
        self.begun: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path, body, more = scope["path"], b"", True
        self.begun.append(path)
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        if path in self.held:
            await self.held[path].wait()
        said = path.encode() + body[:20]
        length = (b"content-length", b"%d" % len(said))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": said})


def behind_of(app: Any) -> tuple[Behind, Pipe]:
    front = SimpleNamespace(leaving=False, given_back=lambda: None, forgotten=lambda: None)
    config = uvicorn.Config(app, log_config=None)
    config.load()
    return Behind(config, ServerState(), {}, asyncio.get_running_loop(), front), Pipe()


def head(path: str, framing: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: here\r\n{framing}\r\n\r\n".encode()


CHUNKED = "Transfer-Encoding: chunked"


def whole(path: str, framing: str) -> bytes:
    """A request whose body is `body`."""
    return head(path, framing) + (b"4\r\nbody\r\n0\r\n\r\n" if framing == CHUNKED else b"body")


# A request up to some place, and what comes then; nothing where it comes no further.
FAULTS = {
    "head damaged": (b"POST /second HTTP/1.1\r\nHo", b"st\0: here\r\n\r\n"),
    "head without a host": (b"POST /second HTTP/1.1\r\nH", b": here\r\n\r\n"),
    "target damaged": (b"POST http://here:99999/ HTTP/1.1\r\nHo", b"st: here\r\nContent-Length: 0\r\n\r\n"),
    "head late": (b"POST /second HTTP/1.1\r\nHo", b""),
    "chunks damaged": (head("/second", CHUNKED) + b"4\r\nbo", b"dy\r\nzz\r\n"),
    "chunks without end": (head("/second", CHUNKED) + b"4\r\nbo", b"dy\r\n1;" + b"x" * 70_000),
    "chunks late": (head("/second", CHUNKED) + b"4\r\nbo", b""),
    "trailers damaged": (head("/second", CHUNKED) + b"4\r\nbody\r\n0\r\n", b"\0: x\r\n\r\n"),
    "body late": (head("/second", "Content-Length: 4") + b"bo", b""),
}
STATUSES = {"damaged": 400, "host": 400, "end": 431, "late": 408}


@pytest.mark.parametrize("framing", ["Content-Length: 4", CHUNKED], ids=["length", "chunks"])
@pytest.mark.parametrize("answered", [0, 1, 2], ids=["none answered", "one answered", "both answered"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_refusal_takes_no_earlier_request_s_place(fault: str, answered: int, framing: str) -> None:
    """Two requests, and behind them one that is refused: they are answered before it, or else the connection ends."""

    async def scenario() -> tuple[Pipe, App]:
        app = App("/one", "/two")
        (behind, pipe), (start, rest) = behind_of(app), FAULTS[fault]
        behind.given(pipe, whole("/one", framing) + whole("/two", framing) + start)
        await settled()
        for path in ("/one", "/two")[:answered]:
            app.held[path].set()
            await settled()
        if rest:
            behind.data_received(rest)
        else:
            assert behind.receiving_since is not None
            behind.give_up(408, "it is late")
        if not pipe.closed:
            behind.data_received(b"what is behind it")
        for event in app.held.values():
            event.set()
        await settled()
        behind.connection_lost(None)
        await settled()
        assert not behind.tasks
        return pipe, app

    pipe, app = asyncio.run(scenario())
    first, second = pipe.sent.find(b"/onebody"), pipe.sent.find(b"/twobody")
    assert 0 < first < second
    assert pipe.closed
    ends = pipe.sent[second + len(b"/twobody") :]
    if answered == 2:
        assert ends.startswith(b"HTTP/1.1 %d " % STATUSES[fault.split()[-1]])
        assert pipe.sent.count(b"HTTP/1.1 ") == 3
    else:
        assert ends == b""
        assert b"connection: close" in pipe.sent[first:second]
        assert b"connection: close" not in pipe.sent[:first]
        assert app.begun == ["/one", "/two"]


async def settled() -> None:
    """Everything has happened that needs nothing from outside."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_what_is_refused_alone_is_refused_at_once() -> None:
    async def scenario(start: bytes, rest: bytes) -> bytes:
        behind, pipe = behind_of(App())
        behind.given(pipe, start)
        if rest:
            behind.data_received(rest)
        else:
            behind.give_up(408, "it is late")
        assert pipe.closed
        behind.connection_lost(None)
        await settled()
        return pipe.sent

    for fault, pieces in FAULTS.items():
        sent = asyncio.run(scenario(*pieces))
        assert sent.startswith(b"HTTP/1.1 %d " % STATUSES[fault.split()[-1]]), fault
        assert sent.count(b"HTTP/1.1 ") == 1


def test_a_request_is_not_late_by_the_time_it_was_not_read() -> None:
    async def scenario() -> bytes:
        app = App("/first")
        behind, pipe = behind_of(app)
        behind.given(pipe, whole("/first", CHUNKED))
        await settled()
        behind.data_received(head("/second", "Content-Length: 4"))
        assert pipe.paused, "it waits for its turn"
        assert behind.receiving_since is None
        before = behind.loop.time()
        app.held["/first"].set()
        await settled()
        assert not pipe.paused
        assert behind.receiving_since is not None
        assert behind.receiving_since >= before
        behind.data_received(b"body")
        await settled()
        behind.connection_lost(None)
        return pipe.sent

    assert asyncio.run(scenario()).endswith(b"/secondbody")


@pytest.mark.parametrize("framing", [f"Content-Length: {2**18}", CHUNKED], ids=["length", "chunks"])
def test_a_request_s_bytes_are_not_counted_against_the_next(framing: str) -> None:
    """One piece holds the end of a long body and the head of the next request, which is not whole yet."""

    async def scenario(cut: int) -> bytes:
        behind, pipe = behind_of(App())
        body = bytes(2**18)
        if framing == CHUNKED:
            body = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
        first, second = head("/first", framing) + body, whole("/second", "Content-Length: 4")
        behind.given(pipe, first[:1000])
        await settled()
        behind.data_received(first[1000:] + second[:cut])
        await settled()
        behind.data_received(second[cut:])
        await settled()
        behind.connection_lost(None)
        return pipe.sent

    for cut in (5, 30, len(whole("/second", "Content-Length: 4")) - 2):
        sent = asyncio.run(scenario(cut))
        assert sent.count(b"HTTP/1.1 200 ") == sent.count(b"HTTP/1.1 ") == 2
        assert sent.endswith(b"/secondbody")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_client_that_leaves_what_it_sent_ahead_is_no_error(count: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> tuple[list[str], bytes]:
        app = App("/0")
        behind, pipe = behind_of(app)
        behind.given(pipe, b"".join(whole(f"/{number}", CHUNKED) for number in range(count)))
        await settled()
        pipe.broken = True
        behind.connection_lost(ConnectionResetError())
        app.held["/0"].set()
        await settled()
        assert not behind.tasks
        return app.begun, pipe.sent

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(scenario()) == (["/0"], b"")
    assert caplog.messages == []


def test_a_body_that_was_refused_lets_others_have_their_turn_while_it_comes() -> None:
    async def scenario() -> tuple[int, Pipe]:
        (behind, pipe), turns = behind_of(refusing), 0
        behind.given(pipe, b"POST /predict/m HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % (64 * TURN))
        await asyncio.sleep(0.01)
        assert pipe.sent.startswith(b"HTTP/1.1 413")
        for _ in range(20):
            behind.data_received(bytes(TURN // 2))
            if pipe.paused:
                turns += 1
                await asyncio.sleep(0)
                assert not pipe.paused, "reading goes on by itself"
        return turns, pipe

    turns, pipe = asyncio.run(scenario())
    assert TURN <= 2**17  # an answer to somebody else takes some five turns, each with so much of every long body
    assert turns == 10
    assert pipe.pauses >= turns
