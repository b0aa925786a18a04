"""A key over its rate: what comes before the first run waits as the server says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import messages
from penstock.bench import rehearsal, target
from penstock.bench.pacing import Pacing, TooSlow
from penstock.bench.sources import Wanted
from penstock.bench.target import Target
from penstock.client.access import Access


def connected(served: Any, most_s: float = 60.0) -> tuple[Target, list[float]]:
    """The model of a toy server, and the waits that are asked for, which take no time."""
    found, waits = target.connect(served.url, "double", Access(), 5.0), list[float]()
    found.pacing = Pacing(most_s, waits.append)
    return found, waits


def test_payloads_that_are_asked_alone_wait_as_they_are_told(toy: Callable[..., Any]) -> None:
    found, waits = connected(toy(hurried_every=10))
    made, due, notes, _ = rehearsal.held(found, Wanted())
    found.close()
    assert len(due) == len(made.requests)
    assert set(waits) == {2.0}
    assert any("wait for 14 s in all" in note for note in notes)


def test_a_key_that_is_too_slow_is_told_with_what_helps(toy: Callable[..., Any]) -> None:
    found, waits = connected(toy(hurried_every=10), most_s=5.0)
    with pytest.raises(TooSlow, match=r"over its rate; .*give a key without --rate, or with --burst 75"):
        rehearsal.held(found, Wanted())
    found.close()
    assert sum(waits) <= 5.0


def test_the_binary_extension_is_not_blamed_for_a_key_s_rate(toy: Callable[..., Any]) -> None:
    found, _ = connected(toy(hurried_every=1, extensions=("binary_tensor_data",)), most_s=1.0)
    with pytest.raises(TooSlow):
        rehearsal.held(found, Wanted())
    found.close()


def test_calls_over_grpc_wait_as_they_are_told() -> None:
    grpc = pytest.importorskip("grpc")
    from concurrent.futures import ThreadPoolExecutor

    made = 0

    def metadata(request: bytes, context: Any) -> bytes:
        nonlocal made
        made += 1
        if made % 2:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", "3000"),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the API key 'a' is over its rate")
        return bytes(messages.message("ServerMetadataResponse")(name="toy").SerializeToString())

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"ServerMetadata": grpc.unary_unary_rpc_method_handler(metadata)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(messages.SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    waits = list[float]()
    found = Target("", Access(), 5.0, grpc_target=f"127.0.0.1:{port}", pacing=Pacing(5.0, waits.append))
    assert found.call("ServerMetadata", b"")
    with pytest.raises(TooSlow, match=r"RESOURCE_EXHAUSTED: the API key 'a' is over its rate; .*--burst"):
        found.call("ServerMetadata", b"")
    server.stop(None)
    assert waits == [3.0]
