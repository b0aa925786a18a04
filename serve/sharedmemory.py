"""System shared memory: tensors that lie in a segment that client and server share instead of in the request.

Protocol: Triton's extension_shared_memory.md. A segment is read and written through its file, not mapped: one that its
owner makes shorter would end a server that has it mapped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.serve.errors import RequestError
from penstock.serve.rooms import room

SEGMENTS = Path("/dev/shm")  # noqa: S108 (where shm_open keeps them on Linux)
_MOST_REGIONS = 128  # each holds a file open
_MOST_BYTES = 2**48


@dataclass(frozen=True)
class Region:
    """A registered part of a segment; its file is closed with the last who holds the region."""

    name: str
    key: str
    offset: int
    byte_size: int
    file: Any

    def part(self, offset: int, byte_size: int, field: str) -> Part:
        """So many bytes of it.

        Raises:
            RequestError: they reach beyond its end.
        """
        if offset + byte_size > self.byte_size:
            raise RequestError(
                f"{field} reaches to byte {offset + byte_size} of shared memory region {self.name!r}; it has "
                f"{self.byte_size}"
            )
        return Part(self, offset, byte_size)


@dataclass(frozen=True)
class Part:
    """Bytes of a region."""

    region: Region
    offset: int
    byte_size: int

    def read(self) -> memoryview:
        """A copy of the bytes, which the client may no longer change."""
        held = room(self.byte_size)
        got = os.preadv(self.region.file.fileno(), [held], self.region.offset + self.offset) if held else 0
        if got != self.byte_size:
            raise self._shorter()
        return held

    def write(self, data: memoryview | bytes, output: str) -> None:
        """Put an output's bytes there.

        Raises:
            RequestError: they are too many, or the segment has no room for them any more.
        """
        if len(data) > self.byte_size:
            raise RequestError(f"output {output!r} has {len(data)} bytes; shared_memory_byte_size is {self.byte_size}")
        start, number = self.region.offset + self.offset, self.region.file.fileno()
        if os.fstat(number).st_size < start + len(data):  # writing would make it longer again, behind its owner's back
            raise self._shorter()
        if os.pwrite(number, data, start) != len(data):
            raise RequestError(f"shared memory region {self.region.name!r} has no room for output {output!r}", 503)

    def _shorter(self) -> RequestError:
        return RequestError(
            f"shared memory region {self.region.name!r} has become shorter than it was when it was registered"
        )


@dataclass
class Regions:
    """The regions that clients have registered, by name; nothing is registered where it is not `allowed`."""

    allowed: bool = False
    _held: dict[str, Region] = field(default_factory=dict)

    def register(self, name: str, key: Any, offset: Any, byte_size: Any) -> None:
        """Register a part of a segment.

        Args:
            name: by which requests will call it.
            key: the segment's, as shm_open takes it.
            offset: of its first byte in the segment.
            byte_size: how many bytes it has.

        Raises:
            RequestError: it may not be, its name is taken, or the segment is missing or too short.
        """
        if not self.allowed:
            raise RequestError("shared memory is off; penstock serve --allow-shared-memory turns it on")
        if name in self._held:
            raise RequestError(f"shared memory region {name[:128]!r} is registered already; unregister it first")
        if len(self._held) >= _MOST_REGIONS or len(name) > 256:
            raise RequestError(f"at most {_MOST_REGIONS} regions can be registered, with names of 256 characters")
        where, size = _whole(offset, "offset", 0), _whole(byte_size, "byte_size", 1)
        file = _opened(key)
        held = os.fstat(file.fileno()).st_size
        if where + size > held:
            file.close()
            raise RequestError(f"region {name!r} would reach to byte {where + size} of {key[:128]!r}; it has {held}")
        self._held[name] = Region(name, key, where, size, file)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all if none is named; one that is unknown is forgotten already."""
        if name:
            self._held.pop(name, None)
        else:
            self._held.clear()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """The regions, or the one of that name.

        Raises:
            RequestError: there is none of that name.
        """
        held = [self.region(name)] if name else list(self._held.values())
        return [
            {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}
            for region in held
        ]

    def region(self, name: Any) -> Region:
        """The region of that name.

        Raises:
            RequestError: there is none.
        """
        if not isinstance(name, str) or name not in self._held:
            raise RequestError(f"shared memory region {str(name)[:128]!r} is not registered", 404)
        return self._held[name]


def _whole(value: Any, field: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST_BYTES:
        raise RequestError(f"{field} is {str(value)[:40]!r}; it must be a whole number from {least} to {_MOST_BYTES}")
    return value


def _opened(key: Any) -> Any:
    plain = key.removeprefix("/") if isinstance(key, str) else ""
    if not plain or "/" in plain or "\0" in plain or plain in (".", "..") or len(os.fsencode(plain)) > 255:
        raise RequestError(f"key is {str(key)[:128]!r}; it must be the name of a segment, as shm_open takes it")
    try:
        number = os.open(SEGMENTS / plain, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise RequestError(f"shared memory segment {key[:128]!r} cannot be opened: {error.strerror}") from None
    return os.fdopen(number, "r+b", buffering=0)


# For where nothing can be registered.
NO_REGIONS = Regions()
