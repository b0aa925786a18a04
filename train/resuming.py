"""Resuming: where a run is, in its state.pt; taken from a trainer, read with care, and put into another."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.errors import PenstockError, first_line
from penstock.signature import first_message
from penstock.train import report
from penstock.train.learner import Learner
from penstock.train.recipe import Recipe

SCHEMA = 1
STATE = "state.pt"

# What may be another's in a run that goes on: nothing of it changes what is learnt.
_FREE = ("machine", "loader", "track", "keep", "name")


@dataclass
class State:
    """Where a run is: epochs that are done, their figures, and what the best checkpoint's were."""

    epoch: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best: float | None = None
    stale: int = 0
    held: dict[str, Any] = field(default_factory=dict)


def taken(state: State, recipe: Recipe, trainer: Any, learner: Learner) -> dict[str, Any]:
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return {
        "penstock_training": SCHEMA,
        "recipe": recipe.model_dump(mode="json"),
        "epoch": state.epoch,
        "history": state.history,
        "best": state.best,
        "stale": state.stale,
        "steps": trainer.global_step,
        "net": learner.net.state_dict(),
        "optimizer": trainer.optimizers[0].state_dict(),
        "schedules": [held.scheduler.state_dict() for held in trainer.lr_scheduler_configs],
        "plateau": None if learner.plateau is None else learner.plateau.state_dict(),
        "averaged": None if learner.averaged is None else learner.averaged.state_dict(),
        "scaler": None if scaler is None else scaler.state_dict(),
    }


def put(state: State, trainer: Any, learner: Learner) -> None:
    """Have a trainer that is about to begin go on from there."""
    held = state.held
    learner.net.load_state_dict(held["net"])
    trainer.optimizers[0].load_state_dict(held["optimizer"])
    for config, saved in zip(trainer.lr_scheduler_configs, held["schedules"], strict=True):
        config.scheduler.load_state_dict(saved)
    if learner.plateau is not None:
        learner.plateau.load_state_dict(held["plateau"])
    if learner.averaged is not None:
        learner.averaged.load_state_dict(held["averaged"])
    if held["scaler"] is not None and getattr(trainer.precision_plugin, "scaler", None) is not None:
        trainer.precision_plugin.scaler.load_state_dict(held["scaler"])
    progress = trainer.fit_loop.epoch_progress
    for counts in (progress.current, progress.total):
        counts.ready = counts.started = counts.processed = counts.completed = state.epoch
    trainer.fit_loop.epoch_loop._batches_that_stepped = held["steps"]
    trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = held["steps"]
    state.held = {}


def read(folder: Path, recipe: Recipe) -> State:
    """Where the run in a folder is, to go on with the same recipe.

    Raises:
        PenstockError: there is none, it is damaged, or it is of another recipe.
    """
    path = folder / STATE
    if not path.is_file():
        raise PenstockError(f"--resume: {path} is not there; leave --resume out to begin anew")
    held = _held(path)
    if held.get("penstock_training") != SCHEMA:
        raise PenstockError(f"--resume: {path} is of another penstock; begin anew without --resume")
    try:
        written = _Written.model_validate(held)
        before = Recipe.model_validate(written.recipe)
    except ValidationError as error:
        raise damaged(path, first_message(error)) from None
    if len(written.history) != written.epoch:
        raise damaged(path, f"it tells of {len(written.history)} epochs, and of {written.epoch}")
    _check_same(path, before, recipe, written.epoch)
    patience = recipe.keep.patience
    if patience and written.stale >= patience:
        raise PenstockError(
            f"--resume: {path} ended after {written.epoch} epochs, the last {written.stale} without progress; to go on "
            f"all the same: --set keep.patience={written.stale + patience}, or 0"
        )
    # Without the file of the best, the next is the best there is.
    best = written.best if (folder / "best.pth").is_file() else None
    return State(written.epoch, written.history, best, written.stale, held)


class _Written(BaseModel):
    """What is in a state's file, as far as it can be told without a network."""

    model_config = ConfigDict(strict=True, extra="forbid")
    penstock_training: int
    recipe: dict[str, Any]
    epoch: int = Field(ge=1)
    history: list[dict[str, int | float]]  # whole numbers stay what they are
    best: float | None
    stale: int = Field(ge=0)
    steps: int = Field(ge=0)
    net: dict[str, Any]
    optimizer: dict[str, Any]
    schedules: list[dict[str, Any]]
    plateau: dict[str, Any] | None
    averaged: dict[str, Any] | None
    scaler: dict[str, Any] | None


def _held(path: Path) -> dict[str, Any]:
    """The content of a state's file, every byte of which is as it was written; what is code in it is not run."""
    try:
        with zipfile.ZipFile(path) as parts:
            unlike = parts.testzip()
        if unlike is not None:
            raise damaged(path, f"its part {unlike} is not as it was written")
        held = torch.load(path, map_location="cpu", weights_only=True)
    except PenstockError:
        raise
    except Exception as error:  # whatever a damaged file makes of itself
        raise damaged(path, first_line(error)) from None
    return dict(held) if isinstance(held, Mapping) else {}


def damaged(path: Path, why: str) -> PenstockError:
    return PenstockError(f"--resume: {path} is damaged: {why}; begin anew without --resume")


def _check_same(path: Path, before: Recipe, recipe: Recipe, done: int) -> None:
    ended = {"constant", "step", "multistep", "exponential", "plateau"}
    free = {*_FREE, *(["epochs"] if recipe.schedule.name in ended and not recipe.schedule.warmup else [])}
    old, new = before.model_dump(mode="json", exclude=free), recipe.model_dump(mode="json", exclude=free)
    for name, was, now in _differing(old, new):
        raise PenstockError(
            f"--resume: {path} is of another recipe: its {name} is {was}, and not {now}; give another --output, or "
            "leave --resume out to begin anew"
        )
    # What a run leaves last is its report: without it there is still something to do.
    if done >= recipe.epochs and path.with_name(report.PAGE).is_file():
        more = f"more of them: --epochs {done + 10}"
        if "epochs" not in free:
            more = (
                f"schedule.name {recipe.schedule.name} ends with them; another run goes on from what this one learnt: "
                f"--name NAME --set weights={path.with_name('best.pth')}"
            )
        raise PenstockError(f"--resume: {path} has all its {done} epochs; {more}")


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The fields that are not alike, by their dotted names."""
    for name in dict.fromkeys((*old, *new)):
        was, now = old.get(name), new.get(name)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from _differing(was, now, f"{outer}{name}.")
        elif was != now:
            yield f"{outer}{name}", was, now
