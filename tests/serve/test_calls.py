"""Calls over gRPC: what is known of one when it comes, and what it ends with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc

from penstock.serve import calls, rpcguard, rpcserver
from penstock.serve.drain import Calls
from penstock.serve.errors import RequestError
from penstock.serve.gate import Refused
from penstock.serve.records import CALL


class Call:
    """A call that must not be asked once it has ended."""

    ended = False

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        assert not self.ended
        return (("x-request-id", "seven"), ("some-bin", b"\xff"))

    def peer(self) -> str:
        assert not self.ended
        return "ipv6:%5B::1%5D:7"


def test_a_record_tells_its_client_after_the_call_s_end() -> None:
    call = Call()
    record = calls.recorded(CALL, call)
    call.ended = True
    assert (record.client, record.id, record.headers) == ("[::1]:7", "seven", {b"x-request-id": b"seven"})


class Ending:
    """A call that takes what it ends with, and then ends by an exception."""

    def __init__(self, by: type[Exception]) -> None:
        self.by, self.told = by, ("", "")

    def time_remaining(self) -> float:
        return 0.0

    async def abort(self, code: Any, why: str, beside: Any = ()) -> None:
        self.told = (code.name, why)
        raise self.by("as gRPC ends it")


async def failing(request: Any, context: Any) -> None:
    raise RequestError("there is none", 404)


@pytest.mark.parametrize(
    ("by", "seen", "answered"),
    [(grpc.aio.AbortError, grpc.aio.AbortError, 1), (grpc.aio.InternalError, asyncio.CancelledError, 0)],
)
def test_a_call_whose_end_nobody_is_told_is_one_that_was_left(by: Any, seen: Any, answered: int) -> None:
    """gRPC logs its internal errors with a traceback, and says nothing of what is cancelled."""
    counted, context = Calls(), Ending(by)
    handle = rpcserver._unary(failing, "ModelInfer", counted).unary_unary
    with pytest.raises(seen):
        asyncio.run(handle(None, context))
    assert context.told == ("NOT_FOUND", "there is none")
    assert (counted.begun, counted.answered, counted.gone) == (1, answered, 1 - answered)
    with pytest.raises(seen):
        asyncio.run(rpcguard.end(Refused(401, "key", "no key"), context))
    assert context.told == ("UNAUTHENTICATED", "no key")
