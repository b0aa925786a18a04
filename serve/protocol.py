"""The Open Inference Protocol over HTTP: JSON, and the binary tensor data extension.

Protocol: https://github.com/kserve/open-inference-protocol, and Triton's extension_binary_data.md.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from penstock.serve.errors import RequestError
from penstock.serve.tensors import from_bytes, from_json
from penstock.signature import V2_DTYPES, Signature, Tensor

HEADER_LENGTH = "Inference-Header-Content-Length"
_FROM_V2 = {v2: name for name, v2 in V2_DTYPES.items()}
_MAX_TIMEOUT_US = 3_600_000_000


@dataclass(frozen=True)
class InferRequest:
    """A decoded request; `outputs` maps each wanted output to whether it is wanted in binary."""

    inputs: dict[str, NDArray[np.generic]]
    outputs: dict[str, bool]
    id: str | None
    timeout_s: float | None
    priority: int


def decode(body: bytes, header_length: str | None, signature: Signature) -> InferRequest:
    """Decode an infer request.

    Args:
        body: the whole HTTP body.
        header_length: the Inference-Header-Content-Length header: how much of the body is JSON; None means all of it.
        signature: the model's.

    Raises:
        RequestError: naming the field, the value and the rule.
    """
    text, binary = _split(body, header_length)
    content = parse_json(text)
    if not isinstance(content, dict):
        raise RequestError(f"the request is a JSON {_kind(content)}; it must be an object with 'inputs'")
    parameters = _object(content.get("parameters", {}), "parameters")
    inputs, used = _inputs(content.get("inputs"), binary)
    if used != len(binary):
        raise RequestError(f"{len(binary)} bytes follow the JSON; the inputs' binary_data_size add up to {used}")
    return InferRequest(
        inputs=inputs,
        outputs=_outputs(content.get("outputs"), parameters, signature),
        id=_id(content.get("id")),
        timeout_s=_timeout_s(parameters.get("timeout")),
        priority=_whole(parameters.get("priority", 0), "parameters.priority", 0, 2**31),
    )


def parse_json(text: bytes | memoryview) -> Any:
    """JSON text as Python objects."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the request is not valid JSON: {error}") from None


def _split(body: bytes, header_length: str | None) -> tuple[memoryview, memoryview]:
    view = memoryview(body)
    if header_length is None:
        return view, view[len(view) :]
    digits = header_length.isascii() and header_length.isdigit() and len(header_length) <= 18
    if not digits or int(header_length) > len(body):
        raise RequestError(f"{HEADER_LENGTH} is {header_length[:40]!r}; it must be a number from 0 to {len(body)}")
    length = int(header_length)
    if length == 0:
        raise RequestError(f"{HEADER_LENGTH} is 0; raw requests without a JSON header are not served")
    return view[:length], view[length:]


def _inputs(listed: Any, binary: memoryview) -> tuple[dict[str, NDArray[np.generic]], int]:
    if not isinstance(listed, list) or not listed:
        raise RequestError(f"'inputs' is {_kind(listed)}; it must be a list of at least one tensor")
    inputs: dict[str, NDArray[np.generic]] = {}
    used = 0
    for index, entry in enumerate(listed):
        entry = _object(entry, f"inputs[{index}]")
        name = entry.get("name")
        if not isinstance(name, str):
            raise RequestError(f"inputs[{index}].name is {_kind(name)}; it must be a string")
        if len(name) > 256:
            raise RequestError(f"inputs[{index}].name is {_shown(name)}; a name has 256 characters at most")
        if name in inputs:
            raise RequestError(f"input {name!r} is given twice")
        dtype = _dtype(name, entry.get("datatype"))
        shape = _shape(name, entry.get("shape"))
        parameters = _object(entry.get("parameters", {}), f"parameters of input {name!r}")
        if "data" in entry and "binary_data_size" in parameters:
            raise RequestError(f"input {name!r} has both data and binary_data_size; it must have one of them")
        size = parameters.get("binary_data_size")
        if size is not None:
            size = _whole(size, f"binary_data_size of input {name!r}", 0, len(binary) - used)
            inputs[name] = from_bytes(name, binary[used : used + size], dtype, shape)
            used += size
        elif "data" in entry:
            inputs[name] = from_json(f"data of input {name!r}", entry["data"], dtype, shape)
        else:
            raise RequestError(f"input {name!r} has neither data nor parameters.binary_data_size")
    return inputs, used


