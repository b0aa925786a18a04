"""The human road: an image, or numbers, in; labels with scores out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.preprocess import decode_image
from penstock.serve.errors import RequestError
from penstock.serve.model import Model
from penstock.serve.protocol import parse_json
from penstock.serve.tensors import from_json


def image_inputs(model: Model, data: bytes, max_pixels: int) -> dict[str, NDArray[np.generic]]:
    """Decode an uploaded image and preprocess it as the model was trained.

    Raises:
        RequestError: the model takes no images; BadImage: the bytes are none.
    """
    preprocess = model.receipt.preprocess if model.receipt else None
    if preprocess is None:
        raise RequestError(
            f"model {model.name!r} records no image preprocessing; send its tensors as JSON: {_example(model)}",
            415,
        )
    return {preprocess.input: preprocess.apply(decode_image(data, max_pixels))}


def json_inputs(model: Model, body: bytes) -> dict[str, NDArray[np.generic]]:
    """Inputs from `{"inputs": {name: rows, …}}`, or `{"inputs": rows}` for a model with one input."""
    content = parse_json(body)
    if not isinstance(content, dict) or "inputs" not in content:
        raise RequestError(f"the request must be a JSON object with 'inputs': {_example(model)}")
    unknown = sorted(set(content) - {"inputs"})
    if unknown:
        raise RequestError(f"field {unknown[0]!r} is unknown; the request holds 'inputs' alone")
    given, tensors = content["inputs"], model.signature.inputs
    if not isinstance(given, dict):
        if len(tensors) != 1:
            names = ", ".join(tensor.name for tensor in tensors)
            raise RequestError(f"'inputs' must be an object with one entry for each of {names}")
        given = {tensors[0].name: given}
    dtypes = {tensor.name: tensor.dtype for tensor in tensors}
    for name in given:
        if name not in dtypes:
            raise RequestError(f"input {name[:128]!r} is unknown; the model's inputs are {', '.join(dtypes)}")
    return {name: from_json(f"inputs.{name}", rows, dtypes[name]) for name, rows in given.items()}


def _example(model: Model) -> str:
    first = model.signature.inputs[0]
    return f'{{"inputs": {{"{first.name}": …}}}}, shape [{", ".join(map(str, first.shape))}]'


def answer(model: Model, outputs: dict[str, Any], top_k: int) -> dict[str, Any]:
    """What is said to the caller: labels with scores for a classifier, else the outputs themselves."""
    said: dict[str, Any] = {"model": model.name, "version": model.version}
    for name, array in outputs.items():
        if not np.isfinite(array).all():
            raise RequestError(f"the model answers NaN or Inf in output {name!r} for these inputs", 422)
    first = model.signature.outputs[0].name
    task = model.receipt.task if model.receipt else None
    if task != "classification" or outputs[first].ndim != 2:
        return {**said, "outputs": {name: array.tolist() for name, array in outputs.items()}}
    return {**said, "predictions": [_labelled(row, model.labels, top_k) for row in softmax(outputs[first])]}


def _labelled(scores: NDArray[np.float64], labels: tuple[str, ...] | None, top_k: int) -> dict[str, Any]:
    order = np.argsort(-scores, kind="stable")[:top_k]
    top = [
        {"label": labels[i] if labels and i < len(labels) else str(i), "score": round(float(scores[i]), 6)}
        for i in order
    ]
    return {**top[0], "top": top}


def softmax(logits: NDArray[np.generic]) -> NDArray[np.float64]:
    """exp(x − max x) ÷ Σ exp(x − max x), row by row, in float64."""
    shifted = logits.astype(np.float64)
    exponents = np.exp(shifted - shifted.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))
