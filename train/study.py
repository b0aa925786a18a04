"""A sweep's database: what was tried and how it went, kept by Optuna in a SQLite file that one process writes.

Optuna's maintainers advise against SQLite for processes that share it, their journal knows no heartbeat, and their grid
gives processes the same point twice (optuna/optuna: pull request 4034, issues 6615 and 2039). So a sweep's head
alone asks and tells; its workers know nothing of the database. What it writes is whole however it ends, and a trial
that is under way in a file that nobody holds is one that was broken off.
"""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import optuna
import sqlalchemy
from optuna.trial import FrozenTrial, TrialState

from penstock import locks
from penstock.errors import PenstockError, first_line
from penstock.files import writing
from penstock.train import strategy
from penstock.train.overrides import leaves
from penstock.train.space import Sweep
from penstock.train.tried import Importance, State, Trial

DATABASE = "sweep.db"
_NAME = "sweep"
# How often a trial is begun whose process dies: memory may have been short, or the trial kills it each time.
_ATTEMPTS = 3
# Where it runs and who is told is not what is compared.
_NO_MATTER = ("machine", "loader", "track", "name")
_WAIT_S = 60  # for another program that reads the file
# One that is under way.
Asked: TypeAlias = optuna.trial.Trial
_STATES: dict[TrialState, State] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


class Study:
    """The trials of a sweep; made by `opened`."""

    def __init__(self, study: optuna.Study, sweep: Sweep, epochs: int) -> None:
        self._study, self._sweep = study, sweep
        self._study.pruner = strategy.pruner(sweep, epochs)
        self._distributions = {path: strategy.distribution(parameter) for path, parameter in sweep.space.items()}

    def ask(self) -> Asked | None:
        """The next trial, or None if there are as many as there are to be.

        What is drawn depends on the seed and on the trials before it alone, so that going on draws what was next.
        """
        held = self._held()
        begun = [one for one in held if one.state != TrialState.WAITING]
        if len(begun) >= self._sweep.total:
            return None
        if self._sweep.sampler == "grid" and len(begun) == len(held):
            self._study.enqueue_trial(self._next_point(held))
        self._study.sampler = strategy.sampler(self._sweep, len(begun))
        return self._study.ask(self._distributions)

    def _next_point(self, held: list[FrozenTrial]) -> dict[str, Any]:
        tried = {_key(_labels(one)) for one in held}
        return next(point for point in self._sweep.grid() if _key(point) not in tried)

    def values(self, trial: Asked | FrozenTrial) -> dict[str, Any]:
        """What a trial tries, by path."""
        return {path: self._sweep.space[path].value(label) for path, label in trial.params.items()}

    def tell(self, trial: Asked, curve: dict[int, float], seconds: float, pruned: bool = False) -> None:
        """A trial that came to its end, or was ended early."""
        trial.set_user_attr("seconds", seconds)
        if pruned:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            best = max if self._sweep.towards == "maximize" else min
            self._study.tell(trial, best(curve.values()))

    def fail(self, trial: Asked, reason: str, seconds: float) -> None:
        """A trial that could not be finished, and would not be another time."""
        trial.set_user_attr("seconds", seconds)
        trial.set_user_attr("reason", reason)
        self._study.tell(trial, state=TrialState.FAIL)

    def died(self, trial: Asked, reason: str, seconds: float) -> bool:
        """A trial whose process is gone: it is tried again, unless that was so a few times; whether it is."""
        attempt = trial.user_attrs.get("attempt", 1)
        if attempt >= _ATTEMPTS:
            self.fail(trial, f"{reason}, {attempt} times", seconds)
            return False
        self._again(trial.number, attempt + 1)
        return True

    def broken_off(self) -> list[int]:
        """Trials that were under way when a sweep ended are to be tried again; their numbers."""
        found = []
        for one in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._again(one.number, one.user_attrs.get("attempt", 1))
            found.append(one.number)
        return found

    def _again(self, number: int, attempt: int) -> None:
        """First the new trial, then the end of the old one, so that no end of this process loses it."""
        if number not in self._replaced():
            old = self._study.get_trials(deepcopy=False)[number]
            self._study.enqueue_trial(_labels(old), user_attrs={"again": number, "attempt": attempt})
        self._study.tell(number, state=TrialState.FAIL)

    def _replaced(self) -> set[int]:
        trials = self._study.get_trials(deepcopy=False)
        return {one.user_attrs["again"] for one in trials if "again" in one.user_attrs}

    def _held(self) -> list[FrozenTrial]:
        replaced = self._replaced()
        return [one for one in self._study.get_trials(deepcopy=False) if one.number not in replaced]

    def trials(self) -> list[Trial]:
        """Those that were begun, but for those that another took the place of."""
        return [self._told(one) for one in self._held() if one.state != TrialState.WAITING]

    def _told(self, one: FrozenTrial) -> Trial:
        told = one.user_attrs
        value = one.value if one.state in (TrialState.COMPLETE, TrialState.PRUNED) else None
        curve = {epoch: one.intermediate_values[epoch] for epoch in sorted(one.intermediate_values)}
        values = self.values(one)
        return Trial(one.number, _STATES[one.state], values, value, curve, told.get("seconds"), told.get("reason"))

    def importance(self) -> Importance:
        """How much each field matters over all trials that have a value.

        Where some were pruned, those that were not are few and alike, and would tell the reverse of it: a field that
        decides what is pruned would matter least.
        """
        valued = [one for one in self._held() if one.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        epoch = None
        if any(one.state == TrialState.PRUNED for one in valued):
            epoch = min(max(one.intermediate_values, default=0) for one in valued)
        worth = {one.number: one.value if epoch is None else one.intermediate_values.get(epoch) for one in valued}
        alike = optuna.create_study(direction=self._sweep.towards)
        for one in valued:
            if worth[one.number] is not None:
                alike.add_trial(
                    optuna.create_trial(params=one.params, distributions=one.distributions, value=worth[one.number])
                )
        told = len(alike.trials)
        if len({one.value for one in alike.trials}) < 2:
            return Importance({}, epoch, told)
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=self._sweep.seed)
        shares = optuna.importance.get_param_importances(alike, evaluator=evaluator)
        return Importance({path: float(share) for path, share in shares.items()}, epoch, told)


