"""Rules between the fields of a recipe: each names a field, its value, and what it goes with."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock.errors import nearest

if TYPE_CHECKING:
    from penstock.train.recipe import Recipe

# What each data set's items are to be prepared as; the arrays of numpy's are taken as they are.
KINDS = {
    "digits": "image",
    "fashion-mnist": "image",
    "image-folder": "image",
    "recordio": "image",
    "csv-text": "text",
    "csv-table": "table",
}
_EVERY_TASK = ("classification", "multilabel", "regression")
_TASKS = {
    "numpy": _EVERY_TASK,
    "recordio": ("classification", "multilabel"),
}
_LOSSES = {
    "classification": ("cross-entropy", "focal"),
    "multilabel": ("bce", "focal"),
    "regression": ("mse", "l1", "huber"),
}
# What may be watched for the best checkpoint, and what is by default.
WATCHED = {
    "classification": ("val_accuracy",),
    "multilabel": ("val_f1",),
    "regression": ("val_rmse", "val_mae"),
}
MONITORS = {task: names[0] for task, names in WATCHED.items()}
# Fields that only some names of their section read.
_OF_SCHEDULES = {
    "every": ("step",),
    "milestones": ("multistep",),
    "gamma": ("step", "multistep", "exponential", "plateau"),
    "least": ("cosine", "linear", "onecycle", "plateau"),
    "patience": ("plateau",),
}
_OF_LOSSES = {"gamma": ("focal",), "alpha": ("focal",), "delta": ("huber",)}
_OF_OPTIMIZERS = {"momentum": ("sgd",), "nesterov": ("sgd",), "betas": ("adam", "adamw")}


def unwatched(wanted: str, task: str) -> str | None:
    """Why a figure cannot be watched in a task, behind the field that names it; None where it can."""
    known = (*WATCHED[task], "val_loss", "train_loss")
    if wanted in known:
        return None
    # A figure of another task is no slip of the pen.
    near = "" if wanted in chain(*WATCHED.values()) else nearest(wanted, known)
    return f"is {wanted!r}; task {task} has {', '.join(known)}{near}"


def check(recipe: Recipe) -> None:
    """See that the sections of a recipe go together.

    Raises:
        ValueError: they do not; the sentence is the user's.
    """
    for rule in (_preprocess, _task, _loss, _class_weights, _augment, _schedule, _optim, _loader, _machine):
        rule(recipe)


def _preprocess(recipe: Recipe) -> None:
    data, given = recipe.dataset.name, recipe.preprocess
    wanted = KINDS.get(data)
    if given is None:
        if wanted is not None:
            raise ValueError(f"preprocess is missing; dataset.name {data} takes one of kind {wanted}")
    elif wanted is None:
        raise ValueError(
            f"preprocess.kind is {given.kind}; dataset.name {data} takes no preprocess: arrays are used as is"
        )
    elif given.kind != wanted:
        raise ValueError(f"preprocess.kind is {given.kind}; dataset.name {data} takes {wanted}")


def _task(recipe: Recipe) -> None:
    data = recipe.dataset
    if data.name == "csv-table":
        allowed: tuple[str, ...] = ("regression",) if data.kind == "numbers" else ("classification",)
        told = f"dataset.kind {data.kind}"
    else:
        allowed, told = _TASKS.get(data.name, ("classification",)), f"dataset.name {data.name}"
    if recipe.task not in allowed:
        raise ValueError(f"task is {recipe.task}; {told} takes {_either(allowed)}")


def _loss(recipe: Recipe) -> None:
    loss, allowed = recipe.loss, _LOSSES[recipe.task]
    if loss.name is not None and loss.name not in allowed:
        raise ValueError(f"loss.name is {loss.name}; task {recipe.task} takes {_either(allowed)}")
    name = loss.name or allowed[0]
    _unread("loss", loss, name, _OF_LOSSES)
    smoothing, older = loss.label_smoothing, recipe.optim.label_smoothing
    if smoothing and older and smoothing != older:
        raise ValueError(
            f"loss.label_smoothing is {smoothing} and optim.label_smoothing, its older name, {older}; give the "
            "first alone: --set optim.label_smoothing="
        )
    if (smoothing or older) and recipe.task == "regression":
        field = "loss" if smoothing else "optim"
        raise ValueError(f"{field}.label_smoothing is {smoothing or older}; task regression has no labels to smooth")


def _class_weights(recipe: Recipe) -> None:
    weights = recipe.loss.class_weights
    if weights is False:
        return
    if recipe.task == "regression":
        raise ValueError(f"loss.class_weights is {weights}; task regression has no classes")
    if isinstance(weights, tuple) and (len(weights) < 1 or min(weights) <= 0):
        raise ValueError(f"loss.class_weights is {list(weights)}; it must be true, or a number above 0 for each class")


def _augment(recipe: Recipe) -> None:
    augment, kind = recipe.augment, KINDS.get(recipe.dataset.name)
    for field in ("shift", "flip", "crop", "policy"):
        if kind != "image" and _given(augment, field):
            value = _shown(getattr(augment, field))
            raise ValueError(f"augment.{field} is {value}; dataset.name {recipe.dataset.name} holds no pictures")
    if augment.mixup and recipe.task == "regression":
        raise ValueError(f"augment.mixup is {augment.mixup}; task regression has no classes to mix")
    if augment.mixup and kind == "text":
        raise ValueError(f"augment.mixup is {augment.mixup}; texts cannot be mixed, only numbers can")


def _schedule(recipe: Recipe) -> None:
    schedule, epochs = recipe.schedule, recipe.epochs
    _unread("schedule", schedule, schedule.name, _OF_SCHEDULES)
    if schedule.warmup and schedule.name == "plateau":
        raise ValueError(f"schedule.warmup is {schedule.warmup}; schedule.name plateau counts epochs, and takes none")
    if schedule.name != "multistep":
        return
    stones = schedule.milestones
    if not stones:
        raise ValueError(
            "schedule.milestones is empty; schedule.name multistep takes the epochs after which the rate falls"
        )
    if list(stones) != sorted(set(stones)) or stones[0] < 1 or stones[-1] >= epochs:
        raise ValueError(
            f"schedule.milestones is {list(stones)}; they must rise, from 1 to under the {epochs} of epochs"
        )


def _optim(recipe: Recipe) -> None:
    optim = recipe.optim
    _unread("optim", optim, optim.name, _OF_OPTIMIZERS)
    if optim.nesterov and not optim.momentum:
        raise ValueError("optim.nesterov is true and optim.momentum 0; Nesterov's momentum needs one above 0")
    if not all(0 <= beta < 1 for beta in optim.betas):
        raise ValueError(f"optim.betas is {list(optim.betas)}; both must be from 0 to under 1")
    for pattern in optim.freeze:
        if not pattern.strip():
            raise ValueError(f"optim.freeze has {pattern!r}; a pattern is of parameters' names, as in blocks.0.*")
        if not pattern.strip("*"):
            raise ValueError(f"optim.freeze has {pattern!r}, which is all parameters; something must be left to train")


def _loader(recipe: Recipe) -> None:
    if recipe.loader.weighted and recipe.task != "classification":
        raise ValueError(f"loader.weighted is true; task {recipe.task} has no one class for each sample to draw by")


def _machine(recipe: Recipe) -> None:
    machine = recipe.machine
    if isinstance(machine.devices, int) and machine.devices < 1:
        raise ValueError(f'machine.devices is {machine.devices}; it must be at least 1, or "auto" for all there are')
    if machine.device == "cpu" and machine.precision == "fp16":
        raise ValueError("machine.precision is fp16; machine.device cpu trains in fp32 or bf16")


def _unread(section: str, held: Any, name: str, readers: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a field that is not at its default and that nothing reads: it was meant to change something."""
    for field, names in readers.items():
        if name not in names and _given(held, field):
            value = _shown(getattr(held, field))
            raise ValueError(
                f"{section}.{field} is {value}; {section}.name {name} does not read it, {_either(names)} does"
            )


def _given(section: Any, field: str) -> bool:
    return bool(getattr(section, field) != type(section).model_fields[field].default)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _either(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
