"""What a client is told to do where a server does not let it in, or speaks the other of http and https."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock import health
from penstock.client import hints
from penstock.client.access import Access
from penstock.client.connection import Broken, Patience, Server, Unreachable, place

trustme = pytest.importorskip("trustme")
Serve = Callable[[Callable[[socket.socket], None]], int]
PROXY = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Has each connection that comes handled; gives the port."""
    listeners: list[socket.socket] = []

    def start(handle: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        handle(connection)

        threading.Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.close()


@pytest.fixture
def over_tls() -> Callable[..., Callable[[socket.socket], None]]:
    """Speaks TLS; to who comes without, it says `plainly`, and no more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    def handler(plainly: bytes = b"") -> Callable[[socket.socket], None]:
        def handle(connection: socket.socket) -> None:
            if connection.recv(1, socket.MSG_PEEK) != b"\x16":
                connection.recv(65_536)
                connection.sendall(plainly)
                return
            context.wrap_socket(connection, server_side=True).close()

        return handle

    return handler


def ask(url: str, access: Access | None = None) -> str:
    with pytest.raises((Unreachable, Broken)) as caught:
        Server(place(url), Patience(0, 5), access or Access()).ask("GET", "/v2")
    return str(caught.value)


@pytest.mark.parametrize("plainly", [b"", b"\x15\x03\x01\x00\x02\x02\x46"], ids=["closes", "garbage"])
def test_http_where_tls_is_spoken_is_told_at_once_to_be_https(
    serve: Serve, over_tls: Callable[..., Callable[[socket.socket], None]], plainly: bytes
) -> None:
    netloc = f"127.0.0.1:{serve(over_tls(plainly))}"
    words = f"it speaks TLS there; ask it as https://{netloc} (--ca FILE trusts an authority of your own)"
    with pytest.raises(Unreachable) as caught:  # patience would change nothing
        Server(place(netloc), Patience(1000, 5)).ask("GET", "/v2")
    assert str(caught.value) == f"http://{netloc}: {words}"
    assert health.ready(f"http://{netloc}", 5) == (False, f"http://{netloc}: no answer: {words}")


def test_a_400_in_plain_http_where_tls_is_spoken_is_told_to_be_https(
    serve: Serve, over_tls: Callable[..., Callable[[socket.socket], None]]
) -> None:
    netloc = f"127.0.0.1:{serve(over_tls(PROXY))}"
    server = Server(place(netloc), Patience(0, 5))
    assert f"status 400: <html>; it speaks TLS there; ask it as https://{netloc}" in server.said(server.ask("GET", "/"))
    assert f"ask it as https://{netloc}" in health.ready(f"http://{netloc}", 5)[1]


def test_https_where_none_is_spoken_is_told_to_be_http(serve: Serve) -> None:
    def plain(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(PROXY)

    netloc = f"127.0.0.1:{serve(plain)}"
    words = f"it speaks no TLS there; ask it as http://{netloc}"
    assert ask(f"https://{netloc}") == f"https://{netloc}: {words}"
    assert health.ready(f"https://{netloc}", 5) == (False, f"https://{netloc}: no answer: {words}")


def test_https_that_is_broken_off_may_be_http(serve: Serve) -> None:
    netloc = f"127.0.0.1:{serve(lambda connection: connection.recv(65_536) and None)}"
    assert f"if it speaks none, ask it as http://{netloc}" in ask(f"https://{netloc}")


def test_a_plain_server_that_breaks_off_is_not_told_to_be_another(serve: Serve) -> None:
    netloc = f"127.0.0.1:{serve(lambda connection: connection.recv(65_536) and None)}"
    assert ask(f"http://{netloc}").startswith("the connection broke: RemoteDisconnected")
    assert "https" not in ask(f"http://{netloc}")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        TimeoutError(),
        ssl.SSLCertVerificationError(1, "self-signed"),
        ssl.SSLError(1, "TLSV1_ALERT_PROTOCOL_VERSION"),
        ValueError("x"),
    ],
    ids=repr,
)
def test_other_failures_are_not_taken_for_the_wrong_scheme(error: Exception) -> None:
    assert [hints.wrong_scheme(f"{scheme}://127.0.0.1:1", error) for scheme in ("http", "https")] == ["", ""]


def test_a_host_that_went_away_meanwhile_is_not_said_to_speak_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert hints.wrong_scheme(f"http://127.0.0.1:{port}", http.client.RemoteDisconnected()) == ""


@pytest.mark.parametrize("status", [401, 403])
def test_who_is_not_let_in_is_told_how_a_key_is_given(status: int) -> None:
    told = [hints.refusal("http://host", status, b'{"error": "no"}', held) for held in (Access(), Access("k"))]
    assert told == [f"; give {whose} key with --key-file FILE or PENSTOCK_API_KEY" for whose in ("a", "another")]


def test_who_may_not_know_why_a_server_is_not_ready_is_told_who_may(tmp_path: Path) -> None:
    body = b'{"error": "not ready"}'
    assert "--key-file FILE or PENSTOCK_API_KEY" in hints.refusal("http://host", 503, body, Access())
    assert hints.refusal("http://host", 503, body, Access("k")) == ""
    assert hints.refusal("http://host", 503, b'{"error": "model \'m\' failed to load"}', Access()) == ""


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:abc", "http://127.0.0.1:99999", "http://[::1", "http://", "http://h:0"]
)
def test_an_address_that_is_none_is_told(url: str) -> None:
    assert health.ready(url, 5) == (False, f"{url}: must be an address such as http://127.0.0.1:8000")
