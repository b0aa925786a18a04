"""Repeating: the recipe of an earlier run, from a checkpoint that it left, and what was found when it began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
            f"--from {path}: records no recipe; only checkpoints of `penstock train` do, of 0.1 and later"
        )
    changes = list(map(parse, overrides))
    recipe = recipes.make(
        card.recipe, changes, fields, f"the recipe in {path}", f"penstock train --from {quote(str(path))}"
    )
    named = any(change.path[:1] == ("model",) and change.path[1:] in ((), ("target",)) for change in changes)
    if not named and not cards.trusted(recipe.model.target):
        raise PenstockError(
            f"--from {path}: names the network {recipe.model.target!r}, whose import would run its code; if you trust "
            f"it, name it yourself: --set model.target={recipe.model.target}"
        )
    return Earlier(recipe, card.facts or {})


def free_folder(folder: Path, path: Path) -> Path:
    """The folder of a run that repeats an earlier one: `folder`, or `folder-2` if that holds the earlier one's file.

    Raises:
        PenstockError: as `agreed`.
    """
    if path.resolve().parent != folder.resolve():
        return folder
    others = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return Path(agreed("FOLDER", lambda: str(next(other for other in others if not other.exists())), f"--from {path}"))
