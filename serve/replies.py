"""What goes back over the Open Inference Protocol: outputs in JSON and binary, classes with labels, metadata."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from penstock.serve.errors import RequestError
from penstock.serve.protocol import HEADER_LENGTH, InferRequest, Wanted
from penstock.signature import V2_DTYPES, Signature, Tensor


def encode(
    name: str, version: int, request: InferRequest, answer: dict[str, Any], labels: Sequence[str] | None = None
) -> tuple[bytes, dict[str, str]]:
    """The body and headers of an infer response: JSON, with the outputs that were asked for in binary behind it.

    Args:
        name: the model's.
        version: its version.
        request: what was asked.
        answer: every output.
        labels: what an output of as many columns is of.

    Raises:
        RequestError: classes are asked of an output that has none.
    """
    listed: list[dict[str, Any]] = []
    tail: list[Any] = []
    for key, wanted in request.outputs.items():
        entry, binary = output(key, answer[key], wanted, labels)
        listed.append(entry)
        if binary is not None:
            tail.append(binary)
    content: dict[str, Any] = {"model_name": name, "model_version": str(version), "outputs": listed}
    if request.id is not None:
        content["id"] = request.id
    text = _json(content, listed)
    if not tail:
        return text, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return b"".join([text, *tail]), headers


def output(
    name: str, answered: Any, wanted: Wanted, labels: Sequence[str] | None
) -> tuple[dict[str, Any], bytes | memoryview | None]:
    """An output's entry, and its bytes if they are to follow the JSON."""
    data: Any
    if wanted.classes:
        texts = classes(name, answered, wanted.classes, labels)
        shape, data = [len(texts), len(texts[0]) if texts else 0], [text for row in texts for text in row]
        entry: dict[str, Any] = {"name": name, "datatype": "BYTES", "shape": shape}
        raw: Any = b"".join(struct.pack("<I", len(text)) + text for text in map(str.encode, data))
    else:
        array = np.ascontiguousarray(answered)
        entry = {"name": name, "datatype": V2_DTYPES[array.dtype.name], "shape": list(answered.shape)}
        data, raw = array.reshape(-1), array.reshape(-1).view(np.uint8).data
        if not wanted.binary and array.dtype == np.float16:
            raise RequestError(f"output {name!r} is FP16, which JSON has no numbers for; ask for it with binary_data")
    if wanted.binary:
        return {**entry, "parameters": {"binary_data_size": len(raw)}}, raw
    return {**entry, "data": data}, None


def _json(content: dict[str, Any], listed: list[dict[str, Any]]) -> bytes:
    numbers = [entry["data"] for entry in listed if isinstance(entry.get("data"), np.ndarray)]
    if all(np.isfinite(data).all() for data in numbers):
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    # NaN and Infinity as the clients write and read them; orjson would say null.
    return json.dumps(content, default=lambda array: array.tolist(), separators=(",", ":")).encode()


def classes(name: str, array: Any, count: int, labels: Sequence[str] | None) -> list[list[str]]:
    """The largest entries of each row, `value:index` or `value:index:label`: Triton's classification extension.

    Raises:
        RequestError: the output has no rows of scores.
    """
    if array.ndim < 2 or array.dtype == bool:
        raise RequestError(f"classification of output {name!r}: it has shape {list(array.shape)}, no row of scores")
    rows = array.reshape(len(array), -1)
    named = labels if labels is not None and len(labels) == rows.shape[1] else None
    # Not a number is no class: it goes last.
    order = np.argsort(-np.nan_to_num(rows.astype(np.float64), nan=-np.inf), axis=1, kind="stable")[:, :count]
    form = "{:f}" if rows.dtype.kind == "f" else "{}"
    return [
        [f"{form.format(row[i])}:{i}{f':{named[i]}' if named else ''}" for i in chosen]
        for row, chosen in zip(rows, order, strict=True)
    ]


def metadata(name: str, version: int, signature: Signature, platform: str) -> dict[str, Any]:
    """A model's metadata; -1 stands for a dynamic size."""
    return {
        "name": name,
        "versions": [str(version)],
        "platform": platform,
        "inputs": [_tensor(tensor) for tensor in signature.inputs],
        "outputs": [_tensor(tensor) for tensor in signature.outputs],
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": V2_DTYPES[tensor.dtype],
        "shape": [size if isinstance(size, int) else -1 for size in tensor.shape],
    }
