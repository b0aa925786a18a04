"""Recipes: what to train, on what, and how; the sections, their fields, and each field's rule."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from operator import eq
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_serializer, field_validator, model_validator

from penstock.architecture import Architecture
from penstock.data.specs import DatasetSpec
from penstock.errors import PenstockError
from penstock.fields import NoTruths
from penstock.preprocess import ImagePreprocess
from penstock.signature import Dim
from penstock.train import recipefiles, rules
from penstock.train.complaints import complaint, unknown
from penstock.train.overrides import Override, apply, holds, parse
from penstock.train.recipefiles import SHIPPED as SHIPPED
from penstock.train.space import Sweep

# Seeds of numpy's go no further, and nothing that is counted here comes near.
_MOST = 2**32 - 1


class _Section(NoTruths):
    """A part of a recipe; what it does not know is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Text(_Section):
    """How texts become tokens: words that were found in the training part, or a transformers folder's own tokenizer.

    Args:
        tokenizer: "words", or the folder.
        size: the most words that are known, the most frequent.
        least: how often a word must be found to be known.
        length: tokens that a text is padded or cut to.
    """

    kind: Literal["text"]
    tokenizer: str = "words"
    size: int = Field(default=20_000, ge=2, le=_MOST)
    least: int = Field(default=1, ge=1, le=_MOST)
    length: int = Field(default=64, ge=1, le=2**16)


class Table(_Section):
    """How a table's columns become numbers: standardised, and one-hot, by what is found in the training part.

    Columns of numbers with at most `most_categories` values are told apart as categories if they are in `categories`;
    others that hold anything but numbers are categories, of which more than `most_categories` are refused.
    """

    kind: Literal["table"]
    input: str = "row"
    categories: tuple[str, ...] = ()
    most_categories: int = Field(default=1000, ge=2, le=_MOST)


class Augment(_Section):
    """Random changes to training images: a shift by so many pixels each way, mirroring, RandomResizedCrop, a policy.

    `mixup` is the alpha of its beta distribution (Zhang et al., "mixup", 2018); 0 is none.
    """

    shift: int = Field(default=0, ge=0)
    flip: bool = False
    crop: bool = False
    policy: Literal["none", "trivial", "rand"] = "none"
    mixup: float = Field(default=0.0, ge=0)


class Optim(_Section):
    """What moves the weights: `lr` at its peak, gradients clipped to norm `clip`, decay spared norms and biases.

    No `clip`, which is None here, is 0 in files.

    `layer_decay` multiplies the rate once for each block between a parameter and the head; `freeze` are patterns of
    parameters' names that stay as they are; `accumulate` batches make a step; `l1` and `l2` are penalties in the loss.
    """

    name: Literal["sgd", "adam", "adamw"] = "adamw"
    lr: float = Field(gt=0, le=1e30)
    weight_decay: float = Field(default=0.0, ge=0, le=1e6)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = Field(default=1.0, ge=0)
    no_decay: bool = True
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    freeze: tuple[str, ...] = ()
    accumulate: int = Field(default=1, ge=1, le=_MOST)
    l1: float = Field(default=0.0, ge=0)
    l2: float = Field(default=0.0, ge=0)
    # The older name of the loss's own, which it becomes; it is in no recipe that is written.
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, exclude=True)

    @field_validator("clip")
    @classmethod
    def _nothing_clipped(cls, clip: float | None) -> float | None:
        return clip or None

    @field_serializer("clip")
    def _without_null(self, clip: float | None) -> float:
        return clip or 0.0


class Schedule(_Section):
    """How the rate goes on from its peak: `warmup` is the share of all steps in which it rises to it.

    `step` and `multistep` multiply by `gamma` every `every` epochs or at `milestones`, `exponential` after each epoch;
    `cosine` and `linear` end at `least` of the peak; `plateau` multiplies by `gamma` after `patience` epochs without
    progress.
    """

    name: Literal["constant", "step", "multistep", "exponential", "cosine", "linear", "onecycle", "plateau"] = (
        "onecycle"
    )
    warmup: float = Field(default=0.0, ge=0, lt=1)
    every: int = Field(default=10, ge=1, le=_MOST)
    milestones: tuple[int, ...] = ()
    gamma: float = Field(default=0.1, gt=0, le=1)
    least: float = Field(default=0.0, ge=0, lt=1)
    patience: int = Field(default=3, ge=0, le=_MOST)


