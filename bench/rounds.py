"""Rounds that count: those of two cells that may be held against each other, and a cell's figure in each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.bench import ceiling, contrast, facts
from penstock.bench.recorded import Cell, Engines

# Cores that others may use in a round that counts: what they take out of caches and turns no clock gives back.
OTHERS = 0.25
# What that does to one thread, as a relative standard deviation (bench/results/compare_aa.txt).
CONTENTION = 0.05
# The share of a core that one thread must have had among others: its median run is then one that nobody broke in on.
_LEAST = 0.5
# The best of five tries each: measured again in the same state they are nearer to each other.
_PEAKS = 0.10
# A control that holds still has so many of its times so near to their median.
_STILL, _MOST = 0.05, 0.9
_AGAIN = "measure both again, or both with --threads 1"

# Seconds, by round.
Ticks = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Counted:
    """The rounds of each side that count, by number; `unable` says why they cannot be compared.

    `variance` is what a contrast's logarithm varies by beside what the rounds show: what others at work do to it, and
    the control's, of each side and from the one to the other.
    """

    old: Sequence[int]
    new: Sequence[int]
    variance: float = 0.0
    unable: str | None = None


def count(cells: tuple[Cell, Cell], results: tuple[Engines, Engines], *, on_gpu: bool) -> Counted:
    """The rounds of a cell that count, in two results: those in which no others were on the cores.

    Of a cell of one thread, where those are too few, all count in which it had half a core at least, and the interval
    is wider.
    A cell that keeps several cores busy is compared only where these ran alike: where the control of as many threads
    held still in both results, and took as long.

    Args:
        cells: the cell in the old and in the new result.
        results: these.
        on_gpu: cores and their control have nothing to do with it.
    """
    same = results[0] == results[1]  # one and the same measurement: whatever disturbed it is on both sides
    threads = max(taken(cell, result) for cell, result in zip(cells, results, strict=True))
    (old, robbed), (new, busy) = (
        usable(len(cell.rounds_s), threads, () if same else result.clock.others_cores, cores(result))
        for cell, result in zip(cells, results, strict=True)
    )
    if min(len(old), len(new)) < contrast.FEWEST:
        missing = len(old) < len(cells[0].rounds_s) or len(new) < len(cells[1].rounds_s)
        why = "others were on the cores" if missing else "a longer run has more"
        return Counted(old, new, unable=f"under {contrast.FEWEST} rounds that count: {why}")
    variance = (robbed + busy) * CONTENTION**2
    if on_gpu or threads == 1 or same:
        return Counted(old, new, variance)
    moved, unable = _controlled(_ticks(results[0], threads), _ticks(results[1], threads), threads)
    return Counted(old, new, variance + moved, unable)


def _controlled(old: Ticks, new: Ticks, threads: int) -> tuple[float, str | None]:
    """What the control adds to the variance of a contrast, and why nothing can be compared, if it cannot."""
    for name, ticks in (("old", old), ("new", new)):
        if not ticks:
            return 0.0, f"no control of {threads} threads in the {name} result; {_AGAIN}"
    speed = _middle(old) / _middle(new)
    if abs(math.log(speed)) > math.log1p(_STILL):
        ran = f"the machine itself ran at {speed:.2f} of its speed with {threads} threads"
        return 0.0, f"{ran}, and cells feel more of it; {_AGAIN}"
    for name, ticks in (("old", old), ("new", new)):
        if not steady(ticks):
            return 0.0, f"the machine's speed with {threads} threads changed within the {name} result; {_AGAIN}"
    sides = [[float(np.median(tick)) for tick in ticks] for ticks in (old, new)]
    return math.log(speed) ** 2 + sum(map(contrast.spread, sides)), None


def steady(ticks: Ticks) -> bool:
    """Whether the control held still: nine tenths of its times are within 5 % of their median."""
    every = np.array([tick for of_round in ticks for tick in of_round])
    return float(np.mean(np.abs(every / np.median(every) - 1) <= _STILL)) >= _MOST


def _middle(ticks: Ticks) -> float:
    return float(np.median([tick for of_round in ticks for tick in of_round]))


def _ticks(result: Engines, threads: int) -> Ticks:
    """The control's times in each round that counts, around the turns of all cells of as many threads."""
    held = [
        cell.control.rounds_s
        for _, cell in result.cells()
        if cell.control and len(cell.control.rounds_s) == len(cell.rounds_s) and taken(cell, result) == threads
    ]
    rounds = min(map(len, held), default=0)
    return [[tick for ticks in held for tick in ticks[number]] for number in idle(rounds, result.clock.others_cores)]


