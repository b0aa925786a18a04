"""Which of the media types that there are a client wants: HTTP's Accept header, RFC 9110, 12.5.1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_RANGE = re.compile(r"\s*([\w!#$&^.+-]+|\*)/([\w!#$&^.+-]+|\*)\s*((?:;[^;]*)*)", re.ASCII)
_WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?", re.ASCII)


@dataclass(frozen=True)
class _Range:
    """`image/*;q=0.5`, and its place in the header."""

    kind: str
    subkind: str
    weight: float
    place: int

    @property
    def precision(self) -> int:
        return (self.kind != "*") + (self.subkind != "*")

    def holds(self, offer: str) -> bool:
        kind, _, subkind = offer.partition("/")
        return self.kind in ("*", kind) and self.subkind in ("*", subkind)


def best(accepted: str, offers: Sequence[str]) -> str | None:
    """The offer that a client wants most, or None where it wants none of them.

    An offer's weight is that of the most precise range that it is in. Of equal weights, the more precisely named goes
    first, then the one named first, then the one offered first. What is no range, or has no weight from 0 to 1, is
    passed over.

    Args:
        accepted: the header's value; an empty one takes anything.
        offers: media types in lower case, the most usual first.
    """
    if not accepted.strip():
        return offers[0]
    ranges = [found for place, text in enumerate(accepted.split(",")) if (found := _read(text, place)) is not None]
    ranked = []
    for number, offer in enumerate(offers):
        within = [held for held in ranges if held.holds(offer)]
        if within:
            held = min(within, key=lambda held: (-held.precision, held.place))
            if held.weight > 0:
                ranked.append((-held.weight, -held.precision, held.place, number))
    return offers[min(ranked)[-1]] if ranked else None


def _read(text: str, place: int) -> _Range | None:
    match = _RANGE.fullmatch(text)
    if match is None or (match[1] == "*" and match[2] != "*"):
        return None
    parameters = [part.partition("=") for part in match[3].lower().split(";")[1:]]
    weights = [value.strip() for name, _, value in parameters if name.strip() == "q"]
    if any(_WEIGHT.fullmatch(weight) is None for weight in weights):
        return None
    return _Range(match[1].lower(), match[2].lower(), float(weights[0]) if weights else 1.0, place)
