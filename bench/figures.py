"""Figures: a measurement as one JSON document, with every statistic computed and every raw sample kept."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

from penstock import cuda
from penstock.bench import ceiling, verdict, warnings
from penstock.bench.ceiling import Ceiling, Demand
from penstock.bench.contrast import FEWEST
from penstock.bench.measure import Result, Row, Setting
from penstock.bench.rounds import steady, usable
from penstock.bench.statistics import needed, percentile, ratio
from penstock.bench.verdict import Candidate, Choice
from penstock.bench.warnings import Warning
from penstock.timing import ROUNDS, Cell

FORMAT = 1
# What a ceiling may be passed by without a word: it is measured too.
_CEILING = 1.05
QS = {"median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


def as_dict(result: Result) -> dict[str, Any]:
    """Everything measured, raw samples (seconds, by round) included; docs/bench.md says what each figure means."""
    plan, rows = result.plan, [_row(row, result) for row in result.rows]
    return {
        "penstock_bench": FORMAT,
        "kind": "engines",
        "environment": {
            **result.environment,
            "device": plan.device,
            "threads": list(plan.threads),
            "streams": list(plan.streams),
            "batches": sorted(set(plan.batches)),
            "seconds": plan.seconds,
            "energy": result.energy,
        },
        "notes": result.notes,
        "warnings": [{"text": one.text, "remedy": one.remedy} for one in _warnings(result, rows)],
        "interrupted": result.interrupted,
        "clock": {"unit": "s", "rounds_s": result.ticks, "others_cores": result.others},
        "reference": result.reference,
        "ceiling": _peaks(result),
        "verdict": _verdict(result),
        "rows": rows,
    }


def _peaks(result: Result) -> dict[str, Any] | None:
    """The peaks that rows are held to: of the most cores that a setting takes, and of the GPU."""
    counts = [int(name) for name in result.peaks if name.isdigit()]
    if not counts:
        return None
    best = result.peaks[str(max(counts))]
    return {
        "cores": max(counts),
        "flops_per_s": best.operations.get("float32"),
        "bytes_per_s": min(best.bytes.values(), default=None),
        "measured": "products of matrices by numpy and onnxruntime, by what they compute in, and "
        "dot products, by the bytes that are read over and over; on each core its own",
        "peaks": {
            name: {"operations_per_s": held.operations, "bytes_per_s": held.bytes}
            for name, held in result.peaks.items()
        },
    }


def _row(row: Row, result: Result) -> dict[str, Any]:
    receipt, score, held = row.artifact.receipt, row.score, row.footprint
    bounds = _ceilings(row, result)
    return {
        "name": row.name,
        "version": receipt.version,
        "format": receipt.format,
        "precision": receipt.precision,
        "model_bytes": row.model_bytes,
        "unavailable": row.unavailable,
        "accuracy": None if score is None else {"value": score.accuracy, "samples": score.samples},
        "agreement": {d.output: d.agreement for d in receipt.verification.distances},
        "load_s": held and held.load_s,
        "first_call_s": held and held.first_call_s,
        "memory": {
            "host_bytes": held and held.host_bytes,
            "device_bytes": held and held.device_bytes,
            "process_bytes": held and held.process_bytes,
        },
        "multiply_adds_per_row": _multiply_adds(row, result),
        "cells": [
            _cell(cell, setting, row, bounds.get(setting), result) for setting, cell in row.cells.items() if cell.rounds
        ],
        "failures": [
            {"batch": setting.batch, "threads": setting.threads, "streams": setting.streams, "error": cell.failure}
            for setting, cell in row.cells.items()
            if cell.failure is not None
        ],
    }


def _cell(cell: Cell, setting: Setting, row: Row, bound: Ceiling | None, result: Result) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, q in QS.items():
        found = percentile(cell.samples, q)
        figures[f"{name}_s"] = found and found.value
        figures[f"{name}_ci_s"] = found and [found.low, found.high]
    parts = row.parts.get(setting)
    return {
        "batch": setting.batch,
        "threads": setting.threads,
        "streams": setting.streams,
        "samples": len(cell.samples),
        **figures,
        "rows_per_second": cell.rows_per_second,
        "transfer_s": {"in": parts and parts.copy_in, "out": parts and parts.copy_out},
        "gpu_s": parts and parts.whole,
        "joules_per_row": None if cell.joules is None else cell.joules / (cell.batch * len(cell.samples)),
        "ceiling_s": bound and bound.seconds,
        "share_of_ceiling": bound and bound.seconds * cell.rows_per_second / cell.batch,
        "limit": bound and bound.limit,
        "ratio": _against(cell, setting, result),
        "steady": cell.steady,
        "rounds_s": cell.rounds,
        "control": {"unit": "s", "rounds_s": cell.controls} if cell.controls else None,
    }


def _against(cell: Cell, setting: Setting, result: Result) -> dict[str, float | None] | None:
    """How many times as fast as the reference at the same setting; its ends are null where too few rounds were made."""
    theirs = _reference(result).cells.get(setting)
    if theirs is None or not theirs.rounds:
        return None
    if theirs is cell:
        return {"value": 1.0, "lo": 1.0, "hi": 1.0}
    found = ratio(cell.rounds, theirs.rounds)
    known = math.isfinite(found.high)
    return {"value": found.value, "lo": found.low if known else None, "hi": found.high if known else None}


def _reference(result: Result) -> Row:
    return next(row for row in result.rows if row.name == result.reference)


def _multiply_adds(row: Row, result: Result) -> float | None:
    """Of one row of inputs; where a format tells none, those of another variant of the same source."""
    alike = [row, *(one for one in result.rows if _same_model(one, row))]
    return next((one.footprint.multiply_adds for one in alike if one.footprint and one.footprint.multiply_adds), None)


def _same_model(one: Row, other: Row) -> bool:
    return one.artifact.receipt.source.sha256 == other.artifact.receipt.source.sha256


def _ceilings(row: Row, result: Result) -> dict[Setting, Ceiling]:
    """The least time of a batch at each setting, where it is known."""
    place, most, adds = row.place(result.plan.device), len(os.sched_getaffinity(0)), _multiply_adds(row, result)
    if not result.peaks or adds is None or not row.alive:
        return {}
    inputs, outputs = row.artifact.golden()
    each = sum(array.nbytes / len(array) for array in (*inputs.values(), *outputs.values()))
    found = {}
    for setting in row.cells:
        taken = str(ceiling.cores(setting.threads, setting.streams, most))
        peaks = result.peaks.get(taken if place == "cpu" else f"cuda:{cuda.number(place)}")
        size = row.model_bytes + round(each * setting.batch)
        demand = Demand(adds * setting.batch, size, row.artifact.receipt.precision)
        bound = None if peaks is None else ceiling.ceiling(demand, peaks, place)
        if bound is not None:
            found[setting] = bound
    return found


def _verdict(result: Result) -> dict[str, Any] | None:
    """The winner of the setting that gives the most rows a second, and in words also those of other settings."""
    choices = {}
    for setting in result.plan.settings:
        candidates = [_candidate(row, row.cells[setting], result) for row in result.rows if setting in row.cells]
        if (choice := verdict.choose(candidates, result.plan.budget)) is not None:
            choices[setting] = choice
    if not choices:
        return None
    best = max(choices, key=lambda setting: choices[setting].winner.cell.rows_per_second)
    return {
        "fastest": choices[best].winner.name,
        "batch": best.batch,
        "threads": best.threads,
        "streams": best.streams,
        "budget": result.plan.budget,
        "by_setting": [
            {**setting._asdict(), "fastest": choice.winner.name, "tied": choice.tied and choice.tied.name}
            for setting, choice in choices.items()
        ],
        "text": _said(choices, best, result),
    }


def _candidate(row: Row, cell: Cell, result: Result) -> Candidate:
    theirs = _reference(result).score
    told = [d.agreement for d in row.artifact.receipt.verification.distances if d.agreement is not None]
    mine, least = row.score, min(told) if told else None  # of several outputs the one that agrees the least
    lost = verdict.loss(mine.accuracy if mine else None, theirs.accuracy if theirs else None, least)
    return Candidate(row.name, row.artifact.receipt.precision, lost, cell)


def _said(choices: dict[Setting, Choice], best: Setting, result: Result) -> str:
    choice, winner = choices[best], choices[best].winner
    theirs = _reference(result).cells.get(best)
    against = ""
    if theirs is not None and theirs.rounds and winner.name != result.reference:
        times = ratio(winner.cell.rounds, theirs.rounds).value
        against = f", by medians {times:.2f} times as fast as {result.reference}"
    text = (
        f"fastest{_kept(winner, result)}: {winner.name}, "
        f"{winner.cell.rows_per_second:,.0f} rows/s at {said(best, result)}{against}"
    )
    if choice.tied is not None:
        text += f"; {_tie(choice)}"
    for setting, one in choices.items():
        if one.winner.name != winner.name:
            text += f"; at {said(setting, result)} {one.winner.name}" + (f", as {_tie(one)}" if one.tied else "")
    return text


def _kept(winner: Candidate, result: Result) -> str:
    """Which bound the winner kept: that of accuracy, or, where there are no labels, of agreement with its source."""
    held, theirs = next(row for row in result.rows if row.name == winner.name).score, _reference(result).score
    if held is not None and held.accuracy is not None and theirs is not None and theirs.accuracy is not None:
        return f" within an accuracy drop of {result.plan.budget:g}"
    if winner.loss is None:
        return " (accuracy not measured)"
    return (
        f" that agrees with its source on {100 * (1 - result.plan.budget):g}% of rows or more (accuracy not measured)"
    )


def _tie(choice: Choice) -> str:
    """What the winner of a setting was preferred to."""
    assert choice.tied is not None
    assert choice.lead is not None
    known = math.isfinite(choice.lead.high)
    span = f"{choice.lead.low:.2f} to {choice.lead.high:.2f}" if known else "too few rounds to tell"
    return f"{choice.tied.name} is no faster for certain ({span})"


def said(setting: Setting, result: Result) -> str:
    """A setting in words: what all settings have in common is left out."""
    words = [f"batch {setting.batch}"]
    if len(result.plan.threads) > 1:
        words.append(f"{setting.threads} thread{'s' * (setting.threads != 1)}")
    if len(result.plan.streams) > 1:
        words.append(f"{setting.streams} stream{'s' * (setting.streams != 1)}")
    return ", ".join(words)


def _warnings(result: Result, rows: list[dict[str, Any]]) -> list[Warning]:
    """Those of the machine, and of what was measured."""
    shares = [(row["name"], cell["share_of_ceiling"] or 0.0) for row in rows for cell in row["cells"]]
    cells = [
        (f"{row.name} at {said(setting, result)}", setting, cell)
        for row in result.rows
        for setting, cell in row.cells.items()
        if cell.rounds
    ]
    found = [*result.warnings, *warnings.of_samples((name, cell.samples) for name, _, cell in cells)]
    if unsteady := [name for name, _, cell in cells if not cell.steady]:
        found.append(warnings.unsteady(unsteady))
    highest = max(shares, key=lambda one: one[1], default=("", 0.0))
    if highest[1] > _CEILING:
        found.append(warnings.beyond(*highest))
    found += _incomparable([(setting, cell) for _, setting, cell in cells], result.others)
    few = [cell for _, _, cell in cells if len(cell.samples) < needed(99.0)]
    if few:
        fewest = min(few, key=lambda cell: len(cell.samples))
        seconds = result.plan.seconds * min(1.0, len(fewest.rounds) / ROUNDS)  # an interrupt leaves fewer rounds
        found.append(warnings.too_few(len(few), len(cells), len(fewest.samples), seconds))
    return found


def _incomparable(cells: list[tuple[Setting, Cell]], others: list[float]) -> Iterator[Warning]:
    """What `--compare` would refuse, said while it can be measured again."""
    made, most = min((len(cell.rounds) for _, cell in cells), default=0), len(os.sched_getaffinity(0))
    held: dict[int, list[Cell]] = {}
    for setting, cell in cells:
        held.setdefault(ceiling.cores(setting.threads, setting.streams, most), []).append(cell)
    for threads, alike in held.items():
        counted, _ = usable(made, threads, others, most)
        ticks = [[tick for cell in alike if cell.controls for tick in cell.controls[number]] for number in counted]
        if len(counted) < FEWEST:
            yield warnings.incomparable(threads, len(counted), made)
        elif any(ticks) and not steady(ticks):
            yield warnings.packed(threads)
