"""What is learnt: a network's loss on its batches, and how well it does on those it does not learn from."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess
from penstock.train import augment, checkpointing, device, ema, losses, optim, ranks, rules
from penstock.train.jobs import Job
from penstock.train.loaders import Batch
from penstock.train.recipe import Recipe

_MOST_CLASSES = 100
_SUMS = {
    "classification": ("loss", "rows", "right"),
    "multilabel": ("loss", "rows", "both", "said", "held"),
    "regression": ("loss", "rows", "absolute", "squared"),
}


class Learner(lightning.LightningModule):  # type: ignore[misc]
    """A job's network, trained and validated.

    Args:
        job: what is trained.
        folder: where a batch is left whose loss is no number.

    Raises:
        PenstockError: the recipe watches a figure that there is none of.
    """

    _mean: Tensor | None
    _spread: Tensor | None

    def __init__(self, job: Job, folder: Path) -> None:
        super().__init__()
        recipe = job.recipe
        self.net, self.recipe, self._folder = job.net, recipe, folder
        _see_monitor(recipe)
        self._image = job.preprocess if isinstance(job.preprocess, ImagePreprocess) else None
        self._normalize = None if self._image is None else Normalize(self._image)
        self._augment = _augmenter(job)
        counts = _counts(job)
        self._loss = losses.build(recipe.loss, recipe.task, counts, len(job.parts["train"]))
        # Smoothing is for learning: no answer should be as unsure as it asks for.
        plain = recipe.loss.model_copy(update={"label_smoothing": 0.0})
        self._val_loss = losses.build(plain, recipe.task, counts, len(job.parts["train"]))
        mean, spread = (None, None) if job.scale is None else map(torch.from_numpy, job.scale)
        self.register_buffer("_mean", mean, persistent=False)
        self.register_buffer("_spread", spread, persistent=False)
        self.averaged: ema.Averaged | None = None
        optim.freeze(self.net, recipe.optim.freeze)
        device.laid_out(self.net, recipe.machine)
        if recipe.machine.checkpointing:
            checkpointing.checkpointed(self.net)
        self._called: Any = job.call.on(self.net)
        self._learning: Any = torch.compile(self._called) if recipe.machine.compile else self._called
        self._sums: dict[str, Tensor] = {}
        self.confusion: Tensor | None = None
        self._shapes = _shapes(self.net)
        self._stepped = 0
        self._kept = contextlib.ExitStack()
        self._before: tuple[device.Later, Batch] | None = None
        self.plateau: Any = None

    def on_train_start(self) -> None:
        self._stepped = self.trainer.global_step

    def on_train_epoch_start(self) -> None:
        # By its number alone, so that an epoch draws the same whether the run was interrupted before it or not.
        seeds = np.random.SeedSequence((self.recipe.seed, self.current_epoch, self.global_rank))
        torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))
        optim.settle(self.net, self.recipe.optim.freeze)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        inputs, targets = self.ready(batch, learning=True)
        loss: Tensor = self._loss(*self._scaled(_first(self._learning(*inputs.values())), targets))
        if not loss.requires_grad:
            raise PenstockError(
                f"recipe {self.recipe.name}: what the network answers does not depend on a parameter that is trained; "
                "does its forward detach them, or run without gradients?"
            )
        self._see_finite(loss, batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(targets), sync_dist=True)
        wanted = self.recipe.optim
        if wanted.l1 or wanted.l2:
            loss = loss + optim.penalty(self.net, wanted.l1, wanted.l2).to(loss.device)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self._see_shapes()
        step = self.trainer.global_step  # of several batches that make one, the last moves it
        if self.averaged is not None and step != self._stepped:
            self.averaged.update(self.net)
        self._stepped = step

    def on_validation_epoch_start(self) -> None:
        self._see_finite(None, None)
        self._see_shapes()
        # All of them, also on a rank that has no sample: ranks add them up together.
        self._sums = {
            name: torch.zeros((), dtype=torch.float64, device=self.device) for name in _SUMS[self.recipe.task]
        }
        self.confusion = None
        if self.trainer.world_size > 1:  # BatchNorm has counted each rank's own batches; checkpoints keep the first's
            held = {} if self.averaged is None else self.averaged.average
            ranks.alike(held[name] for name, _ in self.net.named_buffers() if name in held)
            ranks.alike(self.net.buffers())
        self._kept.enter_context(self.as_kept())

    def validation_step(self, batch: Batch, index: int) -> None:
        inputs, targets = self.ready(batch, learning=False)
        outputs = _first(self._called(*inputs.values()))
        rows = len(targets)
        self._add(loss=self._val_loss(*self._scaled(outputs, targets)) * rows, rows=rows)
        if self.recipe.task == "classification":
            said = outputs.argmax(1)
            self._add(right=(said == targets).sum())
            if outputs.shape[1] <= _MOST_CLASSES:
                self._confuse(targets, said, outputs.shape[1])
        elif self.recipe.task == "multilabel":
            said, held = outputs > 0, targets > 0.5
            self._add(both=(said & held).sum(), said=said.sum(), held=held.sum())
        else:
            off = outputs.reshape(rows, -1).double() - targets.reshape(rows, -1).double()
            self._add(absolute=off.abs().mean(1).sum(), squared=(off**2).mean(1).sum())

    def on_validation_epoch_end(self) -> None:
        self._see_shapes()
        self._kept.close()
        if self.trainer.world_size > 1:
            together = {name: self.trainer.strategy.reduce(held, reduce_op="sum") for name, held in self._sums.items()}
        else:
            together = self._sums
        for name, value in _figures({name: float(held) for name, held in together.items()}).items():
            self.log(f"val_{name}", value, prog_bar=name != "loss", rank_zero_only=False)

    def configure_optimizers(self) -> Any:
        wanted, schedule = self.recipe.optim, self.recipe.schedule
        if self.recipe.keep.ema:  # now that the network is where it stays
            self.averaged = ema.Averaged(self.net, self.recipe.keep.ema)
        optimizer = optim.optimizer(self.net, wanted)
        if schedule.name == "plateau":
            # Kept here: Lightning's own is not what it was after a run that is resumed.
            self.plateau = optim.plateau(optimizer, schedule, self.monitor)
            return optimizer
        steps = int(self.trainer.estimated_stepping_batches)
        each = max(1, steps // self.recipe.epochs)
        rates = optim.scheduler(optimizer, schedule, wanted, steps, each, self.monitor)
        return {"optimizer": optimizer, "lr_scheduler": rates}

    @property
    def monitor(self) -> str:
        """The figure by which a checkpoint is the best."""
        return self.recipe.keep.monitor or rules.MONITORS[self.recipe.task]

    @contextlib.contextmanager
    def as_kept(self) -> Iterator[nn.Module]:
        """The network with the weights that checkpoints keep: averaged ones, if the recipe wants those."""
        with contextlib.nullcontext() if self.averaged is None else self.averaged.applied(self.net):
            yield self.net

    def ready(self, batch: Batch, *, learning: bool) -> Batch:
        """A batch as the network takes it, changed at random where it learns from it."""
        inputs, targets = batch
        if self._image is None or self._normalize is None:
            if learning and self.recipe.augment.mixup:
                ((name, rows),) = inputs.items()
                rows, targets = self._augment.mixed(rows, targets)
                return {name: rows}, targets
            return inputs, targets
        images = inputs[self._image.input]
        if learning:
            images = self._augment.pixels(images)
        images = self._normalize(images)
        if learning:
            images, targets = self._augment.mixed(images, targets)
        if self.recipe.machine.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return {self._image.input: images}, targets

    def _scaled(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Regression is learnt in units of the targets' spread, whatever their own is."""
        mean, spread = self._mean, self._spread
        if mean is None or spread is None:
            return outputs, targets
        return (outputs - mean) / spread, (targets.reshape(outputs.shape) - mean) / spread

    def _see_finite(self, loss: Tensor | None, batch: Batch | None) -> None:
        """Refuse to go on from a loss that is no number; on a GPU the step before's, which needs no waiting.

        Without one, at the end of an epoch, that of the last step.
        """
        now = None if loss is None or batch is None else (device.Later(loss.detach()), batch)
        seen, self._before = (self._before, now) if loss is None or loss.is_cuda else (now, None)
        if seen is None or math.isfinite(seen[0].read()):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "bad_batch.npz"
        inputs, targets = seen[1]
        arrays: dict[str, Any] = {name: held.cpu().numpy() for name, held in inputs.items()}
        np.savez(path, **arrays, labels=targets.cpu().numpy())
        unfit = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        helps = (
            f"{', '.join(map(repr, unfit))} of it hold NaN or infinity, which the data must not"
            if unfit
            else f"a smaller rate, optim.clip or fp32 may help: --set optim.lr={self.recipe.optim.lr / 10:g}"
        )
        raise PenstockError(
            f"recipe {self.recipe.name}: the loss is {seen[0].read()} in epoch {self.current_epoch + 1}; the batch is "
            f"kept as {path}; {helps}"
        )

    def _see_shapes(self) -> None:
        """See that the network has the tensors that it was built with: only those find their place in it again."""
        before, now = self._shapes, _shapes(self.net)
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if changed:
            built, found = _told(before.get(changed[0])), _told(now.get(changed[0]))
            raise PenstockError(
                f"recipe {self.recipe.name}: model.target {self.recipe.model.target}: {changed[0]} is {built} when the "
                f"network is built, and {found} once it has learnt; a checkpoint holds no such tensor: have __init__ "
                "make it as large as it is to be, or register it with persistent=False"
            )

    def _confuse(self, targets: Tensor, said: Tensor, classes: int) -> None:
        if self.confusion is None:
            self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=targets.device)
        ones = torch.ones_like(targets)
        self.confusion.index_put_((targets, said), ones, accumulate=True)  # bincount is not deterministic on a GPU

    def _add(self, **values: Any) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums[name] + value


