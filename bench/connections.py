"""Connections of HTTP/1.1 to a server, one request under way on each, in one loop over non-blocking sockets.

Requests are made once, before; sending one is a system call. Waiting is by epoll where a millisecond is near enough,
and by select() on epoll's own descriptor where it is not, since select() takes microseconds.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.bench.httpanswers import Answer, AnswerReader, Malformed

_AT_ONCE = 65_536
# For how long one of several addresses is tried.
_TRY_S = 3.0
_IN, _BOTH = select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT
_CLOSED, _CONNECTING, _SHAKING, _OPEN = range(4)
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
REFUSED, BROKEN, TRUNCATED, MALFORMED = "refused", "connection", "truncated", "malformed"
# This machine gives no more sockets, as where too few descriptors are allowed.
NO_SOCKET = "no socket"


@dataclass(frozen=True)
class Endpoint:
    """Where to connect to; `tls` for https."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class Event(NamedTuple):
    """What became of the request on a connection: an answer, or why there is none."""

    slot: int
    failure: str | None
    answer: Answer | None


class _Link:
    """A connection: its socket, what is yet to be sent on it, and whether an answer is due."""

    __slots__ = ("busy", "reader", "socket", "state", "unsent")

    def __init__(self) -> None:
        self.socket: Any = None
        self.state, self.busy = _CLOSED, False
        self.unsent: memoryview | None = None
        self.reader = AnswerReader()


def _listening(endpoint: Endpoint) -> tuple[int, Any]:
    """The first of a name's addresses that takes connections, as others choose it: localhost may be ::1 and 127.0.0.1.

    Returns:
        Its family, and what connect() takes; where none does the first, so that it is told with the requests.

    Raises:
        OSError: there is no such name.
    """
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found if len(found) > 1 else []:
        with suppress(OSError), socket.socket(family, kind, protocol) as tried:
            tried.settimeout(_TRY_S)
            tried.connect(address)
            return family, address
    return found[0][0], found[0][4]


