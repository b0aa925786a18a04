"""The human road out: labels with scores, class maps, values, or the outputs themselves."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.runtimes import rows_of
from penstock.serve import accept, replies
from penstock.serve.errors import RequestError
from penstock.serve.model import Model
from penstock.serve.protocol import InferRequest, Wanted
from penstock.serve.times import Times, header
from penstock.signature import Arrays

Kind = Literal["classification", "multilabel", "segmentation", "regression", "outputs"]
# A PNG's palette has so many places.
_MOST_CLASSES = 256
JSON, BINARY, PNG = "application/json", "application/octet-stream", "image/png"


def kind(model: Model) -> Kind:
    """What a model answers, by the task that its receipt records and the shape of its first output.

    A classifier answers scores `[batch, classes]`, of which one class is right, or of `multilabel` any number of them.
    Segmentation is scores `[batch, classes, height, width]` or whole
    numbers `[batch, height, width]`, of 2 to 256 classes; a regression `[batch]` or `[batch, values]`.
    """
    task = model.receipt.task if model.receipt else None
    first = model.signature.outputs[0]
    rank = len(first.shape)
    if task == "classification" and rank == 2:
        return "classification"
    if task == "multilabel" and rank == 2:
        return "multilabel"
    if task == "regression" and rank in (1, 2):
        return "regression"
    if task == "segmentation":
        scores = rank == 4 and (not isinstance(first.shape[1], int) or 2 <= first.shape[1] <= _MOST_CLASSES)
        if scores or (rank == 3 and first.dtype in ("uint8", "int32", "int64")):
            return "segmentation"
    return "outputs"


def wanted(model: Model, accepted: str, inputs: Arrays) -> str:
    """The media type to answer in, of those that there are for these inputs.

    Raises:
        RequestError: 406, the client takes none of them. SignatureMismatch: the inputs are not the model's.
    """
    offers, rows = [JSON, BINARY], 1
    if maps := kind(model) == "segmentation":
        model.signature.check(inputs, limit_batch=False)
        fixed = model.signature.outputs[0].shape[0]
        rows = fixed if isinstance(fixed, int) else rows_of(inputs)
        offers += [PNG] * (rows == 1)
    form = accept.best(accepted, offers)
    if form is not None:
        return form
    if accept.best(accepted, [PNG]) is not None:
        why = (
            f"a PNG holds one map, and the request has {rows} rows" if maps else f"model {model.name!r} answers no maps"
        )
    else:
        why = "there is none of that kind"
    raise RequestError(f"Accept is {accepted[:80]!r}, and {why}; it must take one of {', '.join(offers)}", 406)


async def encode(
    model: Model, outputs: dict[str, Any], form: str, top_k: int, times: Times
) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of an answer.

    Raises:
        RequestError: an output holds NaN or infinity, and the answer is not in binary.
    """
    if form == BINARY:
        call = InferRequest({}, dict.fromkeys(outputs, Wanted(binary=True)), None, None, 0)
        parts, headers = replies.encode(model.name, model.version, call, outputs)
        return b"".join(parts), {**headers, "Server-Timing": header(times.stages_ms())}
    if form == PNG:
        content = await asyncio.to_thread(_only_map, model, outputs)
        return content, {"Content-Type": PNG, "Server-Timing": header(times.stages_ms())}
    if kind(model) == "segmentation":  # counting and packing pixels takes milliseconds
        said = await asyncio.to_thread(answer, model, outputs, top_k)
    else:
        said = answer(model, outputs, top_k)
    stages = times.stages_ms()
    said["timing"] = {f"{name}_ms": duration for name, duration in stages.items()}
    return orjson.dumps(said), {"Content-Type": JSON, "Server-Timing": header(stages)}


def _only_map(model: Model, outputs: dict[str, Any]) -> bytes:
    _refuse_nan(outputs)
    return map_png(class_maps(outputs[model.signature.outputs[0].name])[0])


def answer(model: Model, outputs: dict[str, Any], top_k: int) -> dict[str, Any]:
    """What is said to the caller in JSON.

    Raises:
        RequestError: an output holds NaN or infinity, which JSON has no numbers for.
    """
    _refuse_nan(outputs)
    said: dict[str, Any] = {"model": model.name, "version": model.version}
    first = outputs[model.signature.outputs[0].name]
    match kind(model):
        case "classification":
            return {**said, "predictions": [_labelled(row, model.labels, top_k) for row in softmax(first)]}
        case "multilabel":
            return {**said, "predictions": [_labelled(row, model.labels, top_k) for row in sigmoid(first)]}
        case "segmentation":
            return {**said, "predictions": [_segmented(row, model.labels) for row in class_maps(first)]}
        case "regression":
            return {**said, "values": (first[:, 0] if first.shape[1:] == (1,) else first).tolist()}
    return {**said, "outputs": {name: _listed(name, array) for name, array in outputs.items()}}


def _listed(name: str, array: NDArray[np.generic]) -> Any:
    """Nested lists of an output's numbers or texts."""
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32).tolist()
    if array.dtype != object:
        return array.tolist()
    return np.array(replies.texts(name, array.reshape(-1)), object).reshape(array.shape).tolist()


def _refuse_nan(outputs: dict[str, Any]) -> None:
    for name, array in outputs.items():
        if array.dtype.kind in "fV" and not np.isfinite(array).all():
            raise RequestError(f"the model answers NaN or Inf in output {name!r} for these inputs", 422)


def _label(labels: Sequence[str] | None, number: int) -> str:
    return labels[number] if labels and number < len(labels) else str(number)


def _labelled(scores: NDArray[np.float64], labels: tuple[str, ...] | None, top_k: int) -> dict[str, Any]:
    order = np.argsort(-scores, kind="stable")[:top_k]
    top = [{"label": _label(labels, i), "score": round(float(scores[i]), 6)} for i in order]
    return {**top[0], "top": top}


def softmax(logits: NDArray[np.generic]) -> NDArray[np.float64]:
    """exp(x − max x) ÷ Σ exp(x − max x), row by row, in float64."""
    shifted = logits.astype(np.float64)
    exponents = np.exp(shifted - shifted.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))


def sigmoid(logits: NDArray[np.generic]) -> NDArray[np.float64]:
    """1 ÷ (1 + exp(−x)), each by itself, in float64."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits.astype(np.float64))))


def class_maps(first: NDArray[np.generic]) -> NDArray[np.uint8]:
    """The class of each pixel, uint8 `[batch, height, width]`, of a segmentation's first output.

    Raises:
        RequestError: a class is not from 0 to 255.
    """
    found = np.asarray(first.argmax(axis=1)) if first.ndim == 4 else first
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < _MOST_CLASSES:
        raise RequestError(
            f"the model answers a class out of 0 to {_MOST_CLASSES - 1}, which a map has no place for", 422
        )
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
