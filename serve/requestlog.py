"""The log of requests: those that failed, or all, a line each, with what may be told of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.serve.records import Record

WHICH = ("none", "failed", "all")
_MOST_PER_S = 10
log = logging.getLogger("penstock.requests")


class RequestLog:
    """Writes down requests that the server failed (a status of 500 or more, timeouts among them), or all.

    A server that fails every request must not drown in its log: of failures alone there are `most_per_s` lines in each
    second, and the next one says how many were left out. Who asks for all gets all. Failures are warnings and the
    others information, as the protocol's settings of logging have it.
    """

    def __init__(
        self, *, everything: bool, most_per_s: int = _MOST_PER_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._everything, self._most, self._clock = everything, most_per_s, clock
        self._ends = 0.0
        self._written = self._left_out = 0

    def __call__(self, record: Record) -> None:
        failed = record.status >= 500
        level = logging.WARNING if failed else logging.INFO
        if not log.isEnabledFor(level) or not (self._everything or (failed and self._room())):
            return
        fields = {**record.as_dict(), "client": record.client}
        if record.error:
            fields["error"] = record.error
        if self._left_out:
            fields["left_out"], self._left_out = self._left_out, 0
        log.log(level, "request failed" if failed else "request", extra={"fields": fields})

    def _room(self) -> bool:
        now = self._clock()
        if now >= self._ends:
            self._ends, self._written = now + 1, 0
        if self._written >= self._most:
            self._left_out += 1
            return False
        self._written += 1
        return True


def request_log(which: str) -> RequestLog | None:
    """The log of those requests; None if there is to be none.

    Raises:
        PenstockError: it is none of `WHICH`.
    """
    if which not in WHICH:
        raise PenstockError(f"--log-requests {which[:20]!r}: must be one of {', '.join(WHICH)}")
    return None if which == "none" else RequestLog(everything=which == "all")
