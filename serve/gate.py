"""Who may ask what: keys held by their digests, found faults counted, keys changed while requests come in.

A key is looked up by its SHA-256. How long that takes may tell something of a stored digest, never of the key: whoever
wants to come nearer has to find keys by their digests, which is inverting SHA-256, and even a whole digest opens
nothing. So nothing needs to be compared in constant time, and a thousand keys cost what one does. (A dictionary of
digests by a hash that is keyed for each process tells not even that much.)
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, Metric

from penstock.serve.errors import RequestError
from penstock.serve.keys import LONGEST, Key
from penstock.serve.meters import Meters
from penstock.serve.rates import TokenBucket

_SCHEME = b"bearer "
_HOW = "send it as Authorization: Bearer KEY"


class Refused(RequestError):
    """A request that its key does not allow.

    `reason` is a word for counting, `headers` are HTTP's that go with the status, `wait_s` says when to ask again.
    """

    def __init__(self, status: int, reason: str, why: str, challenge: str = "", wait_s: int = 0) -> None:
        super().__init__(why, status)
        self.reason, self.wait_s = reason, wait_s
        self.headers = {"WWW-Authenticate": f'Bearer realm="penstock"{challenge}'} if status in (401, 403) else {}
        if wait_s:
            self.headers["Retry-After"] = str(wait_s)


@dataclass
class _Held:
    """A key while the server runs; `expires` in seconds since 1970."""

    name: str
    rights: frozenset[str]
    bucket: TokenBucket | None
    expires: float | None
    admitted: int = 0


class Gate:
    """Admits requests by their keys.

    Args:
        keys: those there are at first.
        clock: seconds that never go back.
        today: seconds since 1970.
        meters: of rates, where other processes admit requests by the same keys.
    """

    def __init__(
        self,
        keys: Sequence[Key],
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], float] = time.time,
        meters: Meters | None = None,
    ) -> None:
        self._meters = meters
        self._clock, self._today = clock, today
        self._held: dict[bytes, _Held] = {}
        self._refused: dict[str, int] = {}
        self.replace(keys)

    def __len__(self) -> int:
        return len(self._held)

    def replace(self, keys: Sequence[Key]) -> None:
        """Take other keys in place of those there are; what one has used up of its rate stays used up."""
        now, before, counts = self._clock(), self._held, {held.name: held.admitted for held in self._held.values()}
        found: dict[bytes, _Held] = {}
        for key in keys:
            digest, bucket = bytes.fromhex(key.sha256), None
            if key.rate is not None:
                old = before[digest].bucket if digest in before else None
                if self._meters is not None:
                    bucket = self._meters.bucket(digest, key.rate, key.most_at_once, now)
                else:
                    bucket = (
                        TokenBucket(key.rate, key.most_at_once, now)
                        if old is None
                        else old.changed(key.rate, key.most_at_once, now)
                    )
            expires = None if key.expires is None else key.expires.timestamp()
            found[digest] = _Held(key.name, frozenset(key.rights), bucket, expires, counts.get(key.name, 0))
        self._held = found

    def fault(self, said: bytes | None, needed: tuple[str, ...], *, counts: bool = True) -> Refused | None:
        """Why a request is refused; None where it is admitted, which takes one of its key's tokens.

        Args:
            said: the Authorization header.
            needed: rights of which the key must have one.
            counts: whether it is a request, of which a key may make so many.
        """
        if said is None or said[:7].lower() != _SCHEME:
            return Refused(401, "no_key", f"an API key is needed; {_HOW}")
        key = said[7:].strip()
        held = self._held.get(hashlib.sha256(key).digest()) if len(key) <= LONGEST else None
        if held is None:
            return Refused(401, "unknown_key", "the API key is unknown", ', error="invalid_token"')
        if held.expires is not None and self._today() >= held.expires:
            return Refused(401, "expired", f"the API key {held.name!r} has expired", ', error="invalid_token"')
        if held.rights.isdisjoint(needed):
            scope = f', error="insufficient_scope", scope="{" ".join(needed)}"'
            why = f"the API key {held.name!r} lacks the right {' or '.join(needed)}, which this needs"
            return Refused(403, "no_right", why, scope)
        if not counts:
            return None
        if held.bucket is not None and (wait_s := held.bucket.take(self._clock())):
            whole = math.ceil(wait_s)
            rate = f"its rate of {held.bucket.rate:g} requests/s"
            return Refused(429, "rate", f"the API key {held.name!r} is over {rate}; try again in {whole} s", "", whole)
        held.admitted += 1
        return None

    def refusal(self, said: bytes | None, needed: tuple[str, ...], *, counts: bool = True) -> Refused | None:
        """The same, and counted: for who answers the request."""
        found = self.fault(said, needed, counts=counts)
        if found is not None:
            self._refused[found.reason] = self._refused.get(found.reason, 0) + 1
        return found

    def taken(self) -> dict[str, dict[str, int]]:
        """What was refused, by reason, and admitted, by key, since this was last asked; it is counted no more here."""
        refused, self._refused = self._refused, {}
        admitted = {held.name: held.admitted for held in self._held.values() if held.admitted}
        for held in self._held.values():
            held.admitted = 0
        return {"refused": refused, "admitted": admitted}

    def add(self, taken: Mapping[str, Mapping[str, int]]) -> None:
        """Count what another process has refused and admitted."""
        for reason, count in taken["refused"].items():
            self._refused[reason] = self._refused.get(reason, 0) + count
        for held in self._held.values():
            held.admitted += taken["admitted"].get(held.name, 0)

    def families(self) -> Iterator[Metric]:
        """What was refused and admitted, as prometheus_client wants it."""
        refused = CounterMetricFamily("penstock_refused", "Requests refused for their API keys.", labels=("reason",))
        for reason, count in self._refused.items():
            refused.add_metric((reason,), count)
        yield refused
        admitted = CounterMetricFamily("penstock_key_requests", "Requests admitted, by API key.", labels=("key",))
        for held in self._held.values():
            admitted.add_metric((held.name,), held.admitted)
        yield admitted
