"""Cases: single samples with what is right and what was answered, the most telling of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import scores
from penstock.data import Samples
from penstock.figures import Regression
from penstock.preprocess import decode_image
from penstock.summaries import label, shown

MOST = 24
_LONGEST_TEXT, _SIDE = 400, 128


@dataclass(frozen=True)
class Case:
    """One sample: where it came from, what it is and what was answered, and how sure; a picture, or else a text.

    `score` is the answer's, from 0 to 1, None of a number. `picture` is uint8 `[h, w]` or `[h, w, 3]`.
    """

    place: str
    wanted: str
    answer: str
    score: float | None
    picture: NDArray[np.uint8] | None = None
    text: str | None = None


@dataclass(frozen=True)
class Cases:
    """Wrong answers, the surest first, and right ones, the least sure first; of so many that there are.

    Of a regression, those that are furthest off, and the nearest, of all that there are.
    """

    wrong: tuple[Case, ...] = ()
    right: tuple[Case, ...] = ()
    wrongs: int = 0
    rights: int = 0


def choose(
    samples: Samples, first: NDArray[Any], task: str | None, labels: Sequence[str] | None, most: int = MOST
) -> Cases:
    """The most telling cases among samples.

    Args:
        samples: as they were read.
        first: the model's first output for them, `[n, …]`.
        task: "multilabel", "regression", or else classes.
        labels: the names of classes or labels.
        most: of each kind.
    """
    telling = {"multilabel": _of_labels, "regression": _of_numbers}.get(task or "", _of_classes)
    found = telling(np.asarray(samples.labels), first, labels)
    wrong, right = (_ordered(found, kind) for kind in (False, True))
    made = [tuple(_case(samples, found, row) for row in rows[:most]) for rows in (wrong, right)]
    of = (len(samples), len(samples)) if task == "regression" else (len(wrong), len(right))
    return Cases(made[0], made[1], *of)


@dataclass(frozen=True)
class _Told:
    """By sample: whether its answer is right, in which order it is shown (the largest first), and the words for it."""

    right: NDArray[np.bool_]
    weight: NDArray[np.float64]
    wanted: Any
    answer: Any
    score: Any


def _ordered(found: _Told, right: bool) -> list[int]:
    rows = np.flatnonzero(found.right == right)
    weight = found.weight[rows]
    return [int(row) for row in rows[np.argsort(weight if right else -weight, kind="stable")]]


def _of_classes(wanted: NDArray[Any], first: NDArray[Any], labels: Sequence[str] | None) -> _Told:
    answers, confidence = scores.answers(first)
    return _Told(
        answers == wanted,
        np.nan_to_num(confidence, nan=np.inf),  # no answer at all is the most telling of wrong ones
        lambda row: label(labels, int(wanted[row])),
        lambda row: label(labels, int(answers[row])) if answers[row] >= 0 else "no answer",
        lambda row: float(confidence[row]) if answers[row] >= 0 else None,
    )


def _of_labels(wanted: NDArray[Any], first: NDArray[Any], labels: Sequence[str] | None) -> _Told:
    """Rows by the label that is most surely wrong or, where none is, by the least sure."""
    numbers = np.asarray(first, np.float64)
    so, said = wanted > 0.5, numbers > 0
    sure = np.nan_to_num(scores.sigmoid(np.abs(numbers)), nan=1.0)
    off = (so != said) | np.isnan(numbers)
    right = ~off.any(axis=1)
    weight = np.where(right, sure.min(axis=1), np.where(off, sure, 0).max(axis=1))

    def words(row: NDArray[np.bool_]) -> str:
        return ", ".join(label(labels, int(place)) for place in np.flatnonzero(row)) or "none"

    return _Told(
        right, weight, lambda row: words(so[row]), lambda row: words(said[row]), lambda row: float(weight[row])
    )


def _of_numbers(wanted: NDArray[Any], first: NDArray[Any], labels: Sequence[str] | None) -> _Told:
    """The half that is further off, and the nearer one."""
    figures: Regression = scores.regression(first, wanted)
    order = figures.worst(figures.samples)
    weight = np.empty(figures.samples)
    weight[order] = np.arange(figures.samples, 0, -1)
    right = np.zeros(figures.samples, bool)
    right[order[(figures.samples + 1) // 2 :]] = True

    def words(values: NDArray[np.float64]) -> str:
        return ", ".join(shown(float(value)) for value in values)

    def answer(row: int) -> str:
        return words(figures.predicted[row]) if figures.answered[row] else "no answer"

    return _Told(right, weight, lambda row: words(figures.wanted[row]), answer, lambda _: None)


def _case(samples: Samples, found: _Told, row: int) -> Case:
    picture = _picture(samples.items[row]) if samples.kind == "image" else None
    text = None if samples.kind == "image" else _text(samples.items[row])
    return Case(samples.place(row), found.wanted(row), found.answer(row), found.score(row), picture, text)


def _picture(item: Any) -> NDArray[np.uint8]:
    """A picture no larger than it is shown."""
    from PIL import Image

    image = decode_image(bytes(item)) if isinstance(item, bytes | bytearray | memoryview) else Image.fromarray(item)
    if image.mode != "L":
        image = image.convert("RGB")
    image.thumbnail((_SIDE, _SIDE))
    return np.asarray(image, np.uint8)


def _text(item: Any) -> str:
    """A text, or the values of a row."""
    if isinstance(item, dict):
        item = ", ".join(f"{name}: {_value(value)}" for name, value in item.items())
    text = str(item)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return json.dumps([float(f"{number:.4g}") for number in value.reshape(-1)[:8].tolist()])[:-1] + (
            ", …]" if value.size > 8 else "]"
        )
    return shown(value) if isinstance(value, float) else str(value)
