"""The verdict: the fastest variant that keeps the accuracy, ties going to the more precise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock import options
from penstock.bench.statistics import Ratio, ratio
from penstock.timing import Cell

# From the most precise to the least.
_ORDER = options.EVERY_PRECISION
# Two loads of one file lie elsewhere in memory, and differ by 1 to 2 % all the time that they are there.
_SAME = 0.02
# 0.99 - 0.98 is more than 0.01 in binary.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Candidate:
    """A variant: what it loses of the reference's accuracy, 0 to 1 (None: not known), and its cell of a setting."""

    name: str
    precision: str
    loss: float | None
    cell: Cell

    def within(self, budget: float) -> bool:
        """Whether it may win; one of which nothing is known passed its gate, and may."""
        return self.loss is None or self.loss <= budget + _ROUNDING

    @property
    def rank(self) -> int:
        return _ORDER.index(self.precision) if self.precision in _ORDER else len(_ORDER)


@dataclass(frozen=True)
class Choice:
    """The winner of a setting; `tied` is the faster one whose lead is no certain one, and `lead` that of it."""

    winner: Candidate
    tied: Candidate | None = None
    lead: Ratio | None = None


def choose(candidates: Sequence[Candidate], budget: float) -> Choice | None:
    """The fastest within the budget; a more precise one that is not slower for certain wins instead.

    Slower for certain: the whole interval of the ratio of rounds (`penstock.bench.statistics`) is over 1, and by more
    than two loads of one file may differ. Among one precision the faster wins, certain or not.

    Args:
        candidates: cells of one setting, measured in the same rounds.
        budget: the accuracy that may be lost, 0 to 1.
    """
    able = [one for one in candidates if one.cell.rounds and one.within(budget)]
    if not able:
        return None
    fastest = max(able, key=lambda one: one.cell.rows_per_second)
    leads = {one.name: ratio(fastest.cell.rounds, one.cell.rounds) for one in able if one.rank < fastest.rank}
    ties = [one for one in able if one.name in leads and leads[one.name].low <= 1 + _SAME]
    if not ties:
        return Choice(fastest)
    winner = min(ties, key=lambda one: (one.rank, -one.cell.rows_per_second))
    return Choice(winner, fastest, leads[winner.name])


def loss(accuracy: float | None, reference: float | None, agreement: float | None) -> float | None:
    """What a variant loses of the reference's accuracy, 0 to 1.

    Where there is no accuracy, the share of rows in which its answer is another than the source's: no more can be lost.
    """
    if accuracy is not None and reference is not None:
        return max(0.0, reference - accuracy)
    return None if agreement is None else 1.0 - agreement
