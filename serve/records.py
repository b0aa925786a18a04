"""What is known of one inference request: what it was called, who sent it, what it asked for, where its time went."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote

from penstock.serve.times import Times

REQUEST_ID = "X-Request-Id"
_ID = REQUEST_ID.lower().encode()
# Printable ASCII, so that an id is itself in a header, a log and a terminal.
_PLAIN = re.compile(r"[!-~]{1,128}")
_PROCESS = os.urandom(4).hex()
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Road:
    """How a request came: over HTTP by a method and a route, or over gRPC by a method."""

    method: str
    route: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.route}" if self.route else self.method


INFER = Road("POST", "/v2/models/{model}/infer")
VERSIONED = Road("POST", "/v2/models/{model}/versions/{version}/infer")
PREDICT = Road("POST", "/predict/{model}")
CALL = Road("ModelInfer")
STREAM = Road("ModelStreamInfer")


@dataclass(slots=True)
class Record(Times):
    """One request, from its first moment here to its end.

    `model` is the one that answers, or that was asked for where none does; `route` the name that was asked for, if that
    is a route's. `sent_id` is whether the client sent an id: where it could not be taken, `id` has another.
    `headers` are the client's, by names in lower case: they are looked into, and written nowhere. `peer` is the
    client's address, or gives it if it is asked, also when the client is gone. `code` is gRPC's number for the end,
    beside HTTP's in `status`.
    """

    road: Road = INFER
    headers: Mapping[bytes, bytes] | None = None
    peer: Callable[[], Any] | str | None = None
    id: str = ""
    sent_id: bool = False
    model: str = ""
    route: str = ""
    version: int = 0
    status: int = 0
    code: int | None = None
    error: str = ""
    total_s: float = 0.0
    trace_id: str = ""

    def __post_init__(self) -> None:
        sent = None if self.headers is None else self.headers.get(_ID)
        if sent is not None:
            self.sent_id = True
            if _PLAIN.fullmatch(text := sent.decode("latin-1")):
                self.id = text

    def found(self, model: str, version: int, own_id: str | None) -> None:
        """Told what answers it, and by which id of the protocol's it goes; a header's goes before that."""
        self.model, self.version = model, version
        if own_id and not self.id and _PLAIN.fullmatch(own_id):
            self.id = own_id

    def name(self) -> str:
        """The request's id; one is made for it where it came without."""
        if not self.id:
            self.id = f"{_PROCESS}-{next(_numbers)}"
        return self.id

    @property
    def quoted(self) -> bool:
        """Whether the answer says the id: the client sent one, or has a failure of the server's to report."""
        return self.sent_id or self.status >= 500

    @property
    def client(self) -> str:
        """The client's address, HOST:PORT where it has one, an IPv6 HOST in brackets."""
        found = self.peer() if callable(self.peer) else self.peer
        if isinstance(found, tuple | list) and len(found) > 1:
            return f"[{found[0]}]:{found[1]}" if ":" in str(found[0]) else f"{found[0]}:{found[1]}"
        return unquote(str(found or "")).removeprefix("ipv4:").removeprefix("ipv6:")  # as gRPC writes them

    @property
    def rest_s(self) -> float:
        """What no stage accounts for: making the answer, and waiting for the event loop."""
        return max(0.0, self.total_s - self.decode_s - self.queue_s - self.compute_s)

    def as_dict(self) -> dict[str, Any]:
        """What may be told of an ended request, JSON's types alone: nothing of what it held."""
        stages = {"decode": self.decode_s, "queue": self.queue_s, "compute": self.compute_s, "rest": self.rest_s}
        return {
            "request_id": self.name(),
            "via": str(self.road),
            "model": self.model,
            **({"route": self.route} if self.route else {}),
            "version": self.version,
            "rows": self.rows,
            "status": self.status,
            **{f"{stage}_ms": round(1000 * seconds, 3) for stage, seconds in stages.items()},
            "total_ms": round(1000 * self.total_s, 3),
            **({"trace_id": self.trace_id} if self.trace_id else {}),
        }


def moment(seconds: float | None = None) -> str:
    """A moment since the epoch, now if none is given, in UTC as RFC 3339 has it."""
    when = datetime.fromtimestamp(time.time() if seconds is None else seconds, timezone.utc)
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")
