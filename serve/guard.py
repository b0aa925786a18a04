"""The gate in front of HTTP: an ASGI application that answers what is refused before any of its body is asked for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import orjson

from penstock.serve import rights
from penstock.serve.gate import Gate, Refused

# A shorter body is read to its end and thrown away, so that the connection can be kept; of a longer one what comes in
# so many seconds: a client on whom the connection is closed while it sends may lose the answer.
_SHORT, _LINGER_S = 2**20, 2.0


class Guard:
    """Lets requests through to `app` that the gate admits.

    Args:
        app: answers them.
        gate: of keys.
    """

    def __init__(self, app: Any, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (needed := rights.of_path(scope["path"])) is not None:
            refused = self._gate.refusal(dict(scope["headers"]).get(b"authorization"), needed)
            if refused is not None:
                await _refuse(refused, scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _refuse(refused: Refused, scope: Any, receive: Any, send: Any) -> None:
    headers = dict(scope["headers"])
    waits = b"expect" in headers  # nothing of its body was sent, and nobody can tell whether it will be
    long = b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")[:18]) > _SHORT
    content = orjson.dumps({"error": str(refused)})
    said = {"Content-Type": "application/json", "Content-Length": str(len(content)), **refused.headers}
    if waits or long:
        said["Connection"] = "close"
    listed = [(name.lower().encode(), value.encode()) for name, value in said.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": listed})
    lingers = long and not waits
    await send({"type": "http.response.body", "body": content, "more_body": lingers})
    if lingers:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_throw_away(receive), _LINGER_S)
        await send({"type": "http.response.body", "body": b""})


async def _throw_away(receive: Any) -> None:
    more = True
    while more:
        message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)
