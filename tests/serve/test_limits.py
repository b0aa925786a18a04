"""The limit on a request's body, as ASGI middleware."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.serve.errors import RequestError
from penstock.serve.limits import BodyLimit


async def reader(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers with the body it could read."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send(body)


def deliver(chunks: list[bytes], declared: bytes | None = None, limit: int = 10, kind: str = "http") -> Any:
    """What the application sends on being sent `chunks`, and how many of them were taken from the client."""
    sent: list[Any] = []
    waiting = [
        {"type": "http.request", "body": chunk, "more_body": index < len(chunks) - 1}
        for index, chunk in enumerate(chunks)
    ]
    taken = 0

    async def receive() -> Any:
        nonlocal taken
        taken += 1
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if declared is None else [(b"content-length", declared)]
    try:
        asyncio.run(BodyLimit(reader, limit)({"type": kind, "headers": headers}, receive, send))
    except RequestError as error:
        return error, taken
    return sent[0], taken


def test_a_body_of_exactly_the_limit_passes() -> None:
    assert deliver([b"01234", b"56789"], declared=b"10") == (b"0123456789", 2)


def test_an_empty_body_passes() -> None:
    assert deliver([b""])[0] == b""


@pytest.mark.parametrize("declared", [b"11", b"9" * 18, b"9" * 19, b"9" * 5000])
def test_a_body_declared_over_the_limit_is_refused_at_once(declared: bytes) -> None:
    error, taken = deliver([b"0", b"1"], declared)
    assert isinstance(error, RequestError)
    assert error.status == 413
    assert "10 bytes" in str(error)
    assert "--max-body-mb" in str(error)
    assert taken == 0  # a client that waits for 100 Continue is never told to send it


@pytest.mark.parametrize("declared", [None, b"3"], ids=["undeclared", "declared short"])
def test_a_body_that_grows_over_the_limit_is_refused_as_it_does(declared: bytes | None) -> None:
    error, taken = deliver([b"01234", b"56789", b"x", b"never taken"], declared)
    assert isinstance(error, RequestError)
    assert error.status == 413
    assert taken == 3


def test_two_requests_do_not_share_a_count() -> None:
    assert deliver([b"0123456789"])[0] == b"0123456789"
    assert deliver([b"0123456789"])[0] == b"0123456789"


def test_what_is_no_http_request_passes_untouched() -> None:
    assert deliver([b"x" * 100], kind="websocket")[0] == b"x" * 100
