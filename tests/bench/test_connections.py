"""Connections to a server that behaves as the test says."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest

from penstock.bench.connections import Connections, Endpoint, Event

REQUEST = b"GET /v2 HTTP/1.1\r\nHost: here\r\n\r\n"


def asked(road: Connections) -> Event:
    """What becomes of one request."""
    road.grow(1)
    road.send(0, 0)
    for _ in range(100):
        for event in road.wait(0.05):
            return event
    pytest.fail("nothing happened")


def test_a_machine_that_gives_no_socket_is_told_apart_from_a_server_that_refuses(
    toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    road = Connections(Endpoint("127.0.0.1", toy().port), [REQUEST])

    def none(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket, "socket", none)
    try:
        assert asked(road) == Event(0, "no socket", None)
    finally:
        road.close()


def test_of_several_addresses_the_one_that_takes_connections_is_asked(
    toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, closed = toy().port, socket.create_server(("127.0.0.1", 0))
    nobody = closed.getsockname()[1]
    closed.close()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", number)) for number in (nobody, port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    road = Connections(Endpoint("localhost", port), [REQUEST])
    try:
        assert asked(road).answer is not None
    finally:
        road.close()
