"""Starting weights: a file's tensors in a network that is to be trained on, but for a head that is another.

A head is what comes last in a network. Everything before it must find its tensor in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from penstock import card as cards
from penstock import modules, proof, state, weights
from penstock.architecture import Architecture
from penstock.errors import PenstockError
from penstock.files import nearby
from penstock.proof import Proof
from penstock.state import Choice, Found
from penstock.train.nets import Bert, Rescaled
from penstock.train.nets.bert import FIELDS

State = dict[str, Any]
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Start:
    """What a file gave to a network.

    `proof.initial` are the tensors of the network's head that stay at their initial values, `left_out` those of the
    file that have no place.
    """

    proof: Proof
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        held = self.proof
        parts = [
            f"{held.loaded} of {held.expected} tensors loaded",
            f", from {held.wrapper!r}{f' ({held.why})' if held.why else ''}" if held.wrapper else "",
            f"; a new head: {state.some(held.initial)}" if held.initial else "",
            f"; left out of the file: {state.some(self.left_out)}" if self.left_out else "",
        ]
        return "".join(parts)


def from_folder(folder: Path, head: str = "linear", classes: int = 2, dropout: float = 0.1) -> Architecture:
    """The architecture of a BERT encoder in a local transformers folder under a new head; `start` loads its weights.

    Args:
        folder: as save_pretrained writes it, with a config.json.
        head: linear, cnn, lstm or gru.
        classes: how many answers.
        dropout: of the head.

    Raises:
        PenstockError: there is no config in it, or one of another kind of model.
    """
    path = folder / "config.json"
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise PenstockError(f"{path}: cannot be read ({error.strerror}); give a local transformers folder") from None
    except ValueError as error:
        raise PenstockError(f"{path}: is no JSON: {error}") from None
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind != "bert":
        raise PenstockError(f"{path}: model_type is {kind!r}; it must be 'bert'")
    positions = content.get("position_embedding_type", "absolute")
    if positions != "absolute" or content.get("is_decoder"):
        raise PenstockError(f"{path}: must be an encoder with absolute positions; its positions are {positions!r}")
    config = {name: content[name] for name in FIELDS if name in content}
    kwargs = {"config": config, "head": head, "classes": classes, "dropout": dropout}
    return Architecture(target=f"{cards.TRUSTED}:Bert", kwargs=kwargs)


def there(path: Path) -> Path:
    """The path, if something is there; to be asked before data is read for nothing.

    Raises:
        PenstockError: nothing is.
    """
    if not path.exists():
        raise PenstockError(
            f"weights {path}: no such file{nearby(path)}; give the weights to begin from, as runs/NAME/best.pth, or "
            "nothing to begin anew: --set weights="
        )
    return path


def start(net: nn.Module, path: Path) -> Start:
    """Put a file's tensors into a network; its head stays new where the file's is another, or has none.

    Args:
        net: on the CPU. Of `Rescaled` the network inside.
        path: a file as `penstock.weights.read` takes it, or a transformers folder; averaged weights before plain ones.

    Raises:
        PenstockError: the file cannot be read without running its code, or is of another architecture.
    """
    net = net.net if isinstance(net, Rescaled) else net
    there(path)
    try:
        contents = weights.read(weights.locate(path))
    except PenstockError as error:  # which begins with the path
        raise PenstockError(f"weights {error}") from None
    if contents.kind != "weights":
        raise PenstockError(f"weights {path}: holds a whole program; give a file of weights alone")
    try:
        found = state.find(contents.value)
        if isinstance(found.value, nn.Module):
            raise PenstockError("holds a pickled module; give a file of weights alone")
        return _put(net, found)
    except PenstockError as error:
        raise PenstockError(f"weights {path}: {error}") from None


def _put(net: nn.Module, found: Found) -> Start:
    expected = net.state_dict()
    held, _ = proof.named_as(_unwrapped(found.value, net), set(expected))
    lacking = _lacking(net, held, expected)
    owners = {name.rpartition(".")[0] for name in lacking}
    fresh = [name for name in expected if name.rpartition(".")[0] in owners]
    left_out = [name for name in held if name not in expected or name in fresh]
    _refuse_other(net, held, expected, fresh)
    strange = [name for name in left_out if name.rpartition(".")[0] not in owners and not _of_a_part(name, expected)]
    if strange:
        raise PenstockError(
            f"{len(strange)} of its tensors have no place in {type(net).__name__} ({state.some(strange)}): they are "
            "of another architecture"
        )
    kept = Found({name: held[name] for name in held if name not in left_out}, found.wrapper, found.why)
    return Start(proof.load(net, kept, Choice(partial=tuple(fresh))), tuple(left_out))


def _unwrapped(held: Mapping[str, Any], net: nn.Module) -> State:
    """The state without `Rescaled` around it; of a BERT under the names that transformers gives them today."""
    names = {name: name for name in held}
    if all(name.startswith("net.") for name in names) and not hasattr(net, "net"):
        names = {name: name.removeprefix("net.") for name in names}
    if isinstance(net, Bert):
        bare = any(name.startswith("embeddings.") for name in names.values())
        names = {name: _of_bert(new, bare) for name, new in names.items()}
    return {new: held[name] for name, new in names.items() if not new.endswith("embeddings.position_ids")}


def _of_bert(name: str, bare: bool) -> str:
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"bert.{name}" if bare else name


def _lacking(net: nn.Module, held: State, expected: Mapping[str, torch.Tensor]) -> list[str]:
    """The names that get nothing from the file: missing there, or of another shape."""
    fits = {name for name, tensor in expected.items() if name in held and _shape(held[name]) == _shape(tensor)}
    for group in modules.tied(net):
        if fits & set(group) and not any(name in held and name not in fits for name in group):
            fits |= set(group)
    return [name for name in expected if name not in fits and not name.endswith(_COUNTER)]


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def _refuse_other(net: nn.Module, held: State, expected: Mapping[str, torch.Tensor], fresh: list[str]) -> None:
    """See that what would stay new is what comes last, and the smaller part."""
    if not fresh or (list(expected)[-len(fresh) :] == fresh and 2 * len(fresh) <= len(expected)):
        return
    misfits = [
        f"{name} {list(held[name].shape)} for {list(expected[name].shape)}"
        for name in fresh
        if name in held and _shape(held[name]) != _shape(expected[name])
    ]
    missing = [name for name in fresh if name not in held]
    told = [f"{len(names)} {what} ({state.some(names)})" for what, names in _named(missing, misfits)]
    raise PenstockError(
        f"its tensors are not those of {type(net).__name__}: {'; '.join(told)}; only a head, which comes last, may be "
        "another"
    )


def _named(missing: list[str], misfits: list[str]) -> Iterator[tuple[str, list[str]]]:
    yield from ((what, names) for what, names in (("missing", missing), ("mis-shaped", misfits)) if names)


def _of_a_part(name: str, expected: Mapping[str, torch.Tensor]) -> bool:
    """Whether a tensor is of a whole part that the network does not have, as a head; not of one more of its blocks."""
    path: list[str] = []
    for step in name.split(".")[:-1]:
        path.append(step)
        if step.isdigit():
            return False
        if not any(known.startswith(".".join(path) + ".") for known in expected):
            return True
    return False
