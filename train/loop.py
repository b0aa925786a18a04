"""The training loop: Lightning runs it; the checkpoints it leaves are penstock's."""

from __future__ import annotations

import logging
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback, TQDMProgressBar
from torch.utils.data import DataLoader

from penstock import checkpoint, datasets, evaluation
from penstock.data.specs import Part
from penstock.evaluation import Score
from penstock.files import writing
from penstock.runtimes.torch import TorchRunner
from penstock.train import device, jobs, keeper, loaders, trackers
from penstock.train.board import Board
from penstock.train.jobs import Job
from penstock.train.keeper import Keeper, State
from penstock.train.learner import Learner
from penstock.train.loaders import Batch, Order
from penstock.train.pace import Pace
from penstock.train.recipe import Recipe

CALIBRATION, GOLDEN = 256, 64
_PRECISION = {"fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}


@dataclass(frozen=True)
class Trained:
    """What a run left, and its score on the held-out test part; None where another rank has it."""

    best: Path
    last: Path
    logs: Path
    score: Score | None
    seconds: float
    history: list[dict[str, float]]
    card: Any


def train(
    recipe: Recipe,
    folder: Path,
    *,
    progress: bool = True,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Trained:
    """Train as `recipe` says, and leave best.pth, last.pth, what it takes to go on, and logs/ in `folder`.

    Args:
        recipe: what to train.
        folder: made if it is missing; checkpoints of an earlier run there are replaced.
        progress: show a progress bar.
        resume: go on with the run in the folder after its last whole epoch: the same as if it had never ended.
        callbacks: of Lightning's, beside those of the loop.

    Raises:
        PenstockError: the recipe, its data and its network do not fit, or the loss is no number.
    """
    state = keeper.read(folder, recipe) if resume else State()
    job = jobs.prepare(recipe)
    device.prepare(recipe.machine)
    logs = folder / "logs"
    with writing("--output", folder, "checkpoints written before are whole"):
        samples = (_taken(job, "train", CALIBRATION), _taken(job, "test", GOLDEN))
        keeping = Keeper(folder, job.card, *samples, recipe, state)
        trainer = _trainer(recipe, logs, [Pace(), keeping, *([Board()] if recipe.track.tensorboard else []), *callbacks], progress)
        seconds = _fit(job, trainer, folder)
    if not trainer.is_global_zero:
        return Trained(folder / "best.pth", folder / "last.pth", logs, None, seconds, state.history, job.card)
    best = checkpoint.load(folder / "best.pth")
    rows = datasets.rows(job.parts["test"], job.preprocess)
    score = evaluation.evaluate(TorchRunner(best.module, best.card.signature), rows, best.card.signature)
    return Trained(folder / "best.pth", folder / "last.pth", logs, score, seconds, state.history, best.card)


def _taken(job: Job, part: Part, count: int) -> datasets.Rows:
    """The first rows of a part, as a checkpoint carries them."""
    samples = job.parts[part]
    few = samples.first(count)
    return datasets.rows(few, job.preprocess)


class _Data(lightning.LightningDataModule):  # type: ignore[misc]
    """The batches of each rank, which are known once there are ranks."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def train_dataloader(self) -> DataLoader[Batch]:
        how, samples = self._job.recipe.loader, self._job.parts["train"]
        weights = loaders.weights(samples.labels) if how.weighted else None
        return self._loader("train", Order(len(samples), *self._few(), weights, *self._ranks()))

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._loader("val", Order(len(self._job.parts["val"]), self._few()[0], None, None, *self._ranks()))

    def _few(self) -> tuple[int, int]:
        return self._job.recipe.batch_size, self._job.recipe.seed

    def _ranks(self) -> tuple[int, int]:
        assert self.trainer is not None
        return self.trainer.global_rank, self.trainer.world_size

    def _loader(self, part: Part, order: Order) -> DataLoader[Batch]:
        job = self._job
        read = loaders.dataset(job.parts[part], job.preprocess)
        assert self.trainer is not None
        on_gpu = self.trainer.strategy.root_device.type == "cuda"
        return loaders.loader(read, order, job.recipe.loader, on_gpu=on_gpu, seed=job.recipe.seed)


def _fit(job: Job, trainer: Any, folder: Path) -> float:
    """Run the loop; the seconds it took."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*number of training batches.*")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        try:
            with _stopped_in_time(trainer) as interrupts:
                trainer.fit(Learner(job, folder), datamodule=_Data(job))
        except SystemExit:  # how Lightning ends on ^C
            raise KeyboardInterrupt from None
    if interrupts or trainer.interrupted:
        raise KeyboardInterrupt
    return time.perf_counter() - started


@contextmanager
def _stopped_in_time(trainer: Any) -> Iterator[list[int]]:
    """Let the first ^C stop the loop after its step; the signals that came are yielded.

    Raised in the middle of a logger's write it may leave a lock behind, for which Lightning's own shutdown, deaf to ^C
    by then, waits for ever. A second ^C is raised where it strikes.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came  # signals are the main thread's
        return

    def stop(number: int, _: Any) -> None:
        came.append(number)
        trainer.should_stop = True
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):
        yield came
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


def _trainer(recipe: Recipe, logs: Path, callbacks: Sequence[Callback], progress: bool) -> Any:
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    machine, clip = recipe.machine, recipe.optim.clip
    return lightning.Trainer(
        max_epochs=recipe.epochs,
        accelerator={"auto": "auto", "cpu": "cpu", "cuda": "gpu"}[machine.device],
        devices=machine.devices,
        num_nodes=machine.nodes,
        precision=_PRECISION[machine.precision],
        strategy="auto",
        sync_batchnorm=machine.sync_batchnorm,
        use_distributed_sampler=False,  # loaders.Order knows of ranks
        deterministic=machine.deterministic,
        accumulate_grad_batches=recipe.optim.accumulate,
        gradient_clip_val=clip,
        logger=trackers.loggers(recipe, logs),
        callbacks=[*callbacks, *([TQDMProgressBar(leave=False)] if progress else [])],
        enable_progress_bar=progress,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        log_every_n_steps=10,
    )
