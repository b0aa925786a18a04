"""The Open Inference Protocol over HTTP: JSON, and the binary tensor data extension.

Protocol: https://github.com/kserve/open-inference-protocol, and Triton's extension_binary_data.md.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.serve.errors import RequestError
from penstock.serve.sharedmemory import NO_REGIONS, Part, Regions
from penstock.serve.tensors import BINARY_ONLY, from_bytes, from_json
from penstock.signature import SERVED_DTYPES, Signature

HEADER_LENGTH = "Inference-Header-Content-Length"
_FROM_V2 = {v2: name for name, v2 in SERVED_DTYPES.items()}
_MAX_TIMEOUT_US = 3_600_000_000
# The binary extension's example names the model here too; the path is what counts.
_FIELDS = ("id", "parameters", "inputs", "outputs", "model_name")
_INPUT_FIELDS = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT_FIELDS = ("name", "parameters")


@dataclass(frozen=True)
class Wanted:
    """How an output is wanted: in binary, JSON or shared memory; as how many classes of a row, 0 for itself."""

    binary: bool = False
    classes: int = 0
    part: Part | None = None


@dataclass(frozen=True)
class InferRequest:
    """A decoded request; `outputs` are those that are wanted."""

    inputs: dict[str, NDArray[np.generic]]
    outputs: dict[str, Wanted]
    id: str | None
    timeout_s: float | None
    priority: int


def decode(
    body: Buffer, header_length: str | None, signature: Signature, regions: Regions = NO_REGIONS
) -> InferRequest:
    """Decode an infer request.

    Args:
        body: the whole HTTP body.
        header_length: the Inference-Header-Content-Length header: how much of the body is JSON; None means all of it.
        signature: the model's.
        regions: of shared memory, in which tensors may lie.

    Raises:
        RequestError: naming the field, the value and the rule.
    """
    text, binary = _split(body, header_length)
    if header_length is not None and not text:
        return _raw(binary, signature)
    content = parse_json(text, constants=True)
    if not isinstance(content, dict):
        raise RequestError(f"the request is a JSON {_kind(content)}; it must be an object with 'inputs'")
    _known(content, _FIELDS, "the request")
    parameters = _object(content.get("parameters", {}), "parameters")
    inputs, used = _inputs(content.get("inputs"), binary, regions, signature)
    if used != len(binary):
        raise RequestError(f"{len(binary)} bytes follow the JSON; the inputs' binary_data_size add up to {used}")
    return asked(inputs, content.get("outputs"), parameters, _id(content.get("id")), signature, regions)


def asked(
    inputs: dict[str, Any],
    outputs: Any,
    parameters: dict[str, Any],
    id: str | None,
    signature: Signature,
    regions: Regions,
) -> InferRequest:
    """A request of these inputs: its outputs and parameters read, whatever road they came by.

    Raises:
        RequestError: naming the field, the value and the rule.
    """
    for key in parameters:
        if key.startswith("sequence_"):
            raise RequestError(f"parameters.{key[:40]} is of a stateful model; no model here is one")
    return InferRequest(
        inputs=inputs,
        outputs=_outputs(outputs, parameters, signature, regions),
        id=id,
        timeout_s=_timeout_s(parameters.get("timeout")),
        # 0 is the default level, and the highest is 1: a request that names none is no lower than any.
        priority=max(1, _whole(parameters.get("priority", 0), "parameters.priority", 0, 2**31)) - 1,
    )


def _raw(binary: memoryview, signature: Signature) -> InferRequest:
    """A request that is its only input's bytes, and is answered in binary: one dynamic size follows from their number.

    Raises:
        RequestError: the model has several inputs or dynamic sizes, or the bytes do not make up whole rows.
    """
    if len(signature.inputs) != 1:
        raise RequestError(
            f"{HEADER_LENGTH} is 0, and a raw request has one input; the model's are "
            f"{', '.join(tensor.name for tensor in signature.inputs)}"
        )
    (tensor,) = signature.inputs
    if tensor.dtype == "object":
        raise RequestError(f"{HEADER_LENGTH} is 0, and input {tensor} is text; say in JSON how many elements it has")
    fixed = [size for size in tensor.shape if isinstance(size, int)]
    row = math.prod(fixed) * np.dtype(tensor.dtype).itemsize
    moving = len(tensor.shape) - len(fixed)
    if moving > 1:
        raise RequestError(
            f"{HEADER_LENGTH} is 0, and input {tensor} has several dynamic sizes; give its shape in JSON"
        )
    if (moving and len(binary) % row) or (not moving and len(binary) != row):
        raise RequestError(f"the raw request has {len(binary)} bytes; input {tensor} takes {row}{' for each' * moving}")
    shape = tuple(size if isinstance(size, int) else len(binary) // row for size in tensor.shape)
    array = from_bytes(tensor.name, binary, tensor.dtype, shape)
    return asked({tensor.name: array}, None, {"binary_data_output": True}, None, signature, NO_REGIONS)


def parse_json(text: bytes | memoryview, *, constants: bool = False) -> Any:
    """JSON text as Python objects; with `constants` also NaN and Infinity, which Python's clients write."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    raw = bytes(text)
    if constants and (b"NaN" in raw or b"Infinity" in raw):
        with suppress(ValueError, RecursionError, TypeError):
            found = json.loads(raw.decode(), parse_float=_finite, parse_int=_whole_or_float)
            orjson.dumps(found)  # half a surrogate pair is no text
            return found
    raise RequestError(f"the request is not valid JSON: {reason}")