class Loss(_Section):
    """What is to be small: by the task where no name is given.

    `gamma` and `alpha` are the focal loss's (Lin et al., "Focal Loss for Dense Object Detection", 2017); `delta` the
    Huber loss's. `class_weights` true weighs each class by the inverse of its share.
    """

    name: Literal["cross-entropy", "bce", "focal", "mse", "l1", "huber"] | None = None
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    gamma: float = Field(default=2.0, ge=0)
    alpha: float | None = Field(default=None, ge=0, le=1)
    delta: float = Field(default=1.0, gt=0)
    class_weights: bool | tuple[float, ...] = False


class Loader(_Section):
    """How batches are read: processes beside the loop, page-locked memory, classes drawn alike often (`weighted`)."""

    workers: int = Field(default=0, ge=0, le=256)
    pin: bool = True
    weighted: bool = False


class Machine(_Section):
    """What it runs on, and how: several devices are those of `torchrun`, or of this machine.

    Of several processes one ends where no batch has ended for `timeout_s`, since it waits for another.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int | Literal["auto"] = 1
    nodes: int = Field(default=1, ge=1, le=_MOST)
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    tf32: bool = False
    channels_last: bool = False
    compile: bool = False
    checkpointing: bool = False
    deterministic: bool = False
    sync_batchnorm: bool = False
    timeout_s: float = Field(default=1800.0, ge=1, le=7 * 24 * 3600)


class Keep(_Section):
    """Which checkpoints are kept: the best by `monitor`, the last, every so many epochs; and when it ends early.

    `patience` are the epochs without progress after which it ends, `ema` the decay of averaged weights; 0 is none.
    """

    every: int = Field(default=0, ge=0, le=_MOST)
    patience: int = Field(default=0, ge=0, le=_MOST)
    ema: float = Field(default=0.0, ge=0, lt=1)
    monitor: str | None = None


class Track(_Section):
    """Who is told of the figures while it runs."""

    csv: bool = True
    tensorboard: bool = True
    wandb: bool = False
    mlflow: bool = False


Task = Literal["classification", "multilabel", "regression"]


class Recipe(NoTruths):
    """One training job. `weights` is a file to start from; `sweep` is for `penstock sweep` alone."""

    model_config = ConfigDict(extra="forbid")
    name: str
    task: Task
    seed: int = Field(default=0, ge=0, le=_MOST)
    epochs: int = Field(ge=1, le=_MOST)
    batch_size: int = Field(ge=2, le=_MOST)
    dataset: DatasetSpec
    model: Architecture
    weights: str | None = None
    preprocess: ImagePreprocess | Text | Table | None = Field(default=None, discriminator="kind")
    augment: Augment = Augment()
    loss: Loss = Loss()
    optim: Optim
    schedule: Schedule = Schedule()
    loader: Loader = Loader()
    machine: Machine = Machine()
    keep: Keep = Keep()
    track: Track = Track()
    batch: Dim
    sweep: Sweep | None = None

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{,99}", name):
            raise ValueError(
                f"{name!r:.60} names the run's folder and the model; it must be of letters, digits, _ and -, begin "
                "with a letter or digit, and be no longer than 100"
            )
        return name

    @model_validator(mode="before")
    @classmethod
    def _prepared_for_the_data_set(cls, content: Any) -> Any:
        """What a recipe leaves out of [preprocess] follows from its data set: the kind; of texts and tables all."""
        if not isinstance(content, dict):
            return content
        dataset, given = content.get("dataset"), content.get("preprocess")
        name = dataset.get("name") if isinstance(dataset, dict) else getattr(dataset, "name", None)
        kind = rules.KINDS.get(str(name))
        if isinstance(given, dict):
            told = given.get("kind")
            if kind is not None and told != kind and told in rules.KINDS.values():  # before its fields are looked at
                raise ValueError(f"preprocess.kind is {told}; dataset.name {name} takes {kind}")
            return {**content, "preprocess": {"kind": kind or "image", **given}}
        if given is None and kind in ("text", "table"):
            return {**content, "preprocess": {"kind": kind}}
        return content

    @model_validator(mode="before")
    @classmethod
    def _swept_by_what_is_kept_by(cls, content: Any) -> Any:
        """A sweep that names no metric compares trials by the figure that tells the task's best checkpoint."""
        if not isinstance(content, dict) or not isinstance(content.get("sweep"), dict):
            return content
        usual = rules.MONITORS.get(str(content.get("task")))
        return {**content, "sweep": {**({} if usual is None else {"metric": usual}), **content["sweep"]}}

    @model_validator(mode="after")
    def _trains_on_numbers(self) -> Recipe:
        if isinstance(self.preprocess, ImagePreprocess) and self.preprocess.dtype != "float32":
            raise ValueError(
                f"preprocess.dtype is {self.preprocess.dtype}; training takes float32, and `penstock export --input "
                "uint8` puts the rest into the graph"
            )
        return self

    @model_validator(mode="after")
    def _shift_leaves_a_picture(self) -> Recipe:
        if not isinstance(self.preprocess, ImagePreprocess):
            return self
        side = min(self.preprocess.height, self.preprocess.width)
        if self.augment.shift >= side:
            raise ValueError(f"augment.shift is {self.augment.shift}; it must be under the picture's side, {side}")
        return self

    @model_validator(mode="after")
    def _goes_together(self) -> Recipe:
        rules.check(self)
        if self.optim.label_smoothing:  # where it was before losses had a section
            self.loss = self.loss.model_copy(update={"label_smoothing": self.optim.label_smoothing})
            self.optim = self.optim.model_copy(update={"label_smoothing": 0.0})
        return self


