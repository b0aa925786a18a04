"""Reports of a measurement: a table for people, JSON with every raw sample for programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.bench.measure import Result, Row
from penstock.files import write_whole, writing
from penstock.timing import Cell

_WIDE = 132


def show(result: Result) -> None:
    """Print the table; the last thing on stdout."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False, markup=False)
    facts = result.environment
    threads = facts["threads"] or "the runtime's own"
    device = facts["device"]
    if facts["gpu"] and device == "cpu":
        device = "cuda:0 for engines, cpu for others"
    gpu = f"{facts['gpu']['gpu']}, driver {facts['gpu'].get('driver', 'unknown')}; " if facts["gpu"] else ""
    console.print(
        f"{facts['cpu']}, {facts['cores']} cores, load {facts['load_1min']}; {gpu}device {device}, "
        f"threads: {threads}; {facts['seconds']:g} s for each line in interleaved rounds; "
        "copies to and from the runtime included",
        soft_wrap=True,
    )
    for note in [*result.notes, *_unavailable(result)]:
        console.print(f"note: {note}", soft_wrap=True)
    if result.interrupted:
        console.print("note: interrupted; the figures are of the rounds that were finished")
    console.print(_table(result))


def _unavailable(result: Result) -> list[str]:
    return [f"{row.name} not measured: {row.unavailable}" for row in result.rows if row.unavailable]


def _table(result: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("variant", no_wrap=True)
    for name in ("batch", "median ms", "p90", "p99", "n", "rows/s", "MB", "accuracy", "agrees"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"speed vs {result.reference}", justify="right")
    by_name = {row.name: row for row in result.rows}
    reference = by_name[result.reference] if result.reference else None
    for row in result.rows:
        for index, cell in enumerate(cell for cell in row.cells.values() if cell.rounds):
            about = _about(row) if index == 0 else ("", "", "")
            against = reference.cells.get(cell.batch) if reference else None
            table.add_row(
                row.name if index == 0 else "",
                str(cell.batch),
                *[_ms(cell.percentile(q)) for q in (50.0, 90.0, 99.0)],
                str(len(cell.samples)),
                f"{cell.rows_per_second:,.0f}",
                *about,
                _speedup(cell, against),
            )
    return table


def _about(row: Row) -> tuple[str, str, str]:
    accuracy = f"{row.score.accuracy:.2%}" if row.score else "-"
    found = [d.agreement for d in row.artifact.receipt.verification.distances if d.agreement is not None]
    return f"{row.model_bytes / 1e6:.2f}", accuracy, f"{min(found):.2%}" if found else "-"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"


def _speedup(cell: Cell, reference: Cell | None) -> str:
    if reference is cell:
        return "1 (reference)"
    if reference is None or not reference.rounds:
        return "-"
    middle, low, high = cell.speedup(reference)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def as_dict(result: Result) -> dict[str, Any]:
    """Everything measured, raw samples (seconds, by round) included."""
    return {
        "penstock_bench": 1,
        "kind": "engines",
        "environment": result.environment,
        "reference": result.reference,
        "interrupted": result.interrupted,
        "notes": result.notes,
        "rows": [_row(row) for row in result.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    receipt = row.artifact.receipt
    score = row.score
    return {
        "name": row.name,
        "version": receipt.version,
        "format": receipt.format,
        "precision": receipt.precision,
        "model_bytes": row.model_bytes,
        "unavailable": row.unavailable,
        "accuracy": None if score is None else {"value": score.accuracy, "samples": score.samples},
        "agreement": {d.output: d.agreement for d in receipt.verification.distances},
        "cells": [
            {
                "batch": cell.batch,
                "median_s": cell.percentile(50.0),
                "p90_s": cell.percentile(90.0),
                "p99_s": cell.percentile(99.0),
                "samples": len(cell.samples),
                "rows_per_second": cell.rows_per_second,
                "rounds_s": cell.rounds,
            }
            for cell in row.cells.values()
            if cell.rounds
        ],
    }


def write_json(result: Result, path: Path) -> None:
    """Write `as_dict` to a file, whole or not at all.

    Raises:
        PenstockError: the file cannot be written.
    """
    with writing("--json", path, "the figures are not kept"):
        write_whole(path, json.dumps(as_dict(result), indent=1).encode())
