"""Charts of a server: throughput and latency over load, latency by percentile, stages, failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.etree.ElementTree import Element

import numpy as np

from penstock.bench import loads
from penstock.bench.recorded import Run, Server
from penstock.pages import charts, parts, scales
from penstock.pages.charts import Bar, Point, Series
from penstock.pages.markup import element
from penstock.pages.parts import Table, beside, figure, table
from penstock.pages.scales import Scale, ms

_TAILS = ("median", "p90", "p99")
_STAGES = ("client", "network", "server", "queue", "compute")
_RUNS = 8


def load(result: Server) -> list[Element]:
    """Throughput and latency over connections (closed loop), and over the rate that was offered (open loop)."""
    runs = shown(result)
    closed = sorted((run for run in runs if run.mode == "closed" and run.concurrency), key=_connections)
    limit = result.slo.slo_ms if result.slo else None
    found = []
    if closed:
        found += [_rate(closed), _latency("closed", "connections", "closed", closed, _connections, limit)]
    for number, mode in enumerate(dict.fromkeys(run.mode for run in runs if run.rate_per_s)):
        offered = sorted((run for run in runs if run.mode == mode and run.rate_per_s), key=_offered)
        found.append(_latency(f"open-{number}", "offered, requests/s", mode, offered, _offered, limit))
    return found


def shown(result: Server) -> list[Run]:
    """The runs that charts hold: short ones, which only find the way of a search, where their mode has no others."""
    long = {run.mode for run in result.runs if run.purpose not in loads.SHORT}
    return [run for run in result.runs if run.purpose not in loads.SHORT or run.mode not in long]


def _connections(run: Run) -> float:
    return float(run.concurrency or 0)


def _offered(run: Run) -> float:
    return run.rate_per_s or 0.0


def _rate(runs: Sequence[Run]) -> Element:
    points = [
        Point(
            _connections(run),
            run.throughput_per_s or 0,
            f"{run.marked}: {scales.figure(run.throughput_per_s)} requests/s{_void(run)}",
            hollow=run.void is not None,
        )
        for run in runs
    ]
    series = [Series("requests/s", 0, tuple(points))]
    x = scales.at("connections", [point.x for point in points])
    y = scales.linear("requests/s", [point.y for point in points])
    chart = charts.plot("throughput", "Throughput by connections", parts.joined(series), series, x, y)
    says = "Where the line no longer rises lies the capacity. Hollow marks do not count."
    rows = [[run.marked, scales.figure(run.throughput_per_s), "no" if run.void else "yes"] for run in runs]
    return figure(
        "throughput",
        "Throughput by connections",
        chart,
        says,
        Table("Throughput", ("load", "requests/s", "counts"), rows),
    )


def _void(run: Run) -> str:
    return f" (does not count: {run.void})" if run.void else ""


def _latency(
    place: str, axis: str, mode: str, runs: Sequence[Run], along: Callable[[Run], float], limit: float | None
) -> Element:
    series = []
    for style, name in enumerate(_TAILS):
        points = [_tail(run, name, along(run)) for run in runs if getattr(run, f"{name}_s")]
        if points:
            series.append(Series(name, style, tuple(points)))
    key, title = f"latency-{place}", f"Latency by {axis.split(',')[0]} ({mode})".replace("offered", "rate")
    x = scales.at(axis, [along(run) for run in runs])
    values = [point.y for one in series for point in one.points]
    y = scales.logarithmic("latency, ms", [*values, limit] if limit else values)
    chart = charts.plot(key, title, parts.joined(series), series, x, y, limit)
    line = f" The dashed line is the limit of {limit:g} ms." if limit else ""
    says = f"Lower is better; the latency axis is logarithmic. Whiskers are 95 % intervals.{line}"
    rows = [[run.marked, ms(run.median_s), ms(run.p90_s), ms(run.p99_s), "no" if run.void else "yes"] for run in runs]
    return figure(
        key, title, chart, says, Table("Latency", ("load", "median ms", "p90 ms", "p99 ms", "counts"), rows), series
    )


def _tail(run: Run, name: str, along: float) -> Point:
    ends = getattr(run, f"{name}_ci_s")
    seconds = getattr(run, f"{name}_s")
    says = f"{run.marked}: {name} {ms(seconds)} ms{_void(run)}"
    whiskers = (ends[0] * 1e3, ends[1] * 1e3) if ends else None
    return Point(along, seconds * 1e3, says, y_ends=whiskers, hollow=run.void is not None)


def percentiles(result: Server) -> list[Element]:
    """Latency at each percentile; the axis is stretched towards 100 %, where the slow requests are."""
    found = []
    for number, mode in enumerate(dict.fromkeys(run.mode for run in shown(result))):
        runs = [run for run in shown(result) if run.mode == mode and len(run.latencies_s) > 1]
        if len(runs) > _RUNS:  # those between are between the others
            runs = [runs[round(place)] for place in np.linspace(0, len(runs) - 1, _RUNS)]
        if runs:
            found.append(_by_percentile(number, mode, runs))
    return found


def _by_percentile(number: int, mode: str, runs: Sequence[Run]) -> Element:
    most = max(len(run.latencies_s) for run in runs)
    shown = [share for share in (0.5, 0.9, 0.99, 0.999, 0.9999) if most * (1 - share) >= 1] or [0.5]
    series, rows = [], []
    for style, run in enumerate(runs):
        latencies = np.sort(run.latencies_s) * 1e3
        # Beyond the last sample but one a percentile is that one sample.
        last = min(1 - 1 / len(latencies), shown[-1])
        shares = np.unique([*(1 - np.logspace(0, np.log10(1 - last), 60)), *(s for s in shown if s <= last)])
        points = []
        for share in shares:
            value, told = float(np.quantile(latencies, share)), any(abs(share - tail) < 1e-12 for tail in shown)
            says = f"p{share * 100:.6g}: {scales.figure(value)} ms" if told else ""
            points.append(Point(1 / (1 - float(share)), value, says, marked=told))
        series.append(Series(run.marked, style, tuple(points)))
        rows.append([run.marked, *(_quantile(latencies, share) for share in shown)])
    ticks = tuple((1 / (1 - share), f"{share * 100:.6g}") for share in shown)
    x = Scale("percentile", 1.0, 1 / (1 - shown[-1]) * 1.1, True, ticks)
    y = scales.logarithmic("latency, ms", [point.y for one in series for point in one.points])
    key, title = f"percentiles-{number}", f"Latency by percentile ({mode})"
    words = "; ".join(f"{one.name}: " + ", ".join(p.says for p in one.points if p.says) for one in series) + "."
    chart = charts.plot(key, title, words, series, x, y)
    says = "To the right are the slowest requests: each step of the axis is a tenth of those left of it."
    made = Table("Latency in ms at percentiles", ["load", *(f"p{share * 100:.6g}" for share in shown)], rows)
    return figure(key, title, chart, says, made, series)


def _quantile(latencies: np.ndarray, share: float) -> str:
    return scales.figure(float(np.quantile(latencies, share))) if len(latencies) * (1 - share) >= 1 else "–"


def stages(result: Server) -> list[Element]:
    """Which share of a request's time goes by in client, network, server, queue and compute, for each run."""
    held = []
    for run in shown(result):
        parts_s = [getattr(run.stages_s, name, None) or 0.0 for name in _STAGES]
        if sum(parts_s) > 0 and not run.void:
            held.append((run, parts_s))
    if not held:
        return [element("p", _unsplit(result))]
    rows = [(run.marked, f"{ms(sum(found))} ms", [100 * part / sum(found) for part in found]) for run, found in held]
    told = ["; ".join(f"{name} {ms(part)} ms" for name, part in zip(_STAGES, found, strict=True)) for _, found in held]
    words = ". ".join(f"{run.marked}: {said}" for (run, _), said in zip(held, told, strict=True)) + "."
    chart = charts.stacks(
        "stages", "Share of the mean time by stage", words, rows, scales.linear("% of the mean", [0, 100])
    )
    legend = [Series(name, style, (), line=False) for style, name in enumerate(_STAGES)]
    behind = [[run.marked, *map(ms, found), ms(sum(found))] for run, found in held]
    made = Table("Mean time in ms", ("load", *_STAGES, "sum"), behind)
    says = (
        "The mean of a request stands at the right. Queue, compute and the rest of the server's time are by its own "
        "counters; the network's is what is left of the way there and back."
    )
    return [beside([parts.figure("stages", "Where the mean time goes", chart, says, made, legend, blocks=True)])]


