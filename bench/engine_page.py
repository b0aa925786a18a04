"""The page of engines: verdict, latency, throughput, accuracy, distributions, ceilings, every figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from penstock.bench import engine_charts, facts
from penstock.bench.pairs import shape
from penstock.bench.recorded import Cell, Clock, Engines, Interval, Row
from penstock.pages import charts, parts, scales
from penstock.pages.charts import Point, Series
from penstock.pages.markup import element
from penstock.pages.parts import Section, Table, beside, figure, listed, table
from penstock.pages.scales import ms


def title(result: Engines) -> str:
    names = [row.name for row in result.rows]
    if len(names) > 1:
        return f"Benchmark: {len(names)} variants"
    return f"Benchmark: {names[0]}" if names else "Benchmark: nothing was measured"


def lead(result: Engines) -> list[Element]:
    """What it comes to, before everything else."""
    told = facts.of(result.environment)
    cores = f"{told['cores']} cores" if "cores" in told else ""
    where = " · ".join(part for part in (told.get("cpu", ""), cores, told.get("gpu.gpu", told.get("gpu", ""))) if part)
    started = element("span", told["started"], class_="whole") if "started" in told else None
    found = [element("p", f"{where} · " if where and "started" in told else where, started, class_="soft")]
    if result.verdict:
        said = result.verdict.text or f"Fastest within the budget: {result.verdict.fastest}"
        found.append(element("p", said, class_="verdict"))
    else:
        said = "No verdict: " + ("nothing was measured." if not any(result.cells()) else "none was recorded.")
        found.append(element("p", said, class_="verdict"))
    return found


def sections(result: Engines) -> list[Section]:
    """Everything else but the environment, in the order in which one asks."""
    rows = [row for row in result.rows if row.cells]
    found = []
    if rows:
        found += [
            Section("latency", "Latency by batch and precision", [beside(engine_charts.latency(result))]),
            Section("speed", "Throughput against latency", [beside(engine_charts.throughput(result))]),
            Section("accuracy", "Accuracy against speed", engine_charts.accuracy(result)),
            Section("distributions", "Latency distributions", engine_charts.distributions(result)),
            Section("ceilings", "Ceilings and shares", _ceilings(result)),
        ]
    found.append(Section("figures", "All figures", [_all(result), _costs(result), *_unavailable(result)]))
    return found


def _ceilings(result: Engines) -> list[Element]:
    found = engine_charts.shares(result)
    content: list[Element] = [beside(found)] if found else []
    if not content:
        content.append(element("p", "No share of a ceiling was recorded."))
    if result.ceiling:
        content.append(listed(facts.labelled(_peaks(result.ceiling))))
    return content


def _peaks(ceiling: dict[str, Any]) -> dict[str, str]:
    """This machine's peaks, as people read them."""
    found = {}
    for where, kind, rate in facts.rates(ceiling, "operations_per_s"):
        found[f"{_cores(where)}, {kind}"] = f"{rate / 1e9:,.0f} G operations/s"
    for where, size, rate in facts.rates(ceiling, "bytes_per_s"):
        if size.isdigit():
            room = f"{int(size) >> 10:,} KiB" if int(size) < 2**20 else f"{int(size) >> 20:,} MiB"
            found[f"{_cores(where)}, reading {room}"] = f"{rate / 1e9:,.0f} GB/s"
    return {**found, "measured by": str(ceiling.get("measured", ""))} if found else facts.of(ceiling)


def _cores(where: str) -> str:
    return f"{where} core{'s' * (where != '1')}" if where.isdigit() else where


def _all(result: Engines) -> Element:
    columns = [
        "variant",
        "precision",
        "batch",
        "median ms",
        "95 % interval",
        "p90 ms",
        "p95 ms",
        "p99 ms",
        "p99 interval",
    ]
    columns += ["samples", "rows/s", f"speed vs {result.reference or 'reference'}", "share of ceiling", "ceiling ms"]
    columns += ["in ms", "out ms", "J/row"]
    rows = [[row.name, row.precision, *_cell(cell)] for row, cell in result.cells()]
    return table(
        "all", parts.told(Table("Every cell: latency, throughput, ratio, ceiling, transfers, energy", columns, rows))
    )


def _cell(cell: Cell) -> list[str]:
    transfer = cell.transfer_s
    return [
        shape(cell).removeprefix("batch "),
        *(ms(cell.median_s), interval(cell.median_ci_s), ms(cell.p90_s), ms(cell.p95_s), ms(cell.p99_s)),
        *(interval(cell.p99_ci_s), f"{cell.samples:,}", scales.figure(cell.rows_per_second)),
        engine_charts.ratio(cell.ratio),
        "–" if cell.share_of_ceiling is None else f"{cell.share_of_ceiling:.1%}",
        *(ms(cell.ceiling_s), ms(transfer.into if transfer else None), ms(transfer.out if transfer else None)),
        scales.figure(cell.joules_per_row),
    ]


def interval(ends: Interval | None) -> str:
    """The ends of an interval of seconds, in milliseconds."""
    return "–" if ends is None else f"{ms(ends[0])} to {ms(ends[1])}"


def _costs(result: Engines) -> Element:
    columns = ["variant", "format", "precision", "accuracy", "samples", "agrees with source", "model MB", "load s"]
    columns += ["first call ms", "host MB", "device MB"]
    made = Table("Every variant: accuracy, size, start, memory", columns, [_cost(row) for row in result.rows])
    return table("costs", parts.told(made))


def _cost(row: Row) -> list[str]:
    told = [share for share in row.agreement.values() if share is not None]
    memory = row.memory
    return [
        row.name,
        *(row.format, row.precision),
        *((f"{row.accuracy.value:.2%}", f"{row.accuracy.samples:,}") if row.accuracy else ("–", "–")),
        f"{min(told):.2%}" if told else "–",
        *(_mb(row.model_bytes), scales.figure(row.load_s), ms(row.first_call_s)),
        *(_mb(memory.host_bytes if memory else None), _mb(memory.device_bytes if memory else None)),
    ]


def _mb(count: int | None) -> str:
    return scales.figure(None if count is None else count / 1e6)


def _unavailable(result: Engines) -> list[Element]:
    return [element("p", f"{row.name} was not measured: {row.unavailable}") for row in result.rows if row.unavailable]


def clock(told: Clock) -> Element:
    """The machine's own speed by round."""
    ticks = told.rounds_s
    middle = float(np.median(ticks))
    points = [
        Point(index + 1, tick / middle, f"round {index + 1}: {tick / middle:.3f} of the median, {ms(tick)} ms")
        for index, tick in enumerate(ticks)
    ]
    series = [Series("one fixed piece of work", 0, tuple(points))]
    spread = max(ticks) / min(ticks) - 1
    says = f"A fixed piece of work, timed in every round. Between its fastest and slowest round lay {spread:.1%}."
    x = scales.linear("round", [1, len(ticks)], zero=False)
    y = scales.linear("time, of its median", [point.y for point in points], zero=False)
    chart = charts.plot("clock", "The machine's own speed", says, series, x, y)
    behind: Sequence[Sequence[str]] = [[str(index + 1), ms(tick)] for index, tick in enumerate(ticks)]
    made = figure("clock", "The machine's own speed", chart, says, Table("By round", ("round", "ms"), behind))
    return beside([made])
