"""Limits on what a client may send, held before anything is decoded."""

from __future__ import annotations

from typing import Any

from penstock.serve.errors import RequestError


class BodyLimit:
    """ASGI middleware: a body of more than `max_bytes` gets a 413, by its declared length or as it comes in."""

    def __init__(self, app: Any, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        # The server's parser has seen to it that a declared length is a number.
        too_long = len(declared) > 18 or (declared.isdigit() and int(declared) > self.max_bytes)
        received = 0

        async def bounded() -> Any:
            nonlocal received
            # Refused before it is received: a client that asks first, by Expect, need not send it.
            message = {} if too_long else await receive()
            received += len(message.get("body", b""))
            if too_long or received > self.max_bytes:
                raise RequestError(f"the body is over the limit of {self.max_bytes} bytes (--max-body-mb)", 413)
            return message

        await self.app(scope, bounded, send)
