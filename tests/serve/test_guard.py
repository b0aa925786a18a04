"""The gate in front of HTTP: what is asked of a client whose request is refused, and what of its body."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from penstock.serve import guard, keys
from penstock.serve.gate import Gate
from penstock.serve.guard import Guard
from penstock.serve.keys import Key

KEY = (b"authorization", b"Bearer alice")
CHUNKS = 5


class Asked:
    """A request to a guarded application: what was sent, how much of its body was taken, and whether it was let in."""

    def __init__(self, *headers: tuple[bytes, bytes], path: str = "/predict/a", endless: bool = False) -> None:
        self.sent: list[Any] = []
        self.taken, self.let_in = 0, False

        async def app(scope: Any, receive: Any, send: Any) -> None:
            self.let_in = True

        async def receive() -> Any:
            await asyncio.sleep(0.01 if endless else 0)
            self.taken += 1
            return {"type": "http.request", "body": b" ", "more_body": endless or self.taken < CHUNKS}

        async def send(message: Any) -> None:
            self.sent.append((self.taken, message))

        scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers)}
        asyncio.run(Guard(app, Gate([Key("alice", keys.digest(b"alice"))]))(scope, receive, send))

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0][1]["headers"])


def test_what_is_admitted_or_open_goes_on_as_it_came() -> None:
    for asked in (Asked(KEY), Asked(path="/v2/health/live")):
        assert asked.let_in
        assert asked.sent == []


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"100")], [(b"content-length", b"1048576")]])
def test_a_short_body_is_left_to_the_server_and_the_connection_kept(headers: list[tuple[bytes, bytes]]) -> None:
    asked = Asked(*headers)
    assert not asked.let_in
    assert asked.taken == 0
    assert b"connection" not in asked.headers
    assert [message.get("more_body", False) for _, message in asked.sent] == [False, False]


@pytest.mark.parametrize("header", [(b"content-length", b"1048577"), (b"transfer-encoding", b"chunked")])
def test_of_a_long_body_the_answer_is_sent_first_and_the_rest_thrown_away(header: tuple[bytes, bytes]) -> None:
    asked = Asked(header)
    assert asked.headers[b"connection"] == b"close"
    assert [taken for taken, _ in asked.sent] == [0, 0, CHUNKS]
    assert [message.get("more_body", False) for _, message in asked.sent] == [False, True, False]


def test_a_body_without_an_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_LINGER_S", 0.2)
    began = time.monotonic()
    asked = Asked((b"transfer-encoding", b"chunked"), endless=True)
    assert time.monotonic() - began < 2
    assert asked.sent[-1][1] == {"type": "http.response.body", "body": b""}


def test_who_asks_before_sending_is_told_to_close() -> None:
    asked = Asked((b"expect", b"100-continue"), (b"content-length", b"99999999"))
    assert asked.taken == 0
    assert asked.headers[b"connection"] == b"close"
    assert len(asked.sent) == 2
