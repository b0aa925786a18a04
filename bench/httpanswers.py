"""Answers of HTTP/1.1 read off a connection, one after another, as they come in pieces (RFC 9112)."""

from __future__ import annotations

import re
from typing import NamedTuple

_END = b"\r\n\r\n"
_LONGEST_HEAD = 65_536
_KEPT, _MOST_KEPT = 2048, 256
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Malformed(Exception):
    """What came is no answer of HTTP/1.1."""


class Head(NamedTuple):
    """The head of an answer: `length` of its body, None where the connection's end ends it; `chunked`, `closes`."""

    status: int
    length: int | None
    chunked: bool
    closes: bool
    fields: dict[bytes, bytes]


class Answer(NamedTuple):
    """A whole answer."""

    head: Head
    body: bytes


_kept: dict[bytes, Head] = {}


def read_head(text: bytes) -> Head:
    """A head, with its empty line. Like ones are read once.

    Raises:
        Malformed: it is none.
    """
    head = _kept.get(text)
    if head is None:
        head = _read_head(text)
        if len(_kept) >= _MOST_KEPT:  # heads with a date in them
            _kept.clear()
        if len(text) <= _KEPT:
            _kept[text] = head
    return head


def _read_head(text: bytes) -> Head:
    line, *lines = text[: -len(_END)].split(b"\r\n")
    found = _STATUS.fullmatch(line)
    if found is None:
        raise Malformed(f"a first line that is no answer's: {line[:60]!r}")
    fields: dict[bytes, bytes] = {}
    for each in lines:
        name, colon, value = each.partition(b":")
        if not colon or not name or name != name.strip():
            raise Malformed(f"a header line that is none: {each[:60]!r}")
        fields[name.lower()] = value.strip()
    status, told = int(found[1]), fields.get(b"content-length")
    chunked = fields.get(b"transfer-encoding", b"").lower() == b"chunked"
    if not chunked and b"transfer-encoding" in fields:
        raise Malformed(f"transfer-encoding {fields[b'transfer-encoding'][:60]!r}")
    if told is not None and not (told.isdigit() and len(told) <= 15):
        raise Malformed(f"content-length {told[:60]!r}")
    length = 0 if status < 200 or status in (204, 304) else None if chunked or told is None else int(told)
    said = fields.get(b"connection", b"").lower()
    closes = b"close" in said or (line.startswith(b"HTTP/1.0") and b"keep-alive" not in said)
    return Head(status, length, chunked, closes or (length is None and not chunked), fields)


class AnswerReader:
    """Given what a connection receives, gives one answer at a time; a request waits for the answer before it."""

    __slots__ = ("_got", "_head", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._got = 0
        self._head: Head | None = None

    @property
    def begun(self) -> bool:
        """Whether a part of an answer is there."""
        return bool(self._parts) or self._head is not None

    def feed(self, data: bytes) -> Answer | None:
        """The answer, if it is whole with this.

        Raises:
            Malformed: what came is none, or more than one.
        """
        head = self._head
        while head is None:
            if self._parts:
                data = b"".join([*self._parts, data])
                self._parts.clear()
            end = data.find(_END)
            if end < 0:
                if len(data) > _LONGEST_HEAD:
                    raise Malformed(f"a head of over {_LONGEST_HEAD} bytes")
                if data:
                    self._parts.append(data)
                return None
            found = read_head(data[: end + 4])
            data = data[end + 4 :]
            if found.status < 200:  # an interim answer, which another follows
                continue
            if found.length == len(data):
                return Answer(found, data)
            self._head, self._got, head = found, 0, found
        self._parts.append(data)
        self._got += len(data)
        return self._whole(head)

    def _whole(self, head: Head) -> Answer | None:
        if head.chunked:
            body = _unchunked(b"".join(self._parts))
            return None if body is None else self._done(head, body)
        if head.length is None or self._got < head.length:
            return None
        if self._got > head.length:
            raise Malformed(f"{self._got - head.length} bytes behind an answer that nothing asked for")
        return self._done(head, b"".join(self._parts))

    def end(self) -> Answer | None:
        """The connection has ended: an answer that was to end with it is whole."""
        head = self._head
        if head is None or head.length is not None or head.chunked:
            return None
        return self._done(head, b"".join(self._parts))

    def _done(self, head: Head, body: bytes) -> Answer:
        self._parts.clear()
        self._head, self._got = None, 0
        return Answer(head, body)


def _unchunked(data: bytes) -> bytes | None:
    """A body in chunks, put together; None where more is to come.

    Raises:
        Malformed: a size is none, or something stands behind the end.
    """
    parts: list[bytes] = []
    place = 0
    while True:
        end = data.find(b"\r\n", place)
        if end < 0:
            return None
        text = data[place:end].partition(b";")[0].strip()
        if not _SIZE.fullmatch(text):
            raise Malformed(f"a chunk's size {text[:20]!r}")
        size, start = int(text, 16), end + 2
        if size == 0:
            return _after_trailers(data, start, b"".join(parts))
        if len(data) < start + size + 2:
            return None
        if data[start + size : start + size + 2] != b"\r\n":
            raise Malformed("a chunk that is longer than it says")
        parts.append(data[start : start + size])
        place = start + size + 2


def _after_trailers(data: bytes, place: int, body: bytes) -> bytes | None:
    while True:
        end = data.find(b"\r\n", place)
        if end < 0:
            return None
        if end == place:
            if len(data) > end + 2:
                raise Malformed(f"{len(data) - end - 2} bytes behind an answer that nothing asked for")
            return body
        place = end + 2
