"""Infer requests on the shortest road: from the server's events to the scheduler and back, past routes and middleware.

A framework's routing, dependencies and responses take longer than a small model does.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from typing_extensions import Buffer

from penstock.serve import compression, inflating, protocol, reader, reading, replies
from penstock.serve.errors import RequestError, explained
from penstock.serve.limits import Receive, bounded
from penstock.serve.model import Model
from penstock.serve.outcomes import Closed, Expired
from penstock.serve.protocol import InferRequest
from penstock.serve.records import INFER, REQUEST_ID, VERSIONED, Record, Road
from penstock.serve.repository import Repository
from penstock.serve.rooms import gathered
from penstock.serve.sharedmemory import Regions
from penstock.serve.tracing import Tracer
from penstock.serve.watch import Watch

_HEADER_LENGTH = protocol.HEADER_LENGTH.lower().encode()
_LONG_JSON, _MANY_NUMBERS = 65_536, 16_384
Answer = tuple[int, dict[str, str], Sequence[Buffer]]
GONE: Answer = (499, {}, [])


class Gone(Exception):
    """The client went away before its request was whole."""


class Infer:
    """Answers infer requests, whatever protocol of HTTP's they came by.

    Args:
        repository: the models.
        watch: told of each request that has ended.
        regions: of shared memory.
        tracer: told of each request that was answered.
        most_bytes: the largest body taken, and the most that one inflates to.
    """

    def __init__(self, repository: Repository, watch: Watch, regions: Regions, tracer: Tracer, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._repository = repository
        self._watch = watch
        self._regions = regions
        self._tracer = tracer

    def check(self, name: str, version: str | None) -> None:
        """See that a model is served, before its request is received.

        Raises:
            RequestError: it is not.
        """
        self._repository.look(name, version)

    def end(self, name: str, record: Record, answer: Answer) -> Answer:
        """The answer to a request as it is sent, with its id where that is quoted; the request is counted."""
        status, headers, parts = answer
        self._watch.ended(record, self._repository.label(name), status)
        return (status, {**headers, REQUEST_ID: record.name()}, parts) if record.sent_id or status >= 500 else answer

    async def answer(
        self,
        name: str,
        version: str | None,
        headers: Mapping[bytes, bytes],
        body: Buffer,
        record: Record | None = None,
    ) -> Answer:
        """Status, headers and body of the answer to a whole request; what cannot be answered is told in it.

        Args:
            name: the model's.
            version: the one that is asked for, if any is.
            headers: by their names in lower case.
            body: as it came, deflated perhaps.
            record: of the request, if it has one already.
        """
        record = record or Record(headers=headers)
        try:
            found = await self._answer(name, version, headers, body, record)
        except Exception as error:
            found = refused(error, record)
        except BaseException:
            self.end(name, record, GONE)
            raise
        return self.end(name, record, found)

    async def _answer(
        self, name: str, version: str | None, headers: Mapping[bytes, bytes], body: Buffer, times: Record
    ) -> Answer:
        model = self._repository.find(name, version)
        call = await self._read(model, headers, body)
        times.decode_s = time.perf_counter() - times.started
        times.found(model.name, model.version, call.id)
        try:
            answer = await model.infer(call.inputs, timeout_s=call.timeout_s, priority=call.priority, times=times)
        except Closed:  # another version took its place while the request was read
            if (model := self._repository.find(name, version)).scheduler.closed:
                raise
            return await self._answer(name, version, headers, body, times)
        write = functools.partial(replies.encode, model.name, model.version, call, answer, model.labels)
        content, said = await asyncio.to_thread(write) if _json_numbers(call, answer) > _MANY_NUMBERS else write()
        accepted = headers.get(b"accept-encoding", b"").decode("latin-1")
        if (coded := compression.wanted(accepted)) is not None:
            content = [await asyncio.to_thread(compression.deflated, b"".join(content), coded)]
            said["Content-Encoding"] = coded
        self._tracer.answered(model.name, model.version, call.id, times)
        if (shadows := self._repository.shadows) is not None:
            shadows.offer(name, model, times.name(), call.inputs, answer)
        return 200, said, content

    async def _read(self, model: Model, headers: Mapping[bytes, bytes], body: Buffer) -> InferRequest:
        """The request in a body. What takes milliseconds is done beside the event loop."""
        coding = headers.get(b"content-encoding", b"identity").decode("latin-1")
        if coding == "identity":
            return await self._decoded(model, headers, body)
        most, timeout_s = self.most_bytes, model.limits.timeout_s
        inflated = await inflating.inflated(body, coding, most, timeout_s, json_place(headers, most))
        return await self._decoded(model, headers, inflated)

    async def _decoded(self, model: Model, headers: Mapping[bytes, bytes], body: Buffer) -> InferRequest:
        said = headers[_HEADER_LENGTH].decode("latin-1") if _HEADER_LENGTH in headers else None
        known = None if model.reads_text else model.layouts.known(body, said)
        if known is not None:
            return known
        slow = _json_bytes(body, said)
        if slow > reader.LONG and not self._regions.allowed:  # regions are this process's
            return await _read_elsewhere(model, body, said)
        decode = model.layouts.decode if model.reads_text else model.layouts.read
        read = functools.partial(decode, body, said, model.signature, self._regions)
        # JSON and texts are read an element at a time.
        slow = memoryview(body).nbytes if model.reads_text else slow
        return await asyncio.to_thread(read) if slow > _LONG_JSON else read()


async def _read_elsewhere(model: Model, body: Buffer, header_length: str | None) -> InferRequest:
    """A request of long JSON, and as its timeout what reading it has left of that.

    Raises:
        Expired: nothing is left.
    """
    most_s, began = model.limits.timeout_s, time.perf_counter()
    told = reading.to_infer(header_length, model.signature)
    call = reading.inferred(await reader.READER.call("infer", body, told, timeout_s=most_s))
    wait = most_s if call.timeout_s is None else min(call.timeout_s, most_s)
    left = wait - (time.perf_counter() - began)
    if left <= 0:
        raise Expired(f"no answer within the timeout of {wait:g} s: reading its long JSON took as long")
    return replace(call, timeout_s=left)


class Wire:
    """An ASGI application that answers infer requests, in front of another that answers everything else."""

    def __init__(self, app: Any, infer: Infer) -> None:
        self.infer = infer
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        found = named(scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        status, headers, parts = await self._answer(*found, scope, receive)
        listed = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
        content = b"".join(parts)
        listed.append((b"content-length", str(len(content)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": listed})
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, name: str, version: str | None, scope: Any, receive: Receive) -> Answer:
        headers = dict(scope["headers"])
        road = Road(scope["method"], (INFER if version is None else VERSIONED).route)
        record = Record(headers=headers, peer=lambda: scope.get("client"), road=road)
        try:
            if scope["method"] != "POST":
                raise RequestError(f"method {scope['method']} is not taken at {scope['path']!r}; POST is", 405)
            self.infer.check(name, version)
            most = self.infer.most_bytes
            pieces = received(bounded(receive, scope["headers"], most))
            body = await gathered(pieces, most, json_place(headers, most))
        except Gone:
            return self.infer.end(name, record, GONE)
        except Exception as error:
            return self.infer.end(name, record, refused(error, record))
        record.started = time.perf_counter()  # of requests, once they are whole
        return await self.infer.answer(name, version, headers, body, record)


def json_place(headers: Mapping[bytes, bytes], most: int) -> int:
    """Where arrays begin in a body of no more than `most` bytes: behind its JSON, if it is said how long that is."""
    said = headers.get(_HEADER_LENGTH)
    return 0 if said is None else protocol.json_length(said.decode("latin-1"), most) or 0


def _json_bytes(body: Buffer, header_length: str | None) -> int:
    """How much of a body is JSON; all of it, where its header does not tell."""
    size = memoryview(body).nbytes
    told = protocol.json_length(header_length, size)
    return size if told is None else told


def _json_numbers(call: InferRequest, answer: Mapping[str, Any]) -> int:
    """How many numbers of an answer are to be written in JSON, or sorted into classes."""
    listed = [
        name
        for name, wanted in call.outputs.items()
        if wanted.classes or (not wanted.binary and wanted.part is None) or answer[name].dtype == object
    ]
    return sum(answer[name].size for name in listed)


def refused(error: Exception, record: Record | None = None) -> Answer:
    """A failure as `{"error": "one sentence"}`, with its status; the record, if there is one, is told of it."""
    status, message = explained(error, None if record is None else record.name)
    if record is not None and status >= 500:
        record.error = message
    headers = {"Content-Type": "application/json"}
    if status == 503:
        headers["Retry-After"] = "1"
    if status == 405:
        headers["Allow"] = "POST"
    return status, headers, [orjson.dumps({"error": told(message)})]


def told(message: str) -> str:
    """A sentence as it can be written: what it quotes may hold halves of surrogate pairs."""
    return message.encode("utf-8", "backslashreplace").decode()


def named(path: str) -> tuple[str, str | None] | None:
    """The model and version that an infer request's path names; None for any other path."""
    match path.split("/"):
        case ["", "v2", "models", name, "infer"]:
            return name, None
        case ["", "v2", "models", name, "versions", version, "infer"]:
            return name, version
    return None


async def received(receive: Receive) -> AsyncIterator[bytes]:
    """A request's body, as it comes.

    Raises:
        Gone: the client went away.
    """
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        yield message.get("body", b"")
        more = message.get("more_body", False)
