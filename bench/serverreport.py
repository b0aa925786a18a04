"""What is shown of a server's measurement: a line while it goes on, a table at the end, and JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from penstock.bench import fleet, loads, objective, runs
from penstock.bench.server import Watch
from penstock.screen import Screen

_WIDE = 170
_STAGES = ("client", "network", "server", "queue", "compute")


@contextmanager
def watching() -> Iterator[Watch]:
    """A line on stderr, where a person may be looking: requests a second, p50, p99 and failures of late."""
    columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[said]}"))
    shown = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
    with shown:
        task, line = shown.add_task("starting", total=None, said=""), _Line()

        def watch(load: str, seconds: float, progress: fleet.Progress) -> None:
            said = line.said(load, progress)
            shown.update(task, description=load, total=seconds, completed=line.seconds, said=said)

        yield watch


class _Line:
    """What the line says, from one progress to the next."""

    def __init__(self) -> None:
        self._load, self._began = "", 0.0
        self._before, self._rate = (0.0, 0), 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def said(self, load: str, progress: fleet.Progress) -> str:
        now = time.monotonic()
        if load != self._load or progress.answered < self._before[1]:
            self._load, self._began, self._before, self._rate = load, now, (now, progress.answered), 0.0
        passed = now - self._before[0]
        if passed > 0.5:
            self._rate = (progress.answered - self._before[1]) / passed
            self._before = (now, progress.answered)
        if not len(progress.latencies_s):
            return f"no answer yet, {progress.failed:,} failed"
        middle, slow = 1e3 * np.percentile(progress.latencies_s, [50, 99])
        return f"{self._rate:,.0f}/s  p50 {middle:.2f} ms  p99 {slow:.2f} ms  {progress.failed:,} failed"


def show(result: dict[str, Any]) -> None:
    """Print it; the table is the last thing on stdout but for what the runs come to."""
    console = Screen(_WIDE)
    for line in (_asked(result["server"], result["payload"]), _asking(result["environment"])):
        console.print(line, soft_wrap=True)
    for note in result["notes"]:
        console.print(f"note: {note}", soft_wrap=True)
    for warning in result["warnings"]:
        console.print(f"warning: {warning['text']}\n  remedy: {warning['remedy']}", soft_wrap=True)
    if result["runs"]:
        console.print(_table(result["runs"], result["payload"]["rows"]))
    for line in _verdicts(result):
        console.print(line, soft_wrap=True)


def _asked(served: dict[str, Any], payload: dict[str, Any]) -> str:
    """What was asked, and with what."""
    name = " ".join(word for word in (served["name"] or "a server", served["version"]) if word)
    version = f" version {served['model_version']}" if served["model_version"] else ""
    size = f", {payload['bytes']:,} bytes" if payload["bytes"] else ""
    return (
        f"{served['url']}: {name}, model {served['model']}{version}; {payload['form']}{size}, {payload['rows']} "
        f"row{'s' * (payload['rows'] != 1)}, {payload['different']} different ({payload['source']})"
    )


def _asking(facts: dict[str, Any]) -> str:
    return (
        f"asked from {facts['cpu']}, {facts['cores']} cores, load {facts['load_1min']}, by {facts['processes']} "
        f"process{'es' * (facts['processes'] != 1)}; {facts['started']}"
    )


def _table(listed: list[runs.Run], rows: int) -> Table:
    """A line for each run, probes of a search included; rows a second where a request has several."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("load", no_wrap=True)
    rates = ("answers/s", "rows/s") if rows > 1 else ("answers/s",)
    percentiles = ("p50 ms", "p90 ms", "p95 ms", "p99 ms")
    spent = (*(f"{name} ms" for name in _STAGES), "gen. cores", "late p99 ms")
    for name in (*rates, *percentiles, "n", "failed", *spent):
        table.add_column(name, justify="right", no_wrap=name in (*rates, "n"))
    for run in listed:
        stages, generator = run["stages_s"] or {}, run["generator"]
        table.add_row(
            loads.marked(runs.load(run), run["purpose"], run["ended"], run["void"]),
            *[_rate(run["throughput_per_s"] * each) for each in (1, rows)[: len(rates)]],
            *[_ms(run.get(f"{name}_s")) for name in runs.PERCENTILES],
            f"{len(run['latencies_s']):,}",
            f"{runs.failed(run):,}",
            *[_ms(stages.get(name)) for name in _STAGES],
            "-" if generator["cores"] is None else f"{generator['cores']:.2f}",
            _ms(generator["late_p99_s"]),
        )
    return table


def _rate(per_s: float) -> str:
    return f"{per_s:,.1f}" if per_s < 1000 else f"{per_s:,.0f}"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1e3 * seconds:.2f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def _verdicts(result: dict[str, Any]) -> list[str]:
    found, capacity, slo = list[str](), result["capacity"], result["slo"]
    if capacity is not None:
        count, rows = capacity["concurrency"], result["payload"]["rows"]
        each = f" ({_rate(rows * capacity['rate_per_s'])} rows/s)" if rows > 1 else ""
        found.append(
            f"capacity: {_rate(capacity['rate_per_s'])} answers/s{each}, at {count} connection{'s' * (count != 1)}"
        )
    if slo is not None:
        found.append(objective.verdict(slo, objective.tried(result["runs"])))
    if told := result.get("loadgen", {}).get("verdict"):
        found.append(told)
    if result["lost"]:
        found.append("the server was lost: nobody answers there any more; the figures are of what came before")
    if result["interrupted"]:
        found.append("ended early: the figures are of what came before")
    return found
