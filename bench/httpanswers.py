"""Answers of HTTP/1.1 read off a connection, one after another, as they come in pieces (RFC 9112)."""

from __future__ import annotations

import re
from typing import NamedTuple

_END = b"\r\n\r\n"
_LONGEST_HEAD = 65_536
_KEPT, _MOST_KEPT = 2048, 256
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")


class Malformed(ValueError):
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

    __slots__ = ("_chunks", "_got", "_head", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._got, self._chunks = 0, _Chunks()
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
            if head.chunked:
                self._chunks = _Chunks()
        if head.chunked:
            body = self._chunks.feed(data)
            return None if body is None else self._done(head, body)
        self._parts.append(data)
        self._got += len(data)
        return self._whole(head)

    def _whole(self, head: Head) -> Answer | None:
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


class _Chunks:
    """A body in chunks, put together as it comes, with what it holds looked at once."""

    __slots__ = ("_left", "_parts", "_rest", "_trailing", "_within")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._rest = b""
        self._left, self._within, self._trailing = 0, False, False

    def feed(self, data: bytes) -> bytes | None:
        """The body, if it is whole with this.

        Raises:
            Malformed: a size is none, or something stands behind the end.
        """
        data, place = self._rest + data, 0
        self._rest = b""
        while True:
            if self._left:
                part = data[place : place + self._left]
                self._parts.append(part)
                place, self._left = place + len(part), self._left - len(part)
                if self._left:
                    return None
            end = data.find(b"\r\n", place)
            if self._within and end != place and len(data) - place >= 2:
                raise Malformed("a chunk that is longer than it says")
            if end < 0:
                self._rest = data[place:]
                if len(self._rest) > _LONGEST_HEAD:
                    raise Malformed(f"a chunk's size of over {_LONGEST_HEAD} bytes")
                return None
            line, place = data[place:end], end + 2
            if self._trailing and not line:
                if len(data) > place:
                    raise Malformed(f"{len(data) - place} bytes behind an answer that nothing asked for")
                return b"".join(self._parts)
            if self._within:  # the line that ends a chunk
                self._within = False
            elif not self._trailing:
                self._left = _size(line)
                self._within, self._trailing = self._left > 0, self._left == 0


def _size(line: bytes) -> int:
    text = line.partition(b";")[0].strip()
    if not _SIZE.fullmatch(text):
        raise Malformed(f"a chunk's size {text[:20]!r}")
    return int(text, 16)
