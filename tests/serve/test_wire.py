"""The short road of infer requests: what it takes for one, bodies in pieces, and clients that go away."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.serve.errors import RequestError
from penstock.serve.layouts import Layouts
from penstock.serve.limits import bounded
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits
from penstock.serve.repository import Repository
from penstock.serve.rooms import gathered
from penstock.serve.sharedmemory import Regions
from penstock.serve.tracing import Tracer
from penstock.serve.watch import Watch
from penstock.serve.wire import Gone, Infer, Wire, received
from penstock.signature import Dim, Signature, Tensor


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


SIGNATURE = Signature(
    inputs=(Tensor(name="a", dtype="int8", shape=("batch", 3)), Tensor(name="b", shape=("batch", 2))),
    outputs=(Tensor(name="y", shape=("batch", 2)),),
    dims={"batch": Dim(min=1, opt=4, max=8)},
)


class Looking:
    """A model that keeps what it was given."""

    name, version, labels, reads_text = "m", 1, None, False
    signature, limits, layouts = SIGNATURE, Limits(), Layouts()

    async def infer(self, inputs: Any, **about: Any) -> Any:
        self.given = inputs
        return {"y": inputs["b"]}


def starts(arrays: dict[str, Any]) -> list[int]:
    return [array.__array_interface__["data"][0] for array in arrays.values()]


@settings(deadline=None, max_examples=50)
@given(
    rows=st.integers(1, 8),
    padding=st.integers(0, 70),
    cuts=st.lists(st.integers(0, 400), max_size=4),
    coding=st.sampled_from(["identity", "gzip", "deflate"]),
    first=st.sampled_from(["a", "b"]),
)
def test_arrays_lie_aligned_and_are_the_same_however_a_body_comes(
    rows: int, padding: int, cuts: list[int], coding: str, first: str
) -> None:
    sent = {"a": np.arange(rows * 3, dtype=np.int8).reshape(-1, 3), "b": np.full((rows, 2), 0.1, np.float32)}
    names = [first, *sorted(sent.keys() - {first})]
    inputs = [
        {
            "name": name,
            "shape": list(sent[name].shape),
            "datatype": {"a": "INT8", "b": "FP32"}[name],
            "parameters": {"binary_data_size": sent[name].nbytes},
        }
        for name in names
    ]
    text = json.dumps({"inputs": inputs}).encode() + b" " * padding
    body = text + b"".join(sent[name].tobytes() for name in names)
    body = {"identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress}[coding](body)
    ends = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    parts = [body[start:end] for start, end in itertools.pairwise(ends)]
    queue = iter(
        [{"type": "http.request", "body": part, "more_body": True} for part in parts] + [{"type": "http.request"}]
    )

    async def receive() -> Any:
        return next(queue)

    async def send(message: Any) -> None:
        said.append(message)

    said: list[Any] = []
    model = Looking()
    held: Any = SimpleNamespace(find=lambda *_: model, look=lambda *_: model, label=lambda name: name, shadows=None)
    asked = scope("/v2/models/m/infer")
    asked["headers"] = [(b"inference-header-content-length", b"%d" % len(text)), (b"content-encoding", coding.encode())]
    asyncio.run(Wire(None, Infer(held, Watch(Metrics()), Regions(), Tracer(), 2**20))(asked, receive, send))
    assert said[0]["status"] == 200, said
    assert all(np.array_equal(model.given[name], sent[name]) for name in names)
    assert all(array.flags.aligned for array in model.given.values())
    assert starts(model.given)[0] % 64 == 0


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
