"""The short road of infer requests: what it takes for one, bodies in pieces, and clients that go away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.serve.errors import RequestError
from penstock.serve.limits import bounded
from penstock.serve.metrics import Metrics
from penstock.serve.repository import Repository
from penstock.serve.rooms import gathered
from penstock.serve.sharedmemory import Regions
from penstock.serve.tracing import Tracer
from penstock.serve.watch import Watch
from penstock.serve.wire import Gone, Infer, Wire, received


def scope(path: str, method: str = "POST", kind: str = "http") -> dict[str, Any]:
    return {"type": kind, "method": method, "path": path, "headers": []}


def served(asked: dict[str, Any], messages: list[dict[str, Any]]) -> tuple[bool, list[dict[str, Any]]]:
    """Whether the application behind was asked, and what was sent."""
    behind: list[Any] = []
    sent: list[dict[str, Any]] = []
    queue = iter(messages)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        behind.append(scope)

    async def receive() -> Any:
        return next(queue)

    async def send(message: Any) -> None:
        sent.append(message)

    wire = Wire(app, Infer(Repository(), Watch(Metrics()), Regions(), Tracer(), 100))
    asyncio.run(wire(asked, receive, send))
    return bool(behind), sent


@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/models/m/versions/1/infer"])
def test_infer_requests_are_answered_here(path: str) -> None:
    behind, (start, body) = served(scope(path), [{"type": "http.request", "body": b"{}"}])
    assert not behind
    assert (start["status"], b"'m' is not served" in body["body"]) == (404, True)


@pytest.mark.parametrize(
    "asked",
    [
        scope("/v2/models/m/infer/"),
        scope("/v2/models//m/infer"),
        scope("/v2/models/m/versions/infer"),
        scope("/v3/models/m/infer"),
        scope("/predict/m"),
        scope("/", kind="lifespan"),
    ],
    ids=lambda asked: f"{asked['type']} {asked['method']} {asked['path']}",
)
def test_everything_else_goes_to_the_application(asked: dict[str, Any]) -> None:
    assert served(asked, []) == (True, [])


def test_another_method_is_told_which_is_taken() -> None:
    behind, (start, body) = served(scope("/v2/models/m/infer", "GET"), [])
    assert not behind
    assert (start["status"], b"method GET is not taken" in body["body"]) == (405, True)
    assert (b"allow", b"POST") in start["headers"]


def pieces(*messages: dict[str, Any], most: int = 100) -> bytes:
    queue = iter(messages)

    async def receive() -> Any:
        return next(queue)

    return bytes(asyncio.run(gathered(received(bounded(receive, [], most)), most)))


def test_a_body_in_pieces_is_whole_again() -> None:
    parts = [{"type": "http.request", "body": part, "more_body": True} for part in (b"ab", b"", b"cd")]
    assert pieces(*parts, {"type": "http.request"}) == b"abcd"
    assert pieces({"type": "http.request", "body": b"x"}) == b"x"


def test_a_body_that_grows_over_the_limit_is_refused_where_it_does() -> None:
    part = {"type": "http.request", "body": b"abcd", "more_body": True}
    with pytest.raises(RequestError, match="over the limit of 7 bytes"):
        pieces(part, part, most=7)


def test_a_client_that_goes_away_is_no_request() -> None:
    with pytest.raises(Gone):
        pieces({"type": "http.request", "body": b"ab", "more_body": True}, {"type": "http.disconnect"})
