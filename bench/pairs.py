"""Pairs: what two results have in common, and the figures of each that are held against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.bench import contrast, rounds
from penstock.bench.recorded import Cell, Engines, Result, Row, Run, Server
from penstock.bench.rounds import Counted

Key = tuple[str | int | float | None, ...]
Item = tuple[Row, Cell] | tuple[Server, Run]


def items(result: Result) -> dict[Key, Item]:
    """What can be compared, by what it is matched by."""
    if isinstance(result, Engines):
        return {
            (row.name, cell.batch, cell.threads, cell.streams): (row, cell)
            for row, cell in result.cells()
            if cell.rounds_s
        }
    form = (result.payload.get("form"), result.payload.get("rows"), result.server.get("model"))
    found: dict[Key, Item] = {}
    # Probes are short, and only find the way; so is the guess before them, which counts where no other has its load.
    told = [run for run in result.runs if run.purpose != "probe"]
    for run in sorted(told, key=lambda run: run.purpose == "guess"):
        load = run.mode, run.concurrency if run.mode == "closed" else None, run.rate_per_s
        found.setdefault((*map(str, form), *load), (result, run))
    return found


def title(item: Item) -> str:
    """What an item is called."""
    first, second = item
    if isinstance(second, Run):
        return second.load
    assert isinstance(first, Row)
    return f"{first.name}, {shape(second)}"


def shape(cell: Cell) -> str:
    """`batch 8`, with threads where they were told, and streams where there are several."""
    words = [f"batch {cell.batch}"]
    if cell.threads:
        words.append(f"{cell.threads} thread{'s' * (cell.threads != 1)}")
    if cell.streams and cell.streams > 1:
        words.append(f"{cell.streams} streams")
    return ", ".join(words)


@dataclass(frozen=True)
class Pair:
    """A figure to compare: what its contrast is made of, at whatever confidence the number of them asks for."""

    what: str
    figure: str
    old: float
    new: float
    rounds: tuple[Sequence[float], Sequence[float]] | None = None
    intervals: tuple[tuple[float, float, float], tuple[float, float, float]] | None = None
    unable: str | None = None
    failures: tuple[int, int, int, int] | None = None  # failed and asked, old and new
    counted: Counted | None = None
    loads: tuple[float, float] = (1, 1)
    model: str = ""


def of(before: Item, after: Item, old: Result, new: Result) -> Iterator[Pair]:
    """The figures of one item in two results that are to be compared."""
    what = title(before)
    if isinstance(before[1], Run) and isinstance(after[1], Run):
        yield from _loads(what, before[1], after[1])
        return
    assert isinstance(before[0], Row)
    assert isinstance(before[1], Cell)
    assert isinstance(after[1], Cell)
    assert isinstance(old, Engines)
    assert isinstance(new, Engines)
    cells, on_gpu = (before[1], after[1]), _on_gpu(before[0], old)
    clocked = bool(old.clock.rounds_s and new.clock.rounds_s) and not on_gpu
    counted = rounds.count(cells, (old, new), on_gpu=on_gpu)
    middle = [float(np.median([np.median(part) for part in cell.rounds_s])) for cell in cells]
    yield Pair(
        what,
        "median",
        middle[0],
        middle[1],
        rounds=(
            rounds.figures(cells[0], old, counted.old, clocked=clocked),
            rounds.figures(cells[1], new, counted.new, clocked=clocked),
        ),
        counted=counted,
        unable=counted.unable,
        loads=(cells[0].loads, cells[1].loads),
        model=before[0].name,
    )


def together(pairs: list[Pair]) -> list[Pair]:
    """All cells as one: what is too little to be seen in each may be certain of all.

    The geometric mean over cells, for each round. What loading anew does to a model it does to all cells of it, and
    differs from model to model.
    """
    able = [pair for pair in pairs if pair.unable is None and pair.rounds and pair.counted]
    models = len({pair.model for pair in able})
    sides = [_common(able, side) for side in (0, 1)]
    if len(able) < 2 or min(len(side[0]) for side in sides) < contrast.FEWEST:
        return []
    means = [np.exp(np.mean(np.log(side), axis=0)).tolist() for side in sides]
    told = [float(np.exp(np.mean([np.log(pair.old if side == 0 else pair.new) for pair in able]))) for side in (0, 1)]
    fewest = [min(pair.loads[side] for pair in able) * models for side in (0, 1)]
    return [
        Pair(
            f"all {len(able)} together",
            "mean",
            told[0],
            told[1],
            rounds=(means[0], means[1]),
            counted=Counted((), (), variance=max(pair.counted.variance for pair in able if pair.counted)),
            loads=(fewest[0], fewest[1]),
        )
    ]


def _common(pairs: list[Pair], side: int) -> list[list[float]]:
    """The figures of each on one side, of the rounds that count in all of them."""
    held = [
        dict(zip((pair.counted.old, pair.counted.new)[side], pair.rounds[side], strict=True))
        for pair in pairs
        if pair.counted and pair.rounds
    ]
    numbers = sorted(set.intersection(*map(set, held))) if held else []
    return [[figures[number] for number in numbers] for figures in held] or [[]]


def _on_gpu(row: Row, result: Result) -> bool:
    """A GPU's speed has nothing to do with that of a core."""
    return row.format == "trt" or str(result.environment.get("device", "cpu")).startswith("cuda")


def _loads(what: str, old: Run, new: Run) -> Iterator[Pair]:
    void = old.void or new.void
    unable = f"void: {void}" if void else None
    yield Pair(
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


def _windowed(what: str, figure: str, old: float, new: float, windows: list[list[float]], unable: str | None) -> Pair:
    if min(map(len, windows)) < contrast.FEWEST:
        return Pair(what, figure, old, new, unable=unable or f"under {contrast.FEWEST} windows of time in a run")
    if figure == "requests/s":  # as seconds for each, so that more is worse as everywhere
        windows = [[1 / value for value in side] for side in windows]
    return Pair(what, figure, old, new, rounds=(windows[0], windows[1]), unable=unable)


def _by_intervals(pair: Pair, figure: str, old: Run, new: Run) -> Pair:
    ends = [getattr(run, figure.replace("_s", "_ci_s")) for run in (old, new)]
    if any(end is None or end[0] <= 0 for end in ends):
        return pair
    sides = (pair.old, *ends[0]), (pair.new, *ends[1])
    return Pair(pair.what, pair.figure, pair.old, pair.new, intervals=sides)
