"""Two results of other times compared, cell by cell: whether anything became slower, beyond noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from penstock.bench import contrast, facts, statistics
from penstock.bench.contrast import Contrast
from penstock.bench.facts import Change
from penstock.bench.recorded import Cell, Engines, Result, Row, Run, Server
from penstock.bench.shares import wilson
from penstock.errors import PenstockError

# Of all comparisons of two results together: the chance that noise makes any of their intervals leave out the truth.
FAMILY_ERROR = 0.01
# Cores that others may use in a round that counts, where a cell wants more than one.
_OTHERS = 0.25
Key = tuple[str | int | float | None, ...]
Verdict = Literal["slower", "faster", "same", "unsure", "worse"]


@dataclass(frozen=True)
class Compared:
    """One figure of one cell or run in both results: seconds, or a second's requests.

    `contrast` is how many times as long the new one takes; None where `unable` says why there is none.
    """

    what: str
    figure: str
    old: float
    new: float
    contrast: Contrast | None
    verdict: Verdict
    unable: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Two results compared; `clocked` tells whether the machine's own speed was taken out."""

    compared: tuple[Compared, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]
    threshold: float
    clocked: bool

    @property
    def regressions(self) -> list[Compared]:
        return [one for one in self.compared if one.verdict in ("slower", "worse")]


@dataclass(frozen=True)
class _Pair:
    """A figure to compare: what its contrast is made of, at whatever confidence the number of them asks for."""

    what: str
    figure: str
    old: float
    new: float
    rounds: tuple[Sequence[float], Sequence[float]] | None = None
    intervals: tuple[tuple[float, float, float], tuple[float, float, float]] | None = None
    unable: str | None = None
    failures: tuple[int, int, int, int] | None = field(default=None)  # failed and asked, old and new


def compare(old: Result, new: Result, threshold: float) -> Comparison:
    """Compare what two results have in common.

    All intervals together hold the truth with 99 %: each is given the confidence 1 - 0.01/m, m being how many there are
    (Bonferroni). What counts as slower is told by `Contrast.slower`.

    Args:
        old: the one that the other is held against.
        new: of the same kind.
        threshold: the slow-down that counts at least, 0.05 for 5 %.

    Raises:
        PenstockError: they are of two kinds, or have nothing in common.
    """
    before, after = _items(old), _items(new)
    both = [key for key in before if key in after]
    if type(old) is not type(new) or not both:
        raise PenstockError(_nothing(old, new, before, after))
    clocked = bool(old.clock.rounds_s and new.clock.rounds_s)
    pairs = [pair for key in both for pair in _pairs(before[key], after[key], old, new)]
    able = sum(pair.unable is None for pair in pairs)
    confidence = 1 - FAMILY_ERROR / max(able, 1)
    differ = facts.changes(old.environment, new.environment)
    return Comparison(
        compared=tuple(_judged(pair, confidence, threshold) for pair in pairs),
        only_old=tuple(_title(before[key]) for key in before if key not in after),
        only_new=tuple(_title(after[key]) for key in after if key not in before),
        changes=tuple(differ),
        warnings=tuple(_warnings(old, new, differ, clocked)),
        threshold=threshold,
        clocked=clocked,
    )


_Item = tuple[Row, Cell] | tuple[Server, Run]


def _items(result: Result) -> dict[Key, _Item]:
    if isinstance(result, Engines):
        return {
            (row.name, cell.batch, cell.threads, cell.streams): (row, cell)
            for row, cell in result.cells()
            if cell.rounds_s
        }
    form = (result.payload.get("form"), result.payload.get("rows"), result.server.get("model"))
    return {
        (*map(str, form), run.mode, run.concurrency if run.mode == "closed" else None, run.rate_per_s): (result, run)
        for run in result.runs
    }


def _title(item: _Item) -> str:
    first, second = item
    if isinstance(second, Run):
        return second.load
    assert isinstance(first, Row)
    return f"{first.name}, {shape(second)}"


def shape(cell: Cell) -> str:
    """`batch 8`, with threads and streams where they were told."""
    extra = [f"{cell.threads} threads" if cell.threads else "", f"{cell.streams} streams" if cell.streams else ""]
    return ", ".join([f"batch {cell.batch}", *filter(None, extra)])


def _nothing(old: Result, new: Result, before: dict[Key, _Item], after: dict[Key, _Item]) -> str:
    if type(old) is not type(new):
        return f"--compare: the one is of {old.kind}, the other of {new.kind}; both must be of one kind"
    held = [", then ".join(dict.fromkeys(map(_title, items.values()))) or "nothing" for items in (before, after)]
    return f"--compare: nothing is in both: the old result has {held[0]:.300}; the new one {held[1]:.300}"


def _pairs(before: _Item, after: _Item, old: Result, new: Result) -> Iterator[_Pair]:
    what = _title(before)
    if isinstance(before[1], Run) and isinstance(after[1], Run):
        yield from _loads(what, before[1], after[1])
        return
    assert isinstance(before[0], Row)
    assert isinstance(before[1], Cell)
    assert isinstance(after[1], Cell)
    clocked = bool(old.clock.rounds_s and new.clock.rounds_s) and not _on_gpu(before[0], old)
    sides = [_rounds(cell, result, clocked) for cell, result in ((before[1], old), (after[1], new))]
    medians = [float(np.median([np.median(part) for part in cell.rounds_s])) for cell in (before[1], after[1])]
    unable = None
    if min(map(len, sides)) < contrast.FEWEST:
        busy = any(len(side) < len(cell.rounds_s) for side, cell in zip(sides, (before[1], after[1]), strict=True))
        why = "others were on the cores" if busy else "a longer run has more"
        unable = f"under {contrast.FEWEST} rounds that count: {why}"
    yield _Pair(what, "median", medians[0], medians[1], rounds=(sides[0], sides[1]), unable=unable)


