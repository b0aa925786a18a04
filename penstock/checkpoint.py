"""Checkpoints: what training leaves, read and written as weights only."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from penstock import architecture as architectures
from penstock import probe, weights
from penstock.architecture import Architecture, Proof
from penstock.datasets import DatasetSpec, Rows
from penstock.errors import PenstockError
from penstock.files import sha256, write_whole
from penstock.preprocess import ImagePreprocess
from penstock.signature import Dim, Signature, Tensor, first_message

SCHEMA = 1
# Architectures that a checkpoint may name by itself; any other is imported only if the user names it too.
TRUSTED = "penstock.train.nets"


class Card(BaseModel):
    """What a penstock checkpoint says of itself beside its weights."""

    model_config = ConfigDict(extra="forbid")
    penstock: int = SCHEMA
    name: str
    architecture: Architecture
    signature: Signature
    preprocess: ImagePreprocess | None = None
    labels: tuple[str, ...] | None = None
    task: str | None = None
    dataset: DatasetSpec | None = None
    metrics: dict[str, float] = {}
    versions: dict[str, str] = {}


@dataclass
class Checkpoint:
    """A module with its weights in place, and what is known of it.

    `calibration` and `golden` are real samples: the first from the training part, the second held out.
    """

    module: nn.Module
    card: Card
    proof: Proof
    sha256: str
    path: Path
    calibration: Rows | None = None
    golden: Rows | None = None


@dataclass(frozen=True)
class Override:
    """What the user says of a checkpoint that does not say it itself, or against what it says."""

    model: str | None = None
    model_args: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    dims: dict[str, Dim] = field(default_factory=dict)
    batch: Dim | None = None


def save(
    path: Path,
    card: Card,
    state: dict[str, torch.Tensor],
    calibration: Rows | None = None,
    golden: Rows | None = None,
) -> None:
    """Write a checkpoint that `torch.load(weights_only=True)` accepts, whole or not at all."""
    content = {
        **card.model_dump(mode="json"),
        "state_dict": {name: tensor.detach().cpu() for name, tensor in state.items()},
        "calibration": _to_tensors(calibration),
        "golden": _to_tensors(golden),
    }
    # In memory first: torch turns a full disk into an error of its own that does not say so.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, buffer.getbuffer())


def load(path: Path, override: Override | None = None) -> Checkpoint:
    """Read a checkpoint, build its architecture and prove that every tensor found its place.

    Raises:
        PenstockError: the file is missing, truncated, no checkpoint, needs pickled code, or is of another architecture.
    """
    override = override or Override()
    content = weights.read(path)
    card = _card(path, content, override)
    module = architectures.build(card.architecture)
    try:
        proof = architectures.load_weights(module, content)
    except PenstockError as error:
        raise PenstockError(f"{path}: {error}") from None
    held = [_samples(path, content, part, card.signature) for part in ("calibration", "golden")]
    card = card.model_copy(update={"signature": _ranged(card.signature, override.dims)})
    card = card.model_copy(update={"signature": _proven(path, module, card.signature)})
    _check_card(path, card)
    if override.batch is not None:
        card = card.model_copy(update={"signature": card.signature.with_batch(override.batch)})
    return Checkpoint(
        module=module,
        card=card,
        proof=proof,
        sha256=sha256(path),
        path=path,
        calibration=held[0],
        golden=held[1],
    )


def _card(path: Path, content: dict[str, Any], override: Override) -> Card:
    if "penstock" in content:
        fields = {name: value for name, value in content.items() if name in Card.model_fields}
        if fields.get("penstock") != SCHEMA:
            raise PenstockError(f"{path}: checkpoint schema {fields.get('penstock')!r}; this penstock reads {SCHEMA}")
        try:
            card = Card.model_validate(fields)
        except ValidationError as error:
            raise PenstockError(f"{path}: its description is damaged: {first_message(error)}") from None
        return _overridden(path, card, override)
    if override.model is None:
        raise PenstockError(
            f"{path}: names no architecture; give it, as in --model torchvision:resnet18 or --model ./net.py:Net, "
            "and its inputs, as in --input image:float32[batch,3,224,224]"
        )
    if not override.inputs:
        raise PenstockError(f"{path}: names no inputs; give each, as in --input image:float32[batch,3,224,224]")
    architecture = Architecture(target=override.model, kwargs=override.model_args)
    return Card(name=_name(path), architecture=architecture, signature=_inputs_only(override.inputs))


def _overridden(path: Path, card: Card, override: Override) -> Card:
    if override.inputs:
        named = ", ".join(map(str, card.signature.inputs))
        raise PenstockError(f"--input {override.inputs[0]!r}: {path} names its own inputs, {named}; leave --input out")
    if override.model is not None:
        # Arguments of the file's own go to the class that the file itself names, and to no other.
        same = override.model == card.architecture.target
        kwargs = override.model_args or (card.architecture.kwargs if same else {})
        return card.model_copy(update={"architecture": Architecture(target=override.model, kwargs=kwargs)})
    if not _trusted(card.architecture.target):
        raise PenstockError(
            f"{path}: names the architecture {card.architecture.target!r}, whose import would run its code; "
            f"if you trust it, give it yourself: --model {card.architecture.target}"
        )
    if override.model_args:
        kwargs = {**card.architecture.kwargs, **override.model_args}
        card = card.model_copy(update={"architecture": Architecture(target=card.architecture.target, kwargs=kwargs)})
    return card


def _trusted(target: str) -> bool:
    module, _, name = target.rpartition(":")
    return module == TRUSTED and name.isidentifier() and not name.startswith("_")


def _name(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-") or "model"


def _ranged(signature: Signature, dims: dict[str, Dim]) -> Signature:
    for name in dims:
        if name not in signature.dims:
            known = ", ".join(signature.dims) or "none"
            raise PenstockError(f"--dim {name}: not a dynamic dimension of the inputs; those are {known}")
    return signature.model_copy(update={"dims": {**signature.dims, **dims}})


def _inputs_only(inputs: tuple[str, ...]) -> Signature:
    tensors = tuple(Tensor.parse(text) for text in inputs)
    dims = {size: Dim(min=1, opt=8, max=64) for tensor in tensors for size in tensor.shape if isinstance(size, str)}
    return Signature(inputs=tensors, outputs=(), dims=dims)


def _proven(path: Path, module: nn.Module, signature: Signature) -> Signature:
    """The signature with the outputs that the module really gives, under the names it declares for them, if any."""
    real = probe.complete(module, signature)
    if not signature.outputs:
        return real
    declared = [(tensor.dtype, tensor.shape) for tensor in signature.outputs]
    given = [(tensor.dtype, tensor.shape) for tensor in real.outputs]
    if declared != given:
        raise PenstockError(
            f"{path}: declares the outputs {', '.join(map(str, signature.outputs))}, but the model gives "
            f"{', '.join(map(str, real.outputs))}"
        )
    return signature


def _check_card(path: Path, card: Card) -> None:
    """See that labels and preprocessing are of this model."""
    inputs = {tensor.name: tensor for tensor in card.signature.inputs}
    image = card.preprocess
    if image is not None:
        shape = inputs[image.input].shape if image.input in inputs else ()
        if shape[1:] != (image.channels, image.height, image.width):
            size = f"[{image.channels}, {image.height}, {image.width}]"
            raise PenstockError(
                f"{path}: its preprocessing makes {image.input!r} of {size}; the inputs are "
                f"{', '.join(map(str, card.signature.inputs))}"
            )
    classes = card.signature.outputs[0].shape[-1] if card.signature.outputs[0].shape else None
    if card.labels is not None and isinstance(classes, int) and len(card.labels) != classes:
        raise PenstockError(f"{path}: has {len(card.labels)} labels; its first output has {classes} classes")


def _to_tensors(rows: Rows | None) -> dict[str, Any] | None:
    if rows is None:
        return None
    inputs = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in rows.inputs.items()}
    return {"inputs": inputs, "labels": None if rows.labels is None else torch.from_numpy(rows.labels)}


def _samples(path: Path, content: dict[str, Any], part: str, signature: Signature) -> Rows | None:
    """The real samples under `part` of a checkpoint of ours; in anybody else's the word may mean anything."""
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
        raise PenstockError(f"{path}: its {part} samples are damaged: {weights.first_line(error)}") from None
    return rows


def versions() -> dict[str, str]:
    """The versions of what makes a checkpoint."""
    found = {"torch": str(torch.__version__), "numpy": np.__version__}
    with contextlib.suppress(ImportError):
        import lightning

        found["lightning"] = lightning.__version__
    return found
