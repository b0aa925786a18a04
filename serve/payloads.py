"""gRPC's infer messages as the requests that the HTTP road has, and answers as messages."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from penstock import messages
from penstock.serve import protocol, replies
from penstock.serve.errors import RequestError
from penstock.serve.model import Model
from penstock.serve.sharedmemory import Regions
from penstock.serve.tensors import from_bytes

# Where a tensor's elements lie in its `contents`; FP16 and BF16 have no place there.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{"INT64": "int64_contents", "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents"},
    "BYTES": "bytes_contents",
}


def decode(request: Any, model: Model, regions: Regions) -> protocol.InferRequest:
    """A ModelInferRequest as the HTTP road has it.

    Raises:
        RequestError: naming the field, the value and the rule.
    """
    raw = iter(request.raw_input_contents)
    given = len(request.raw_input_contents)
    places = [protocol.shared(_parameters(held.parameters), f"input {held.name!r}", regions) for held in request.inputs]
    if given and given != places.count(None):
        raise RequestError(f"raw_input_contents has {given} entries for {places.count(None)} inputs")
    inputs: dict[str, Any] = {}
    for tensor, part in zip(request.inputs, places, strict=True):
        if tensor.name in inputs:
            raise RequestError(f"input {tensor.name[:256]!r} is given twice")
        dtype = protocol.dtype_of(tensor.name, tensor.datatype)
        model.signature.check_input(tensor.name, dtype)
        shape = protocol.shape_of(tensor.name, list(tensor.shape))
        if (given or part is not None) and tensor.contents.ListFields():
            raise RequestError(
                f"input {tensor.name!r} has contents beside raw_input_contents or shared memory; it must have one"
            )
        if part is not None:
            inputs[tensor.name] = from_bytes(tensor.name, part.read(), dtype, shape)
        elif given:
            inputs[tensor.name] = from_bytes(tensor.name, memoryview(next(raw)), dtype, shape)
        else:
            inputs[tensor.name] = _from_contents(tensor, dtype, shape)
    outputs = [{"name": tensor.name, "parameters": _parameters(tensor.parameters)} for tensor in request.outputs]
    parameters = _parameters(request.parameters)
    return protocol.asked(inputs, outputs, parameters, request.id or None, model.signature, regions)


def _from_contents(tensor: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise RequestError(f"input {tensor.name!r} is {tensor.datatype}, which goes in raw_input_contents alone")
    filled = [held.name for held, _ in tensor.contents.ListFields()]
    if filled and filled != [field]:
        held = ", ".join(filled)
        raise RequestError(f"contents of input {tensor.name!r} holds {held}; {tensor.datatype} is in {field}")
    whole = np.dtype(dtype).kind in "iu"
    wide: Any = (np.uint64 if dtype == "uint64" else np.int64) if whole else dtype
    given = np.array(getattr(tensor.contents, field), wide)
    if given.size != math.prod(shape):
        raise RequestError(f"{field} of input {tensor.name!r} has {given.size} numbers; shape is {list(shape)}")
    array = given.astype(dtype, copy=False)
    if whole and (beyond := array.astype(given.dtype) != given).any():
        wrong, limits = given[beyond][0], np.iinfo(dtype)
        name = f"{field} of input {tensor.name!r}"
        raise RequestError(f"{name} holds {wrong}; {tensor.datatype} is {limits.min} to {limits.max}")
    return array.reshape(shape)


def _parameters(held: Any) -> dict[str, Any]:
    found = {}
    for name, value in held.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is None:
            raise RequestError(f"parameter {name[:40]!r} has no value")
        found[name] = getattr(value, kind)
    return found


def encode(model: Model, call: protocol.InferRequest, answer: dict[str, Any]) -> Any:
    """A ModelInferResponse; `raw_output_contents` goes along with its outputs."""
    response = messages.message("ModelInferResponse")(
        model_name=model.name, model_version=str(model.version), id=call.id or ""
    )
    for name, wanted in call.outputs.items():
        entry, raw = replies.output(name, answer[name], replace(wanted, binary=True), model.labels)
        made = response.outputs.add(name=name, datatype=entry["datatype"], shape=entry["shape"])
        if wanted.part is not None:
            for key, value in entry["parameters"].items():
                kind = "string_param" if isinstance(value, str) else "int64_param"
                setattr(made.parameters[key], kind, value)
        # One for each output, also of those that lie elsewhere: clients count them off.
        response.raw_output_contents.append(bytes(raw or b""))
    return response
