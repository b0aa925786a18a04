"""Sweeps: a recipe trained with many values of some of its fields, by several processes, until the best are known."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, Say
from penstock.files import writing
from penstock.train import crew, facts, outcome, overrides, recipefiles, rules
from penstock.train import recipe as recipes
from penstock.train.crew import Message, Worker
from penstock.train.facts import Facts
from penstock.train.outcome import Outcome
from penstock.train.recipe import Recipe
from penstock.train.space import Sweep, put
from penstock.train.study import Asked, Study, opened


@dataclass(frozen=True)
class Request:
    """What is asked for; made by `request`.

    Args:
        recipe: with its section `sweep`.
        content: its fields as they were given, without that section: a trial's, but for its values.
        folder: for all that is made.
        workers: how many trials train at the same time.
        words: of the command line that trains the recipe as it stands, to which values are added.
    """

    recipe: Recipe
    content: dict[str, Any]
    folder: Path
    workers: int
    words: tuple[str, ...]

    @property
    def sweep(self) -> Sweep:
        """The recipe's."""
        assert self.recipe.sweep is not None
        return self.recipe.sweep

    def compared(self) -> dict[str, Any]:
        """The recipe as far as it is not what fields are by default: what trials share."""
        return self.recipe.model_dump(mode="json", exclude_defaults=True, exclude={"sweep"})

    def epochs(self) -> int:
        """The most that a trial may take."""
        swept = self.sweep.space.get("epochs")
        if swept is None:
            return self.recipe.epochs
        return int(max(swept.choices) if swept.choices is not None else swept.last)

    def trial(self, number: int) -> Path:
        """A trial's folder."""
        return self.folder / "trials" / f"{number:04d}"


def request(recipe: str, settings: Sequence[str], trials: int | None, workers: int, output: Path) -> Request:
    """What the command line asks for.

    Args:
        recipe: a shipped recipe's name, or a file.
        settings: `optim.lr=3e-4`, in place of the recipe's own.
        trials: in place of the recipe's own.
        workers: how many trials train at the same time.
        output: the folder of runs.

    Raises:
        PenstockError: the recipe cannot be read, has no sweep, is for several devices, or has no such fields.
    """
    raw, changes = recipefiles.read(recipefiles.locate(recipe)), list(map(overrides.parse, settings))
    if list(raw) == ["sweep"]:
        raise PenstockError(
            f"recipe {recipe}: has nothing but [sweep]; a whole recipe, to which it is added, is written by: "
            "penstock train digits --show > mine.toml"
        )
    job = recipes.make(raw, changes, {}, f"recipe {recipe}", f"penstock sweep {shlex.quote(recipe)}")
    wanted = job.sweep
    if wanted is None:
        raise PenstockError(
            f"recipe {recipe}: has no section [sweep]; give it one, or its space alone: penstock sweep "
            f"""{shlex.quote(recipe)} --set 'sweep.space={{"optim.lr"={{low=1e-4,high=1e-1,log=true}}}}'"""
        )
    if job.machine.nodes > 1 or job.machine.devices not in (1, "auto"):
        raise PenstockError(
            f"recipe {recipe}: machine.devices is {job.machine.devices} and machine.nodes {job.machine.nodes}; a "
            "sweep's trials take one device each: set both to 1, and give --workers the number of devices"
        )
    if (why := rules.unwatched(wanted.metric, job.task)) is not None:
        raise PenstockError(f"recipe {recipe}: sweep.metric {why}")
    if trials is not None:
        job = job.model_copy(update={"sweep": wanted.model_copy(update={"trials": trials})})
    content, own = overrides.apply(raw, changes), [text for text in settings if not text.startswith("sweep.")]
    del content["sweep"]
    if job.machine.devices == "auto":
        content = put(content, {"machine.devices": 1})
    if job.keep.monitor is None and wanted.metric != rules.MONITORS[job.task]:
        own.append(f"keep.monitor={wanted.metric}")  # so that the best epoch's weights are kept
        content = put(content, {"keep.monitor": wanted.metric})
    _check_fields(job, content, f"recipe {recipe}: sweep.space.")
    words = (recipe, *(word for text in own for word in ("--set", text)))
    return Request(job, content, output / f"{job.name}-sweep", workers, words)


def _check_fields(job: Recipe, content: dict[str, Any], source: str) -> None:
    """A field that takes none of its values is refused now; values that do not go together fail in their trial."""
    assert job.sweep is not None
    for path, parameter in job.sweep.space.items():
        tried = parameter.choices if parameter.choices is not None else (parameter.low, parameter.last)
        refused = 0
        for value in tried:
            try:
                recipes.make(put(content, {path: value}), (), {}, f"{source}{path}", "penstock train")
            except PenstockError as error:
                refused += 1
                if refused == len(tried):
                    raise error from None


def run(request: Request, say: Say) -> Outcome:
    """Try values until there are as many trials as there are to be, those of earlier calls included.

    Leaves in the folder `sweep.db`, `trials/NUMBER/` with each trial's logs, `best.pth`, `best.toml`, `trials.csv`,
    charts, and `sweep.html`. Of the trials' checkpoints the best one's are kept.

    Raises:
        PenstockError: the folder holds another sweep, or no trial came to its end.
    """
    found = facts.find(request.recipe, request.recipe.name)
    compared = {**request.compared(), **({"data": found.data} if found.data else {})}
    with writing("--output", request.folder, "trials that were finished are kept"):
        request.folder.mkdir(parents=True, exist_ok=True)
        with opened(request.folder, request.sweep, compared, request.epochs()) as study:
            _Head(request, study, found, say).work()
            return outcome.write(request.folder, request.recipe, request.content, request.words, study)