def load(recipe: str | Path, overrides: Sequence[str] = (), **fields: Any) -> Recipe:
    """Read a shipped recipe by name, or a file by path: .toml, .json, .yaml, .ini or .py.

    Args:
        recipe: `digits`, or `my/recipe.toml`.
        overrides: fields to replace by their dotted names, `optim.lr=3e-4`.
        fields: top-level fields to replace, before `overrides`; those that are None are left alone.

    Raises:
        PenstockError: no such recipe, or a field that is unknown or breaks its rule.
    """
    content = recipefiles.read(recipefiles.locate(str(recipe)))
    return make(
        content, list(map(parse, overrides)), fields, f"recipe {recipe}", f"penstock train {quote(str(recipe))}"
    )


def make(
    content: dict[str, Any], changes: Sequence[Override], fields: dict[str, Any], source: str, command: str
) -> Recipe:
    """A recipe of plain fields.

    Args:
        content: as a file holds it.
        changes: what takes the place of some of it.
        fields: top-level fields to replace, before `changes`; those that are None are left alone.
        source: what errors begin with: `recipe digits`.
        command: that a missing value can be given to.

    Raises:
        PenstockError: a field is unknown, missing or breaks its rule.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    before = {**content, **given}
    content = apply(before, changes)
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        standing = list(_standing(changes))
        typed = [command, *(f"--set {quote(change.text)}" for change in standing)]
        told = complaint(error, Recipe, content, " ".join(typed))
        # The last one that set the field, a section around it or a part of it, is what the user has to look at.
        blamed = [change for change in standing if all(map(eq, change.path, told.path))]
        where = str(blamed[-1]) if blamed and told.path else source
        raise PenstockError(f"{where}: {told.text}") from None
    for change in changes:
        if change.removes and not holds(before, change.path):
            _see_known(change, content)
    return recipe


def _standing(changes: Sequence[Override]) -> Iterator[Override]:
    """The changes that give a value which no later one takes out again."""
    for place, change in enumerate(changes):
        later = [other.path for other in changes[place + 1 :] if other.removes]
        if not change.removes and not any(change.path[: len(path)] == path for path in later):
            yield change


def _see_known(change: Override, content: dict[str, Any]) -> None:
    """See that a field which takes its default, and was not given, is one: its name may be misspelt."""
    try:
        Recipe.model_validate(apply(content, [change._replace(text=f"{change.text}?")]))  # any value: the name counts
    except ValidationError as error:
        told = unknown(error, Recipe, change.path)
        if told is not None:
            raise PenstockError(f"{change}: {told}") from None
