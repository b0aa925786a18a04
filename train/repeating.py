"""Repeating: the recipe of an earlier run, from a checkpoint that it left, and what was found when it began."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from penstock import card as cards
from penstock import weights
from penstock.errors import PenstockError
from penstock.train import recipe as recipes
from penstock.train.facts import agreed
from penstock.train.overrides import parse
from penstock.train.recipe import Recipe


class Earlier(NamedTuple):
    """An earlier run: its recipe, with whatever was changed now, and its facts, none where it recorded none."""

    recipe: Recipe
    facts: Mapping[str, Any]


def earlier(path: Path, overrides: Sequence[str] = (), **fields: Any) -> Earlier:
    """What a checkpoint says of the run that left it.

    Args:
        path: the checkpoint.
        overrides: fields of its recipe to replace, `optim.lr=3e-4`.
        fields: top-level fields to replace, before `overrides`; those that are None are left alone.

    Raises:
        PenstockError: it is no checkpoint, records no recipe, or names a network whose import would run its code.
    """
    contents = weights.read(weights.locate(path))
    card = cards.read(path, contents.value) if contents.kind == "weights" else None
    if card is None or card.recipe is None:
        raise PenstockError(
            f"--from {path}: records no recipe, as each checkpoint does that `penstock train` leaves now"
        )
    changes = list(map(parse, overrides))
    recipe = recipes.make(
        card.recipe, changes, fields, f"the recipe in {path}", f"penstock train --from {quote(str(path))}"
    )
    named = {text for change in changes if change.path[0] == "model" for text in _texts(change.value)}
    for target in cards.targets(recipe.model):
        if not cards.trusted(target) and target not in named:
            where = "model.target" if target == recipe.model.target else "model.kwargs.….target"
            raise PenstockError(
                f"--from {path}: names the network {target!r}, whose import would run its code; if you trust it, name "
                f"it yourself: --set {where}={target}"
            )
    return Earlier(recipe, card.facts or {})


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value that was typed: a name, or those in a section that was given whole."""
    if isinstance(value, str):
        yield value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for each in inner:
        yield from _texts(each)


def free_folder(folder: Path, path: Path) -> Path:
    """The folder of a run that repeats an earlier one: `folder`, or `folder-2` if that holds the earlier one's file.

    Raises:
        PenstockError: as `agreed`.
    """
    if path.resolve().parent != folder.resolve():
        return folder
    others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return Path(agreed("FOLDER", lambda: str(next(other for other in others if not other.exists())), f"--from {path}"))
