"""The training loop: Lightning runs it; the checkpoints it leaves are penstock's."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback, TQDMProgressBar

from penstock import card as cards
from penstock import checkpoint, datasets, evaluation, parents
from penstock.card import Card
from penstock.data.facts import summary
from penstock.data.specs import Part
from penstock.errors import PenstockError
from penstock.figures import Figures
from penstock.files import writing
from penstock.runtimes.torch import TorchRunner
from penstock.tabular import TablePreprocess
from penstock.train import (
    augment,
    cases,
    device,
    faults,
    jobs,
    journal,
    keeper,
    loaders,
    ranks,
    report,
    resuming,
    stopping,
    trackers,
)
from penstock.train.board import Board
from penstock.train.device import Ahead
from penstock.train.facts import Facts, find, first_process
from penstock.train.jobs import Job
from penstock.train.keeper import Keeper
from penstock.train.learner import Learner
from penstock.train.loaders import Order
from penstock.train.pace import Pace
from penstock.train.recipe import Recipe
from penstock.train.resuming import State

Say = Callable[[str], object]
CALIBRATION, GOLDEN = 256, 64
# Warnings of Lightning and torch about what is meant so: figures are of all ranks before they are logged, and frozen
# blocks are in eval mode.
_NOT_FOR_USERS = (
    "does not have many workers",
    "number of training batches",
    "sync_dist=True",
    "in eval mode at the start of training",
    "Grad strides do not match bucket view strides",
    "AccumulateGrad node's stream does not match",
)
_PRECISION = {"fp32": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}


@dataclass(frozen=True)
class Trained:
    """What a run left, and how the best checkpoint does on the held-out test part; None where another rank tells it.

    `seconds` are those of all its epochs, also of those before it went on.
    """

    best: Path
    last: Path
    logs: Path
    card: Card
    history: list[dict[str, float]]
    seconds: float
    figures: Figures | None = None
    report: Path | None = None


def train(
    recipe: Recipe,
    folder: Path,
    *,
    progress: bool = True,
    resume: bool = False,
    facts: Facts | None = None,
    callbacks: Sequence[Callback] = (),
    say: Say = lambda _: None,
) -> Trained:
    """Train as `recipe` says, and leave best.pth, last.pth, what it takes to go on, a report and logs/ in `folder`.

    Args:
        recipe: what to train.
        folder: made if it is missing; checkpoints of an earlier run there are replaced.
        progress: show a progress bar.
        resume: go on with the run in the folder after its last whole epoch: the same as if it had never ended.
        facts: what was found when the run began, for its checkpoints; None looks for it.
        callbacks: of Lightning's, beside those of the loop.
        say: told in lines what the data and the starting weights are.

    Raises:
        PenstockError: the recipe, its data and its network do not fit, what it asks for is not there, or the loss is no
            number.
    """
    parents.end_with_parent()
    device.resolve(recipe.machine)
    trackers.see_installed(recipe.track)
    state = resuming.read(folder, recipe) if resume else State()
    with _told_what_is_kept(state, say):
        return _trained(recipe, folder, state, progress, facts, callbacks, say)


@contextmanager
def _told_what_is_kept(state: State, say: Say) -> Iterator[None]:
    """Say of a run that ^C ends what there is of it."""
    try:
        yield
    except KeyboardInterrupt:
        if first_process():
            kept = f"epoch {state.epoch} and those before are kept; the same command with --resume goes on"
            say(kept if state.epoch else "nothing is kept of this run yet: its first epoch had not ended")
        raise


def _trained(
    recipe: Recipe,
    folder: Path,
    state: State,
    progress: bool,
    facts: Facts | None,
    callbacks: Sequence[Callback],
    say: Say,
) -> Trained:
    before = sum(epoch.get("seconds", 0.0) for epoch in state.history)
    job = jobs.prepare(recipe, facts or find(recipe, folder.name))
    logs = folder / "logs"
    with (
        writing("--output", folder, "checkpoints written before are whole"),
        keeper.alone(folder),
        trackers.told_once(),
        device.prepared(recipe.machine),
        journal.kept(logs, say, shown=not progress) as told,
    ):
        found = summary(job.parts, recipe.task)
        told.tell(f"{found}; {job.preprocess.told}" if isinstance(job.preprocess, TablePreprocess) else found)
        if recipe.batch_size > len(job.parts["train"]):
            told.tell(
                f"note: batch_size is {recipe.batch_size}: an epoch is one step, of all {len(job.parts['train'])}"
            )
        if job.start is not None:
            told.tell(f"{recipe.weights}: {job.start}")
        keeping = Keeper(
            folder, job.card, _taken(job, "train", CALIBRATION), _taken(job, "test", GOLDEN), recipe, state, told
        )
        watching = [Board()] if recipe.track.tensorboard else []
        trainer = _trainer(job, logs, [Pace(), keeping, *watching, *callbacks], progress)
        seconds = before + _fit(job, trainer, folder)
        ended = Trained(folder / "best.pth", folder / "last.pth", logs, job.card, state.history, seconds)
        return _scored(job, ended, str(trainer.strategy.root_device)) if trainer.is_global_zero else ended


def _scored(job: Job, ended: Trained, where: str) -> Trained:
    """Try the best checkpoint on the test part, and report the run."""
    # What the recipe names is trusted; what a file names is not.
    named = [target for target in cards.targets(job.card.architecture) if not cards.trusted(target)]
    best = checkpoint.load(ended.best, checkpoint.Override(model=named[0] if named else None))
    samples = job.parts["test"]
    rows = datasets.rows(samples, job.preprocess)
    with TorchRunner(best.adapted().to(where), best.card.signature, where) as runner:
        first = evaluation.first_output(runner, rows, best.card.signature)
    figures = evaluation.figures(first, rows, best.card.task)
    telling = cases.choose(samples, first, best.card.task, best.card.labels)
    told = {"seconds": f"{ended.seconds:.1f}", "epochs": str(len(ended.history))}
    page = report.write(ended.best.parent, ended.history, figures, telling, best.card, told)
    return replace(ended, card=best.card, figures=figures, report=page)


def _taken(job: Job, part: Part, count: int) -> datasets.Rows:
    """The first rows of a part, as a checkpoint carries them."""
    return datasets.rows(job.parts[part].first(count), job.preprocess)


class _Data(lightning.LightningDataModule):  # type: ignore[misc]
    """The batches of each rank, which are known once there are ranks."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def train_dataloader(self) -> Any:
        recipe, samples = self._job.recipe, self._job.parts["train"]
        self._see_enough("train", 2)
        read = loaders.dataset(samples, self._job.preprocess, recipe.augment, recipe.seed)
        weights = loaders.weights(samples.labels) if recipe.loader.weighted else None
        order = Order(len(samples), recipe.batch_size, recipe.seed, weights, *self._rank())
        if isinstance(read, augment.Changed):
            order.told.append(read.set_epoch)
        return self._loaded(read, order)

    def val_dataloader(self) -> Any:
        samples, recipe = self._job.parts["val"], self._job.recipe
        self._see_enough("val", 1)
        order = Order(len(samples), recipe.batch_size, None, None, *self._rank())
        return self._loaded(loaders.dataset(samples, self._job.preprocess), order)

    def _see_enough(self, part: Part, each: int) -> None:
        count, (_, ranks) = len(self._job.parts[part]), self._rank()
        held = -(-count // ranks) if part == "train" else count // ranks  # train's are drawn until all have as many
        if held < each:
            raise PenstockError(
                f"recipe {self._job.recipe.name}: the part {part} has {count} samples; {ranks} processes must have "
                f"{each} each: add samples, or set machine.devices and machine.nodes to fewer"
            )

    def _rank(self) -> tuple[int, int]:
        assert self.trainer is not None
        return self.trainer.global_rank, self.trainer.world_size

    def _loaded(self, read: Any, order: Order) -> Any:
        recipe = self._job.recipe
        assert self.trainer is not None
        root = self.trainer.strategy.root_device
        on_gpu = root.type == "cuda"
        batches = loaders.loader(read, order, recipe.loader, on_gpu=on_gpu, seed=recipe.seed)
        return Ahead(batches, root) if on_gpu else batches


def _fit(job: Job, trainer: Any, folder: Path) -> float:
    """Run the loop; the seconds it took."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        for words in _NOT_FOR_USERS:
            warnings.filterwarnings("ignore", message=f".*{words}.*")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        with stopping.between_batches(trainer), ranks.watched(trainer, job.recipe.machine.timeout_s) as watch:
            try:
                trainer.fit(Learner(job, folder), datamodule=_Data(job))
            except (Exception, SystemExit) as error:
                if isinstance(error, SystemExit) and isinstance(error.__context__, KeyboardInterrupt):
                    raise  # how Lightning ends on a signal
                told = faults.told(error, watch.lost)
                if told is not None:
                    raise told from None
                if isinstance(error, PenstockError):
                    raise
                told = faults.of_unused(error, job.net) or faults.of_network(
                    error, job.net, folder / "logs" / "run.log"
                )
                if told is None:
                    raise
                raise told from error
    return time.perf_counter() - started


def _trainer(job: Job, logs: Path, callbacks: Sequence[Callback], progress: bool) -> Any:
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    recipe, machine, clip = job.recipe, job.recipe.machine, job.recipe.optim.clip
    return lightning.Trainer(
        max_epochs=recipe.epochs,
        accelerator={"auto": "auto", "cpu": "cpu", "cuda": "gpu"}[machine.device],
        devices=machine.devices,
        num_nodes=machine.nodes,
        precision=_PRECISION[machine.precision],
        strategy=ranks.strategy(job),
        sync_batchnorm=machine.sync_batchnorm,
        use_distributed_sampler=False,  # loaders.Order knows of ranks
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
