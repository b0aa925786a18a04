"""The Pareto front: those that no other beats in one thing without losing in the other."""

from __future__ import annotations

from collections.abc import Sequence


def front(places: Sequence[tuple[float, float]]) -> set[int]:
    """The indices of those that are dominated by none: more is better in both, and equal ones are all on it."""
    found = set()
    for index, (speed, right) in enumerate(places):
        beaten = any(s >= speed and r >= right and (s > speed or r > right) for s, r in places)
        if not beaten:
            found.add(index)
    return found