class Connections:
    """Slots for requests, each with a connection that is opened when it is first needed, and anew when it has ended.

    Args:
        endpoint: where to.
        requests: whole requests, heads and bodies.
        precise: whether waits are to be exact to microseconds, at a system call more each.
    """

    def __init__(self, endpoint: Endpoint, requests: Sequence[bytes], *, precise: bool = False) -> None:
        self.precise, self.opened = precise, 0
        self._endpoint, self._requests = endpoint, requests
        self._epoll = select.epoll()
        self._links: list[_Link] = []
        self._slots: dict[int, int] = {}
        self._failed: deque[Event] = deque()
        self._family, self._address = _listening(endpoint)

    def grow(self, slots: int) -> None:
        """Have so many slots at least, and begin to connect the new ones."""
        while len(self._links) < slots:
            self._links.append(_Link())
            self._connect(len(self._links) - 1)

    def send(self, slot: int, index: int) -> None:
        """Send the request of that index; its slot must have none under way."""
        link = self._links[slot]
        link.busy = True
        request = self._requests[index]
        if link.state == _OPEN:
            try:
                sent = link.socket.send(request)
            except _NOT_NOW:
                sent = 0
            except OSError:
                # The server closed it while it lay idle: that is no failure of a request that it has not seen.
                self._close(slot)
            else:
                if sent == len(request):
                    return
            if link.state == _OPEN:
                link.unsent = memoryview(request)[sent:]
                self._epoll.modify(link.socket.fileno(), _BOTH)
                return
        link.unsent = memoryview(request)
        if link.state == _CLOSED:
            self._connect(slot)

    def wait(self, timeout_s: float) -> Iterator[Event]:
        """What happens within so many seconds, as soon as anything does; each event at the moment it is read."""
        while self._failed:
            timeout_s = 0.0
            yield self._failed.popleft()
        if self.precise and timeout_s > 0:
            select.select((self._epoll,), (), (), timeout_s)
            timeout_s = 0.0
        for number, mask in self._epoll.poll(timeout_s):
            slot = self._slots.get(number)
            if slot is None:
                continue
            event = self._advance(slot, mask)
            if event is not None:
                yield event

    def drop(self, slot: int) -> None:
        """Give up the request that is under way, and its connection with it."""
        self._links[slot].busy = False
        self._close(slot)

    def close(self) -> None:
        for slot in range(len(self._links)):
            self._close(slot)
        self._epoll.close()

    def _connect(self, slot: int) -> None:
        link = self._links[slot]
        try:
            made = socket.socket(self._family, socket.SOCK_STREAM)
        except OSError:
            self._fail_later(slot, NO_SOCKET)
            return
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.socket, link.state, link.reader = made, _CONNECTING, AnswerReader()
        self._slots[made.fileno()] = slot
        self._epoll.register(made.fileno(), _BOTH)
        code = made.connect_ex(self._address)
        if code not in (0, errno.EINPROGRESS):
            self._fail_later(slot, REFUSED)

    def _fail_later(self, slot: int, why: str) -> None:
        event = self._fail(slot, why)
        if event is not None:
            self._failed.append(event)

    def _fail(self, slot: int, why: str) -> Event | None:
        """End a connection; the event, where a request was under way."""
        link = self._links[slot]
        busy, link.busy = link.busy, False
        self._close(slot)
        return Event(slot, why, None) if busy else None

    def _close(self, slot: int) -> None:
        link = self._links[slot]
        if link.socket is not None:
            with suppress(OSError, ValueError):
                self._epoll.unregister(link.socket.fileno())
            self._slots.pop(link.socket.fileno(), None)
            link.socket.close()
        link.socket, link.state, link.unsent = None, _CLOSED, None

    def _advance(self, slot: int, mask: int) -> Event | None:
        link = self._links[slot]
        try:
            if link.state != _OPEN and not self._opened(slot):
                return None
            if link.unsent is not None:
                self._flush(link)
        except _NOT_NOW:
            return None
        except ssl.SSLError:
            return self._fail(slot, "tls")
        except OSError:
            # An early answer, as to a body that is too long, may be there though nothing more can be sent.
            if link.state != _OPEN:
                return self._fail(slot, REFUSED)
            link.unsent = None
        return self._receive(slot) if mask & ~select.EPOLLOUT and link.state == _OPEN else None

    def _opened(self, slot: int) -> bool:
        """Take a connection a step further; whether it is open now.

        Raises:
            OSError: it was refused.
        """
        link, tls = self._links[slot], self._endpoint.tls
        if link.state == _CONNECTING:
            code = link.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, "not connected")
            link.state = _SHAKING if tls is not None else _OPEN
            if tls is not None:
                number = link.socket.fileno()
                link.socket = tls.wrap_socket(
                    link.socket, server_hostname=self._endpoint.host, do_handshake_on_connect=False
                )
                self._slots[number] = slot
        if link.state == _SHAKING:
            try:
                link.socket.do_handshake()
            except ssl.SSLWantReadError:
                self._epoll.modify(link.socket.fileno(), _IN)
                return False
            except ssl.SSLWantWriteError:
                self._epoll.modify(link.socket.fileno(), _BOTH)
                return False
            link.state = _OPEN
        self.opened += 1
        self._epoll.modify(link.socket.fileno(), _IN if link.unsent is None else _BOTH)
        return True

    def _flush(self, link: _Link) -> None:
        unsent = link.unsent
        assert unsent is not None
        sent = link.socket.send(unsent)
        if sent == len(unsent):
            link.unsent = None
            self._epoll.modify(link.socket.fileno(), _IN)
        else:
            link.unsent = unsent[sent:]

    def _receive(self, slot: int) -> Event | None:
        link = self._links[slot]
        while True:
            try:
                data = link.socket.recv(_AT_ONCE)
                answer = link.reader.feed(data) if data else link.reader.end()
            except _NOT_NOW:
                return None
            except Malformed:
                return self._fail(slot, MALFORMED)
            except OSError:
                return self._fail(slot, TRUNCATED if link.reader.begun else BROKEN)
            if answer is not None:
                break
            if not data:
                return self._fail(slot, TRUNCATED if link.reader.begun else BROKEN)
            if self._endpoint.tls is None:
                return None  # what more there is comes with the next event; TLS has read it already
        if not link.busy:  # it says something unasked, as that it has waited for too long
            self._close(slot)
            return None
        link.busy = False
        if answer.head.closes or not data or link.unsent is not None:
            self._close(slot)
        return Event(slot, None, answer)
