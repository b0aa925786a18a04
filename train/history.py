"""The history of a run: what was measured in each epoch, and what belongs into one chart."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.summaries import title

Epoch = Mapping[str, float]
_PARTS = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Curve:
    """One figure over the epochs, `(epoch, value)`; epochs without it are left out.

    `style` is the same for training in every chart, and so for validation.
    """

    name: str
    style: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curves:
    """Figures of one kind, which share a chart: the losses of training and of validation, say."""

    title: str
    curves: tuple[Curve, ...]

    @property
    def log(self) -> bool:
        """Whether it is told best by powers: positive, and over more than two of ten."""
        values = [value for curve in self.curves for _, value in curve.points]
        return min(values) > 0 and max(values) / min(values) > 100


def read(path: Path) -> list[dict[str, float]]:
    """The epochs in a metrics.csv of Lightning's CSVLogger, from 1 on: the last value of each figure in each.

    A line without an epoch, as of learning rates by the step, is of the epoch that the next line with one is of.

    Raises:
        PenstockError: it is no such file.
    """
    found: dict[int, dict[str, float]] = {}
    waiting: dict[str, float] = {}
    for line, record in _records(path):
        try:
            held = {name: float(text) for name, text in record.items() if text}
        except (TypeError, ValueError):
            raise PenstockError(
                f"{path}, line {line}: holds what is no number; it must be a CSVLogger's file"
            ) from None
        epoch = held.pop("epoch", math.nan)
        waiting.update(held)
        if math.isfinite(epoch):
            found.setdefault(int(epoch), {"epoch": epoch + 1}).update(waiting)
            waiting = {}
    return [found[epoch] for epoch in sorted(found)]


def _records(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if "epoch" not in (reader.fieldnames or ()):
                raise PenstockError(f"{path}: has no column epoch; it must be the metrics.csv of a CSVLogger")
            for record in reader:
                yield reader.line_num, record
    except (UnicodeDecodeError, csv.Error) as error:
        raise PenstockError(f"{path}: is no CSV: {error}") from None
    except OSError as error:
        raise PenstockError(f"{path}: cannot be read: {error.strerror}") from None


def charts(history: Sequence[Epoch]) -> list[Curves]:
    """The loss, then what `train_`, `val_` or `test_` begins the name of, each with its like, then the learning rate.

    What else an epoch holds, as its seconds, is for a table.
    """
    names = list(dict.fromkeys(name for epoch in history for name in epoch))
    kinds: dict[str, list[str]] = {}
    for name in names:
        part, _, rest = name.partition("_")
        if part in _PARTS and rest:
            kinds.setdefault(rest, []).append(name)
        elif name == "lr" or name.startswith(("lr-", "lr_", "lr/")):
            kinds.setdefault("lr", []).append(name)
    order = sorted(kinds, key=lambda kind: (kind != "loss", kind == "lr"))
    made = []
    for kind in order:
        curves = [_curve(history, name, number) for number, name in enumerate(kinds[kind])]
        held = tuple(sorted((curve for curve in curves if curve.points), key=lambda curve: curve.style))
        if held:
            made.append(Curves("learning rate" if kind == "lr" else title(kind), held))
    return made


def _curve(history: Sequence[Epoch], name: str, number: int) -> Curve:
    points = tuple(
        (epoch.get("epoch", place), epoch[name])
        for place, epoch in enumerate(history, 1)
        if math.isfinite(epoch.get(name, math.nan))
    )
    part, _, _ = name.partition("_")
    if part in _PARTS:
        return Curve(_PARTS[part], list(_PARTS).index(part), points)
    return Curve(name, number, points)