class Normalize(nn.Module):
    """Pixels uint8 `[n, h, w, c]` to numbers `[n, c, h, w]`, as `ImagePreprocess.normalize` makes them to the bit."""

    mean: Tensor
    std: Tensor

    def __init__(self, preprocess: ImagePreprocess) -> None:
        super().__init__()
        self._whole = float(np.float32(1 / preprocess.scale))
        for name in ("mean", "std"):
            values = torch.tensor(getattr(preprocess, name), dtype=torch.float32).reshape(1, -1, 1, 1)
            self.register_buffer(name, values, persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        planes = pixels.movedim(-1, 1).contiguous().float()
        found: Tensor = (planes / self._whole - self.mean) / self.std
        return found


def _first(answer: Any) -> Tensor:
    """The first of a network's outputs."""
    found: Tensor = answer[0] if isinstance(answer, tuple) else answer
    return found


def _shapes(net: nn.Module) -> dict[str, tuple[int, ...]]:
    """Of the tensors that checkpoints hold."""
    return {name: tuple(held.shape) for name, held in net.state_dict().items() if isinstance(held, Tensor)}


def _told(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else f"of shape {list(shape)}"


def _see_monitor(recipe: Recipe) -> None:
    wanted = recipe.keep.monitor
    if wanted is not None and (why := rules.unwatched(wanted, recipe.task)) is not None:
        raise PenstockError(f"recipe {recipe.name}: keep.monitor {why}")


def _augmenter(job: Job) -> augment.Augmenter:
    """What changes batches at random.

    Raises:
        PenstockError: mixup is asked for, and there are several inputs, or whole numbers.
    """
    recipe, inputs = job.recipe, job.card.signature.inputs
    if recipe.augment.mixup and (len(inputs) > 1 or not inputs[0].dtype.startswith("float")):
        told = ", ".join(f"{tensor.name} ({tensor.dtype})" for tensor in inputs)
        raise PenstockError(
            f"recipe {recipe.name}: augment.mixup is {recipe.augment.mixup}; it mixes one input of floats, and the "
            f"network's are {told}: set it to 0"
        )
    return augment.Augmenter(recipe.augment, int(job.card.signature.outputs[0].shape[-1]))


def _counts(job: Job) -> Any:
    """Samples of each class in the training part, or ones of each label."""
    if job.recipe.task == "regression":
        return None
    if job.recipe.task == "multilabel":
        return job.parts["train"].labels.sum(0)
    return np.bincount(job.parts["train"].labels, minlength=int(job.card.signature.outputs[0].shape[-1]))


def _figures(sums: dict[str, float]) -> dict[str, float]:
    """Means of a validation's sums; F1 is of all labels together (micro)."""
    rows = sums["rows"]
    found = {"loss": sums["loss"] / rows}
    if "right" in sums:
        found["accuracy"] = sums["right"] / rows
    if "both" in sums:
        found["f1"] = 2 * sums["both"] / max(1.0, sums["said"] + sums["held"])
    if "absolute" in sums:
        found |= {"mae": sums["absolute"] / rows, "rmse": float((sums["squared"] / rows) ** 0.5)}
    return found
