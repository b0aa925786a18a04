"""Token buckets that several processes share: a key's rate is its own, whichever of them a request comes to.

What is in each bucket lies in a memfd that all have mapped, at a place that the key's digest leads to; whoever takes a
token holds the place by a lock of the kernel's (fcntl(2)), which goes with a process that dies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.serve.rates import TokenBucket

_MOST = 4096
# A digest, and of its bucket the tokens and since when they are so many, of time.monotonic, which processes share.
_ENTRY = struct.Struct("<32sdd16x")
_NOBODY = bytes(32)


class Meters:
    """All buckets of a server's front ends.

    Args:
        fd: the memory, which `created` makes; it stays with whoever opened it.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._map = fd, mmap.mmap(fd, 0)

    def bucket(self, digest: bytes, rate: float, burst: float, now: float) -> TokenBucket:
        """The bucket of a key, by its digest of 32 bytes; as full as it was, if others have it by now."""
        first = int.from_bytes(digest[:4], "little")
        with self._held(0, len(self._map)):
            for place in ((first + step) % _MOST * _ENTRY.size for step in range(_MOST)):
                held, tokens, _ = _ENTRY.unpack_from(self._map, place)
                if held == _NOBODY:
                    _ENTRY.pack_into(self._map, place, digest, burst, now)
                elif held != digest:
                    continue
                elif tokens > burst:
                    _ENTRY.pack_into(self._map, place, digest, burst, now)
                return _Shared(self, place, rate, burst)
        return TokenBucket(rate, burst, now)  # of so many keys not all can be metered together

    def take(self, place: int, bucket: _Shared, now: float) -> float:
        """As `TokenBucket.take`, of what lies at a place."""
        with self._held(place, _ENTRY.size):
            digest, bucket._tokens, bucket._at = _ENTRY.unpack_from(self._map, place)
            found = TokenBucket.take(bucket, max(now, bucket._at))  # another process may have looked at the clock later
            _ENTRY.pack_into(self._map, place, digest, bucket._tokens, bucket._at)
            return found

    @contextmanager
    def _held(self, place: int, size: int) -> Iterator[None]:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, size, place)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, size, place)


class _Shared(TokenBucket):
    """A bucket whose tokens are in the memory of all."""

    __slots__ = ("_meters", "_place")

    def __init__(self, meters: Meters, place: int, rate: float, burst: float) -> None:
        super().__init__(rate, burst, 0.0)
        self._meters, self._place = meters, place

    def take(self, now: float) -> float:
        return self._meters.take(self._place, self, now)


def created() -> int:
    """A descriptor of memory for meters, empty yet."""
    fd = os.memfd_create("penstock-rates", os.MFD_CLOEXEC)
    os.ftruncate(fd, _MOST * _ENTRY.size)
    return fd
