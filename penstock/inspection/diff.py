"""Diff: two artifacts or ONNX files side by side: operators, shapes, precision of each node, size, error, latency."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from penstock import artifact, machine, runtimes, synthetic, timing, trial
from penstock.artifact import Artifact
from penstock.errors import PenstockError, require
from penstock.inspection import precisions
from penstock.inspection.artifacts import graph_of
from penstock.inspection.findings import sized
from penstock.inspection.onnx import read_model
from penstock.runtimes import Runner
from penstock.runtimes.onnxruntime import read_signature
from penstock.screen import Screen
from penstock.signature import Signature
from penstock.timing import Cell

_WIDE, _NODES = 132, 40
# Cores that others may have without a word, and how far the latencies' ratio may be from the one by rounds.
_OTHERS, _APART = 0.15, 0.10


@dataclass(frozen=True)
class Side:
    """One of the two: an artifact or a bare ONNX file, as far as it can be looked into here."""

    path: Path
    found: Artifact | None
    signature: Signature
    graph: Any | None
    bytes: int

    @property
    def name(self) -> str:
        return str(self.path) if self.found is None else self.found.receipt.name

    def load(self, device: str) -> Runner:
        if self.found is not None:
            return self.found.load(device=device)
        careful = trial.needs_care("onnxruntime", self.path, self.signature, device)
        return runtimes.load("onnxruntime", self.path, self.signature, device=device, careful=careful)


@dataclass
class Difference:
    """What two models differ in. `facts`: name -> both texts; `nodes`: name -> operator and precision on each side.

    `warnings` are what casts doubt on the times.
    """

    names: tuple[str, str]
    facts: dict[str, tuple[str, str]]
    operators: dict[str, tuple[int, int]]
    nodes: dict[str, tuple[str, str]]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def side(path: Path) -> Side:
    """Look into an artifact's folder or an ONNX file.

    Raises:
        PenstockError: it is neither, or is damaged.
    """
    if path.is_dir():
        found = artifact.read(path)
        found.check_digests()
        size = found.receipt.files[found.receipt.model_file].bytes
        return Side(path, found, found.receipt.signature, graph_of(found), size)
    if path.suffix != ".onnx" or not path.is_file():
        raise PenstockError(f"{path}: must be an artifact's folder or an .onnx file that is there")
    model = read_model(require("onnx", "export", "comparing graphs"), path)
    careful = trial.needs_care("onnxruntime", path)
    return Side(path, None, read_signature(path, careful=careful), model.graph, path.stat().st_size)


def diff(
    first: Path, second: Path, *, batch: int | None = None, seconds: float = 1.0, device: str = "cpu"
) -> Difference:
    """Compare two models, and time them against each other in interleaved rounds.

    Args:
        first: an artifact's folder or an ONNX file.
        second: another.
        batch: rows in a timed run; None takes the usual number of the first.
        seconds: of measured time for each.
        device: `cpu` or `cuda:0`.

    Raises:
        PenstockError: one of them cannot be read.
    """
    sides = side(first), side(second)
    found = Difference((sides[0].name, sides[1].name), _facts(*sides), _operators(*sides), _nodes(*sides))
    if sides[0].graph is None or sides[1].graph is None:
        unseen = [one.name for one in sides if one.graph is None]
        found.notes.append(f"no ONNX graph to look into: {', '.join(unseen)}")
    if sides[0].signature.inputs != sides[1].signature.inputs:
        found.notes.append("not timed: their inputs differ")
        return found
    try:
        times, found.warnings = _timed(sides, batch, seconds, device)
        found.facts.update(times)
    except PenstockError as error:
        found.notes.append(f"not timed: {error}")
    return found


def _facts(a: Side, b: Side) -> dict[str, tuple[str, str]]:
    def both(tell: Any) -> tuple[str, str]:
        return tell(a), tell(b)

    return {
        "made": both(lambda one: _made(one.found)),
        "inputs": both(lambda one: ", ".join(map(str, one.signature.inputs))),
        "outputs": both(lambda one: ", ".join(map(str, one.signature.outputs))),
        "size": both(lambda one: sized(one.bytes)),
        "nodes": both(lambda one: "-" if one.graph is None else str(len(one.graph.node))),
        "precision": both(_precisions),
        "error": both(lambda one: _error(one.found)),
        "agreement": both(lambda one: _agreement(one.found)),
    }


def _made(found: Artifact | None) -> str:
    return "-" if found is None else f"{found.receipt.format} {found.receipt.precision} by {found.receipt.runtime}"


def _error(found: Artifact | None) -> str:
    if found is None:
        return "-"
    return ", ".join(f"{item.output} {item.rel_l2:.1e}" for item in found.receipt.verification.distances)


def _agreement(found: Artifact | None) -> str:
    held = [] if found is None else [item.agreement for item in found.receipt.verification.distances]
    known = [value for value in held if value is not None]
    return f"{min(known):.2%}" if known else "-"


def _precisions(one: Side) -> str:
    if one.graph is None:
        return "-"
    counted = Counter(precisions.of_graph(one.graph).values())
    return ", ".join(f"{count} {name}" for name, count in counted.most_common()) or "-"


def _operators(a: Side, b: Side) -> dict[str, tuple[int, int]]:
    if a.graph is None or b.graph is None:
        return {}
    counts = [Counter(node.op_type for node in graph.node) for graph in (a.graph, b.graph)]
    return {name: (counts[0][name], counts[1][name]) for name in sorted(counts[0] | counts[1])}


def _nodes(a: Side, b: Side) -> dict[str, tuple[str, str]]:
    """The nodes that are on one side alone, or are of another operator or precision on the other."""
    if a.graph is None or b.graph is None:
        return {}
    held = [_listed(graph) for graph in (a.graph, b.graph)]
    names = [*held[0], *(name for name in held[1] if name not in held[0])]
    pairs = {name: (held[0].get(name, "-"), held[1].get(name, "-")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _listed(graph: Any) -> dict[str, str]:
    operators = {precisions.name_of(node): node.op_type for node in graph.node}
    return {name: f"{operators[name]} {precision}" for name, precision in precisions.of_graph(graph).items()}


def _timed(
    sides: tuple[Side, Side], batch: int | None, seconds: float, device: str
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """The times of both and the ratio between them, and what casts doubt on these."""
    signature = sides[0].signature
    name = str(signature.batch) if signature.batch else None
    most = min(one.signature.max_batch for one in sides)
    least = max(one.signature.min_batch for one in sides)
    rows = batch or max(least, min(most, signature.dims[name].opt if name else 1))
    if not least <= rows <= most:
        raise PenstockError(f"--batch {rows}: both take {least} to {most}" if least <= most else "no batch fits both")
    inputs = _inputs(sides, rows)
    cells = Cell(rows), Cell(rows)
    with ExitStack() as stack:
        runners = [stack.enter_context(one.load(device)) for one in sides]
        others = machine.Others()
        timing.measure([(runner, inputs, cell) for runner, cell in zip(runners, cells, strict=True)], seconds)
        busy = others.cores()
    medians = tuple(f"{1e3 * (cell.median or 0):.3f} ms" for cell in cells)
    middle, low, high = cells[1].speedup(cells[0])
    facts = {
        f"latency, batch {rows}": (medians[0], medians[1]),
        "speed": ("1 (reference)", f"{middle:.2f} by rounds ({low:.2f} to {high:.2f})"),
    }
    return facts, _doubts(cells, middle, busy)


def _doubts(cells: tuple[Cell, Cell], middle: float, busy: float) -> list[str]:
    """What casts doubt on the times: others at work, and latencies whose ratio is not the one of the rounds.

    Args:
        cells: both sides' times.
        middle: the median over rounds of how many times as fast the second is.
        busy: cores that other processes had meanwhile.
    """
    found, overall = [], (cells[0].median or 0) / (cells[1].median or 1)
    if busy > _OTHERS:
        found.append(
            f"the machine was busy: other processes had {busy:.1f} of {len(os.sched_getaffinity(0))} cores; stop them, "
            f"or measure on a machine that has nothing else to do"
        )
    if max(overall / middle, middle / overall) > 1 + _APART:
        found.append(
            f"the times moved while they were taken: by the latencies, medians of all runs, the second is "
            f"{overall:.2f} times as fast, and by rounds, the median of {len(cells[0].rounds)} in each of which both "
            f"ran, {middle:.2f} times; a longer --seconds evens it out"
        )
    return found


def _inputs(sides: tuple[Side, Side], rows: int) -> dict[str, Any]:
    for one in sides:
        if one.found is not None:
            return timing.feeds(one.found.golden()[0], rows)
    signature = sides[0].signature
    sizes = {name: dim.opt for name, dim in signature.dims.items()}
    return dict(synthetic.synthesize(signature, {**sizes, str(signature.batch): rows}).inputs)


def show(found: Difference, *, as_json: bool = False) -> None:
    """Print a difference: facts, operators whose numbers differ, and nodes that do."""
    if as_json:
        print(json.dumps(asdict(found), indent=1))
        return
    console = Screen(_WIDE)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)
    for warning in found.warnings:
        console.print(f"warning: {warning}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", *found.names):
        table.add_column(name, overflow="fold")
    for name, pair in found.facts.items():
        table.add_row(name, *pair)
    changed = {name: pair for name, pair in found.operators.items() if pair[0] != pair[1]}
    for name, (ours, theirs) in changed.items():
        table.add_row(f"operator {name}", str(ours), str(theirs))
    for name, pair in list(found.nodes.items())[:_NODES]:
        table.add_row(f"node {name}", *pair)
    console.print(table)
    if len(found.nodes) > _NODES:
        console.print(f"and {len(found.nodes) - _NODES} more nodes: --json lists them all")
