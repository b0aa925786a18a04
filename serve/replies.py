"""What goes back over the Open Inference Protocol: outputs in JSON and binary, classes with labels, metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.serve.errors import RequestError
from penstock.serve.protocol import HEADER_LENGTH, InferRequest, Wanted
from penstock.serve.sharedmemory import Part
from penstock.serve.tensors import BINARY_ONLY, text_bytes
from penstock.signature import SERVED_DTYPES, Signature, Tensor, dtype_name

_SLICE = 65_536
_MOST_CLASSES = 2**18


def encode(
    name: str, version: int, request: InferRequest, answer: dict[str, Any], labels: Sequence[str] | None = None
) -> tuple[list[Buffer], dict[str, str]]:
    """The body, in parts, and the headers of an infer response: JSON, and behind it what was asked for in binary.

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
    tail: list[Buffer] = []
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
        return [text], {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return [text, *tail], headers


def output(
    name: str, answered: Any, wanted: Wanted, labels: Sequence[str] | None
) -> tuple[dict[str, Any], bytes | memoryview | None]:
    """An output's entry, and its bytes if they are to follow the JSON; those for shared memory are put there."""
    if wanted.classes:
        answered = _texts(classes(name, answered, wanted.classes, labels))
    array = np.ascontiguousarray(answered)
    entry = {"name": name, "datatype": SERVED_DTYPES[dtype_name(array.dtype)], "shape": list(answered.shape)}
    if not wanted.binary and wanted.part is None:
        return {**entry, "data": _listed(name, array.reshape(-1))}, None
    raw = text_bytes(array) if array.dtype == object else array.reshape(-1).view(np.uint8).data
    if wanted.part is not None:
        wanted.part.write(raw, name)
        return {**entry, "parameters": _shared(wanted.part, len(raw))}, None
    return {**entry, "parameters": {"binary_data_size": len(raw)}}, raw


def _texts(rows: list[list[str]]) -> NDArray[np.generic]:
    array = np.empty((len(rows), len(rows[0]) if rows else 0), object)
    for index, row in enumerate(rows):
        array[index] = [text.encode() for text in row]
    return array


def _listed(name: str, flat: NDArray[np.generic]) -> Any:
    """An output's elements as JSON has them."""
    if flat.dtype.name in BINARY_ONLY:
        kind = SERVED_DTYPES[flat.dtype.name]
        raise RequestError(f"output {name!r} is {kind}, which JSON has no numbers for; ask for it with binary_data")
    if flat.dtype != object:
        return flat
    return texts(name, flat)


def texts(name: str, flat: NDArray[np.generic]) -> list[str]:
    """An output's bytes as text.

    Raises:
        RequestError: they are no UTF-8, and JSON has nothing else.
    """
    try:
        return [text.decode() for text in flat]  # type: ignore[attr-defined]
    except UnicodeDecodeError:
        raise RequestError(f"output {name!r} holds bytes that are no UTF-8; ask for it with binary_data") from None


def _shared(part: Part, size: int) -> dict[str, Any]:
    where = {"shared_memory_offset": part.offset} if part.offset else {}
    return {"shared_memory_region": part.region.name, **where, "shared_memory_byte_size": size}


def _json(content: dict[str, Any], listed: list[dict[str, Any]]) -> bytes:
    numbers = [entry["data"] for entry in listed if isinstance(entry.get("data"), np.ndarray)]
    if all(np.isfinite(data).all() for data in numbers):
        for entry in listed:
            if isinstance(data := entry.get("data"), np.ndarray) and data.size > _SLICE:
                entry["data"] = _sliced(data)
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    # NaN and Infinity as the clients write and read them; orjson would say null.
    return json.dumps(content, default=lambda array: array.tolist(), separators=(",", ":")).encode()


def _sliced(flat: NDArray[np.generic]) -> orjson.Fragment:
    """Many numbers as JSON, written some at a time: nobody else runs while one call writes them."""
    starts = range(0, flat.size, _SLICE)
    option = orjson.OPT_SERIALIZE_NUMPY
    parts = (orjson.dumps(flat[start : start + _SLICE], option=option)[1:-1] for start in starts)
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


def classes(name: str, array: Any, count: int, labels: Sequence[str] | None) -> list[list[str]]:
    """The largest entries of each row, `value:index` or `value:index:label`: Triton's classification extension.

    Raises:
        RequestError: the output has no rows of scores.
    """
    if array.ndim < 2 or array.dtype.kind in "bO":
        raise RequestError(f"classification of output {name!r}: it has shape {list(array.shape)}, no row of scores")
    rows = array.reshape(len(array), -1)
    if len(rows) * min(count, rows.shape[1]) > _MOST_CLASSES:
        raise RequestError(
            f"classification of output {name!r} is {count}; at most {_MOST_CLASSES} classes are told in all"
        )
    named = labels if labels is not None and len(labels) == rows.shape[1] else None
    # Not a number is no class: it goes last.
    order = np.argsort(-np.nan_to_num(rows.astype(np.float64), nan=-np.inf), axis=1, kind="stable")[:, :count]
    whole = rows.dtype.kind in "iu"
    return [
        [f"{row[i] if whole else f'{float(row[i]):f}'}:{i}{f':{named[i]}' if named else ''}" for i in chosen]
        for row, chosen in zip(rows, order, strict=True)
    ]


def metadata(name: str, versions: Sequence[int], signature: Signature, platform: str) -> dict[str, Any]:
    """A model's metadata; -1 stands for a dynamic size."""
    return {
        "name": name,
        "versions": list(map(str, versions)),
        "platform": platform,
        "inputs": [_tensor(tensor) for tensor in signature.inputs],
        "outputs": [_tensor(tensor) for tensor in signature.outputs],
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": SERVED_DTYPES[tensor.dtype],
        "shape": [size if isinstance(size, int) else -1 for size in tensor.shape],
    }
