"""Checkpoints: anybody's file of weights made a module whose every tensor is accounted for, and writing our own."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from penstock import architecture as architectures
from penstock import card as cards
from penstock import modules, preprocessing, probe, programs, proof, state, weights, zoo
from penstock.adapter import Call
from penstock.architecture import Architecture
from penstock.card import Card
from penstock.datasets import Rows
from penstock.errors import PenstockError, Say
from penstock.files import sha256, write_whole
from penstock.proof import Proof
from penstock.signature import BATCH, Dim, Range, Signature, Tensor, first_message
from penstock.state import Choice, Found
from penstock.weights import Contents


@dataclass
class Checkpoint:
    """A module with its weights in place, how to call it, and what is known of it.

    `kind` is that of its file (`penstock.weights.Contents`). `calibration` and `golden` are real samples: the first
    from the training part, the second held out.
    """

    module: nn.Module
    call: Call
    card: Card
    proof: Proof
    sha256: str
    path: Path
    kind: str = "weights"
    calibration: Rows | None = None
    golden: Rows | None = None

    def adapted(self, module: nn.Module | None = None) -> nn.Module:
        """The module, or one in its place, as the signature calls it."""
        return self.call.on(self.module if module is None else module)


@dataclass(frozen=True)
class Override:
    """What the user says of a checkpoint that does not say it itself, or against what it says."""

    model: str | None = None
    model_args: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    dims: dict[str, Dim] = field(default_factory=dict)
    batch: Dim | None = None
    ranges: dict[str, Range] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    choice: Choice = field(default_factory=Choice)
    allow_pickle: bool = False


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
        "calibration": cards.pack(calibration),
        "golden": cards.pack(golden),
    }
    # In memory first: torch turns a full disk into an error of its own that does not say so.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, buffer.getbuffer())


def load(path: Path, override: Override | None = None, say: Say = lambda _: None) -> Checkpoint:
    """Read a checkpoint, build its architecture and prove that every tensor found its place.

    Args:
        path: a file as `penstock.weights.read` takes it, or a transformers folder.
        override: what the file does not say itself.
        say: told the names that unpickling will import, before it does.

    Raises:
        PenstockError: the file is missing, truncated, no checkpoint, needs pickled code, or is of another architecture.
    """
    override = _folder_model(path, override or Override())
    file = weights.locate(path)
    written = _stamp(file)
    contents = weights.read(file, allow_pickle=override.allow_pickle, model=override.model, say=say)
    digest = sha256(file)  # before the user's own code is imported, which may write to it
    held = contents.value if contents.kind == "weights" else {}
    card = cards.read(path, held)
    try:
        module, architecture, proven = _module(contents, card, override)
        if contents.kind != "exported":  # whose operators were fixed in eval mode, or not, when it was captured
            modules.refuse_unready(module)
    except PenstockError as error:
        raise PenstockError(f"{path}: {error}") from None
    if _stamp(file) != written:
        raise PenstockError(
            f"{path}: was changed while it was being read; if importing {override.model} trains and saves, put that "
            "under `if __name__ == '__main__':`"
        )
    card = _described(path, contents, card, architecture, module, override)
    parts = [cards.samples(path, held, part, card.signature) for part in ("calibration", "golden")]
    signature = _ranged(card.signature, override)
    if override.batch is not None:
        signature = signature.with_batch(override.batch)
    signature, call = _proven(path, module, signature, override.keep)
    card = _fitting(card.model_copy(update={"signature": signature}), override)
    cards.check(path, card)
    return Checkpoint(module, call, card, proven, digest, path, contents.kind, *parts)


def _folder_model(path: Path, override: Override) -> Override:
    """A transformers folder names its own architecture, of transformers' own classes alone."""
    if override.model is None and path.is_dir() and (path / "config.json").is_file():
        return Override(**{**override.__dict__, "model": f"transformers:{path}"})
    return override


def _module(contents: Contents, card: Card | None, override: Override) -> tuple[nn.Module, Architecture, Proof]:
    """The module in eval mode and float32 (a program as it is), what it was made from, and the proof of its weights."""
    if contents.kind in ("torchscript", "exported"):
        if override.model is not None:
            raise PenstockError(f"--model {override.model}: the file is a whole program; leave --model out")
        _refuse_choices("a whole program", override)
        programs.refuse_training(contents.value)
        module = contents.value.module() if contents.kind == "exported" else contents.value
        return module, Architecture(target=contents.kind), _whole(module, Found(module))
    found = Found(contents.value) if contents.kind == "module" else None
    if found is None:
        found = _found(contents.value, override)
    if isinstance(found.value, nn.Module) and override.model is None:
        whole = Choice(ema=override.choice.ema, key=override.choice.key) if found.wrapper else Choice()
        _refuse_choices("a pickled module", override, whole)
        module = found.value.float().eval()
        kind = type(module)
        return module, Architecture(target=f"{kind.__module__}:{kind.__qualname__}"), _whole(module, found)
    architecture = _architecture(contents.value, card, override)
    module = architectures.build(architecture)
    _refuse_random(module, architecture)
    return module, architecture, proof.load(module, found, override.choice)


