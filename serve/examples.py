"""Examples of requests: bodies that a model answers as they stand."""

from __future__ import annotations

import base64
import csv
import io
import math
from functools import lru_cache
from typing import Any

import numpy as np

from penstock import sheets
from penstock.preprocess import ImagePreprocess
from penstock.serve import predict, protocol, rows
from penstock.serve.model import Model
from penstock.serve.tensors import BINARY_ONLY
from penstock.signature import SERVED_DTYPES, Signature, Tensor
from penstock.synthetic import synthesize
from penstock.tabular import Column, TablePreprocess
from penstock.textual import TextPreprocess

# Numbers that a body may hold to be shown whole.
_MOST_SHOWN = 128


def predict_examples(model: Model) -> dict[str, Any]:
    """JSON bodies that a model answers, by the form that they are in: what stands under its name."""
    found: dict[str, Any] = {}
    preprocess = predict.of(model)
    if isinstance(preprocess, ImagePreprocess):
        found["image"] = base64.b64encode(_picture()).decode()
    if isinstance(preprocess, TextPreprocess) or predict.takes_text(model):
        found["text"] = "Water flows."
    if isinstance(preprocess, TablePreprocess):
        found["row"] = {column.name: _usual(column) for column in preprocess.columns}
    held, inputs = rows.columns(model.signature), example_inputs(model.signature)
    if inputs is None:
        return found
    if held is not None and preprocess is None:
        found["row"] = (
            {name: _first(inputs[name]) for name in held.names} if held.names else inputs[held.tensors[0].name][0]
        )
    found["inputs"] = inputs
    return found


def csv_example(model: Model) -> str:
    """A table with a header that a model answers, or nothing."""
    preprocess = predict.of(model)
    if isinstance(preprocess, TextPreprocess):
        return f"{sheets.TEXT}\nWater flows.\n"
    if isinstance(preprocess, TablePreprocess):
        buffer = io.StringIO()
        values = [_usual(column) for column in preprocess.columns]
        csv.writer(buffer, lineterminator="\n").writerows([preprocess.names, values])
        return buffer.getvalue()
    held, inputs = rows.columns(model.signature), example_inputs(model.signature)
    if held is None or inputs is None:
        return ""
    names = held.names or [f"column{number + 1}" for number in range(held.count)]
    values = [_first(inputs[name]) for name in held.names] if held.names else inputs[held.tensors[0].name][0]
    return f"{','.join(names)}\n{','.join(str(value).lower() for value in values)}\n"


def _usual(column: Column) -> float | str:
    """A value that a column may have."""
    return round(column.mean, 3) if column.kind == "number" else column.categories[0]


def _first(rows: Any) -> Any:
    """The value in a column's only row."""
    return _first(rows[0]) if isinstance(rows, list) else rows


def example_inputs(signature: Signature) -> dict[str, Any] | None:
    """Inputs of the smallest sizes as lists, or None where they are too many to read."""
    sizes = {name: dim.min for name, dim in signature.dims.items()}
    shapes = {tensor.name: _shape(tensor, sizes) for tensor in signature.inputs}
    if sum(map(math.prod, shapes.values())) > _MOST_SHOWN:
        return None
    numbers = tuple(
        tensor.model_copy(update={"dtype": "float32"} if tensor.dtype == "bfloat16" else {})
        for tensor in signature.inputs
        if tensor.dtype != "object"
    )
    drawn = synthesize(signature.model_copy(update={"inputs": numbers}), sizes).inputs if numbers else {}
    texts = {name: np.full(shape, "text", object) for name, shape in shapes.items() if name not in drawn}
    return {tensor.name: _listed({**drawn, **texts}[tensor.name]) for tensor in signature.inputs}


def _listed(array: Any) -> Any:
    return (array.astype(np.float64).round(3) if array.dtype.kind == "f" else array).tolist()


def _shape(tensor: Tensor, sizes: dict[str, int]) -> list[int]:
    return [sizes[size] if isinstance(size, str) else size for size in tensor.shape]


def infer_example(signature: Signature) -> dict[str, Any] | None:
    """An infer request; of a model with many numbers, or with 16-bit floats, the JSON that its bytes follow.

    None for one of so much text.
    """
    sizes = {name: dim.min for name, dim in signature.dims.items()}
    half = any(tensor.dtype in BINARY_ONLY for tensor in signature.inputs)
    inputs = None if half else example_inputs(signature)
    if inputs is None and any(tensor.dtype == "object" for tensor in signature.inputs):
        return None
    listed, total = [], 0
    for tensor in signature.inputs:
        shape = _shape(tensor, sizes)
        entry = {"name": tensor.name, "datatype": SERVED_DTYPES[tensor.dtype], "shape": shape}
        if inputs is None:
            size = math.prod(shape) * np.dtype(tensor.dtype).itemsize
            total += size
            listed.append({**entry, "parameters": {"binary_data_size": size}})
        else:
            listed.append({**entry, "data": inputs[tensor.name]})
    said = (
        f"the JSON, of {protocol.HEADER_LENGTH}, before {total} bytes of numbers" if inputs is None else "all in JSON"
    )
    return {"summary": said, "value": {"inputs": listed}}


@lru_cache(1)
def _picture() -> bytes:
    """A small picture, which is resized to what a model takes."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8)).save(buffer, "PNG")
    return buffer.getvalue()
