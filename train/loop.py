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
import torch
from lightning.pytorch.callbacks import Callback, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from penstock import architecture, checkpoint, data, datasets, evaluation, probe
from penstock.card import Card
from penstock.data.specs import Part
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.evaluation import Score
from penstock.files import writing
from penstock.preprocess import ImagePreprocess
from penstock.runtimes.torch import TorchRunner
from penstock.signature import Signature
from penstock.signature import Tensor as TensorSpec
from penstock.train import facts as found
from penstock.train.facts import Facts
from penstock.train.recipe import Recipe

CALIBRATION, GOLDEN = 256, 64


@dataclass(frozen=True)
class Trained:
    """What a run left, and its score on the held-out test part."""

    best: Path
    last: Path
    logs: Path
    score: Score
    seconds: float


class _Classifier(lightning.LightningModule):  # type: ignore[misc]
    """Cross entropy over labelled images."""

    def __init__(self, net: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        self.net = net
        self.recipe = recipe

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, labels = batch
        logits = self.net(_shifted(images, self.recipe.augment.shift))
        loss = functional.cross_entropy(logits, labels, label_smoothing=self.recipe.optim.label_smoothing)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        images, labels = batch
        logits = self.net(images)
        self.log("val_loss", functional.cross_entropy(logits, labels))
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        optim = self.recipe.optim
        # Norms and biases gain nothing from decay.
        decayed = [p for p in self.net.parameters() if p.ndim > 1]
        others = [p for p in self.net.parameters() if p.ndim <= 1]
        optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": optim.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=optim.lr,
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, optim.lr, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _shifted(images: Tensor, most: int) -> Tensor:
    """Each image moved by its own whole number of pixels, the border repeated."""
    if most == 0:
        return images
    n, _, height, width = images.shape
    padded = functional.pad(images, (most,) * 4, mode="replicate")
    top, left = torch.randint(0, 2 * most + 1, (2, n, 1, 1))
    y = top + torch.arange(height).view(1, height, 1)
    x = left + torch.arange(width).view(1, 1, width)
    return padded[torch.arange(n).view(n, 1, 1), :, y, x].permute(0, 3, 1, 2)


class _Keeper(Callback):  # type: ignore[misc]
    """Writes last.pth after every epoch, and best.pth whenever validation accuracy reaches a new high."""

    def __init__(self, folder: Path, card: Card, calibration: Rows, golden: Rows) -> None:
        self.folder, self.card, self.calibration, self.golden = folder, card, calibration, golden
        self.key: tuple[float, float] | None = None

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
        card = self.card.model_copy(update={"metrics": {**figures, "epoch": float(trainer.current_epoch + 1)}})
        state = pl_module.net.state_dict()
        checkpoint.save(self.folder / "last.pth", card, state, self.calibration, self.golden)
        key = figures["val_accuracy"], -figures["val_loss"]
        if self.key is None or key > self.key:
            self.key = key
            checkpoint.save(self.folder / "best.pth", card, state, self.calibration, self.golden)


def train(
    recipe: Recipe,
    folder: Path,
    *,
    progress: bool = True,
    facts: Facts | None = None,
    callbacks: Sequence[Callback] = (),
) -> Trained:
    """Train as `recipe` says, and leave best.pth, last.pth and logs/ in `folder`.

    Args:
        recipe: what to train.
        folder: made if it is missing; checkpoints of an earlier run there are replaced.
        progress: show a progress bar.
        facts: what was found when the run began, for its checkpoints; None looks for it.
        callbacks: Lightning's, that are to hear of it too.
    """
    lightning.seed_everything(recipe.seed, workers=True, verbose=False)
    image = recipe.preprocess
    assert isinstance(image, ImagePreprocess)
    parts = {name: datasets.rows(part, image) for name, part in data.load(recipe.dataset).items()}
    net = architecture.build(recipe.model).train()
    card = describe(recipe, facts or found.find(recipe, folder.name))
    keeper = _Keeper(folder, card, parts["train"].take(CALIBRATION), parts["test"].take(GOLDEN))
    _check_classes(keeper.card, parts)
    logs = folder / "logs"
    with writing("--output", folder, "checkpoints written before are whole"):
        seconds = _fit(recipe, net, parts, _trainer(recipe, logs, [keeper, *callbacks], progress))
    best = checkpoint.load(folder / "best.pth")
    score = evaluation.evaluate(TorchRunner(best.module, best.card.signature), parts["test"], best.card.signature)
    return Trained(folder / "best.pth", folder / "last.pth", logs, score, seconds)


def _check_classes(card: Card, parts: dict[Part, Rows]) -> None:
    classes = len(card.labels or ())
    most = max(int(rows.labels.max()) for rows in parts.values() if rows.labels is not None)
    if most >= classes:
        raise PenstockError(f"recipe {card.name}: the network has {classes} classes; the data goes up to class {most}")


def _fit(recipe: Recipe, net: nn.Module, parts: dict[Part, Rows], trainer: Any) -> float:
    """Run the loop; the seconds it took."""
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(recipe.seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*number of training batches.*")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        try:
            with _stopped_in_time(trainer) as interrupts:
                trainer.fit(
                    _Classifier(net, recipe),
                    DataLoader(_dataset(parts["train"]), recipe.batch_size, shuffle=True, generator=generator),
                    DataLoader(_dataset(parts["val"]), len(parts["val"])),
                )
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
    return lightning.Trainer(
        max_epochs=recipe.epochs,
        accelerator="auto",
        devices=1,
        logger=[CSVLogger(logs, name="csv"), TensorBoardLogger(logs, name="tensorboard")],
        callbacks=[*callbacks, *([TQDMProgressBar(leave=False)] if progress else [])],
        gradient_clip_val=recipe.optim.clip,
        enable_progress_bar=progress,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        log_every_n_steps=10,
    )


def _dataset(part: Rows) -> TensorDataset:
    (images,) = part.inputs.values()
    assert part.labels is not None
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(part.labels))


def describe(recipe: Recipe, facts: Facts | None = None) -> Card:
    """The card of the checkpoints that a recipe trains."""
    image = recipe.preprocess
    assert isinstance(image, ImagePreprocess)
    inputs = (TensorSpec(name=image.input, shape=("batch", image.channels, image.height, image.width)),)
    signature, _ = probe.complete(
        architecture.build(recipe.model), Signature(inputs=inputs, outputs=(), dims={"batch": recipe.batch})
    )
    logits = signature.outputs[0].model_copy(update={"name": "logits"})
    signature = signature.model_copy(update={"outputs": (logits,)})
    classes = int(logits.shape[-1])
    return Card(
        name=recipe.name,
        architecture=recipe.model,
        signature=signature,
        preprocess=image,
        labels=tuple(str(number) for number in range(classes)),
        task=recipe.task,
        dataset=recipe.dataset,
        versions=checkpoint.versions(),
        recipe=recipe.model_dump(mode="json"),
        facts=None if facts is None else facts.model_dump(mode="json"),
    )