def _on_gpu(row: Row, result: Result) -> bool:
    """A GPU's speed has nothing to do with that of a core."""
    return row.format == "trt" or str(result.environment.get("device", "cpu")).startswith("cuda")


def _rounds(cell: Cell, result: Engines | Server, clocked: bool) -> list[float]:
    """A figure for each round that counts: the median of its runs, over the time of the clock."""
    middle = [float(np.median(part)) for part in cell.rounds_s if part]
    clock, others = result.clock.rounds_s, result.clock.others_cores
    if clocked and len(clock) >= len(middle):
        middle = [seconds / tick for seconds, tick in zip(middle, clock, strict=False)]
    if cell.threads != 1 and len(others) >= len(middle):
        middle = [seconds for seconds, cores in zip(middle, others, strict=False) if cores <= _OTHERS]
    return middle


def _loads(what: str, old: Run, new: Run) -> Iterator[_Pair]:
    void = old.void or new.void
    unable = f"void: {void}" if void else None
    yield _Pair(
        what,
        "failures",
        _share(old),
        _share(new),
        failures=(sum(old.failures.values()), old.requests, sum(new.failures.values()), new.requests),
        unable=unable or (None if old.requests and new.requests else "no requests"),
    )
    if old.mode == "closed" and old.throughput_per_s and new.throughput_per_s:
        per_s = [[w.throughput_per_s for w in run.windows if w.throughput_per_s] for run in (old, new)]
        yield _windowed(what, "requests/s", 1 / old.throughput_per_s, 1 / new.throughput_per_s, per_s, unable)
    for figure in ("median_s", "p99_s"):
        before, after = getattr(old, figure), getattr(new, figure)
        if before and after:
            windows = [[getattr(w, figure) for w in run.windows if getattr(w, figure)] for run in (old, new)]
            pair = _windowed(what, figure.removesuffix("_s"), before, after, windows, unable)
            yield pair if pair.rounds or unable else _by_intervals(pair, figure, old, new)


def _share(run: Run) -> float:
    return sum(run.failures.values()) / run.requests if run.requests else 0.0


def _windowed(what: str, figure: str, old: float, new: float, windows: list[list[float]], unable: str | None) -> _Pair:
    if min(map(len, windows)) < contrast.FEWEST:
        return _Pair(what, figure, old, new, unable=unable or f"under {contrast.FEWEST} windows of time in a run")
    if figure == "requests/s":  # as seconds for each, so that more is worse as everywhere
        windows = [[1 / value for value in side] for side in windows]
    return _Pair(what, figure, old, new, rounds=(windows[0], windows[1]), unable=unable)


def _by_intervals(pair: _Pair, figure: str, old: Run, new: Run) -> _Pair:
    ends = [getattr(run, figure.replace("_s", "_ci_s")) for run in (old, new)]
    if any(end is None or end[0] <= 0 for end in ends):
        return pair
    sides = (pair.old, *ends[0]), (pair.new, *ends[1])
    return _Pair(pair.what, pair.figure, pair.old, pair.new, intervals=sides)


def _judged(pair: _Pair, confidence: float, threshold: float) -> Compared:
    if pair.unable is not None:
        return Compared(pair.what, pair.figure, pair.old, pair.new, None, "unsure", pair.unable)
    if pair.failures is not None:
        verdict: Verdict = "worse" if _fails_more(*pair.failures, confidence) else "same"
        return Compared(pair.what, pair.figure, pair.old, pair.new, None, verdict)
    if pair.rounds is not None:
        found = contrast.between(*pair.rounds, confidence)
    else:
        assert pair.intervals is not None
        found = contrast.of_intervals(*pair.intervals, statistics.CONFIDENCE, confidence)
    return Compared(pair.what, pair.figure, pair.old, pair.new, found, _verdict(found, threshold))


def _verdict(found: Contrast, threshold: float) -> Verdict:
    if found.slower(threshold):
        return "slower"
    if found.faster(threshold):
        return "faster"
    return "unsure" if found.high > 1 + threshold else "same"


def _fails_more(failed: int, asked: int, fails: int, asks: int, confidence: float) -> bool:
    """Whether the share of failures has grown for certain: Wilson's intervals (1927) of the two lie apart."""
    return wilson(fails, asks, confidence)[0] > wilson(failed, asked, confidence)[1]


def _warnings(old: Result, new: Result, differ: list[Change], clocked: bool) -> Iterator[str]:
    if any(change.of_machine for change in differ):
        yield "the machines differ: what follows compares machines as much as programs"
    elif not old.environment or not new.environment:
        yield "a result tells nothing of its machine: whether the two are of the same one is not known"
    if not clocked and isinstance(old, Engines):
        yield "no clock in both results: a machine that became slower looks like a slower program"
    for name, result in (("old", old), ("new", new)):
        if result.interrupted:
            yield f"the {name} result was interrupted"
        for warned in result.warnings:
            yield f"the {name} result warns: {warned.text}"
