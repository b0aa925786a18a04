"""Limits on what a client may send, held before anything is decoded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from penstock.serve.errors import RequestError

Receive = Callable[[], Awaitable[Any]]


class BodyLimit:
    """ASGI middleware: a body of more than `max_bytes` gets a 413, by its declared length or as it comes in."""

    def __init__(self, app: Any, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            receive = bounded(receive, scope["headers"], self.max_bytes)
        await self.app(scope, receive, send)


def bounded(receive: Receive, headers: Iterable[tuple[bytes, bytes]], max_bytes: int) -> Receive:
    """An ASGI `receive` that gives no more than `max_bytes` of a body.

    Raises:
        RequestError: 413, by the `receive` that it gives, where the body is longer.
    """
    declared = next((value for name, value in headers if name == b"content-length"), b"0")
    # The server's parser has seen to it that a declared length is a number.
    too_long = len(declared) > 18 or (declared.isdigit() and int(declared) > max_bytes)
    received = 0

    async def within() -> Any:
        nonlocal received
        # Refused before it is received: a client that asks first, by Expect, need not send it.
        message = {} if too_long else await receive()
        received += len(message.get("body", b""))
        if too_long or received > max_bytes:
            raise RequestError(f"the body is over the limit of {max_bytes} bytes (--max-body-mb)", 413)
        return message

    return within
