"""How long batches take at least, as measured of late: what a deadline is held against before its request is queued."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

# A measurement counts for one window to two. Once nothing is left of a kind, its next request is taken untried: what
# was slow for a while, as a model is at first, must not keep refusing what would show that it is no more.
_WINDOW_S = 10.0
_MOST_KINDS = 256


# Fewer measurements may all have been disturbed.
_LEAST_SAMPLES = 3


@dataclass(slots=True)
class _Least:
    """The shortest time in this window, and in the one before, in seconds; how many there were in both."""

    since: float
    current: float
    former: float
    count: int = 1
    former_count: int = 0


class Curve:
    """By the kind of rows, and their number: the shortest time that a batch has taken of late.

    More rows take no less than fewer, so n rows take at least what the largest measured size up to n takes; and that
    takes no more than any larger one did. Only for what takes as long whatever the values are: whoever tells of a batch
    sees to that.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, dict[int, _Least]] = {}
        # What was asked of a kind since its measurements changed, by rows, and until when that holds: every request
        # that comes while many wait asks, and looking through some hundred sizes takes longer than all else it costs.
        self._asked: dict[Hashable, tuple[float, dict[int, float]]] = {}
        # The longest of this window, and of the one before.
        self._since, self._longest_s, self._former_s = 0.0, 0.0, 0.0
        # What no batch has taken longer than, of late.
        self.longest_s = 0.0

    def told(self, kind: Hashable, rows: int, seconds: float, now: float) -> None:
        """A batch of `rows` was computed in `seconds`, and ended at `now`, on a clock that does not go back."""
        sizes = self._kinds.get(kind)
        if sizes is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
                self._asked.clear()
            sizes = self._kinds[kind] = {}
        if now - self._since > _WINDOW_S:
            self._former_s = self._longest_s if now - self._since <= 2 * _WINDOW_S else 0.0
            self._since, self._longest_s = now, 0.0
        self._longest_s = max(self._longest_s, seconds)
        self.longest_s = max(self._longest_s, self._former_s)
        held = sizes.get(rows)
        if held is None or now - held.since > 2 * _WINDOW_S:
            sizes[rows] = _Least(now, seconds, seconds)
        elif now - held.since > _WINDOW_S:
            sizes[rows] = _Least(now, seconds, held.current, 1, held.count)
        else:
            held.count += 1
            if seconds >= held.current and held.count + held.former_count > _LEAST_SAMPLES:
                return  # nothing that was found is different now
            held.current = min(held.current, seconds)
        self._asked.pop(kind, None)

    def at_least(self, kind: Hashable, rows: int, now: float) -> float:
        """Seconds that a batch of so many rows takes at least; 0 where too little is known of its kind."""
        if kind not in self._kinds:
            return 0.0
        until, found = self._asked.get(kind, (now, {}))
        if now >= until:
            fresh = [held.since for held in self._kinds[kind].values() if now - held.since <= 2 * _WINDOW_S]
            until, found = min(fresh, default=now) + 2 * _WINDOW_S, {}
            self._asked[kind] = until, found
        if rows not in found:
            found[rows] = self._look(kind, rows, now)
        return found[rows]

    def _look(self, kind: Hashable, rows: int, now: float) -> float:
        known = {size: held for size, held in self._kinds[kind].items() if now - held.since <= 2 * _WINDOW_S}
        below = max((size for size in known if size <= rows), default=None)
        if below is None:
            return 0.0
        counted = [held for size, held in known.items() if size >= below]
        if sum(held.count + held.former_count for held in counted) < _LEAST_SAMPLES:
            return 0.0
        return min(min(held.current, held.former) for held in counted)
