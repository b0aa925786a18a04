"""Bodies in gzip or deflate (which is zlib's format, as in HTTP), inflated to a bound."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TypeVar

from typing_extensions import Buffer

from penstock.serve.errors import RequestError
from penstock.serve.rooms import Room

Body = TypeVar("Body", bound=Buffer)
_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # x-gzip is gzip (RFC 9110, section 8.4.1.3)
# Bytes that go in at once, and that come out.
_PIECE, _STEP = 65_536, 2**16
# Of gzip, one behind the other (RFC 1952, section 2.2): bgzip's hold 64 KiB. Empty ones would take forever.
_MOST_MEMBERS, _MEMBER = 2**16, b"\x1f"
# Fast, and most of what there is to win on numbers.
_LEVEL = 1


class Over(RequestError):
    """The body inflates to more than it may."""


def known(coding: str) -> bool:
    """Whether a Content-Encoding is one that is inflated here."""
    return coding.strip().lower() in _WINDOW


def inflate(body: Body, coding: str, most: int, aligned: int = 0) -> Body | memoryview:
    """The body as it was before its Content-Encoding; what lies from `aligned` on lies as arrays should.

    Raises:
        RequestError: 415 another coding, 400 it is damaged or goes on behind its end; Over: 413, over `most` bytes,
            those of all members of gzip together.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    if coding not in _WINDOW:
        raise RequestError(f"Content-Encoding is {coding[:40]!r}; it must be gzip, deflate or identity", 415)
    stream, members = zlib.decompressobj(_WINDOW[coding]), 1
    found, view = Room(most, aligned), memoryview(body)
    try:
        for start in range(0, len(view), _PIECE):
            piece: bytes | memoryview = view[start : start + _PIECE]
            while piece:
                if stream.eof:
                    if coding == "deflate" or members == _MOST_MEMBERS or bytes(piece[:1]) != _MEMBER:
                        after = f", after {members} members" if members > 1 else ""
                        raise RequestError(f"the body is {coding} that goes on behind its end{after}")
                    stream, members = zlib.decompressobj(_WINDOW[coding]), members + 1
                for part in _parts(stream, piece):
                    if found.filled + len(part) > most:
                        raise Over(f"the body inflates to over the limit of {most} bytes (--max-body-mb)", 413)
                    found.add(part)
                piece = stream.unused_data
    except zlib.error as error:
        what = "the body" if members == 1 else f"member {members} of the body"
        raise RequestError(f"{what} is not {coding}, as Content-Encoding says: {error}") from None
    if not stream.eof:
        raise RequestError(f"the body is {coding} that is cut short")
    return found.content()


def _parts(stream: zlib._Decompress, piece: Buffer) -> Iterator[bytes]:
    """What a piece inflates to. Nobody else runs while zlib's output is put together, so it is taken in small parts."""
    while True:
        part = stream.decompress(piece, _STEP)
        if part:
            yield part
        piece = stream.unconsumed_tail
        if stream.eof or (not piece and len(part) < _STEP):
            return


def wanted(accepted: str) -> str | None:
    """The coding that a client asks for, by naming that one alone: a list of all it could read is no wish."""
    accepted = accepted.strip().lower()
    return accepted if accepted in _WINDOW else None


def deflated(body: bytes, coding: str) -> bytes:
    """The body in a coding."""
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW[coding])
    return stream.compress(body) + stream.flush()
