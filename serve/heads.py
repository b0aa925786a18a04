"""Heads of HTTP: what stands before the bodies of requests that are answered on the shortest road, and of answers."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from penstock.serve.records import REQUEST_ID
from penstock.serve.wire import json_place, named

_KEPT = 2048
_UPGRADE = re.compile(rb"(?i)\r\nupgrade[ \t]*:[^\r\n]*\r\n")


@dataclass(frozen=True)
class Head:
    """What stands before the body of an infer request."""

    name: str
    version: str | None
    headers: Mapping[bytes, bytes]
    length: int
    keep_alive: bool

    @functools.cached_property
    def json_length(self) -> int:
        """How much of the body is JSON, if that is said."""
        return json_place(self.headers, self.length)


class _Reader:
    """Takes what the parser finds in a head; `plain` once it is whole, and its body comes as it is."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.hosts = 0
        self.plain = self.keep_alive = False
        self.parser = httptools.HttpRequestParser(self)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers[name] = value
        self.hosts += name == b"host"

    def on_headers_complete(self) -> None:
        parser = self.parser  # which tells this of a request only until it ends
        self.keep_alive = parser.should_keep_alive()
        # A wish to upgrade is passed over, as RFC 9110 lets a server do; Java's client has one in its first request.
        posted = parser.get_method() == b"POST" and parser.get_http_version() == "1.1"
        self.plain = posted and self.hosts == 1 and self.headers.keys().isdisjoint((b"transfer-encoding", b"expect"))


def read_head(text: bytes) -> Head | None:
    """The head of an infer request; None for any other, and for one that only a whole HTTP server should judge."""
    return _read_kept(text) if len(text) <= _KEPT else _read(text)


def _read(text: bytes) -> Head | None:
    reader = _Reader()
    try:
        with suppress(httptools.HttpParserUpgrade):
            reader.parser.feed_data(text)
        path = httptools.parse_url(reader.url).path if reader.plain else b""
    except httptools.HttpParserError:
        return None
    finally:
        del reader.parser  # they hold each other
    found = named(unquote(path.decode("latin-1")))
    length = reader.headers.get(b"content-length", b"0")
    if found is None or not length.isdigit() or len(length) > 18:
        return None
    return Head(*found, reader.headers, int(length), reader.keep_alive)


def without_upgrade(head: bytes) -> bytes:
    """A head without its wish to speak another protocol, after which a parser takes no body for one."""
    return _UPGRADE.sub(b"\r\n", head)


# A client's requests for one model have one head, byte for byte.
_read_kept = functools.lru_cache(256)(_read)


def answer_lines(status: int, headers: Mapping[str, str], length: int, *, kept: bool) -> bytes:
    """The first lines of an answer's head: its status, its own headers, and how its body and connection end."""
    if REQUEST_ID not in headers:
        return _kept_lines(status, tuple(headers.items()), length, kept=kept)
    like = tuple((name, value) for name, value in headers.items() if name != REQUEST_ID)
    return _kept_lines(status, like, length, kept=kept) + f"{REQUEST_ID.lower()}: {headers[REQUEST_ID]}\r\n".encode()


@functools.lru_cache(256)
def _kept_lines(status: int, headers: tuple[tuple[str, str], ...], length: int, *, kept: bool) -> bytes:
    """What is the same for many answers."""
    named = [f"{name.lower()}: {value}\r\n" for name, value in headers]
    named += [f"content-length: {length}\r\n", *([] if kept else ["connection: close\r\n"])]
    return STATUS_LINE[status] + "".join(named).encode("latin-1")