def idle(rounds: int, others: Sequence[float], most: float = OTHERS) -> Sequence[int]:
    """The rounds in which other processes used no more than `most` cores; all where that is not told."""
    if len(others) < rounds:
        return range(rounds)
    return [number for number in range(rounds) if others[number] <= most]


def usable(rounds: int, threads: int, others: Sequence[float], cores: int) -> tuple[Sequence[int], bool]:
    """The rounds of a cell that count, and whether others were at work in them.

    Args:
        rounds: how many there are.
        threads: how many cores the cell keeps busy.
        others: cores that others used in each round; empty where that is not told.
        cores: how many there are.
    """
    quiet = idle(rounds, others)
    if len(quiet) >= contrast.FEWEST or threads > 1:
        return quiet, False
    beside = idle(rounds, others, max(OTHERS, cores - threads * _LEAST))
    return beside, len(beside) > len(quiet)


def cores(result: Engines) -> int:
    """How many the machine has; two where the result does not tell."""
    told = result.environment.get("cores")
    return told if isinstance(told, int) and told > 0 else 2


def taken(cell: Cell, result: Engines) -> int:
    """How many cores the cell keeps busy."""
    return ceiling.cores(cell.threads, cell.streams or 1, cores(result))


def figures(cell: Cell, result: Engines, counted: Sequence[int], *, clocked: bool) -> list[float]:
    """A figure for each round that counts: the median of its runs, over the time of the clock.

    Round by round where that makes the rounds more alike, as it does where the machine drifts meanwhile; else by the
    clock's median, so that what a tick is off by spoils no round.
    """
    middle = [float(np.median(cell.rounds_s[number])) for number in counted]
    ticks = result.clock.rounds_s
    if not clocked or len(ticks) < len(cell.rounds_s) or not middle:
        return middle
    steady = steadied(ticks[: len(cell.rounds_s)])
    whole = [seconds / float(np.median(ticks)) for seconds in middle]
    single = [seconds / steady[number] for seconds, number in zip(middle, counted, strict=True)]
    return single if contrast.spread(single) < contrast.spread(whole) else whole


def steadied(ticks: Sequence[float]) -> list[float]:
    """The median of each tick and its neighbours in time: the machine drifts, a single tick is at times hit.

    A running median of three (Tukey 1977, "Exploratory Data Analysis", chapter 7), the ends by the two that there are.
    """
    around = [ticks[max(0, index - 1) : index + 2] for index in range(len(ticks))]
    return [float(np.median(near) if len(near) == 3 else min(near)) for near in around]


def peaks(old: Engines, new: Engines) -> Iterator[str]:
    """A warning where there is no control and the measured peaks of several cores tell of two states of the machine."""
    told = [{name: held for name, held in _operations(result).items() if name != "1"} for result in (old, new)]
    for cores in told[0].keys() & told[1].keys():
        before, after = told[0][cores], told[1][cores]
        if abs(after / before - 1) > _PEAKS and not (_ticks(old, int(cores)) and _ticks(new, int(cores))):
            yield (
                f"the measured peak of {cores} cores was {before / 1e9:,.0f} G operations/s in the old result and "
                f"{after / 1e9:,.0f} G in the new one: cells of several threads differ by that alone"
            )


def _operations(result: Engines) -> dict[str, float]:
    """float32 operations a second, by a number of cores."""
    told = facts.rates(result.ceiling or {}, "operations_per_s")
    return {cores: rate for cores, kind, rate in told if kind == "float32" and cores.isdigit()}
