"""The Open Inference Protocol over HTTP: JSON, and the binary tensor data extension.

Protocol: https://github.com/kserve/open-inference-protocol, and Triton's extension_binary_data.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.serve.errors import RequestError
from penstock.serve.fields import an_object, flag, kind_of, known, parse_json, shown, whole
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
        raise RequestError(f"the request is a JSON {kind_of(content)}; it must be an object with 'inputs'")
    known(content, _FIELDS, "the request")
    parameters = an_object(content.get("parameters", {}), "parameters")
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
        priority=max(1, whole(parameters.get("priority", 0), "parameters.priority", 0, 2**31)) - 1,
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
        held = "empty" if listed == [] else kind_of(listed)
        raise RequestError(f"'inputs' is {held}; it must be a list of at least one tensor")
    inputs: dict[str, NDArray[np.generic]] = {}
    used = 0
    for index, entry in enumerate(listed):
        entry = an_object(entry, f"inputs[{index}]")
        known(entry, _INPUT_FIELDS, f"inputs[{index}]")
        name = entry.get("name")
        if not isinstance(name, str):
            raise RequestError(f"inputs[{index}].name is {kind_of(name)}; it must be a string")
        if len(name) > 256:
            raise RequestError(f"inputs[{index}].name is {shown(name)}; a name has 256 characters at most")
        if name in inputs:
            raise RequestError(f"input {name!r} is given twice")
        dtype = dtype_of(name, entry.get("datatype"))
        signature.check_input(name, dtype)  # before its bytes are read as what they are not
        shape = shape_of(name, entry.get("shape"))
        parameters = an_object(entry.get("parameters", {}), f"parameters of input {name!r}")
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
                    f"binary_data_size of input {name!r} is {shown(size)}, and no bytes follow the JSON; "
                    f"{HEADER_LENGTH} says where it ends"
                )
            size = whole(size, f"binary_data_size of input {name!r}", 0, len(binary) - used)
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
    size = whole(parameters.get("shared_memory_byte_size"), f"shared_memory_byte_size of {field}", 0, 2**48)
    offset = whole(parameters.get("shared_memory_offset", 0), f"shared_memory_offset of {field}", 0, 2**48)
    return region.part(offset, size, field)


def dtype_of(name: str, datatype: Any) -> str:
    """numpy's name of an input's datatype."""
    if not isinstance(datatype, str) or datatype not in _FROM_V2:
        raise RequestError(f"datatype of input {name!r} is {shown(datatype)}; it must be one of {', '.join(_FROM_V2)}")
    return _FROM_V2[datatype]


def shape_of(name: str, shape: Any) -> tuple[int, ...]:
    """An input's shape, of sizes that can be."""
    if not isinstance(shape, list) or len(shape) > 32:
        raise RequestError(f"shape of input {name!r} is {shown(shape)}; it must be a list of up to 32 sizes")
    sizes = tuple(whole(size, f"shape of input {name!r}", 0, 2**40) for size in shape)
    if 0 in sizes and math.prod(max(1, size) for size in sizes) > 2**48:  # no data to be of the wrong length
        raise RequestError(f"shape of input {name!r} is {shown(shape)}; its sizes multiply to more than 2^48")
    return sizes


def _outputs(listed: Any, parameters: dict[str, Any], signature: Signature, regions: Regions) -> dict[str, Wanted]:
    default = flag(parameters.get("binary_data_output", False), "parameters.binary_data_output")
    names = [tensor.name for tensor in signature.outputs]
    if listed is None or listed == []:
        return dict.fromkeys(names, Wanted(default))
    if not isinstance(listed, list):
        raise RequestError(f"'outputs' is {kind_of(listed)}; it must be a list")
    wanted: dict[str, Wanted] = {}
    for index, entry in enumerate(listed):
        entry = an_object(entry, f"outputs[{index}]")
        known(entry, _OUTPUT_FIELDS, f"outputs[{index}]")
        name = entry.get("name")
        if not isinstance(name, str) or name not in names:
            raise RequestError(f"outputs[{index}].name is {shown(name)}; the model's outputs are {', '.join(names)}")
        if name in wanted:
            raise RequestError(f"output {name!r} is asked for twice")
        own = an_object(entry.get("parameters", {}), f"parameters of output {name!r}")
        count = own.get("classification", 0)
        classes = whole(count, f"classification of output {name!r}", 1 if "classification" in own else 0, 2**31 - 1)
        binary = flag(own.get("binary_data", default), f"binary_data of output {name!r}")
        wanted[name] = Wanted(binary, classes, shared(own, f"output {name!r}", regions))
    return wanted


def _timeout_s(microseconds: Any) -> float | None:
    if microseconds is None:
        return None
    value = whole(microseconds, "parameters.timeout", 0, _MAX_TIMEOUT_US, "microseconds")
    return value / 1e6 if value else None  # 0 means none, as in Triton


def _id(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise RequestError(f"'id' is {kind_of(value)}; it must be a string")
    return value
