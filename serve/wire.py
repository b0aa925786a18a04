"""Infer requests on the shortest road: from the server's events to the scheduler and back, past routes and middleware.

A framework's routing, dependencies and responses take longer than a small model does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import orjson

from penstock.serve import compression, protocol, replies
from penstock.serve.errors import RequestError, explained
from penstock.serve.limits import Receive, bounded
from penstock.serve.metrics import Metrics
from penstock.serve.repository import Repository
from penstock.serve.sharedmemory import Regions
from penstock.serve.times import Times
from penstock.serve.tracing import Tracer

Answer = tuple[int, dict[str, str], bytes]


class Gone(Exception):
    """The client went away before its request was whole."""


class Wire:
    """An ASGI application that answers infer requests, in front of another that answers everything else.

    Args:
        app: what answers the rest.
        repository: the models.
        metrics: told of each answer.
        regions: of shared memory.
        tracer: told of each request that was answered.
        most_bytes: the largest body taken.
    """

    def __init__(
        self, app: Any, repository: Repository, metrics: Metrics, regions: Regions, tracer: Tracer, most_bytes: int
    ) -> None:
        self._app = app
        self._repository = repository
        self._metrics = metrics
        self._regions = regions
        self._tracer = tracer
        self._most_bytes = most_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        named = _named(scope)
        if named is None:
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        try:
            if scope["method"] != "POST":
                raise RequestError(f"method {scope['method']} is not taken at {scope['path']!r}; POST is", 405)
            within = bounded(receive, scope["headers"], self._most_bytes)
            status, headers, content = await self._answer(*named, dict(scope["headers"]), within)
        except Gone:
            status, headers, content = 499, {}, b""
        except Exception as error:
            status, headers, content = refused(error)
        self._metrics.answered(self._repository.label(named[0]), status, time.perf_counter() - started)
        listed = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
        listed.append((b"content-length", str(len(content)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": listed})
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, name: str, version: str | None, headers: Mapping[bytes, bytes], receive: Receive) -> Answer:
        times = Times()
        model = self._repository.find(name, version)
        body = await received(receive)
        if (coding := headers.get(b"content-encoding", b"identity")) != b"identity":
            # Inflating takes milliseconds that others should not wait for.
            body = await asyncio.to_thread(compression.inflate, body, coding.decode("latin-1"), self._most_bytes)
        length = headers.get(protocol.HEADER_LENGTH.lower().encode())
        call = protocol.decode(
            body, None if length is None else length.decode("latin-1"), model.signature, self._regions
        )
        answer = await model.infer(call.inputs, timeout_s=call.timeout_s, priority=call.priority, times=times)
        content, said = replies.encode(name, model.version, call, answer, model.labels)
        accepted = headers.get(b"accept-encoding", b"").decode("latin-1")
        if (coded := compression.wanted(accepted)) is not None:
            content = await asyncio.to_thread(compression.deflated, content, coded)
            said["Content-Encoding"] = coded
        self._tracer.answered(name, model.version, call.id, times)
        return 200, said, content


def refused(error: Exception) -> Answer:
    """A failure as `{"error": "one sentence"}`, with its status."""
    status, message = explained(error)
    headers = {"Content-Type": "application/json"}
    if status == 503:
        headers["Retry-After"] = "1"
    if status == 405:
        headers["Allow"] = "POST"
    return status, headers, orjson.dumps({"error": message})


def _named(scope: Any) -> tuple[str, str | None] | None:
    """The model and version that an infer request names; None for any other request."""
    if scope["type"] != "http":
        return None
    match scope["path"].split("/"):
        case ["", "v2", "models", name, "infer"]:
            return name, None
        case ["", "v2", "models", name, "versions", version, "infer"]:
            return name, version
    return None


async def received(receive: Receive) -> bytes:
    """A request's whole body.

    Raises:
        Gone: the client went away.
    """
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)
