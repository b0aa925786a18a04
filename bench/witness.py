"""A witness of a measurement: what else is read while runners have their turns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from penstock.bench import clock
from penstock.bench.control import Control
from penstock.bench.energy import Meter
from penstock.bench.warnings import Lookout
from penstock.machine import Others
from penstock.timing import Cell, Watch, Work


class Witness(Watch):
    """Reads joules and controls around each turn, the machine's clock after it; what belongs to a whole round counts.

    Args:
        ticks: gets the seconds of the machine's clock in each round, the median of those of its turns.
        others: gets the cores that other processes had in each round.
        meters: what tells the joules of a cell, by the cell's identity.
        lookout: is told to look after each turn.
        controls: of cells that keep several cores busy, by the cell's identity.
    """

    def __init__(
        self,
        ticks: list[float],
        others: list[float],
        meters: Mapping[int, Meter],
        lookout: Lookout,
        controls: Mapping[int, Control],
    ) -> None:
        self._ticks, self._others, self._meters, self._lookout = ticks, others, meters, lookout
        self._controls = controls
        self._seen = Others()
        self._of_round: list[float] = []
        self._joules: list[tuple[Cell, float]] = []
        self._controlled: list[tuple[Cell, tuple[float, float]]] = []
        self._before: float | None = None
        self._tick: float | None = None

    def before(self, work: Work) -> None:
        control = self._controls.get(id(work.cell))
        self._tick = control.tick() if control else None
        self._before = self._meters[id(work.cell)].joules()

    def after(self, work: Work) -> None:
        now = self._meters[id(work.cell)].joules()
        if now is not None and self._before is not None:
            self._joules.append((work.cell, now - self._before))
        self._lookout.look()
        self._of_round.append(clock.tick())  # and meanwhile a runtime's threads stop to wait for more
        if self._tick is not None:
            self._controlled.append((work.cell, (self._tick, self._controls[id(work.cell)].tick())))

    def round(self) -> None:
        for cell, joules in self._joules:
            cell.joules = (cell.joules or 0.0) + joules
        for cell, ticks in self._controlled:
            cell.controls.append(ticks)
        self._ticks.append(statistics.median(self._of_round) if self._of_round else clock.tick())
        self._others.append(round(self._seen.cores(), 3))
        self._joules, self._controlled, self._of_round, self._seen = [], [], [], Others()
