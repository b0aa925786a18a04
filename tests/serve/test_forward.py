"""What a front end passes on: the engine sees the client's request, and nothing of the way that it came."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from penstock.serve.forward import Forward


@pytest.fixture
def passed_on() -> Any:
    """Passes a GET on with a scope's extras; gives the head that the engine received."""

    def ask(headers: list[tuple[bytes, bytes]], **extra: Any) -> str:
        async def scenario() -> str:
            own, other = socket.socketpair()
            other.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            scope = {"type": "http", "method": "GET", "path": "/docs/", "headers": headers, "scheme": "http", **extra}

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(message: Any) -> None: ...

            await Forward(lambda: own)(scope, receive, send)
            with other:
                return other.recv(65_536).decode()

        return asyncio.run(scenario())

    return ask


def test_the_engine_is_told_the_client_s_own_host_scheme_and_address(passed_on: Any) -> None:
    head = passed_on([(b"host", b"models.example.com:8443")], scheme="https", client=("10.1.2.3", 4444))
    assert "\r\nhost: models.example.com:8443\r\n" in head
    assert head.lower().count("host:") == 1
    assert "\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 10.1.2.3\r\n" in head


def test_what_a_client_says_of_its_address_is_not_passed_on(passed_on: Any) -> None:
    head = passed_on([(b"x-forwarded-for", b"6.6.6.6"), (b"x-forwarded-proto", b"https")], client=None)
    assert "6.6.6.6" not in head
    assert "https" not in head
    assert "\r\nX-Forwarded-Proto: http\r\n" in head


@pytest.mark.parametrize(("server", "host"), [(("10.0.0.1", 8000), "10.0.0.1:8000"), (("::1", 8000), "[::1]:8000")])
def test_where_a_client_names_no_host_it_is_where_it_came_to(
    passed_on: Any, server: tuple[str, int], host: str
) -> None:
    assert f"\r\nhost: {host}\r\n" in passed_on([], server=server)