def _whole_or_float(text: str) -> int | float:
    """Whole numbers beyond 64 bits as orjson has them."""
    value = int(text) if len(text) <= 20 else 2**64
    return value if -(2**63) <= value < 2**64 else _finite(text)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of range")
    return value


def json_length(said: str | None, size: int) -> int | None:
    """How much of a body is JSON, by its header; None where that does not say it, or cannot be right."""
    if said is None or not said.isascii() or not said.isdigit() or len(said) > 18 or int(said) > size:
        return None
    return int(said)


def _split(body: Buffer, header_length: str | None) -> tuple[memoryview, memoryview]:
    view = memoryview(body)
    if header_length is None:
        return view, view[len(view) :]
    length = json_length(header_length, len(view))
    if length is None:
        raise RequestError(f"{HEADER_LENGTH} is {header_length[:40]!r}; it must be a number from 0 to {len(view)}")
    return view[:length], view[length:]


def _inputs(
    listed: Any, binary: memoryview, regions: Regions, signature: Signature
) -> tuple[dict[str, NDArray[np.generic]], int]:
    if not isinstance(listed, list) or not listed:
        held = "empty" if listed == [] else _kind(listed)
        raise RequestError(f"'inputs' is {held}; it must be a list of at least one tensor")
    inputs: dict[str, NDArray[np.generic]] = {}
    used = 0
    for index, entry in enumerate(listed):
        entry = _object(entry, f"inputs[{index}]")
        _known(entry, _INPUT_FIELDS, f"inputs[{index}]")
        name = entry.get("name")
        if not isinstance(name, str):
            raise RequestError(f"inputs[{index}].name is {_kind(name)}; it must be a string")
        if len(name) > 256:
            raise RequestError(f"inputs[{index}].name is {_shown(name)}; a name has 256 characters at most")
        if name in inputs:
            raise RequestError(f"input {name!r} is given twice")
        dtype = dtype_of(name, entry.get("datatype"))
        signature.check_input(name, dtype)  # before its bytes are read as what they are not
        shape = shape_of(name, entry.get("shape"))
        parameters = _object(entry.get("parameters", {}), f"parameters of input {name!r}")
        part = shared(parameters, f"input {name!r}", regions)
        size = parameters.get("binary_data_size")
        if ("data" in entry) + (size is not None) + (part is not None) > 1:
            raise RequestError(
                f"input {name!r} has more than one of data, binary_data_size and shared_memory_region; it must have one"
            )
        if part is not None:
            inputs[name] = from_bytes(name, part.read(), dtype, shape)
        elif size is not None:
            if size and not len(binary):
                raise RequestError(
                    f"binary_data_size of input {name!r} is {_shown(size)}, and no bytes follow the JSON; "
                    f"{HEADER_LENGTH} says where it ends"
                )
            size = _whole(size, f"binary_data_size of input {name!r}", 0, len(binary) - used)
            inputs[name] = from_bytes(name, binary[used : used + size], dtype, shape)
            used += size
        elif "data" in entry and dtype in BINARY_ONLY:
            kind = SERVED_DTYPES[dtype]
            raise RequestError(
                f"input {name!r} is {kind}, which JSON has no numbers for; send it with binary_data_size"
            )
        elif "data" in entry:
            inputs[name] = from_json(f"data of input {name!r}", entry["data"], dtype, shape)
        else:
            raise RequestError(f"input {name!r} has neither data nor parameters.binary_data_size")
    return inputs, used


