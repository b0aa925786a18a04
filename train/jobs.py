"""Jobs: what a recipe comes to with its data at hand: the parts, the preprocessing that was found, the network, the card."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from penstock import architecture, checkpoint, data, preprocessing, probe, tabular, textual
from penstock.architecture import LIBRARIES, Architecture
from penstock.card import Card
from penstock.data.samples import Samples
from penstock.data.specs import Part
from penstock.errors import PenstockError
from penstock.preprocessing import Preprocess
from penstock.signature import Signature, Tensor
from penstock.train import pretrained
from penstock.train.recipe import Recipe, Table, Text

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A recipe with all that it names.

    `scale` are mean and standard deviation of a regression's targets, float32 `[outputs]` each.
    """

    recipe: Recipe
    parts: dict[Part, Samples]
    preprocess: Preprocess | None
    net: nn.Module
    card: Card
    scale: tuple[Any, Any] | None = None


def prepare(recipe: Recipe) -> Job:
    """Read the data, see what is to be known of it, and build the network.

    Raises:
        PenstockError: data, preprocessing and network do not fit one another, or one of them cannot be had.
    """
    parts = data.load(recipe.dataset)
    preprocess = _found(recipe, parts["train"])
    scale = _scale(parts["train"]) if recipe.task == "regression" else None
    model = _filled(recipe, parts, preprocess, scale)
    net = architecture.build(model, recipe.seed).train()
    if recipe.weights is not None:
        pretrained.load(net, recipe.weights)
    card = _card(recipe, model, parts, preprocess)
    _check_outputs(card, parts)
    return Job(recipe, parts, preprocess, net, card, scale)


def _found(recipe: Recipe, train: Samples) -> Preprocess | None:
    """The preprocessing that a checkpoint records: as the recipe has it, with what the training part tells."""
    wanted = recipe.preprocess
    if isinstance(wanted, Text):
        if wanted.tokenizer == "words":
            return textual.fit(train.items, wanted.size, wanted.least, wanted.length)
        return textual.from_folder(wanted.tokenizer, wanted.length)
    if isinstance(wanted, Table):
        return tabular.fit(train.items, wanted.input, wanted.categories, wanted.most_categories)
    return wanted


def _scale(train: Samples) -> tuple[Any, Any]:
    numbers = np.asarray(train.labels, np.float64).reshape(len(train), -1)
    spread = numbers.std(0)
    return numbers.mean(0).astype(np.float32), np.where(spread > 0, spread, 1).astype(np.float32)


def _outputs(recipe: Recipe, train: Samples) -> int:
    if recipe.task == "classification":
        return len(train.classes or range(int(train.labels.max()) + 1))
    return 1 if train.labels.ndim == 1 else int(train.labels.shape[1])


def _filled(
    recipe: Recipe, parts: dict[Part, Samples], preprocess: Preprocess | None, scale: tuple[Any, Any] | None
) -> Architecture:
    """The recipe's network with the arguments that its data tells, where the recipe leaves them out."""
    target, given = recipe.model.target, dict(recipe.model.kwargs)
    outputs = _outputs(recipe, parts["train"])
    told: dict[str, Any] = {"classes": outputs, "num_classes": outputs}
    if isinstance(preprocess, textual.TextPreprocess):
        told["tokens"] = preprocess.tokens
    if isinstance(preprocess, tabular.TablePreprocess):
        told["features"] = preprocess.features
    if scale is not None:
        told["outputs_mean"], told["outputs_std"] = (values.tolist() for values in scale)
    if target.partition(":")[0] in LIBRARIES:
        taken = {"num_classes"}
    else:
        taken = set(inspect.signature(architecture.find(target)).parameters)
    given.update({name: value for name, value in told.items() if name in taken and name not in given})
    return Architecture(target=target, kwargs=given)


def _card(recipe: Recipe, model: Architecture, parts: dict[Part, Samples], preprocess: Preprocess | None) -> Card:
    """The card of the checkpoints that a job leaves."""
    inputs = _arrays(parts["train"]) if preprocess is None else preprocessing.tensors(preprocess)
    bare = Signature(inputs=inputs, outputs=(), dims={"batch": recipe.batch})
    signature, _ = probe.complete(architecture.build(model), bare)
    name = "values" if recipe.task == "regression" else "logits"
    first = signature.outputs[0].model_copy(update={"name": name})
    signature = signature.model_copy(update={"outputs": (first, *signature.outputs[1:])})
    labels = None
    if recipe.task != "regression":
        labels = parts["train"].classes or tuple(str(number) for number in range(int(first.shape[-1])))
    return Card(
        name=recipe.name,
        architecture=model,
        signature=signature,
        preprocess=preprocess,
        labels=labels,
        task=recipe.task,
        dataset=recipe.dataset,
        versions=checkpoint.versions(),
    )


def _arrays(train: Samples) -> tuple[Tensor, ...]:
    first = train.items[0]
    return tuple(
        Tensor(name=name, dtype=str(row.dtype), shape=("batch", *np.shape(row))) for name, row in first.items()
    )


def _check_outputs(card: Card, parts: dict[Part, Samples]) -> None:
    """See that the network tells apart as many classes as the data has, or gives as many numbers."""
    outputs = int(card.signature.outputs[0].shape[-1])
    if card.task == "classification":
        most = max(int(samples.labels.max()) for samples in parts.values())
        if most >= outputs:
            raise PenstockError(
                f"recipe {card.name}: the network has {outputs} classes; the data goes up to class {most}"
            )
        return
    wanted = 1 if parts["train"].labels.ndim == 1 else parts["train"].labels.shape[1]
    if wanted != outputs:
        raise PenstockError(f"recipe {card.name}: the network gives {outputs} numbers a row; the data has {wanted}")
