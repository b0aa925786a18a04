"""Jobs: what a recipe comes to with its data at hand: parts, the preprocessing that was found, network and card."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from penstock import architecture, checkpoint, data, datasets, modules, probe, tabular, textual
from penstock.adapter import Call
from penstock.architecture import LIBRARIES, Architecture
from penstock.card import Card
from penstock.data.samples import Samples
from penstock.data.specs import Part
from penstock.errors import PenstockError, listed
from penstock.preprocessing import Preprocess
from penstock.signature import Signature, Tensor
from penstock.tabular import TablePreprocess
from penstock.textual import TextPreprocess
from penstock.train import optim, pretrained
from penstock.train.facts import Facts
from penstock.train.pretrained import Start
from penstock.train.recipe import Recipe, Table, Text

_FIELDS = (
    ("--model-args NAME=VALUE", "--set model.kwargs.NAME=VALUE"),
    ("--model-args ", "model.kwargs "),
    ("--model ", "model.target "),
    ("--input, --dim or --range", "model.kwargs, or what it is given"),
    ("--input: ", ""),
    ("--input ", ""),
)
_RESCALED = "penstock.train.nets:Rescaled"
# How often it is tried whether all parameters are used, and of how many rows each time: the fewer, the more is left out
# by a network that picks its parts by them. BatchNorm needs two.
_TRIALS, _ROWS = 4, 2


@dataclass(frozen=True)
class Job:
    """A recipe with all that it names.

    `call` is how the network takes its inputs and where in its answer the outputs lie, of which the first is learnt.
    `start` is what a file of weights gave; `scale` are mean and standard deviation of a regression's targets, float32
    `[outputs]` each.
    """

    recipe: Recipe
    parts: dict[Part, Samples]
    preprocess: Preprocess | None
    net: nn.Module
    card: Card
    call: Call
    start: Start | None = None
    scale: tuple[Any, Any] | None = None


def prepare(recipe: Recipe, facts: Facts | None = None) -> Job:
    """Read the data, see what is to be known of it, and build the network.

    Args:
        recipe: what is trained.
        facts: what was found when the run began, for the card.

    Raises:
        PenstockError: data, preprocessing and network do not fit one another, or one of them cannot be had.
    """
    weights = None if recipe.weights is None else pretrained.there(Path(recipe.weights))  # before minutes of reading
    parts = data.load(recipe.dataset, recipe.task)
    _check_labels(recipe, parts)
    preprocess = _found(recipe, parts["train"])
    if isinstance(preprocess, TablePreprocess):
        for part in ("val", "test"):  # a cell that is no number there is told before hours of training
            datasets.rows(parts[part], preprocess)
    scale = _scale(parts["train"]) if recipe.task == "regression" else None
    with _in_words_of_recipes(recipe):
        own = model = _filled(recipe, parts["train"], preprocess)
        if scale is not None:
            mean, std = (values.tolist() for values in scale)
            model = Architecture(target=_RESCALED, kwargs={"net": own.model_dump(), "mean": mean, "std": std})
        net = architecture.build(model, recipe.seed).train()
        modules.refuse_lazy(net)
        card, call = _card(recipe, own, model, parts, preprocess, facts)
    start = None if weights is None else pretrained.start(net, weights)
    return Job(recipe, parts, preprocess, net, card, call, start, scale)


@contextmanager
def _in_words_of_recipes(recipe: Recipe) -> Iterator[None]:
    """Have errors that speak of `export`'s options speak of the recipe's fields that stand for them."""
    try:
        yield
    except PenstockError as error:
        said = str(error)
        for option, field in _FIELDS:
            said = said.replace(option, field)
        raise PenstockError(said if said.startswith("recipe ") else f"recipe {recipe.name}: {said}") from None


def _found(recipe: Recipe, train: Samples) -> Preprocess | None:
    """The preprocessing that a checkpoint records: as the recipe has it, with what the training part tells."""
    wanted = recipe.preprocess
    if isinstance(wanted, Text):
        if wanted.tokenizer == "words":
            return textual.fit(train.items, wanted.size, wanted.least, wanted.length)
        found = textual.from_folder(Path(wanted.tokenizer), wanted.length)
        # A network that looks for padding by itself is not told of it.
        return found if _takes(recipe.model.target, "mask") else found.model_copy(update={"mask": None})
    if isinstance(wanted, Table):
        names = list(train.items[0])
        try:
            return tabular.fit(train.items, names, wanted.categories, wanted.most_categories, wanted.input, train.place)
        except PenstockError as error:
            raise PenstockError(f"dataset.train {getattr(recipe.dataset, 'train', '')}: {error}") from None
    return wanted


def _takes(target: str, name: str) -> bool:
    """Whether a network has an input of that name."""
    if target.partition(":")[0] in LIBRARIES:
        return True
    return name in inspect.signature(architecture.find(target).forward).parameters


def _scale(train: Samples) -> tuple[Any, Any]:
    numbers = np.asarray(train.labels, np.float64).reshape(len(train), -1)
    spread = numbers.std(0)
    return numbers.mean(0).astype(np.float32), np.where(spread > 0, spread, 1).astype(np.float32)


def _outputs(recipe: Recipe, train: Samples) -> int:
    if recipe.task == "classification":
        return len(train.classes or range(int(train.labels.max()) + 1))
    return 1 if train.labels.ndim == 1 else int(train.labels.shape[1])


def _filled(recipe: Recipe, train: Samples, preprocess: Preprocess | None) -> Architecture:
    """The recipe's network with the arguments that its data tells, where the recipe leaves them out."""
    target, given, outputs = recipe.model.target, dict(recipe.model.kwargs), _outputs(recipe, train)
    told: dict[str, Any] = {"classes": outputs, "num_classes": outputs}
    if isinstance(preprocess, TextPreprocess):
        told["tokens"] = preprocess.tokens
    if isinstance(preprocess, TablePreprocess):
        told["features"] = preprocess.features
    if preprocess is None:
        shapes = [tensor.shape for tensor in _arrays(train)]
        if len(shapes) == 1 and len(shapes[0]) == 2:
            told["features"] = shapes[0][1]
    if target.partition(":")[0] in LIBRARIES:
        taken = {"num_classes"}
    else:
        taken = set(inspect.signature(architecture.find(target)).parameters)
    if "config" in taken and "config" not in given and recipe.weights is not None and Path(recipe.weights).is_dir():
        told["config"] = pretrained.from_folder(Path(recipe.weights)).kwargs["config"]
    if "config" in taken and "config" not in {**given, **told}:
        raise PenstockError(
            f"recipe {recipe.name}: {target} takes model.kwargs.config, which the folder of a transformers model has: "
            "--set weights=FOLDER begins with its weights, too"
        )
    given.update({name: value for name, value in told.items() if name in taken and name not in given})
    return Architecture(target=target, kwargs=given)