@dataclass
class _Running:
    """A trial under way."""

    trial: Asked
    values: dict[str, Any]
    curve: dict[int, float] = field(default_factory=dict)
    pruned: bool = False
    since: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        return time.monotonic() - self.since


class _Head:
    """Hands trials out, hears how they go, and keeps the database."""

    def __init__(self, request: Request, study: Study, found: Facts, say: Say) -> None:
        self.request, self.study, self.found, self.say = request, study, found, say
        self.workers: dict[int, Worker] = {}
        self.running: dict[int, _Running] = {}

    def work(self) -> None:
        """Until no trial is left."""
        self._go_on()
        try:
            while self._hand_out():
                at_work = {self.workers[place]: place for place in self.running}
                for worker in Worker.ready(list(at_work)):
                    self._hear(at_work[worker])
        finally:
            for worker in self.workers.values():
                worker.end()

    def _go_on(self) -> None:
        for number in self.study.broken_off():
            shutil.rmtree(self.request.trial(number), ignore_errors=True)
        finished = [one.number for one in self.study.trials()]
        self._keep_best(finished)
        total = self.request.sweep.total
        if finished:
            self.say(f"{len(finished)} of {total} trials are there from before; {max(0, total - len(finished))} to go")

    def _hand_out(self) -> bool:
        """Give each idle worker a trial, as long as there are any; whether one is under way."""
        for place in range(self.request.workers):
            if place not in self.running:
                trial = self.study.ask()
                if trial is None:
                    break
                self._begin(place, trial)
        return bool(self.running)

    def _begin(self, place: int, trial: Asked) -> None:
        folder, values = self.request.trial(trial.number), self.study.values(trial)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if place not in self.workers:
            device = self.request.recipe.machine.device
            environment = crew.environment(place, self.request.workers, device)
            self.workers[place] = Worker(self.request.folder / "trials" / f"worker-{place}.log", environment)
        self.running[place] = _Running(trial, values)
        self.workers[place].send(
            {
                "recipe": put(self.request.content, values),
                "folder": str(folder),
                "metric": self.request.sweep.metric,
                "facts": self._facts(folder.name, values),
            }
        )

    def _facts(self, name: str, values: dict[str, Any]) -> dict[str, Any] | None:
        """What was found for all trials, with a trial's own; None where values may change what there is to find."""
        if any(path.startswith(("dataset.", "machine.")) for path in values):
            return None
        own = {"name": name, "seed": values.get("seed", self.found.seed), "started": facts.now()}
        return self.found.model_copy(update=own).model_dump(mode="json")

    def _hear(self, place: int) -> None:
        now, message = self.running[place], self.workers[place].hear()
        if message is not None and message["kind"] == "epoch":
            self._epoch(place, now, message)
            return
        del self.running[place]
        if message is None:
            self._died(place, now)
        elif message["kind"] in ("no metric", "no room"):
            raise PenstockError(self._hopeless(message))
        elif message["kind"] == "finished" and now.curve:
            self.study.tell(now.trial, now.curve, message["seconds"], now.pruned)
        else:
            self.study.fail(now.trial, message.get("reason", "it ended before its first epoch did"), message["seconds"])
            self.workers.pop(place).end()  # what the trial left in its process is not for the next one
        if message is not None:
            self._done(now)

    def _hopeless(self, message: Message) -> str:
        """Why no other trial would fare better; this one is tried again when the sweep goes on."""
        if message["kind"] == "no room":
            return f"{message['reason']}; make room, and the same command goes on"
        there = ", ".join(message["there"])
        return f"sweep.metric {self.request.sweep.metric!r}: the loop logs no such figure; it logs {there}"

    def _epoch(self, place: int, now: _Running, message: Message) -> None:
        now.curve[message["epoch"]] = message["value"]
        now.trial.report(message["value"], message["epoch"])
        now.pruned = now.trial.should_prune()
        self.workers[place].send({"stop": now.pruned})

    def _died(self, place: int, now: _Running) -> None:
        how = f"its process {self.workers.pop(place).gone()}"
        log = self.request.folder / "trials" / f"worker-{place}.log"
        if self.study.died(now.trial, f"{how} (see {log})", now.seconds()):
            shutil.rmtree(self.request.trial(now.trial.number), ignore_errors=True)
            self.say(f"trial {now.trial.number}: {how} (see {log}); it is tried again")
        else:
            self._done(now)

    def _done(self, now: _Running) -> None:
        trials = self.study.trials()
        best = outcome.best(trials, self.request.sweep)
        told = next(one for one in trials if one.number == now.trial.number)
        self.say(outcome.line(told, best, self.request.sweep))
        self._keep_best([one.number for one in trials if one.state != "running"])

    def _keep_best(self, finished: Sequence[int]) -> None:
        """Take the checkpoints of all finished trials away, but for the best one's."""
        best = outcome.best(self.study.trials(), self.request.sweep)
        for number in finished:
            if best is None or number != best.number:
                for path in _checkpoints(self.request.trial(number)):
                    with contextlib.suppress(FileNotFoundError):
                        path.unlink()


def _checkpoints(folder: Path) -> Iterator[Path]:
    return folder.glob("*.pth")
