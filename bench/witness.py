"""A witness of a measurement: what else is read while runners have their turns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from penstock.bench import clock
from penstock.bench.energy import Meter
from penstock.bench.warnings import Lookout
from penstock.machine import Others
from penstock.timing import Cell, Watch, Work


class Witness(Watch):
    """Reads joules around each turn, and the machine's clock after it; what belongs to a whole round counts.

    Args:
        ticks: gets the seconds of the machine's clock in each round, the median of those of its turns.
        others: gets the cores that other processes had in each round.
        meters: what tells the joules of a cell, by the cell's identity.
        lookout: is told to look after each turn.
    """

    def __init__(self, ticks: list[float], others: list[float], meters: Mapping[int, Meter], lookout: Lookout) -> None:
        self._ticks, self._others, self._meters, self._lookout = ticks, others, meters, lookout
        self._seen = Others()
        self._of_round: list[float] = []
        self._joules: list[tuple[Cell, float]] = []
        self._before: float | None = None

    def before(self, work: Work) -> None:
        self._before = self._meters[id(work.cell)].joules()

    def after(self, work: Work) -> None:
        now = self._meters[id(work.cell)].joules()
        if now is not None and self._before is not None:
            self._joules.append((work.cell, now - self._before))
        self._lookout.look()
        self._of_round.append(clock.tick())

    def round(self) -> None:
        for cell, joules in self._joules:
            cell.joules = (cell.joules or 0.0) + joules
        self._ticks.append(statistics.median(self._of_round) if self._of_round else clock.tick())
        self._others.append(round(self._seen.cores(), 3))
        self._joules, self._of_round, self._seen = [], [], Others()
