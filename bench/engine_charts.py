"""Charts of engines: latency, throughput, accuracy with its Pareto front, distributions, shares of ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

import numpy as np

from penstock.bench import statistics
from penstock.bench.pareto import front
from penstock.bench.recorded import Cell, Engines, Ratio, Row
from penstock.bench.shares import wilson
from penstock.pages import charts, parts, scales
from penstock.pages.charts import Bar, Point, Series
from penstock.pages.markup import element
from penstock.pages.parts import Table, beside, figure
from penstock.pages.scales import ms

_PLACES = 120
_MOST = 99.9  # a single freak would else take most of an axis
_TAILS = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Line:
    """The cells of a variant that differ in their batch alone, and the style that is theirs in every chart."""

    name: str
    row: Row
    cells: tuple[Cell, ...]
    style: int


def lines(result: Engines) -> list[Line]:
    """A line for each variant, threads and streams, with the precision beside its name where that does not say it."""
    held: dict[tuple[int, int | None, int | None], list[Cell]] = {}
    for index, row in enumerate(result.rows):
        for cell in row.cells:
            if cell.median_s:
                held.setdefault((index, cell.threads, cell.streams), []).append(cell)
    many = {len({key[place] for key in held}) > 1 for place in (1, 2)} == {True} or len(held) > len(
        {k[0] for k in held}
    )
    made = []
    for style, ((index, threads, streams), cells) in enumerate(held.items()):
        row = result.rows[index]
        words = [row.name if row.precision in row.name else f"{row.name} ({row.precision})"]
        if many:
            words += [f"{threads} threads"] if threads else []
            words += [f"{streams} streams"] if streams else []
        made.append(Line(", ".join(words), row, tuple(sorted(cells, key=lambda cell: cell.batch)), style))
    return made


def latency(result: Engines) -> list[Element]:
    """Latency over batch size, and for each batch size the speed against the reference."""
    series = []
    for line in lines(result):
        points = [
            Point(cell.batch, (cell.median_s or 0) * 1e3, _says(cell), y_ends=_in_ms(cell)) for cell in line.cells
        ]
        series.append(Series(line.name, line.style, tuple(points)))
    x = scales.at("batch, rows", [point.x for one in series for point in one.points])
    y = scales.logarithmic("median, ms", [point.y for one in series for point in one.points])
    chart = charts.plot("latency-batch", "Latency by batch", parts.joined(series), series, x, y)
    says = "Both axes are logarithmic; lower is better. Whiskers are 95 % intervals of the median."
    behind = _table("Median latency in ms", result, lambda cell: ms(cell.median_s))
    found = [figure("latency-batch", "Latency by batch", chart, says, behind, series)]
    return found + _ratios(result)


def _says(cell: Cell) -> str:
    return f"batch {cell.batch}: {ms(cell.median_s)} ms, {scales.figure(cell.rows_per_second)} rows/s"


def _in_ms(cell: Cell) -> tuple[float, float] | None:
    return (cell.median_ci_s[0] * 1e3, cell.median_ci_s[1] * 1e3) if cell.median_ci_s else None


def _table(caption: str, result: Engines, show: object) -> Table:
    assert callable(show)
    batches = sorted({cell.batch for _, cell in result.cells()})
    rows = []
    for line in lines(result):
        by_batch = {cell.batch: cell for cell in line.cells}
        rows.append([line.name, *(show(by_batch[b]) if b in by_batch else "–" for b in batches)])
    return Table(caption, ["variant", *(f"batch {b}" for b in batches)], rows)


def ratio(told: Ratio | None) -> str:
    if told is None:
        return "–"
    return f"{told.value:.2f}" + (f" ({told.ends[0]:.2f} to {told.ends[1]:.2f})" if told.ends else "")


def _ratios(result: Engines) -> list[Element]:
    found = []
    every = [cell.ratio for _, cell in result.cells() if cell.ratio]
    if len(every) < 2:
        return []
    x = scales.logarithmic(
        "times as fast, logarithmic", [end for r in every for end in (r.value, *(r.ends or ()), 1.0)]
    )
    for batch in sorted({cell.batch for _, cell in result.cells()}):
        rows = [
            Bar(line.name, cell.ratio.value, ratio(cell.ratio), line.style, cell.ratio.ends)
            for line in lines(result)
            for cell in line.cells
            if cell.batch == batch and cell.ratio
        ]
        if rows:
            title, key = f"Speed against {result.reference}, batch {batch}", f"ratio-{batch}"
            words = "; ".join(f"{row.name}: {row.says}" for row in rows) + "."
            chart = charts.bars(key, title, words, rows, x, origin=1.0, filled=False)
            says = "Right of the dashed line is faster; an interval that crosses it tells of no difference."
            behind = Table("Times as fast, with its interval", ("variant", "ratio"), [[r.name, r.says] for r in rows])
            found.append(figure(key, title, chart, says, behind))
    return found


def throughput(result: Engines) -> list[Element]:
    """Rows a second over latency: one line for each variant, along its batch sizes."""
    series = []
    for line in lines(result):
        points = [
            Point(
                (cell.median_s or 0) * 1e3,
                cell.rows_per_second,
                _says(cell),
                label=str(cell.batch) if cell in (line.cells[0], line.cells[-1]) else "",
            )
            for cell in line.cells
            if cell.rows_per_second
        ]
        if points:
            series.append(Series(line.name, line.style, tuple(points)))
    x = scales.logarithmic("median latency, ms", [point.x for one in series for point in one.points])
    y = scales.logarithmic("rows/s", [point.y for one in series for point in one.points])
    chart = charts.plot("throughput-latency", "Throughput against latency", parts.joined(series), series, x, y)
    says = "Up and to the left is better. The numbers are batch sizes; both axes are logarithmic."
    behind = _table("Rows a second", result, lambda cell: scales.figure(cell.rows_per_second))
    return [figure("throughput-latency", "Throughput against latency", chart, says, behind, series)]


def accuracy(result: Engines) -> list[Element]:
    """Accuracy over the best throughput of each variant, and those that no other beats in both."""
    scored = [line for line in lines(result) if line.row.accuracy and any(c.rows_per_second for c in line.cells)]
    if not scored:
        return [element("p", "No accuracy was measured: the artifacts' data set is not here; --data gives one.")]
    places = []
    for line in scored:
        best = max(line.cells, key=lambda cell: cell.rows_per_second or 0)
        assert line.row.accuracy
        places.append((best.rows_per_second or 0.0, line.row.accuracy.value, best))
    on_front = front([(speed, right) for speed, right, _ in places])
    series, behind = [], []
    for index, (line, (speed, right, best)) in enumerate(zip(scored, places, strict=True)):
        assert line.row.accuracy
        low, high = wilson(round(right * line.row.accuracy.samples), line.row.accuracy.samples, statistics.CONFIDENCE)
        best_of = index in on_front
        says = f"{right:.2%} ({low:.2%} to {high:.2%}) at {scales.figure(speed)} rows/s, batch {best.batch}"
        point = Point(speed, right * 100, says, y_ends=(low * 100, high * 100), hollow=not best_of)
        name = f"{line.name}, on the front" if best_of else line.name
        series.append(Series(name, line.style, (point,), line=False))
        shown = "yes" if best_of else "no"
        behind.append([line.name, f"{right:.2%}", f"{low:.2%} to {high:.2%}", scales.figure(speed), shown])
    chosen = sorted(places[index][:2] for index in on_front)
    path = Series("Pareto front", 7, tuple(Point(s, a * 100, marked=False) for s, a in chosen), steps=True)
    x = scales.logarithmic("rows/s at its best batch", [speed for speed, _, _ in places])
    ends = [end for one in series for point in one.points if point.y_ends for end in point.y_ends]
    y = scales.linear("accuracy, %", ends, zero=False)
    words = parts.joined(series)
    chart = charts.plot("accuracy-speed", "Accuracy against speed", words, [path, *series], x, y)
    says = (
        "Up and to the right is better. Filled marks are on the Pareto front: no other is as accurate and faster, or "
        "as fast and more accurate. Whiskers are Wilson's 95 % intervals."
    )
    columns = ("variant", "accuracy", "95 % interval", "rows/s", "on the front")
    made = Table("Accuracy and best throughput", columns, behind)
    return [beside([figure("accuracy-speed", "Accuracy against speed", chart, says, made, series)])]


def distributions(result: Engines) -> list[Element]:
    """For each batch size how many runs took how long at most."""
    found = []
    for batch in sorted({cell.batch for _, cell in result.cells()}):
        series, behind = [], []
        for line in lines(result):
            for cell in line.cells:
                samples = np.sort([seconds for part in cell.rounds_s for seconds in part]) * 1e3
                if cell.batch == batch and len(samples):
                    series.append(_cumulative(line, samples))
                    tails = [scales.figure(float(np.quantile(samples, q))) for q in (0, 0.25, 0.5, 0.75, 0.9)]
                    behind.append([line.name, *tails, scales.figure(float(samples[-1])), f"{len(samples):,}"])
        if series:
            found.append(_distribution(batch, series, behind))
    return [beside(found)] if found else [element("p", "The raw samples were not kept.")]


def _cumulative(line: Line, samples: np.ndarray) -> Series:
    """The share of runs that took no longer, at places even in share, dense at the ends; marks at p50, p90, p99."""
    tails = np.concatenate([np.linspace(0, 1, _PLACES), 1 - np.logspace(-4, -1, 30), _TAILS])
    points = []
    for share in np.unique(tails):
        told = any(abs(share - tail) < 1e-9 for tail in _TAILS)
        value = float(np.quantile(samples, share))
        points.append(
            Point(
                value, float(share) * 100, f"p{share * 100:.3g}: {scales.figure(value)} ms" if told else "", marked=told
            )
        )
    return Series(line.name, line.style, tuple(points))


def _distribution(batch: int, series: Sequence[Series], behind: Sequence[Sequence[str]]) -> Element:
    key, title = f"distribution-{batch}", f"Batch {batch}: runs that took no longer"
    x = scales.logarithmic("latency, ms", [point.x for one in series for point in one.points if point.y <= _MOST])
    y = scales.linear("runs, %", [0, 100])
    told = []
    for one in series:
        said = ", ".join(point.says for point in one.points if point.says)
        told.append(f"{one.name}: {said}")
    chart = charts.plot(key, title, "; ".join(told) + ".", series, x, y)
    says = "Marks at p50, p90 and p99. A steep line is a steady engine; a long foot to the right a tail."
    columns = ("variant", "fastest ms", "p25", "p50", "p75", "p90", "slowest", "runs")
    return figure(key, title, chart, says, Table("Samples of all rounds", columns, behind), series)


def shares(result: Engines) -> list[Element]:
    """For each batch size how near each variant comes to what this machine could do."""
    found = []
    for batch in sorted({cell.batch for _, cell in result.cells()}):
        rows = [
            Bar(line.name, cell.share_of_ceiling * 100, f"{cell.share_of_ceiling:.1%}", line.style)
            for line in lines(result)
            for cell in line.cells
            if cell.batch == batch and cell.share_of_ceiling is not None
        ]
        if rows:
            key, title = f"share-{batch}", f"Share of the ceiling, batch {batch}"
            x = scales.linear("% of the ceiling", [0, 100, *(row.value for row in rows)])
            words = "; ".join(f"{row.name}: {row.says}" for row in rows) + "."
            chart = charts.bars(key, title, words, rows, x, origin=0.0, filled=True)
            says = (
                "The ceiling is the time that the model's operations and bytes take at this machine's measured peaks."
            )
            behind = Table("Share of the ceiling", ("variant", "share"), [[row.name, row.says] for row in rows])
            found.append(figure(key, title, chart, says, behind))
    return found
