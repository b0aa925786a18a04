"""The server behind a connection: what it throws away keeps nobody else waiting."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from penstock.serve.behind import TURN, Behind


class Pipe:
    """A transport that counts how often it is told to read no more."""

    def __init__(self) -> None:
        self.paused, self.pauses, self.sent = False, 0, b""

    def pause_reading(self) -> None:
        self.paused = True
        self.pauses += 1

    def resume_reading(self) -> None:
        self.paused = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> None:
        return None

    def set_protocol(self, protocol: Any) -> None: ...


async def refusing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def test_a_body_that_was_refused_lets_others_have_their_turn_while_it_comes() -> None:
    async def scenario() -> tuple[int, Pipe]:
        front = SimpleNamespace(leaving=False, given_back=lambda: None, forgotten=lambda: None)
        config = uvicorn.Config(refusing, log_config=None)
        config.load()
        behind, pipe, turns = Behind(config, ServerState(), {}, asyncio.get_running_loop(), front), Pipe(), 0
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
