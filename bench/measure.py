"""Measuring artifacts: every variant at every batch size, in interleaved rounds so that drift hits all alike."""

from __future__ import annotations

import os
import platform
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import penstock
from penstock import artifact, cuda, datasets, evaluation, replay, timing
from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.evaluation import Score
from penstock.machine import cpu_name
from penstock.runtimes import Runner
from penstock.timing import Cell


@dataclass(frozen=True)
class Plan:
    """What to measure: batch sizes, seconds of measured time for each variant and batch, threads, device."""

    batches: tuple[int, ...] = (1, 8, 32)
    seconds: float = 1.0
    threads: int | None = None
    device: str = "cpu"
    data: Path | None = None


@dataclass
class Row:
    """One artifact; `unavailable` says why it was not measured, if it was not."""

    artifact: Artifact
    cells: dict[int, Cell] = field(default_factory=dict)
    score: Score | None = None
    unavailable: str | None = None

    @property
    def name(self) -> str:
        return self.artifact.receipt.name

    @property
    def model_bytes(self) -> int:
        receipt = self.artifact.receipt
        return receipt.files[receipt.model_file].bytes


@dataclass
class Result:
    """All rows, the name of the reference among them, where it was measured, and what to know of it."""

    rows: list[Row]
    reference: str | None
    environment: dict[str, Any]
    notes: list[str]
    interrupted: bool = False


def measure(paths: list[Path], plan: Plan, reference: str | None = None) -> Result:
    """Measure the artifacts under `paths`.

    Args:
        paths: artifact folders or repositories.
        plan: batch sizes, time and data.
        reference: the name of the row that ratios refer to; None takes the first fp32 one, else the first.

    Raises:
        PenstockError: a path holds no artifact, no such reference, or none of them runs here.
    """
    rows = [_row(path, plan.device) for path in artifact.find(paths)]
    able = [row for row in rows if row.unavailable is None]
    if not able:
        raise PenstockError(
            "no artifact given runs on this machine: " + "; ".join(str(row.unavailable) for row in rows)
        )
    named = _reference(able, reference)
    result = Result(rows, named, environment(plan, able), [])
    with ExitStack() as stack:
        runners = {}
        for row in able:
            runner = runners[row.name] = stack.enter_context(
                row.artifact.load(device=plan.device, threads=plan.threads)
            )
            replay.replay(row.artifact, runner)  # the speed of wrong answers is of no use
        for row in able:
            _score(row, runners[row.name], plan, result.notes)
        try:
            _time(able, runners, plan)
        except KeyboardInterrupt:
            result.interrupted = True
    return result


def _row(path: Path, device: str) -> Row:
    if path.is_file():
        raise PenstockError(f"{path}: a file; bench measures artifacts, the folders that penstock export writes")
    found = artifact.read(path)
    return Row(found, unavailable=found.unavailable(device))


def _reference(rows: list[Row], wanted: str | None) -> str:
    names = [row.name for row in rows]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        paths = ", ".join(str(row.artifact.folder) for row in rows if row.name == twice)
        raise PenstockError(f"two artifacts are named {twice!r}: {paths}; penstock export --name tells them apart")
    if wanted is not None:
        if wanted not in names:
            raise PenstockError(f"--reference {wanted!r}: must be one of those that run here: {', '.join(names)}")
        return wanted
    return next((row.name for row in rows if row.artifact.receipt.precision == "fp32"), names[0])


def _score(row: Row, runner: Runner, plan: Plan, notes: list[str]) -> None:
    receipt = row.artifact.receipt
    try:
        if plan.data is not None:
            data = datasets.read(plan.data, receipt.preprocess, receipt.labels)
            receipt.signature.check(data.inputs, limit_batch=False)
        else:
            data = evaluation.held_out(receipt.dataset, receipt.preprocess)
        row.score = evaluation.evaluate(runner, data, receipt.signature)
    except PenstockError as error:
        if plan.data is not None:
            raise
        note = f"no accuracy: {error}"
        if note not in notes:
            notes.append(note)


def _time(rows: list[Row], runners: dict[str, Runner], plan: Plan) -> None:
    work = []
    for row in rows:
        inputs, _ = row.artifact.golden()
        for batch in sorted(set(plan.batches)):
            if batch <= row.artifact.receipt.signature.max_batch:
                cell = row.cells[batch] = Cell(batch)
                work.append((runners[row.name], timing.feeds(inputs, batch), cell))
    if not work:
        most = max(row.artifact.receipt.signature.max_batch for row in rows)
        raise PenstockError(
            f"--batch {','.join(map(str, plan.batches))}: every size is over the artifacts' largest batch, {most}; "
            "penstock export --batch sets that"
        )
    timing.measure(work, plan.seconds)


def environment(plan: Plan, rows: list[Row]) -> dict[str, Any]:
    """The conditions of a measurement; the GPU where one of the rows runs on it."""
    on_gpu = plan.device != "cpu" or any(row.artifact.receipt.runtime == "tensorrt" for row in rows)
    return {
        "gpu": cuda.facts(cuda.number(plan.device)) if on_gpu else None,
        "penstock": penstock.__version__,
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "device": plan.device,
        "threads": plan.threads,
        "batches": list(plan.batches),
        "seconds": plan.seconds,
    }
