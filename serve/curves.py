"""How long batches take at least, as measured of late: what a deadline is held against before its request is queued."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

# A measurement counts for one window to two. Once nothing is left of a kind, its next request is taken untried: what
# was slow for a while, as a model is at first, must not keep refusing what would show that it is no more.
_WINDOW_S = 10.0
_MOST_KINDS = 256


@dataclass(slots=True)
class _Least:
    """The shortest time in this window, and in the one before, in seconds."""

    since: float
    current: float
    former: float


class Curve:
    """By the kind of rows, and their number in powers of two: the shortest time of a batch of so many or more.

    A larger batch takes no less than a smaller one, so the shortest of all as large is what none goes below. Only for
    what takes as long whatever the values are: whoever tells of a batch sees to that.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, dict[int, _Least]] = {}
        self.longest_s = 0.0

    def told(self, kind: Hashable, rows: int, seconds: float, now: float) -> None:
        """A batch of `rows` was computed in `seconds`, and ended at `now`, on a clock that does not go back."""
        sizes = self._kinds.get(kind)
        if sizes is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            sizes = self._kinds[kind] = {}
        if seconds > self.longest_s:
            self.longest_s = seconds
        held = sizes.get(size := rows.bit_length())
        if held is None or now - held.since > 2 * _WINDOW_S:
            sizes[size] = _Least(now, seconds, seconds)
        elif now - held.since > _WINDOW_S:
            held.since, held.current, held.former = now, seconds, held.current
        elif seconds < held.current:
            held.current = seconds

    def at_least(self, kind: Hashable, rows: int, now: float) -> float:
        """Seconds that a batch of so many rows takes at least; 0 where nothing is known of its kind."""
        known = {
            size: min(held.current, held.former)
            for size, held in self._kinds.get(kind, {}).items()
            if now - held.since <= 2 * _WINDOW_S
        }
        as_large = [seconds for size, seconds in known.items() if size >= rows.bit_length()]
        if as_large:
            return min(as_large)
        return known[max(known)] if known else 0.0