def _dtype(name: str, datatype: Any) -> str:
    if not isinstance(datatype, str) or datatype not in _FROM_V2:
        raise RequestError(f"datatype of input {name!r} is {_shown(datatype)}; it must be one of {', '.join(_FROM_V2)}")
    return _FROM_V2[datatype]


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > 32:
        raise RequestError(f"shape of input {name!r} is {_shown(shape)}; it must be a list of up to 32 sizes")
    sizes = tuple(_whole(size, f"shape of input {name!r}", 0, 2**40) for size in shape)
    if 0 in sizes and math.prod(max(1, size) for size in sizes) > 2**48:  # no data to be of the wrong length
        raise RequestError(f"shape of input {name!r} is {_shown(shape)}; its sizes multiply to more than 2^48")
    return sizes


def _outputs(listed: Any, parameters: dict[str, Any], signature: Signature) -> dict[str, bool]:
    default = _flag(parameters.get("binary_data_output", False), "parameters.binary_data_output")
    names = [tensor.name for tensor in signature.outputs]
    if listed is None or listed == []:
        return dict.fromkeys(names, default)
    if not isinstance(listed, list):
        raise RequestError(f"'outputs' is {_kind(listed)}; it must be a list")
    wanted: dict[str, bool] = {}
    for index, entry in enumerate(listed):
        entry = _object(entry, f"outputs[{index}]")
        name = entry.get("name")
        if not isinstance(name, str) or name not in names:
            raise RequestError(f"outputs[{index}].name is {_shown(name)}; the model's outputs are {', '.join(names)}")
        if name in wanted:
            raise RequestError(f"output {name!r} is asked for twice")
        own = _object(entry.get("parameters", {}), f"parameters of output {name!r}")
        if "classification" in own:
            raise RequestError(f"classification of output {name!r} is not served here; POST /predict gives labels")
        wanted[name] = _flag(own.get("binary_data", default), f"binary_data of output {name!r}")
    return wanted


def _timeout_s(microseconds: Any) -> float | None:
    if microseconds is None:
        return None
    value = _whole(microseconds, "parameters.timeout", 0, _MAX_TIMEOUT_US)
    return value / 1e6 if value else None  # 0 means none, as in Triton


def _id(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise RequestError(f"'id' is {_kind(value)}; it must be a string")
    return value


def _whole(value: Any, field: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestError(f"{field} is {_shown(value)}; it must be a whole number from {least} to {most}")
    return value


def _flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{field} is {_shown(value)}; it must be true or false")
    return value


def _object(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{field} is {_kind(value)}; it must be an object")
    return value


def _kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a truth value",
        type(None): "missing or null",
    }
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def encode(name: str, version: int, request: InferRequest, answer: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    """The body and headers of an infer response: JSON, with the outputs that were asked for in binary behind it."""
    listed: list[dict[str, Any]] = []
    tail: list[Any] = []
    for output, binary in request.outputs.items():
        array = np.ascontiguousarray(answer[output])
        entry: dict[str, Any] = {
            "name": output,
            "datatype": V2_DTYPES[array.dtype.name],
            "shape": list(answer[output].shape),
        }
        if binary:
            entry["parameters"] = {"binary_data_size": array.nbytes}
            tail.append(array.reshape(-1).view(np.uint8).data)
        else:
            entry["data"] = array.reshape(-1)
        listed.append(entry)
    content: dict[str, Any] = {"model_name": name, "model_version": str(version), "outputs": listed}
    if request.id is not None:
        content["id"] = request.id
    if all(np.isfinite(entry["data"]).all() for entry in listed if "data" in entry):
        text = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    else:  # NaN and Infinity as the clients write and read them; orjson would say null
        text = json.dumps(content, default=lambda array: array.tolist(), separators=(",", ":")).encode()
    if not tail:
        return text, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return b"".join([text, *tail]), headers


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
