"""What a front end does not answer itself: asked of the engine, by HTTP over a socket that has no address."""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson

from penstock.serve.limits import bounded
from penstock.serve.remote import AWAY
from penstock.serve.rooms import gathered

log = logging.getLogger(__name__)
_MOST_BYTES = 2**20
_HEALTH_S, _OTHER_S = 2.0, 3600.0
_MOST_IDLE = 4
# Of one connection alone (RFC 9110, section 7.6.1), and what is said anew: of the client's address and scheme what
# this process holds to be true.
_OWN = {"connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade", "content-length"}
_OWN |= {"x-forwarded-for", "x-forwarded-proto"}
_UNSAID = {"connection", "keep-alive", "transfer-encoding", "content-length", "date"}
Said = tuple[int, list[tuple[str, str]], bytes]


class Forward:
    """An ASGI application that passes requests on to an engine, and its answers back.

    Args:
        connect: gives this end of a new connection to the engine; None where there is no engine.
    """

    def __init__(self, connect: Callable[[], socket.socket | None]) -> None:
        self._connect = connect
        self._idle: list[_Connection] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = bytes(await gathered(_received(bounded(receive, scope["headers"], _MOST_BYTES)), _MOST_BYTES))
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        query = scope.get("query_string", b"").decode("latin-1")
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name.decode("latin-1") not in _OWN
        ]
        if scope.get("server") and all(name != "host" for name, _ in headers):  # as HTTP/1.0 may leave out
            host, port = scope["server"]
            headers.append(("host", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
        headers.append(("X-Forwarded-Proto", scope["scheme"]))
        if scope.get("client"):
            headers.append(("X-Forwarded-For", scope["client"][0]))
        status, said, content = await self.ask(scope["method"], path + (query and f"?{query}"), headers, body)
        listed = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in said]
        listed.append((b"content-length", str(len(content)).encode()))
        if scope["method"] == "HEAD":
            listed, content = [*listed[:-1], (b"content-length", dict(said).get("Content-Length", "0").encode())], b""
        await send({"type": "http.response.start", "status": status, "headers": listed})
        await send({"type": "http.response.body", "body": content})

    async def ask(self, method: str, path: str, headers: list[tuple[str, str]] = [], body: bytes = b"") -> Said:  # noqa: B006
        """Status, headers and body of the engine's answer; 503 where there is none."""
        return await asyncio.to_thread(self._asked, method, path, headers, body)

    def _asked(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> Said:
        with suppress(IndexError, ConnectionError):  # one that the engine has closed meanwhile
            return self._tried(self._idle.pop(), method, path, headers, body)
        held = self._connect()
        if held is None:
            return _away()
        try:
            return self._tried(_Connection(held), method, path, headers, body)
        except ConnectionError as error:
            log.warning("the engine did not answer %s %s: %s", method, path[:100], error)
            return _away()

    def _tried(
        self, connection: _Connection, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> Said:
        try:
            return self._exchanged(connection, method, path, headers, body)
        except ConnectionError:
            raise
        except (OSError, http.client.HTTPException) as error:  # it may do what it was asked: once is enough
            log.warning("the engine did not answer %s %s: %s", method, path[:100], error)
            return _away()

    def _exchanged(
        self, connection: _Connection, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> Said:
        connection.sock.settimeout(_HEALTH_S if path.startswith("/v2/health/") else _OTHER_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)  # it is the client's own
            if all(name.lower() != "host" for name, _ in headers):  # asked by a front end itself
                connection.putheader("Host", "engine")
            for name, value in headers:
                connection.putheader(name, value)
            if body or method not in ("GET", "HEAD"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
        except BaseException:
            connection.close()
            raise
        kept = not answer.will_close and len(self._idle) < _MOST_IDLE
        if kept:
            self._idle.append(connection)
        else:
            connection.close()
        left = _UNSAID if method != "HEAD" else _UNSAID - {"content-length"}
        return answer.status, [pair for pair in answer.getheaders() if pair[0].lower() not in left], content


class _Connection(http.client.HTTPConnection):
    """HTTP over a socket that is connected already."""

    sock: socket.socket

    def __init__(self, held: socket.socket) -> None:
        super().__init__("")
        self.sock, self.auto_open = held, 0


def _away() -> Said:
    return 503, [("Content-Type", "application/json"), ("Retry-After", "1")], orjson.dumps({"error": AWAY})


async def _received(receive: Any) -> Any:
    more = True
    while more:
        message = await receive()
        yield message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
