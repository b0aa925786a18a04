"""How a connection ends without a reset, as which a client that sent its next request in that moment would see it."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Any

# A server that ends closes a connection once it has been quiet for so long: its client may be about to send the next
# request, whose answer would tell it to leave.
QUIET_S = 1.0
LOOK_S = 0.05
# How long a client may take to see that a connection has ended; what it sends meanwhile is read, since bytes that are
# left unread turn the end into a reset, which may overtake the answer before it.
_LINGER_S = 0.5


class _Left(asyncio.Protocol):
    """What a connection is after its end: whatever still comes is let fall, and told once."""

    def __init__(self, lost: Callable[[Exception | None], None], late: Callable[[], None] | None) -> None:
        self._lost, self._late = lost, late

    def data_received(self, data: bytes) -> None:
        if self._late is not None:
            self._late()
            self._late = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(exc)


def leave(transport: Any, lost: Callable[[Exception | None], None], late: Callable[[], None] | None) -> None:
    """Say that nothing more comes, and close once the client has closed, or has had the time to.

    Args:
        transport: the connection's.
        lost: told when it is closed.
        late: told if something comes nevertheless; None where the client was told that it is the end.
    """
    if not transport.can_write_eof():  # as TLS cannot
        transport.close()
        return
    transport.set_protocol(_Left(lost, late))
    transport.write_eof()
    asyncio.get_running_loop().call_later(_LINGER_S, transport.close)


def unread(transport: Any) -> bool:
    """Whether bytes have come that the event loop has not read yet."""
    held: Any = transport.get_extra_info("socket")
    return held is not None and bool(*struct.unpack("i", fcntl.ioctl(held.fileno(), termios.FIONREAD, bytes(4))))
