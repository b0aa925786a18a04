"""Calls over gRPC, several under way at once, with the waiting of bench/connections.py.

gRPC's C core sends and receives on threads of its own, which share the interpreter with the loop: a call costs several
times what a request over HTTP does here. Messages are made once, before, and answers are kept as bytes.
"""

from __future__ import annotations

import functools
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import messages
from penstock.bench.connections import REFUSED, Event
from penstock.bench.httpanswers import Answer, Head
from penstock.errors import require

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
)
INFER = f"/{messages.SERVICE}/ModelInfer"
_HEAD = Head(200, None, chunked=False, closes=False, fields={})
# gRPC's core says UNAVAILABLE in these words where the connection is at fault; without them the server said it.
_UNCONNECTED = (
    *("failed to connect", "Failed to connect", "onnection re", "Socket closed", "Broken pipe", "recvmsg", "sendmsg"),
    *("GOAWAY", "Stream removed", "Endpoint closing", "handshake", "ping timeout", "DNS"),
)
# Calls that share a connection: HTTP/2 sends them through one window, and a server reads it on one thread.
_SHARING = 16


@dataclass(frozen=True)
class Address:
    """HOST:PORT; the certificates to trust, in PEM, for TLS (b"" for gRPC's own); what goes with every call."""

    target: str
    roots: bytes | None
    metadata: tuple[tuple[str, str], ...]


def channel(address: Address) -> Any:
    """A connection of its own."""
    grpc = require("grpc", "serve", "asking over gRPC")
    if address.roots is None:
        return grpc.insecure_channel(address.target, OPTIONS)
    return grpc.secure_channel(address.target, grpc.ssl_channel_credentials(address.roots or None), OPTIONS)


class Calls:
    """Slots for calls, a few to a connection.

    Args:
        address: where to.
        requests: ModelInferRequests, serialised.
        timeout_s: seconds for one answer.
    """

    def __init__(self, address: Address, requests: Sequence[bytes], timeout_s: float) -> None:
        self.precise, self.opened = False, 0
        self._address, self._requests, self._timeout_s = address, requests, timeout_s
        self._channels: list[Any] = []
        self._methods: list[Any] = []
        self._under_way: dict[int, Any] = {}
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

    def grow(self, slots: int) -> None:
        while len(self._channels) * _SHARING < slots:
            made = channel(self._address)
            self._channels.append(made)
            self._methods.append(made.unary_unary(INFER))
            self.opened += 1

    def send(self, slot: int, index: int) -> None:
        method = self._methods[slot // _SHARING]
        call = method.future(self._requests[index], timeout=self._timeout_s, metadata=self._address.metadata)
        self._under_way[slot] = call
        call.add_done_callback(functools.partial(self._end, slot))

    def _end(self, slot: int, call: Any) -> None:
        """On a thread of gRPC's."""
        self._done.put((slot, call))

    def wait(self, timeout_s: float) -> Iterator[Event]:
        try:
            slot, call = self._done.get(timeout_s > 0, timeout_s or None)
            while True:
                if self._under_way.get(slot) is call:  # it was not given up
                    del self._under_way[slot]
                    yield _event(slot, call)
                slot, call = self._done.get_nowait()
        except queue.Empty:
            return

    def drop(self, slot: int) -> None:
        self._under_way.pop(slot).cancel()

    def close(self) -> None:
        for each in self._channels:
            each.close()


def _event(slot: int, call: Any) -> Event:
    code = call.code().name
    if code == "OK":
        return Event(slot, None, Answer(_HEAD, call.result()))
    if code == "UNAVAILABLE" and any(words in str(call.details()) for words in _UNCONNECTED):
        return Event(slot, REFUSED, None)
    return Event(slot, "timeout" if code == "DEADLINE_EXCEEDED" else f"status {code}", None)
