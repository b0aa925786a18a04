"""Checkpoints while a run goes on: the best, the last and every so many epochs; and all that it takes to go on."""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock import checkpoint
from penstock.card import Card
from penstock.datasets import Rows
from penstock.errors import PenstockError, first_line
from penstock.files import write_whole
from penstock.signature import first_message
from penstock.train import report
from penstock.train.facts import first_process
from penstock.train.journal import Journal
from penstock.train.learner import Learner
from penstock.train.optim import FALLING
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


class Keeper(Callback):  # type: ignore[misc]
    """Writes last.pth and state.pt after every epoch, and best.pth whenever the figure that is watched is better."""

    def __init__(
        self, folder: Path, card: Card, calibration: Rows, golden: Rows, recipe: Recipe, state: State, journal: Journal
    ) -> None:
        self.folder, self.card, self.recipe, self.state, self._journal = folder, card, recipe, state, journal
        self._samples = calibration, golden
        self._began = 0.0

    def on_fit_start(self, trainer: Any, pl_module: Learner) -> None:
        if not self.state.held:
            return
        try:
            _put(self.state, trainer, pl_module)
        except Exception as error:  # whatever tensors and settings of another network make of themselves
            raise _damaged(self.folder / STATE, first_line(error)) from None

    def on_train_epoch_start(self, trainer: Any, pl_module: Learner) -> None:
        self._began = time.perf_counter()

    def on_train_epoch_end(self, trainer: Any, pl_module: Learner) -> None:
        figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
        state, watched = self.state, pl_module.monitor
        self._see_finite(figures, watched)
        if pl_module.plateau is not None:
            pl_module.plateau.step(figures[watched])
        state.epoch = trainer.current_epoch + 1
        rate = float(trainer.optimizers[0].param_groups[0]["lr"])
        state.history.append(
            {**figures, "epoch": state.epoch, "lr": rate, "seconds": time.perf_counter() - self._began}
        )
        value = _rank(watched, figures)
        if trainer.is_global_zero:
            self._journal.epoch(state.epoch, self.recipe.epochs, figures)
        is_best = (
            state.best is None
            or value > state.best
            or (
                value == state.best and _loss(state.history[-1]) < min(map(_loss, state.history[:-1]), default=math.inf)
            )
        )
        state.stale = 0 if is_best else state.stale + 1
        state.best = value if is_best else state.best
        if trainer.is_global_zero:
            self._write(pl_module, figures, trainer, is_best=is_best)
        if self.recipe.keep.patience and state.stale >= self.recipe.keep.patience:
            trainer.should_stop = True

    def _see_finite(self, figures: dict[str, float], watched: str) -> None:
        """Refuse weights that answer with no numbers; the checkpoints that are there stay as they are."""
        for name in ("train_loss", "val_loss", watched):
            if not math.isfinite(figures[name]):
                raise PenstockError(
                    f"recipe {self.recipe.name}: {name} is {figures[name]} after epoch {self.state.epoch + 1}, of "
                    "which nothing is kept; a smaller rate, optim.clip or fp32 may help: "
                    f"--set optim.lr={self.recipe.optim.lr / 10:g}"
                )

    def _write(self, learner: Learner, figures: dict[str, float], trainer: Any, *, is_best: bool) -> None:
        epoch, keep = self.state.epoch, self.recipe.keep
        card = self.card.model_copy(update={"metrics": {**figures, "epoch": float(epoch)}})
        names = ["last.pth", *(["best.pth"] if is_best else [])]
        if keep.every and epoch % keep.every == 0:
            names.append(f"epoch-{epoch:04}.pth")
        with learner.as_kept() as net:
            for name in names:
                checkpoint.save(self.folder / name, card, net.state_dict(), *self._samples)
        lines = "".join(f"{json.dumps(row)}\n" for row in self.state.history)
        write_whole(self.folder / "history.jsonl", lines.encode())
        buffer = io.BytesIO()
        torch.save(_taken(self.state, self.recipe, trainer, learner), buffer)
        write_whole(self.folder / STATE, buffer.getbuffer())


def _rank(name: str, figures: dict[str, float]) -> float:
    """A figure so turned that more is better."""
    return -figures[name] if name.endswith(FALLING) else figures[name]


def _loss(figures: dict[str, float]) -> float:
    return figures.get("val_loss", math.inf)


def _taken(state: State, recipe: Recipe, trainer: Any, learner: Learner) -> dict[str, Any]:
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


def _put(state: State, trainer: Any, learner: Learner) -> None:
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


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep a run's folder, which is made if it is missing, from other runs; of several processes the first does.

    Raises:
        PenstockError: another run is writing there.
        OSError: it cannot be made.
    """
    if not first_process():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PenstockError(
                f"--output {folder}: another run is writing there; wait for it, or give another --output or --name"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


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
        raise _damaged(path, first_message(error)) from None
    if len(written.history) != written.epoch:
        raise _damaged(path, f"it tells of {len(written.history)} epochs, and of {written.epoch}")
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
    history: list[dict[str, float]]
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
            raise _damaged(path, f"its part {unlike} is not as it was written")
        held = torch.load(path, map_location="cpu", weights_only=True)
    except PenstockError:
        raise
    except Exception as error:  # whatever a damaged file makes of itself
        raise _damaged(path, first_line(error)) from None
    return dict(held) if isinstance(held, Mapping) else {}


def _damaged(path: Path, why: str) -> PenstockError:
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