def shared(parameters: dict[str, Any], field: str, regions: Regions) -> Part | None:
    """Where a tensor's parameters say that it lies in shared memory; None if they say nothing of it.

    Raises:
        RequestError: the region is unknown, or the tensor would reach beyond it.
    """
    if "shared_memory_region" not in parameters:
        for key in ("shared_memory_byte_size", "shared_memory_offset"):
            if key in parameters:
                raise RequestError(f"{field} has {key} without shared_memory_region; they go together")
        return None
    region = regions.region(parameters["shared_memory_region"])
    size = _whole(parameters.get("shared_memory_byte_size"), f"shared_memory_byte_size of {field}", 0, 2**48)
    offset = _whole(parameters.get("shared_memory_offset", 0), f"shared_memory_offset of {field}", 0, 2**48)
    return region.part(offset, size, field)


def dtype_of(name: str, datatype: Any) -> str:
    """numpy's name of an input's datatype."""
    if not isinstance(datatype, str) or datatype not in _FROM_V2:
        raise RequestError(f"datatype of input {name!r} is {_shown(datatype)}; it must be one of {', '.join(_FROM_V2)}")
    return _FROM_V2[datatype]


def shape_of(name: str, shape: Any) -> tuple[int, ...]:
    """An input's shape, of sizes that can be."""
    if not isinstance(shape, list) or len(shape) > 32:
        raise RequestError(f"shape of input {name!r} is {_shown(shape)}; it must be a list of up to 32 sizes")
    sizes = tuple(_whole(size, f"shape of input {name!r}", 0, 2**40) for size in shape)
    if 0 in sizes and math.prod(max(1, size) for size in sizes) > 2**48:  # no data to be of the wrong length
        raise RequestError(f"shape of input {name!r} is {_shown(shape)}; its sizes multiply to more than 2^48")
    return sizes


def _outputs(listed: Any, parameters: dict[str, Any], signature: Signature, regions: Regions) -> dict[str, Wanted]:
    default = _flag(parameters.get("binary_data_output", False), "parameters.binary_data_output")
    names = [tensor.name for tensor in signature.outputs]
    if listed is None or listed == []:
        return dict.fromkeys(names, Wanted(default))
    if not isinstance(listed, list):
        raise RequestError(f"'outputs' is {_kind(listed)}; it must be a list")
    wanted: dict[str, Wanted] = {}
    for index, entry in enumerate(listed):
        entry = _object(entry, f"outputs[{index}]")
        _known(entry, _OUTPUT_FIELDS, f"outputs[{index}]")
        name = entry.get("name")
        if not isinstance(name, str) or name not in names:
            raise RequestError(f"outputs[{index}].name is {_shown(name)}; the model's outputs are {', '.join(names)}")
        if name in wanted:
            raise RequestError(f"output {name!r} is asked for twice")
        own = _object(entry.get("parameters", {}), f"parameters of output {name!r}")
        count = own.get("classification", 0)
        classes = _whole(count, f"classification of output {name!r}", 1 if "classification" in own else 0, 2**31 - 1)
        binary = _flag(own.get("binary_data", default), f"binary_data of output {name!r}")
        wanted[name] = Wanted(binary, classes, shared(own, f"output {name!r}", regions))
    return wanted


def _known(held: dict[str, Any], fields: tuple[str, ...], where: str) -> None:
    for key in held:
        if key not in fields:
            raise RequestError(f"field {key[:40]!r} of {where} is unknown; it must be one of {', '.join(fields)}")


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
