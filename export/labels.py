"""Labels: the names of a model's classes, as the user gives them or the folders of the samples bear them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock import datasets, predictions
from penstock.card import Card, classes_of
from penstock.errors import PenstockError, Say, listed
from penstock.export.request import Request

FILES = (".txt", ".json")
_LARGEST = 1 << 22
_LONGEST = 200


def read(text: str) -> tuple[str, ...]:
    """The names behind `--labels`, in the order of their classes: with commas between them, or a file's.

    A .txt file has one name a line. A .json file is a list of names, or an object that has the name of each class
    under its number, as TorchServe's index_to_name.json; of a list there the last is the name.

    Raises:
        PenstockError: a file cannot be read or holds something else, or a name is empty, long or no printable text.
    """
    path = Path(text)
    if path.suffix.lower() not in FILES:
        names = [name.strip() for name in text.split(",")]
    elif path.suffix.lower() == ".txt":
        names = [line.strip() for line in _text(path).rstrip().splitlines()]
    else:
        names = _of_json(path)
    for place, name in enumerate(names):
        if not name or len(name) > _LONGEST or not name.isprintable():
            raise PenstockError(
                f"--labels {text[:80]}: the name of class {place} is {name[:40]!r}; it must be 1 to {_LONGEST} "
                "printable characters"
            )
    return tuple(names)


def named(request: Request, card: Card, say: Say) -> Card:
    """A checkpoint's card with the names that the user, or the folders of the samples, give its classes.

    Args:
        request: what the user asked for.
        card: what the checkpoint says of itself.
        say: told where names come from when they are not the checkpoint's, and where there are none.

    Raises:
        PenstockError: the names cannot be read, or are not as many as the classes.
    """
    answers, classes = predictions.kind(card.task, card.signature), classes_of(card.signature, card.task)
    if request.labels is not None:
        return _given(request.labels, card, say)
    if card.labels is not None or answers not in ("classification", "multilabel"):
        return card
    folders = _folders(request)
    if answers == "classification" and len(folders) == classes:
        say(
            f"note: labels are the names of the folders in --data, in alphabetical order: {listed(folders)}; --labels "
            "gives others"
        )
        return card.model_copy(update={"labels": folders})
    if isinstance(classes, int) and classes > 1:
        say(f"note: no labels are known for its {classes} classes: answers bear numbers; --labels names them")
    return card


def _given(text: str, card: Card, say: Say) -> Card:
    labels, classes = read(text), classes_of(card.signature, card.task)
    first = card.signature.outputs[0]
    if len(labels) != classes:
        has = f"{classes} classes" if isinstance(classes, int) else "no axis of classes of a fixed size"
        raise PenstockError(
            f"--labels {text[:80]}: names {len(labels)} classes; the model's first output, {first}, has {has}; give "
            "one name for each, in their order: with commas, or in a .txt or .json file"
        )
    if card.labels is not None and card.labels != labels:
        say(f"note: --labels replaces the {len(card.labels)} labels of the checkpoint")
    classifier = card.task is None and len(first.shape) == 2
    return card.model_copy(update={"labels": labels, **({"task": "classification"} if classifier else {})})


def _folders(request: Request) -> tuple[str, ...]:
    """The names of the folders of pictures in --data, where they are names and not the numbers of classes."""
    if request.data is None or not request.data.is_dir():
        return ()
    places = {file.parent for file in datasets.pictures_in(request.data)}
    names = sorted(place.name for place in places)
    fit = request.data not in places and all(len(name) <= _LONGEST and name.isprintable() for name in names)
    return tuple(names) if fit and not all(name.isdecimal() for name in names) else ()


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            held = file.read(_LARGEST + 1)
    except OSError as error:
        raise PenstockError(f"--labels {path}: cannot be read: {error.strerror}") from None
    if len(held) > _LARGEST:
        raise PenstockError(f"--labels {path}: has more than {_LARGEST >> 20} MiB; it must hold names alone")
    try:
        return held.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PenstockError(f"--labels {path}: is not UTF-8 at byte {error.start}; save it as UTF-8") from None


def _of_json(path: Path) -> list[str]:
    try:
        held: Any = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise PenstockError(f"--labels {path}: is no JSON: {str(error)[:80]}") from None
    if isinstance(held, dict):
        numbers = [str(number) for number in range(len(held))]
        if set(held) != set(numbers):
            lacking = next(number for number in numbers if number not in held)
            raise PenstockError(
                f"--labels {path}: has no class {lacking!r} among {len(held)}; an object must have the name of each "
                'class under its number, {"0": "daisy", "1": "rose"}'
            )
        held = [value[-1] if isinstance(value, list) and value else value for value in map(held.get, numbers)]
    if not isinstance(held, list) or not all(isinstance(name, str) for name in held):
        raise PenstockError(f"--labels {path}: must be a list of names, or an object of them by class number")
    return [name.strip() for name in held]
