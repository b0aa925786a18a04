"""Measuring artifacts: every variant at every setting, in interleaved rounds so that drift hits all alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from penstock import artifact, datasets, evaluation, replay, timing
from penstock.artifact import Artifact
from penstock.bench import ceiling, control, environment, footprint, peaks, warnings
from penstock.bench.energy import Meter
from penstock.bench.footprint import Footprint
from penstock.bench.peaks import Peaks
from penstock.bench.witness import Witness
from penstock.errors import PenstockError
from penstock.evaluation import Score
from penstock.launches import Parts
from penstock.progress import bar
from penstock.runtimes import Runner
from penstock.timing import Cell, Work


class Setting(NamedTuple):
    """One way to run a variant: rows at a time, intra-op threads (None: the runtime's own), callers at once."""

    batch: int
    threads: int | None = None
    streams: int = 1


@dataclass(frozen=True)
class Plan:
    """What to measure: every batch size with every number of threads and of streams, on a device.

    `seconds` are those of measured time for each variant and setting, `budget` the accuracy that a variant may lose of
    the reference's, 0 to 1.
    """

    batches: tuple[int, ...] = (1, 8, 32)
    seconds: float = 1.0
    threads: tuple[int | None, ...] = (None,)
    streams: tuple[int, ...] = (1,)
    device: str = "cpu"
    data: Path | None = None
    budget: float = 0.01

    @property
    def settings(self) -> list[Setting]:
        return [Setting(*one) for one in product(sorted(set(self.batches)), self.threads, sorted(set(self.streams)))]


@dataclass
class Row:
    """One artifact; `unavailable` says why it was not measured, if it was not."""

    artifact: Artifact
    cells: dict[Setting, Cell] = field(default_factory=dict)
    parts: dict[Setting, Parts] = field(default_factory=dict)
    score: Score | None = None
    footprint: Footprint | None = None
    unavailable: str | None = None

    @property
    def name(self) -> str:
        return self.artifact.receipt.name

    @property
    def alive(self) -> bool:
        """Whether it runs here, and has not failed at every setting."""
        return self.unavailable is None and any(cell.failure is None for cell in self.cells.values())

    def fail(self, error: Exception) -> None:
        """Note at every setting why it is not measured."""
        for cell in self.cells.values():
            cell.fail(error)

    @property
    def in_memory(self) -> bool:
        """Whether it is a source that PyTorch runs as it is, not an export in a folder."""
        return self.artifact.receipt.format == "torch"

    @property
    def model_bytes(self) -> int:
        receipt = self.artifact.receipt
        return receipt.files[receipt.model_file].bytes

    def place(self, device: str) -> str:
        """Where it runs if it is told to run on `device`: an engine that is told `cpu` is on the first GPU."""
        return "cuda:0" if device == "cpu" and self.artifact.receipt.runtime == "tensorrt" else device


@dataclass
class Result:
    """All rows, the name of the reference among them, where and when it was measured, and what to know of it.

    `peaks` are this machine's, by a number of cores or a GPU's name; `ticks` the seconds of its clock in each round.
    """

    rows: list[Row]
    reference: str | None
    plan: Plan
    environment: dict[str, Any]
    notes: list[str]
    warnings: list[warnings.Warning] = field(default_factory=list)
    peaks: dict[str, Peaks] = field(default_factory=dict)
    ticks: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    energy: str | None = None
    interrupted: bool = False

    @property
    def failures(self) -> list[tuple[str, Setting, str]]:
        """What was to be measured and could not be: the row, the setting, and why."""
        return [
            (row.name, setting, cell.failure)
            for row in self.rows
            for setting, cell in row.cells.items()
            if cell.failure is not None
        ]


Runners = dict[tuple[str, int | None], list[Runner]]
Sources = Callable[[list[Artifact]], Sequence[Artifact]]


def measure(paths: list[Path], plan: Plan, reference: str | None = None, sources: Sources = lambda _: ()) -> Result:
    """Measure the artifacts under `paths`. An interrupt ends it early, and what is there by then is the result.

    Args:
        paths: artifact folders or repositories.
        plan: settings, time and data.
        reference: the name of the row that ratios refer to; None takes the first fp32 one, else the first.
        sources: gives rows of the artifacts' source, which go first.

    Raises:
        PenstockError: a path holds no artifact, no such reference, or none of them runs here and answers rightly.
    """
    rows = [_row(path, plan.device) for path in artifact.find(paths)]
    rows = list({row.artifact.folder.resolve(): row for row in rows}.values())  # each once
    rows = [*map(Row, sources([row.artifact for row in rows])), *rows]
    able = [row for row in rows if row.unavailable is None]
    if not able:
        raise PenstockError(
            "no artifact given runs on this machine: " + "; ".join(str(row.unavailable) for row in rows)
        )
    on_gpu = any(row.place(plan.device) != "cpu" for row in able)
    result = Result(rows, _reference(able, reference), plan, environment.machine(plan.device, gpu=on_gpu), [])
    result.notes += _settings(able, plan)
    for row in able:
        with _failing(row):
            row.artifact.check_digests()
    try:
        with ExitStack() as stack:
            _prepare(_alive(result), result)
            runners = _load(_alive(result), plan, stack)
            for row in _alive(result):
                _score(row, runners[row.name, plan.threads[0]][0], plan, result.notes)
            alive = _alive(result)
            result.reference = _reference(alive, None) if reference is None else reference
            _time(alive, runners, result)
    except KeyboardInterrupt:
        result.interrupted = True
    _even_out(able)
    return result


def _alive(result: Result) -> list[Row]:
    """The rows that can still be measured.

    Raises:
        PenstockError: there are none.
    """
    found = [row for row in result.rows if row.alive]
    if not found:
        reasons = dict.fromkeys(f"{name}: {why}" for name, _, why in result.failures)  # one for all batches, once
        raise PenstockError("nothing could be measured: " + "; ".join(reasons))
    return found


@contextmanager
def _failing(row: Row) -> Iterator[None]:
    """What fails in the block fails the row at every setting, and the others are measured."""
    try:
        yield
    except Exception as error:  # whatever a runtime raises
        row.fail(error)


def _row(path: Path, device: str) -> Row:
    if path.is_file():
        step = "penstock export makes one of it, and --source measures it beside that"
        step = f"serve it (penstock serve {path}), then bench its URL" if path.suffix == ".onnx" else step
        raise PenstockError(
            f"{path}: a file; bench measures artifacts, the folders that penstock export writes: {step}"
        )
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


def _settings(rows: list[Row], plan: Plan) -> list[str]:
    """Give each row a cell for every setting that its signature takes; says which batch sizes it does not take."""
    notes = []
    for row in rows:
        signature = row.artifact.receipt.signature
        for setting in plan.settings:
            if signature.min_batch <= setting.batch <= signature.max_batch:
                row.cells[setting] = Cell(setting.batch, streams=setting.streams)
        if left := sorted(set(plan.batches) - {setting.batch for setting in row.cells}):
            takes = f"it takes {signature.min_batch} to {signature.max_batch} rows; penstock export --batch sets that"
            notes.append(f"{row.name} not measured at batch {', '.join(map(str, left))}: {takes}")
    if not any(row.cells for row in rows):
        most = max(row.artifact.receipt.signature.max_batch for row in rows)
        least = min(row.artifact.receipt.signature.min_batch for row in rows)
        why = (
            f"over the artifacts' largest batch, {most}" if max(plan.batches) > most else f"under their least, {least}"
        )
        raise PenstockError(
            f"--batch {','.join(map(str, plan.batches))}: every size is {why}; penstock export --batch sets that"
        )
    return notes


def _load(rows: list[Row], plan: Plan, stack: ExitStack) -> Runners:
    """Runners enough that every stream has one, or its own place in one, as a server's instances do."""
    runners: Runners = {}
    for row in rows:
        with _failing(row), ExitStack() as own:
            for threads in plan.threads:
                runners[row.name, threads] = _enough(row, threads, plan, own)
                if not row.in_memory:
                    replay.replay(
                        row.artifact, runners[row.name, threads][0]
                    )  # the speed of wrong answers is of no use
            stack.push(own.pop_all())
    return runners


def _enough(row: Row, threads: int | None, plan: Plan, stack: ExitStack) -> list[Runner]:
    most, held = max(plan.streams), list[Runner]()
    lanes = {"callers": most} if row.artifact.receipt.runtime == "tensorrt" and most > 1 else {}
    while not held or sum(runner.callers for runner in held) < most:
        held.append(stack.enter_context(row.artifact.load(device=plan.device, threads=threads, **lanes)))
    return held


def _prepare(rows: list[Row], result: Result) -> None:
    """The machine's peaks, and then the footprint of each row; one that kills its process is not loaded in this one."""
    plan, most = result.plan, len(os.sched_getaffinity(0))
    places = [row.place(plan.device) for row in rows]
    foldered = [row for row in rows if not row.in_memory]
    with bar("preparing", len(foldered) + 1) as advance:
        try:
            cores = [ceiling.cores(setting.threads, setting.streams, most) for setting in plan.settings]
            result.peaks = peaks.measure(cores, max(places))
        except PenstockError as error:
            result.notes.append(f"no ceilings: {error}")
        advance()
        for row in foldered:
            try:
                batch = max((setting.batch for setting in row.cells), default=row.artifact.receipt.signature.min_batch)
                row.footprint = footprint.measure(row.artifact, row.place(plan.device), plan.threads[0], batch)
            except footprint.Died as error:
                for cell in row.cells.values():
                    cell.failure = str(error)
            except PenstockError as error:
                result.notes.append(f"no memory and load time of {row.name}: {error}")
            advance()


def _score(row: Row, runner: Runner, plan: Plan, notes: list[str]) -> None:
    receipt = row.artifact.receipt
    if receipt.task in ("regression", "multilabel"):
        note = f"no accuracy: the task is {receipt.task}, whose figures penstock eval tells"
        if note not in notes:
            notes.append(note)
        return
    try:
        if plan.data is not None:
            data = datasets.read(
                plan.data, receipt.preprocess, receipt.labels, task=receipt.task, dataset=receipt.dataset
            )
            receipt.signature.check(data.inputs, limit_batch=False)
        else:
            data = evaluation.held_out(receipt.dataset, receipt.preprocess, task=receipt.task)
        row.score = evaluation.evaluate(runner, data, receipt.signature)
    except PenstockError as error:
        if plan.data is not None:
            raise
        note = f"no accuracy: {error}"
        if note not in notes:
            notes.append(note)
    except Exception as error:  # whatever a runtime raises
        row.fail(error)


def _time(rows: list[Row], runners: Runners, result: Result) -> None:
    plan = result.plan
    places = {row.place(plan.device) for row in rows}
    held = {place: Meter(place) for place in places}
    result.energy = next((meter.source for meter in held.values() if meter.source), None)
    work: dict[tuple[int, Setting], Work] = {}
    meters, cores, most = {}, {}, len(os.sched_getaffinity(0))
    for row in rows:
        inputs, _ = row.artifact.golden()
        for setting, cell in row.cells.items():
            given = runners[row.name, setting.threads][: setting.streams]
            work[id(row), setting] = Work(given, timing.feeds(inputs, setting.batch), cell)
            meters[id(cell)] = held[row.place(plan.device)]
            if row.place(plan.device) == "cpu":
                cores[id(cell)] = ceiling.cores(setting.threads, setting.streams, most)
    lookout = warnings.Lookout(max(places))
    watch = Witness(result.ticks, result.others, meters, lookout, control.beside(cores))
    try:
        timing.measure_all(list(work.values()), plan.seconds, watch=watch)
    finally:
        result.warnings += lookout.warnings(result.ticks)
    for row in rows:
        for setting in row.cells:
            one = work[id(row), setting]
            split = getattr(one.runners[0], "parts", None)
            if split is not None and one.cell.failure is None:
                with suppress(Exception):  # what cannot be split up has been timed as a whole
                    row.parts[setting] = split(one.feeds)


def _even_out(rows: list[Row]) -> None:
    """Leave as many rounds in every cell: an interrupt may come while the last one is being noted down."""
    cells = [cell for row in rows for cell in row.cells.values() if cell.failure is None]
    whole = min((min(len(cell.rounds), len(cell.spans)) for cell in cells), default=0)
    for cell in cells:
        del cell.rounds[whole:], cell.spans[whole:], cell.controls[whole:]