@contextmanager
def opened(folder: Path, sweep: Sweep, content: dict[str, Any], epochs: int) -> Iterator[Study]:
    """The study in a folder, made if there is none, for this process alone.

    Args:
        folder: is there.
        sweep: what is tried.
        content: the recipe, without the sweep.
        epochs: the most that a trial may take.

    Raises:
        PenstockError: another sweep is at work there, or that was another recipe's, or the file cannot be used.
    """
    path = folder / DATABASE
    with _held_alone(folder), _storage_errors(path):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # The file is opened here, since in an address some characters of a path would mean something else.
        storage = optuna.storages.RDBStorage(
            "sqlite://", engine_kwargs={"creator": lambda: sqlite3.connect(path, timeout=_WAIT_S)}
        )
        try:
            study = _made(storage, path, sweep, _what_matters(sweep, content))
            yield Study(study, sweep, epochs)
        finally:
            storage.engine.dispose()


@contextmanager
def _held_alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system takes from a process that ends however it ends."""
    with writing("--output", folder, "nothing was begun"), ExitStack() as stack:
        (folder / ".lock").touch()
        try:
            stack.enter_context(locks.held(folder / ".lock", wait=False))
        except BlockingIOError:
            raise PenstockError(
                f"--output {folder}: another `penstock sweep` is at work there; wait for it, or give another --output"
            ) from None
        yield


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """What SQLite refuses in one sentence; and no warnings of what Optuna calls experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            yield
        except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
            raise PenstockError(
                f"{path}: the sweep's database cannot be used: {first_line(_cause(error))}; put it right, and the same "
                "command goes on"
            ) from None


def _cause(error: BaseException) -> BaseException:
    """What SQLite said, under what SQLAlchemy and Optuna say of it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _what_matters(sweep: Sweep, content: dict[str, Any]) -> dict[str, Any]:
    """What trials must share to be compared, as flat JSON."""
    told = {name: value for name, value in content.items() if name not in (*_NO_MATTER, "sweep")}
    flat = {path: value for path, value in leaves(told) if path not in sweep.space}
    space = {f"sweep.space.{path}": one.model_dump(exclude_defaults=True) for path, one in sweep.space.items()}
    told = {**flat, **space, "sweep.metric": sweep.metric, "sweep.direction": sweep.towards}
    found: dict[str, Any] = json.loads(json.dumps(told))
    return found


def _made(storage: optuna.storages.BaseStorage, path: Path, sweep: Sweep, told: dict[str, Any]) -> optuna.Study:
    """The study that the file holds, or a new one, also in the place of one in which nothing was finished."""
    names = optuna.get_all_study_names(storage)
    if _NAME in names:
        study = optuna.load_study(study_name=_NAME, storage=storage)
        before = study.user_attrs.get("recipe", {})
        if before == told:
            return study
        if study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
            raise PenstockError(_changed(path, before, told))
        optuna.delete_study(study_name=_NAME, storage=storage)
    study = optuna.create_study(storage=storage, study_name=_NAME, direction=sweep.towards)
    study.set_user_attr("recipe", told)
    return study


def _changed(path: Path, before: dict[str, Any], told: dict[str, Any]) -> str:
    name = next(name for name in dict.fromkeys([*before, *told]) if before.get(name, ...) != told.get(name, ...))
    was, now = (json.dumps(side[name]) if name in side else "not given" for side in (before, told))
    return (
        f"{name} was {was:.200} in the sweep that {path} holds, and is {now:.200}; its trials cannot be compared with "
        f"new ones: give another --output, delete {path.parent}, or put it back"
    )


def _labels(trial: FrozenTrial) -> dict[str, Any]:
    """A trial's parameters, also where it was ended before it took all of those that it was given."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


def _key(labels: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((path, labels[path]) for path in sorted(labels))
