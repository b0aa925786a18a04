"""Cards: what a penstock checkpoint says of itself beside its weights, and the real samples that it carries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from penstock.architecture import Architecture
from penstock.data.specs import DatasetSpec
from penstock.datasets import Rows
from penstock.errors import PenstockError, first_line
from penstock.preprocessing import Preprocess, fits
from penstock.signature import Signature, first_message
from penstock.textual import TextPreprocess

SCHEMA = 1
# Architectures that a checkpoint may name by itself; any other is imported only if the user names it too.
TRUSTED = "penstock.train.nets"
# Models that these make by a name in their own lists; `penstock.zoo` lets no argument load weights.
_LIBRARIES = re.compile(r"(torchvision|timm):[A-Za-z0-9_.]+")


class Card(BaseModel):
    """What a penstock checkpoint says of itself beside its weights.

    `recipe` is what it was trained by and `facts` what was found when that began, both plain data of penstock.train's.
    """

    model_config = ConfigDict(extra="forbid")
    penstock: int = SCHEMA
    name: str
    architecture: Architecture
    signature: Signature
    preprocess: Preprocess | None = None
    labels: tuple[str, ...] | None = None
    task: str | None = None
    dataset: DatasetSpec | None = None
    metrics: dict[str, float] = {}
    versions: dict[str, str] = {}
    recipe: dict[str, Any] | None = None
    facts: dict[str, Any] | None = None


def read(path: Path, content: dict[str, Any]) -> Card | None:
    """The card in a checkpoint's content, or None in anybody else's.

    Raises:
        PenstockError: it is damaged, or of another schema.
    """
    if "penstock" not in content:
        return None
    fields = {name: value for name, value in content.items() if name in Card.model_fields}
    if fields.get("penstock") != SCHEMA:
        raise PenstockError(f"{path}: checkpoint schema {fields.get('penstock')!r}; this penstock reads {SCHEMA}")
    try:
        return Card.model_validate(fields)
    except ValidationError as error:
        raise PenstockError(f"{path}: its description is damaged: {first_message(error, Card)}") from None


def trusted(target: str) -> bool:
    """Whether a file may name this architecture by itself, since making it runs penstock's code or a library's."""
    if _LIBRARIES.fullmatch(target):
        return True
    module, _, name = target.rpartition(":")
    return module == TRUSTED and name.isidentifier() and not name.startswith("_")


def targets(architecture: Architecture) -> list[str]:
    """What making an architecture imports: its own target, and those that arguments of penstock's own classes name."""
    return list(_named(architecture.model_dump()))


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "target" in value:
            yield str(value["target"])
            if not trusted(str(value["target"])):
                return  # what its arguments mean is its own affair
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _named(item)


def check(path: Path, card: Card) -> None:
    """See that labels and preprocessing are of this model."""
    held = card.preprocess
    if held is not None and not fits(held, card.signature):
        made = ", ".join(f"{tensor.name!r} of {tensor.dtype}{list(tensor.shape[1:])}" for tensor in held.tensors())
        raise PenstockError(
            f"{path}: its preprocessing makes {made}; the inputs are {', '.join(map(str, card.signature.inputs))}"
        )
    if isinstance(held, TextPreprocess):
        _see_tokens(path, held, card.signature)
    classes = classes_of(card.signature, card.task)
    if card.labels is not None and isinstance(classes, int) and len(card.labels) != classes:
        raise PenstockError(f"{path}: has {len(card.labels)} labels; its first output has {classes} classes")


def _see_tokens(path: Path, held: TextPreprocess, signature: Signature) -> None:
    """See that the model has a place in its table for every token: one beyond it would end the run that it came in."""
    known = signature.ranges.get(held.ids)
    if known is None or isinstance(known.high, str):
        return
    if held.tokens - 1 > known.high:
        raise PenstockError(
            f"{path}: its tokenizer makes tokens 0 to {held.tokens - 1}; the model's {held.ids!r} takes 0 to "
            f"{known.high:g}"
        )


def classes_of(signature: Signature, task: str | None) -> int | str | None:
    """The size of the first output's axis of classes, its last one; of segmentation that after the batch."""
    shape = signature.outputs[0].shape
    if task == "segmentation":
        return shape[1] if len(shape) == 4 else None
    return shape[-1] if shape else None


def pack(rows: Rows | None) -> dict[str, Any] | None:
    """Samples as tensors, which a checkpoint may hold."""
    if rows is None:
        return None
    inputs = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in rows.inputs.items()}
    return {"inputs": inputs, "labels": None if rows.labels is None else torch.from_numpy(rows.labels)}


def samples(path: Path, content: dict[str, Any], part: str, signature: Signature) -> Rows | None:
    """The real samples under `part` of a checkpoint of ours; in anybody else's the word may mean anything.

    Raises:
        PenstockError: they are damaged, or not of the signature.
    """
    held = content.get(part) if "penstock" in content else None
    if held is None:
        return None
    try:
        labels = held["labels"]
        rows = Rows(
            {name: tensor.numpy() for name, tensor in held["inputs"].items()},
            None if labels is None else labels.numpy(),
        )
        signature.check(rows.inputs, limit_batch=False)
    except Exception as error:  # whatever a damaged entry makes of itself
        raise PenstockError(f"{path}: its {part} samples are damaged: {first_line(error)}") from None
    return rows
