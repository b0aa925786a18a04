"""Predictions: outputs as people and programs read them: labels with scores, class maps, values.

The server answers with these, and `penstock predict` where it runs a model itself.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.scores import sigmoid, softmax
from penstock.signature import Signature

Kind = Literal["classification", "multilabel", "segmentation", "regression", "outputs"]
# A PNG's palette has so many places.
MOST_CLASSES = 256


class NoMap(PenstockError):
    """Classes that a map has no place for."""


def kind(task: str | None, signature: Signature) -> Kind:
    """What a model answers, by its task and the shape of its first output.

    A classifier answers scores `[batch, classes]`, of which one class is right, or of `multilabel` any number of them.
    Segmentation is scores `[batch, classes, height, width]` or whole numbers `[batch, height, width]`, of 2 to 256
    classes; a regression `[batch]` or `[batch, values]`.
    """
    first = signature.outputs[0]
    rank = len(first.shape)
    if task == "classification" and rank == 2:
        return "classification"
    if task == "multilabel" and rank == 2:
        return "multilabel"
    if task == "regression" and rank in (1, 2):
        return "regression"
    if task == "segmentation":
        scores = rank == 4 and (not isinstance(first.shape[1], int) or 2 <= first.shape[1] <= MOST_CLASSES)
        if scores or (rank == 3 and first.dtype in ("uint8", "int32", "int64")):
            return "segmentation"
    return "outputs"


def of(answers: Kind, first: NDArray[Any], labels: tuple[str, ...] | None, top_k: int) -> dict[str, Any]:
    """What is said of the first output's rows: `predictions`, or `values` of a regression.

    Args:
        answers: not "outputs", which are no predictions.
        first: the output, of finite numbers.
        labels: the names of the classes.
        top_k: labels of each row.

    Raises:
        NoMap: a class of a map is not from 0 to 255.
    """
    if answers == "regression":
        return {"values": (first[:, 0] if first.shape[1:] == (1,) else first).tolist()}
    if answers == "segmentation":
        return {"predictions": [_segmented(row, labels) for row in class_maps(first)]}
    scores = sigmoid(first) if answers == "multilabel" else softmax(first)
    return {"predictions": [_labelled(row, labels, top_k) for row in scores]}


def _label(labels: Sequence[str] | None, number: int) -> str:
    return labels[number] if labels and number < len(labels) else str(number)


def _labelled(scores: NDArray[np.float64], labels: tuple[str, ...] | None, top_k: int) -> dict[str, Any]:
    order = np.argsort(-scores, kind="stable")[:top_k]
    top = [{"label": _label(labels, i), "score": round(float(scores[i]), 6)} for i in order]
    return {**top[0], "top": top}


def class_maps(first: NDArray[np.generic]) -> NDArray[np.uint8]:
    """The class of each pixel, uint8 `[batch, height, width]`, of a segmentation's first output.

    Raises:
        NoMap: a class is not from 0 to 255.
    """
    found = np.asarray(first.argmax(axis=1)) if first.ndim == 4 else first
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < MOST_CLASSES:
        raise NoMap(f"the model answers a class out of 0 to {MOST_CLASSES - 1}, which a map has no place for")
    return found.astype(np.uint8)


def _segmented(classes: NDArray[np.uint8], labels: tuple[str, ...] | None) -> dict[str, Any]:
    """The labels that are there, the largest first, with their share of the pixels; and the map."""
    counts = np.bincount(classes.reshape(-1))
    present = sorted(np.flatnonzero(counts).tolist(), key=lambda number: (-counts[number], number))
    height, width = classes.shape
    return {
        "width": width,
        "height": height,
        "labels": [
            {"label": _label(labels, n), "class": n, "share": round(float(counts[n]) / classes.size, 6)}
            for n in present
        ],
        "map": base64.b64encode(map_png(classes)).decode(),
    }


def map_png(classes: NDArray[np.uint8]) -> bytes:
    """A class map `[height, width]` as a PNG whose pixels are class numbers, with a palette to see them by."""
    from PIL import Image

    image, buffer = Image.fromarray(classes), io.BytesIO()
    image.putpalette(_palette())
    image.save(buffer, "PNG")
    return buffer.getvalue()


@lru_cache(1)
def _palette() -> bytes:
    """PASCAL VOC's colours: the bits of a class number dealt to red, green and blue, the lowest to their highest."""
    colours = np.zeros((256, 3), np.uint8)
    for number in range(256):
        for bit in range(8):
            colours[number, bit % 3] |= ((number >> bit) & 1) << (7 - bit // 3)
    return colours.tobytes()
