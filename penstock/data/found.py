"""What readers find for the parts of a data set becomes samples: classes are numbered, missing parts split off."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.data.samples import Kind, Samples
from penstock.data.specs import Part, Parted
from penstock.data.split import split_off
from penstock.data.views import Chosen
from penstock.errors import PenstockError, listed, nearest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """The items of one part that has some of its own, and what is said of each.

    `where` is the setting and the path, for errors; `labels` are names of classes, or numbers float32 `[n]`.
    """

    where: str
    items: Sequence[Any]
    labels: Sequence[str] | NDArray[np.float32]
    places: Sequence[str]


def samples(spec: Parted, found: Mapping[Part, Found], kind: Kind) -> dict[Part, Samples]:
    """The three parts, of which `found` has train at least; those that it lacks are split off train.

    Classes are those of train.

    Raises:
        PenstockError: train has fewer than two classes, or lacks one of another part; a part would be too small.
    """
    train = found["train"]
    names = None if isinstance(train.labels, np.ndarray) else class_names(train.labels)
    if names is not None and len(names) < 2:
        raise PenstockError(f"{train.where}: holds only the class {names[0]!r}; there must be two to tell apart")
    labels = {part: _numbered(part, each, names) for part, each in found.items()}
    chosen = split_off(spec, found.keys(), len(train.labels), None if names is None else labels["train"], names)
    parts: dict[Part, Samples] = {}
    for part in ("train", "val", "test"):
        if part in found and (part != "train" or len(chosen) == 1):
            parts[part] = Samples(found[part].items, labels[part], kind, names, found[part].places)
        else:
            index = chosen[part]
            items, places = Chosen(train.items, index), Chosen(train.places, index)
            parts[part] = Samples(items, labels["train"][index], kind, names, places)
    return parts


def class_names(labels: Iterable[str]) -> tuple[str, ...]:
    """The classes in order: by their value where all are whole numbers, else by the alphabet."""
    names = set(labels)
    if all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0"), name)))
    return tuple(sorted(names))


def _numbered(part: Part, found: Found, names: tuple[str, ...] | None) -> NDArray[Any]:
    """The labels of a part as class numbers int64 `[n]`, or as they are where they are numbers."""
    if names is None:
        return np.asarray(found.labels, np.float32)
    numbers = {name: number for number, name in enumerate(names)}
    try:
        labels = np.array([numbers[label] for label in found.labels], np.int64)
    except KeyError:
        row = next(row for row, label in enumerate(found.labels) if label not in numbers)
        label = found.labels[row]
        raise PenstockError(
            f"{found.where}: {found.places[row]} is of class {label!r}, of which train has nothing; its classes are "
            f"{listed(names)}{nearest(label, names)}"
        ) from None
    lacking = [names[number] for number in np.flatnonzero(np.bincount(labels, minlength=len(names)) == 0).tolist()]
    if lacking:
        log.warning("%s: has nothing of class %s; figures of %s say nothing of it", found.where, listed(lacking), part)
    return labels
