"""What is shown of a server's measurement: a line while it goes on, a table at the end, and JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from penstock.bench import fleet, runs
from penstock.bench.server import Watch
from penstock.files import write_whole, writing
from penstock.screen import Screen

_WIDE = 150
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
    served, payload, facts = result["server"], result["payload"], result["environment"]
    console.print(
        f"{served['url']}: {served['name'] or 'a server'} {served['version']}, model {served['model']}"
        f"{' version ' + served['model_version'] if served['model_version'] else ''}; {payload['form']}, "
        f"{payload['bytes']:,} bytes, {payload['rows']} row{'s' * (payload['rows'] != 1)}, {payload['different']} "
        f"different "
        f"({payload['source']})",
        soft_wrap=True,
    )
    console.print(
        f"asked from {facts['cpu']}, {facts['cores']} cores, load {facts['load_1min']}, by {facts['processes']} "
        f"process{'es' * (facts['processes'] != 1)}; {facts['started']}",
        soft_wrap=True,
    )
    for note in result["notes"]:
        console.print(f"note: {note}", soft_wrap=True)
    for warning in result["warnings"]:
        console.print(f"warning: {warning['text']}\n  remedy: {warning['remedy']}", soft_wrap=True)
    if result["runs"]:
        console.print(_table(result["runs"]))
    for line in _verdicts(result):
        console.print(line, soft_wrap=True)


def _table(listed: list[runs.Run]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("load", no_wrap=True)
    for name in ("answers/s", "p50 ms", "p90", "p95", "p99", "n", "failed", *_STAGES, "gen. cores", "late p99"):
        table.add_column(name, justify="right", no_wrap=name != "failed")
    for run in listed:
        if run["purpose"] == "probe":
            continue
        stages, generator = run["stages_s"] or {}, run["generator"]
        mark = " (void)" if run["void"] else f" ({run['ended']})" if run["ended"] else ""
        table.add_row(
            runs.load(run) + mark,
            f"{run['throughput_per_s']:,.1f}" if run["throughput_per_s"] < 1000 else f"{run['throughput_per_s']:,.0f}",
            *[_ms(run[f"{name}_s"]) for name in runs.PERCENTILES],
            f"{len(run['latencies_s']):,}",
            f"{runs.failed(run):,}",
            *[_ms(stages.get(name)) for name in _STAGES],
            "-" if generator["cores"] is None else f"{generator['cores']:.2f}",
            _ms(generator["late_p99_s"]),
        )
    return table


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1e3 * seconds:.2f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def _verdicts(result: dict[str, Any]) -> list[str]:
    found, capacity, slo = list[str](), result["capacity"], result["slo"]
    if capacity is not None:
        count = capacity["concurrency"]
        found.append(f"capacity: {capacity['rate_per_s']:,.0f} answers/s, at {count} connection{'s' * (count != 1)}")
    if slo is not None:
        found.append(_objective(slo))
    if result["lost"]:
        found.append("the server was lost: nobody answers there any more; the figures are of what came before")
    if result["interrupted"]:
        found.append("interrupted: the figures are of what came before")
    return found


def _objective(slo: dict[str, Any]) -> str:
    limit = f"p99 under {slo['slo_ms']:g} ms"
    if slo["rate_per_s"] is None:
        return f"{limit}: kept at no rate that was tried"
    bound = "; the generator was the limit, the server may do more" if slo["generator_bound"] else ""
    p99 = f" (p99 {_ms(slo['p99_s'])} ms)" if slo["p99_s"] is not None else ""
    return f"{limit}: kept up to {slo['rate_per_s']:,.0f} requests/s{p99}{bound}"


def write_json(result: dict[str, Any], path: Path) -> None:
    """Write it to a file, whole or not at all.

    Raises:
        PenstockError: the file cannot be written.
    """
    with writing("--json", path, "the figures are not kept"):
        write_whole(path, json.dumps(result).encode())
