"""Results as CSV: a line for each cell or run, units in the names of the columns, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.bench.recorded import Cell, Engines, Figures, Result, Row, Run, Server
from penstock.files import write_whole, writing
from penstock.tables import inert

Record = dict[str, Any]


def text(result: Result) -> str:
    """The whole table, with a line of names first (RFC 4180; empty where a figure is not known)."""
    records = list(_engines(result) if isinstance(result, Engines) else _server(result))
    names = list(dict.fromkeys(name for record in records for name in record))
    into = io.StringIO()
    writer = csv.DictWriter(into, names, restval="", lineterminator="\r\n")
    writer.writeheader()
    writer.writerows({name: inert(value) for name, value in record.items()} for record in records)
    return into.getvalue()


def write(result: Result, path: Path) -> None:
    """Write `text` to a file, whole or not at all.

    Raises:
        PenstockError: the file cannot be written.
    """
    with writing("--csv", path, "the table is not kept"):
        write_whole(path, text(result).encode("utf-8", "replace"))


def _engines(result: Engines) -> Iterator[Record]:
    for row in result.rows:
        for cell in row.cells:
            yield {**_row(row, result), **_cell(cell)}
        if not row.cells:
            yield _row(row, result)


def _row(row: Row, result: Engines) -> Record:
    told = [share for share in row.agreement.values() if share is not None]
    return {
        "name": row.name,
        "version": row.version,
        "format": row.format,
        "precision": row.precision,
        "reference": row.name == result.reference,
        "unavailable": row.unavailable,
        "model_bytes": row.model_bytes,
        "accuracy_share": row.accuracy.value if row.accuracy else None,
        "accuracy_samples": row.accuracy.samples if row.accuracy else None,
        "agreement_share": min(told) if told else None,
        "load_s": row.load_s,
        "first_call_s": row.first_call_s,
        "host_memory_bytes": row.memory.host_bytes if row.memory else None,
        "device_memory_bytes": row.memory.device_bytes if row.memory else None,
    }


def _cell(cell: Cell) -> Record:
    return {
        "batch_rows": cell.batch,
        "threads": cell.threads,
        "streams": cell.streams,
        "samples": cell.samples,
        **_figures(cell),
        "throughput_rows_per_s": cell.rows_per_second,
        "transfer_in_s": cell.transfer_s.into if cell.transfer_s else None,
        "transfer_out_s": cell.transfer_s.out if cell.transfer_s else None,
        "energy_joules_per_row": cell.joules_per_row,
        "ceiling_s": cell.ceiling_s,
        "ceiling_share": cell.share_of_ceiling,
        "speed_ratio": cell.ratio.value if cell.ratio else None,
        "speed_ratio_low": cell.ratio.lo if cell.ratio else None,
        "speed_ratio_high": cell.ratio.hi if cell.ratio else None,
    }


def _figures(figures: Figures) -> Record:
    found: Record = {}
    for name in ("median", "p90", "p95", "p99"):
        low, high = getattr(figures, f"{name}_ci_s") or (None, None)
        found |= {f"{name}_s": getattr(figures, f"{name}_s"), f"{name}_low_s": low, f"{name}_high_s": high}
    return found


def _server(result: Server) -> Iterator[Record]:
    for run in result.runs:
        yield {
            "model": result.server.get("model"),
            "payload_form": result.payload.get("form"),
            "payload_rows": result.payload.get("rows"),
            "payload_bytes": result.payload.get("bytes"),
            **_run(run, result.rows),
        }


def _run(run: Run, rows: int) -> Record:
    stages, generator = run.stages_s, run.generator
    return {
        "mode": run.mode,
        "purpose": run.purpose,
        "ended": run.ended,
        "concurrency": run.concurrency,
        "offered_requests_per_s": run.rate_per_s,
        "duration_s": run.seconds,
        "requests": run.requests,
        "failures": sum(run.failures.values()),
        "failure_reasons": "; ".join(f"{name}: {count}" for name, count in run.failures.items()),
        "throughput_requests_per_s": run.throughput_per_s,
        "throughput_rows_per_s": None if run.throughput_per_s is None else rows * run.throughput_per_s,
        **_figures(run),
        "client_mean_s": stages.client if stages else None,
        "network_mean_s": stages.network if stages else None,
        "server_mean_s": stages.server if stages else None,
        "queue_mean_s": stages.queue if stages else None,
        "compute_mean_s": stages.compute if stages else None,
        "generator_processes": generator.processes if generator else None,
        "generator_cores": generator.cores if generator else None,
        "late_p99_s": generator.late_p99_s if generator else None,
        "void": run.void,
    }
