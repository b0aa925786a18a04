"""Trackers: who is told of a run's figures while it goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger

from penstock.errors import require
from penstock.train.overrides import leaves
from penstock.train.recipe import Recipe, Track


def see_installed(track: Track) -> None:
    """See that what is to be told of a run is there, before its data is read.

    Raises:
        PenstockError: a tracker is not installed.
    """
    for name, extra in (("wandb", "track"), ("mlflow", "track"), ("tensorboard", "train")):
        if getattr(track, name):
            require(name, extra, f"track.{name}")


def loggers(recipe: Recipe, logs: Path) -> list[Any]:
    """A logger for each tracker that a recipe wants; what they write stays on this machine, in `logs`."""
    track, found = recipe.track, list[Any]()
    if track.csv:
        found.append(CSVLogger(logs, name="csv"))
    if track.tensorboard:
        found.append(TensorBoardLogger(logs, name="tensorboard"))
    if track.wandb:
        logs.mkdir(parents=True, exist_ok=True)
        found.append(WandbLogger(name=recipe.name, save_dir=logs, project="penstock", offline=True))
    if track.mlflow:
        found.append(MLFlowLogger(recipe.name, tracking_uri=f"sqlite:///{(logs / 'mlflow.db').absolute()}"))
    if found:
        settings = {path: value for path, value in leaves(recipe.model_dump(mode="json")) if value != {}}
        for logger in found:
            logger.log_hyperparams(settings)
    return found


@contextmanager
def told_once() -> Iterator[None]:
    """Keep threads from printing a refused write, as of a full disk: TensorBoard's raises it in the run as well."""
    before = threading.excepthook

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not issubclass(failed.exc_type, OSError):
            before(failed)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before