def _card(
    recipe: Recipe,
    own: Architecture,
    model: Architecture,
    parts: dict[Part, Samples],
    preprocess: Preprocess | None,
    facts: Facts | None,
) -> tuple[Card, Call]:
    """The card of the checkpoints that a job leaves, and how its network is called.

    `own` is the recipe's network, and `model` is that or what is around it, whose unit may fit answers by stretching.
    """
    inputs = _arrays(parts["train"]) if preprocess is None else preprocess.tensors()
    bare = Signature(inputs=inputs, outputs=(), dims={"batch": recipe.batch})
    signature, call = _probed(recipe, own, bare, preprocess)
    _check_rows(recipe, signature.outputs)
    _check_outputs(recipe, own, signature.outputs[0], parts)
    if model is not own:
        signature, call = _probed(recipe, model, bare, preprocess)
    name = "values" if recipe.task == "regression" else "logits"
    first = signature.outputs[0].model_copy(update={"name": name})
    signature = signature.model_copy(update={"outputs": (first, *signature.outputs[1:])})
    labels = None
    if recipe.task != "regression":
        labels = parts["train"].classes or tuple(str(number) for number in range(int(first.shape[-1])))
    card = Card(
        name=recipe.name,
        architecture=model,
        signature=signature,
        preprocess=preprocess,
        labels=labels,
        task=recipe.task,
        dataset=recipe.dataset,
        versions=checkpoint.versions(),
        recipe=recipe.model_dump(mode="json"),
        facts=None if facts is None else facts.model_dump(mode="json"),
    )
    return card, call


def _probed(
    recipe: Recipe, model: Architecture, bare: Signature, preprocess: Preprocess | None
) -> tuple[Signature, Call]:
    try:
        return probe.complete(architecture.build(model), bare)
    except PenstockError as error:  # which tells exporting's options
        why = str(error).partition("; correct --input")[0]
        whole = [str(tensor) for tensor in bare.inputs if preprocess is None and not tensor.dtype.startswith("float")]
        if whole:
            why += f"; {listed(whole)} holds whole numbers: if they are no indices, save them as float32"
        raise PenstockError(
            f"recipe {recipe.name}: {recipe.model.target}: {why}; let model.kwargs and preprocess fit one another"
        ) from None


