"""What a sweep tried and how it went."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from penstock.train.space import Direction

State = Literal["waiting", "running", "finished", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """One combination of values, by path, and how it went; `curve` is the metric by epoch, from 1."""

    number: int
    state: State
    values: dict[str, Any]
    value: float | None = None
    curve: dict[int, float] = field(default_factory=dict)
    seconds: float | None = None
    reason: str | None = None

    def epoch(self, direction: Direction) -> int | None:
        """The epoch of its best value."""
        if not self.curve:
            return None
        sign = 1 if direction == "maximize" else -1
        return max(self.curve, key=lambda epoch: (sign * self.curve[epoch], -epoch))


@dataclass(frozen=True)
class Importance:
    """The share of each field in how the metric varies, by fANOVA (Hutter et al., 2014), the largest first.

    Args:
        shares: by path; empty where trials are too few, or alike, to tell.
        epoch: after which the metric was taken, the last that all `trials` reached; None is each one's own value.
        trials: of how many.
    """

    shares: dict[str, float]
    epoch: int | None
    trials: int
