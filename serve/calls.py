"""Calls over gRPC: what is known of one when it comes, and what it comes to when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from penstock import messages
from penstock.serve.errors import explained
from penstock.serve.outcomes import Expired
from penstock.serve.records import Record, Road
from penstock.serve.watch import Watch

# gRPC's code for each HTTP status that a failure has.
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
# A deadline that is as near as this has passed.
_OVER_S = 0.005


class Failed(Exception):
    """A call that failed: HTTP's status for it, gRPC's code, and what the caller is told."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        otherwise = grpc.StatusCode.INVALID_ARGUMENT if status < 500 else grpc.StatusCode.INTERNAL
        self.status, self.code = status, _CODES.get(status, otherwise)


def failed(error: Exception, context: Any, record: Record | None = None) -> Failed:
    """What a failure is to the caller; the record, if there is one, is told of it."""
    status, message = explained(error, None if record is None else record.name)
    left = context.time_remaining()
    if isinstance(error, Expired) and left is not None and left < _OVER_S:
        status = 504  # the call's own deadline, and no timeout of the request or the server
    if record is not None and status >= 500:
        record.error = message
    return Failed(status, message)


def reader(kind: str) -> Callable[[bytes], Any]:
    """What reads a call's message. One that cannot be read is given as its error, for `whole`.

    Raised here, gRPC would tell the client of an unknown error, and log it as one of the server's.
    """
    parsed = messages.message(kind).FromString

    def read(data: bytes) -> Any:
        try:
            return parsed(data)
        except DecodeError:
            return Failed(400, f"the {len(data)} bytes sent are no {kind}")

    return read


def whole(request: Any) -> Any:
    """A message that `reader` has read.

    Raises:
        Failed: it could not.
    """
    if isinstance(request, Failed):
        raise request
    return request


async def abort(context: Any, code: grpc.StatusCode, why: str, beside: tuple[tuple[str, str], ...] = ()) -> None:
    """End a call that is not answered, as gRPC has it: by an exception.

    Raises:
        CancelledError: nobody is there to be told. gRPC finds that only where it was not told of the end itself yet,
            as of a deadline that passes in that moment, and would log it as an error.
    """
    try:
        await context.abort(code, why, beside)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


def recorded(road: Road, context: Any) -> Record:
    """A request's record; of the names and values beside a call, those that are text are its headers.

    All is read from the call now: asked for its client after its end, gRPC ends the process.
    """
    beside = context.invocation_metadata() or ()
    headers = {key.encode(): value.encode() for key, value in beside if isinstance(value, str)}
    return Record(road=road, headers=headers, peer=context.peer())


async def watched(answer: Awaitable[Any], record: Record, model: str, context: Any, watch: Watch) -> Any:
    """The answer that is waited for; `watch` is told of its end, whatever it is.

    Raises:
        Failed: there is none.
    """
    code, status = grpc.StatusCode.OK, 200
    try:
        return await answer
    except asyncio.CancelledError:
        code, status = grpc.StatusCode.CANCELLED, 499
        raise
    except Exception as error:
        found = failed(error, context, record)
        code, status = found.code, found.status
        raise found from None
    finally:
        record.code = code.value[0]
        watch.ended(record, model, status)