def _arrays(train: Samples) -> tuple[Tensor, ...]:
    first = train.items[0]
    return tuple(
        Tensor(name=name, dtype=str(row.dtype), shape=("batch", *np.shape(row))) for name, row in first.items()
    )


def _check_labels(recipe: Recipe, parts: dict[Part, Samples]) -> None:
    """See that the data's labels are what the task learns; those of arrays may be anything."""
    for part, samples in parts.items():
        labels = samples.labels
        if recipe.task == "classification" and (labels.ndim != 1 or labels.dtype.kind != "i"):
            raise PenstockError(
                f"recipe {recipe.name}: task is classification; the labels of {part} are {labels.dtype} of shape "
                f"{list(labels.shape)}, and must be a whole number for each row: --set task=regression learns numbers"
            )
        if recipe.task == "multilabel" and (labels.ndim != 2 or not ((labels >= 0) & (labels <= 1)).all()):
            raise PenstockError(
                f"recipe {recipe.name}: task is multilabel; the labels of {part} are of shape {list(labels.shape)}, "
                f"{labels.min():g} to {labels.max():g}; they must be [rows, labels], each from 0 to 1"
            )


def _check_rows(recipe: Recipe, outputs: tuple[Tensor, ...]) -> None:
    """See that the network answers each row by itself, first of all with a row of the numbers that it learns."""
    first, rank = outputs[0], len(outputs[0].shape)
    if (
        rank != 2
        or first.shape[0] != "batch"
        or isinstance(first.shape[-1], str)
        or not first.dtype.startswith("float")
    ):
        raise PenstockError(
            f"recipe {recipe.name}: the network's first output is {first}; it must be a row of numbers for each "
            "sample, as float32[batch,10] of ten classes"
        )
    for other in outputs[1:]:
        if other.shape[:1] != ("batch",):
            raise PenstockError(
                f"recipe {recipe.name}: the network's output {other} is not one for each row; have forward answer the "
                "first alone"
            )


def _check_outputs(recipe: Recipe, model: Architecture, first: Tensor, parts: dict[Part, Samples]) -> None:
    """See that the network tells apart as many classes as the data has, or gives as many numbers."""
    outputs, labels = int(first.shape[-1]), parts["train"].labels
    if recipe.task == "classification":
        highest = {part: int(samples.labels.max()) for part, samples in parts.items()}
        part = max(highest, key=lambda name: highest[name])
        wanted = max(outputs, highest[part] + 1)
        why = f"the labels of {part} go up to {highest[part]}, and each class from 0 takes a number"
    else:
        wanted = 1 if labels.ndim == 1 else int(labels.shape[1])
        why = f"the labels of train are of shape {list(labels.shape)}"
    if wanted == outputs:
        return
    field = next((name for name in ("classes", "num_classes") if name in model.kwargs), None)
    if field:
        help_ = f"--set model.kwargs.{field}={wanted}"
    else:
        help_ = "change the class, which is told how many if its __init__ takes classes"
    raise PenstockError(
        f"recipe {recipe.name}: model.target {model.target} answers {first}; {why}: it must answer [batch,{wanted}]: "
        f"{help_}"
    )


def unused(job: Job) -> list[str]:
    """The parameters to be trained that one of a few trials leaves without a gradient; tried on a copy.

    A trial that fails finds none: what fails in it fails in the run, too, and is told there.
    """
    net = modules.copied(job.net)
    if net is None:
        return []
    optim.freeze(net, job.recipe.optim.freeze)
    inputs = datasets.rows(job.parts["train"].first(_TRIALS * _ROWS), job.preprocess).inputs
    learning = job.call.on(net)
    with torch.random.fork_rng(devices=[]):
        for number in range(_TRIALS):
            torch.manual_seed(number)  # each rank finds the same
            net.zero_grad()
            few = slice(number * _ROWS, (number + 1) * _ROWS)
            try:
                answer = learning(*(torch.tensor(held[few]) for held in inputs.values()))
                (answer[0] if isinstance(answer, tuple) else answer).sum().backward()
            except (Exception, SystemExit):
                return []
            left = [name for name, held in net.named_parameters() if held.requires_grad and held.grad is None]
            if left:
                return left
    return []