def _refuse_random(module: nn.Module, architecture: Architecture) -> None:
    """Refuse a module that is built with random numbers which no checkpoint of it holds."""
    before = modules.unsaved(module)
    if not before:
        return
    other = modules.unsaved(architectures.build(architecture, seed=1))
    moved = [name for name, tensor in before.items() if name in other and not _alike(tensor, other[name])]
    if moved:
        raise PenstockError(
            f"{state.some(moved)} of the model is drawn anew each time it is built, and no checkpoint holds it: the "
            "trained values are lost; register it as a persistent buffer before training"
        )


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))


def _refuse_choices(what: str, override: Override, allowed: Choice | None = None) -> None:
    """Refuse options on what a module is made of, where the file has it whole."""
    if override.model_args or override.choice != (allowed or Choice()):
        raise PenstockError(
            f"--model-args, --ema, --key, --prefix and --allow-partial: the file holds {what}, with its own weights; "
            "leave them out"
        )


def _found(content: Mapping[str, Any], override: Override) -> Found:
    try:
        return state.find(content, override.choice)
    except PenstockError as error:
        hint = _named_architecture(content) if override.model is None else ""
        raise PenstockError(f"{error}{hint}") from None


def _whole(module: nn.Module, found: Found) -> Proof:
    count = len(module.state_dict())
    return Proof(loaded=count, expected=count, wrapper=found.wrapper, why=found.why)


def _architecture(content: Mapping[str, Any], card: Card | None, override: Override) -> Architecture:
    if card is None:
        if override.model is None:
            raise PenstockError(
                "names no architecture; give it, as in --model torchvision:resnet18, --model timm:convnext_tiny or "
                f"--model ./net.py:Net{_named_architecture(content)}"
            )
        return Architecture(target=override.model, kwargs={**_recorded(content, override.model), **override.model_args})
    named = cards.targets(card.architecture)
    if override.model is not None and override.model not in named:
        # Arguments of the file's own go to the class that the file itself names, and to no other.
        return Architecture(target=override.model, kwargs=override.model_args)
    for target in named:
        if not cards.trusted(target) and target != override.model:
            raise PenstockError(
                f"names the architecture {target!r}, whose import would run its code; "
                f"if you trust it, give it yourself: --model {target}"
            )
    own = {} if override.model_args and override.model == named[0] else card.architecture.kwargs
    return Architecture(target=named[0], kwargs={**own, **override.model_args})


def _named_architecture(content: Mapping[str, Any]) -> str:
    """What training scripts write beside the weights about what they are weights of."""
    for key in ("arch", "model_name", "architecture"):
        name = content.get(key) if isinstance(content, Mapping) else None
        if isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name):
            return f" (its {key!r} says {name!r}: perhaps --model timm:{name} or --model torchvision:{name})"
    return ""


