"""ONNX protobufs: walked, copied, and taken apart from their weights, which may be over what protobuf serializes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from penstock.errors import require

# From this many bytes on a tensor is a weight; a smaller one may be a number that decides a shape.
WEIGHT = 1024


def onnx_package() -> Any:
    return require("onnx", "export", "writing ONNX")


def graphs_in(graph: Any) -> Iterator[Any]:
    """A graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs_in(inner)


def clear(message: Any, names: tuple[str, ...]) -> None:
    """Clear the fields of these names in a message and in all that it holds."""
    if message.DESCRIPTOR.name == "TensorProto":  # listing its fields would copy its bytes
        for name in set(names) & set(message.DESCRIPTOR.fields_by_name):
            message.ClearField(name)
        return
    for field, value in message.ListFields():
        if field.name in names:
            message.ClearField(field.name)
        elif field.type == field.TYPE_MESSAGE:
            for item in value if hasattr(value, "add") else [value]:
                clear(item, names)


def _copy_fields(source: Any, target: Any, without: str) -> None:
    for field, value in source.ListFields():
        if field.name == without:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


def copied(model: Any) -> Any:
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


def is_weight(tensor: Any) -> bool:
    dtype = onnx_package().helper.tensor_dtype_to_np_dtype
    return bool(tensor.HasField("raw_data")) and math.prod(tensor.dims) * dtype(tensor.data_type).itemsize >= WEIGHT


def unloaded(model: Any) -> tuple[Any, list[Any]]:
    """A copy of a model that takes its weights as inputs, and the weights: graphs are rewritten without copying them.

    The copy is a whole model, of no more than a few MB; `loaded` takes it back.
    """
    onnx = onnx_package()
    light = onnx.ModelProto()
    _copy_fields(model, light, without="graph")
    _copy_fields(model.graph, light.graph, without="initializer")
    inputs, weights = {value.name for value in model.graph.input}, []
    for tensor in model.graph.initializer:
        if tensor.name not in inputs and is_weight(tensor):
            weights.append(tensor)
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        else:
            light.graph.initializer.append(tensor)
    return light, weights


def loaded(light: Any, weights: list[Any]) -> Any:
    """The model with those weights that it takes as inputs, which are initializers again."""
    names, inputs = {tensor.name for tensor in weights}, light.graph.input
    taken = {value.name for value in inputs} & names
    for index in reversed(range(len(inputs))):
        if inputs[index].name in taken:
            del inputs[index]
    for tensor in weights:
        if tensor.name in taken:  # extend() would serialize each, and one alone may be over 2 GiB
            light.graph.initializer.add().CopyFrom(tensor)
    return light


def form(value: Any) -> tuple[int, list[int | str]]:
    kind = value.type.tensor_type
    return kind.elem_type, [dim.dim_param or dim.dim_value for dim in kind.shape.dim]


def fresh(root: Any, name: str) -> str:
    taken = {
        taken
        for graph in graphs_in(root)
        for taken in (
            *(item.name for item in (*graph.input, *graph.initializer)),
            *(output for node in graph.node for output in node.output),
        )
    }
    while name in taken:
        name += "_"
    return name