def _unsplit(result: Server) -> str:
    """Why no run's time was split."""
    if result.loadgen:
        return "LoadGen's runs are not split: its queries are asked by threads that time nothing but the whole."
    runs = shown(result)
    if runs and all(run.ended for run in runs):
        return "The time was not split: the runs ended before the server could be asked what it had counted."
    if runs and all(run.void or run.ended for run in runs):
        return "The time is not split: no run that took its time counts."
    return "The server told no timings of its own, so that the time cannot be split."


def failures(result: Server) -> list[Element]:
    """What failed, by its reason."""
    failed = [run for run in result.runs if sum(run.failures.values())]
    asked = sum(run.requests for run in result.runs)
    if not failed:
        return [element("p", f"None: all of {asked:,} requests were answered, and rightly.")]
    reasons = list(dict.fromkeys(reason for run in failed for reason, count in run.failures.items() if count))
    rows = [
        [run.marked, f"{run.requests:,}", *(f"{run.failures.get(reason, 0):,}" for reason in reasons), _share(run)]
        for run in failed
    ]
    bars = [Bar(run.marked, 100 * sum(run.failures.values()) / max(run.requests, 1), _share(run), 5) for run in failed]
    x = scales.linear("failed, %", [0, *(bar.value for bar in bars)])
    words = "; ".join(f"{bar.name}: {bar.says}" for bar in bars) + "."
    chart = charts.bars("failed", "Share of requests that failed", words, bars, x, origin=0.0, filled=True)
    made = Table("Failures by reason", ("load", "requests", *reasons, "share"), rows)
    says = "A wrong answer is a failure."
    return [beside([figure("failed", "Share of requests that failed", chart, says, made)]), table("reasons", made)]


def _share(run: Run) -> str:
    return f"{sum(run.failures.values()) / max(run.requests, 1):.2%}"