def _recorded(content: Mapping[str, Any], target: str) -> dict[str, Any]:
    """The arguments that Lightning recorded for its module, where that is what is being built."""
    recorded = content.get("hyper_parameters") if isinstance(content, Mapping) else None
    made = architectures.find(target) if isinstance(recorded, Mapping) else None
    if made is None or not hasattr(made, "load_from_checkpoint"):
        return {}
    takes = inspect.signature(made).parameters
    kept = {str(name): value for name, value in recorded.items() if name in takes}  # type: ignore[union-attr]
    return {name: value for name, value in kept.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        json.dumps(value)
        return True
    return False


def _described(
    path: Path,
    contents: Contents,
    card: Card | None,
    architecture: Architecture,
    module: nn.Module,
    override: Override,
) -> Card:
    """The card of the file, or one made of what the user and the model's library say."""
    if card is not None:
        if override.inputs:
            named = ", ".join(map(str, card.signature.inputs))
            raise PenstockError(
                f"--input {override.inputs[0]!r}: {path} names its own inputs, {named}; leave --input out"
            )
        return card.model_copy(update={"architecture": architecture})
    known = zoo.Known()
    if architecture.target.partition(":")[0] in architectures.LIBRARIES:
        known = zoo.known(architecture.target, architecture.kwargs, module)
    if override.inputs or known.inputs:
        signature = _inputs_only(override.inputs or known.inputs)
        own = {tensor.name for tensor in signature.inputs}
        ranges = {key: Range(low=ends[0], high=ends[1]) for key, ends in known.ranges.items() if key in own}
        dims = {name: known.dims.get(name, dim) for name, dim in signature.dims.items()}
        signature = signature.model_copy(update={"ranges": ranges, "dims": dims})
    elif contents.kind == "exported":
        signature = programs.signature(contents.value)
    else:
        raise PenstockError(
            f"{path}: names no inputs; give each, as in --input 'image:float32[batch,3,224,224]'{_takes(module)}"
        )
    return Card(
        name=re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem.removesuffix(".pth")).strip("-") or "model",
        architecture=architecture,
        signature=signature,
        preprocess=known.preprocess,
        labels=known.labels,
        task=known.task,
    )


def _inputs_only(inputs: tuple[str, ...]) -> Signature:
    tensors = tuple(Tensor.parse(text) for text in inputs)
    dims = {size: BATCH for tensor in tensors for size in tensor.shape if isinstance(size, str)}
    try:
        return Signature(inputs=tensors, outputs=(), dims=dims)
    except ValueError as error:
        raise PenstockError(f"--input: {first_message(error)}") from None


def _ranged(signature: Signature, override: Override) -> Signature:
    for name in override.dims:
        if name not in signature.dims:
            known = ", ".join(signature.dims) or "none"
            raise PenstockError(f"--dim {name}: not a dynamic dimension of the inputs; those are {known}")
    names = [tensor.name for tensor in signature.inputs]
    for name in override.ranges:
        if name not in names:
            raise PenstockError(f"--range {name}: not an input of the model; those are {', '.join(names)}")
    held = {**signature.__dict__, "dims": {**signature.dims, **override.dims}}
    try:
        return Signature(**{**held, "ranges": {**signature.ranges, **override.ranges}})
    except ValueError as error:
        raise PenstockError(f"--range: {first_message(error)}") from None


def _stamp(file: Path) -> tuple[int, int] | None:
    """What changes of a file when it is written to."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _takes(module: nn.Module) -> str:
    """What a module's forward takes, where that can be told."""
    with contextlib.suppress(TypeError, ValueError):
        named = inspect.signature(module.forward).parameters.values()
        shown = [item.name for item in named if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]
        return f"; its forward takes {', '.join(shown)}" if shown else ""
    return ""


def _proven(path: Path, module: nn.Module, signature: Signature, keep: tuple[str, ...]) -> tuple[Signature, Call]:
    """The signature with the outputs that the module really gives, under the names it declares for them, if any."""
    unrun = modules.copied(module)
    real, call = probe.complete(module if unrun is None else unrun, signature, keep)
    if not signature.outputs or keep:
        return real, call
    given = {tensor.name: tensor for tensor in real.outputs}
    declared = [tensor.name for tensor in signature.outputs]
    if set(given) == set(declared):
        paths = dict(zip(given, call.outputs, strict=True))
        call = Call(call.keywords, tuple(paths[name] for name in declared))
        given = {name: given[name] for name in declared}
    if [(t.dtype, t.shape) for t in signature.outputs] != [(t.dtype, t.shape) for t in given.values()]:
        raise PenstockError(
            f"{path}: declares the outputs {', '.join(map(str, signature.outputs))}, but the model gives "
            f"{', '.join(map(str, real.outputs))}"
        )
    return real.model_copy(update={"outputs": signature.outputs}), call


def _fitting(card: Card, override: Override) -> Card:
    """The card without what a library knows of its model but the user's own inputs or outputs do not bear out."""
    if not override.inputs and not override.keep:
        return card
    if card.preprocess is not None and not preprocessing.fits(card.preprocess, card.signature):
        card = card.model_copy(update={"preprocess": None})
    if card.labels is not None and cards.classes_of(card.signature, card.task) != len(card.labels):
        card = card.model_copy(update={"labels": None, "task": None})
    return card


def versions() -> dict[str, str]:
    """The versions of what makes a checkpoint."""
    found = {"torch": str(torch.__version__), "numpy": np.__version__}
    with contextlib.suppress(ImportError):
        import lightning

        found["lightning"] = lightning.__version__
    return found
