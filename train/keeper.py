"""Checkpoints while a run goes on: the best, the last and every so many epochs."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from penstock import checkpoint, locks
from penstock.card import Card
from penstock.datasets import Rows
from penstock.errors import PenstockError, first_line
from penstock.files import remove_unfinished, write_whole
from penstock.train import report, resuming
from penstock.train.facts import first_process
from penstock.train.journal import Journal
from penstock.train.learner import Learner
from penstock.train.optim import FALLING
from penstock.train.recipe import Recipe
from penstock.train.resuming import State

# What a run writes whole into its folder.
_WRITTEN = ("last.pth", "best.pth", "epoch-*.pth", "history.jsonl", resuming.STATE, report.PAGE)


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
            resuming.put(self.state, trainer, pl_module)
        except Exception as error:  # whatever tensors and settings of another network make of themselves
            raise resuming.damaged(self.folder / resuming.STATE, first_line(error)) from None

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
        torch.save(resuming.taken(self.state, self.recipe, trainer, learner), buffer)
        write_whole(self.folder / resuming.STATE, buffer.getbuffer())


def _rank(name: str, figures: dict[str, float]) -> float:
    """A figure so turned that more is better."""
    return -figures[name] if name.endswith(FALLING) else figures[name]


def _loss(figures: dict[str, float]) -> float:
    return figures.get("val_loss", math.inf)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep a run's folder, which is made if it is missing, from other runs; of several processes the first does.

    What a run that was killed left half written there is removed.

    Raises:
        PenstockError: another run is writing there.
        OSError: it cannot be made, or a file cannot be removed.
    """
    if not first_process():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locks.held(folder, wait=False))
        except BlockingIOError:
            raise PenstockError(
                f"--output {folder}: another run is writing there; wait for it, or give another --output or --name"
            ) from None
        except OSError:
            pass  # a file system without locks: another run may be writing there
        else:
            remove_unfinished(folder, _WRITTEN)
        yield
