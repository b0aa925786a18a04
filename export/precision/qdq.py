"""Q/DQ pairs in ONNX graphs: what they lower, and what stands in their scales."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.export import protos
from penstock.export.precision.calibration import floating

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_FLOAT = 1  # onnx.TensorProto.FLOAT
# The largest magnitude that each type holds.
_MOST = {"INT8": 127.0, "UINT8": 255.0, "FLOAT8E4M3FN": 448.0}


def named(model: Any) -> Any:
    """A copy of a model in which every node has a name of its own."""
    found = protos.copied(model)
    taken: set[str] = set()
    for place, node in enumerate(found.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{place}"
        while node.name in taken:
            node.name += "_"
        taken.add(node.name)
    return found


def refuse_reaching_in(model: Any, precision: str) -> None:
    """See that no node inside another, as an If's are, reads a float tensor or weight from outside.

    Raises:
        PenstockError: one does: quantizers rename and remove tensors without a look inside.
    """
    outer = {name for node in model.graph.node for name in node.output if name}
    outer |= {tensor.name for tensor in model.graph.initializer}
    outer &= set(floating(model)) | {tensor.name for tensor in model.graph.initializer if tensor.data_type == _FLOAT}
    for node in model.graph.node:
        for held in node.attribute:
            for inner in protos.graphs_in(held.g) if held.HasField("g") else ():
                reached = outer & {name for part in inner.node for name in part.input}
                if reached:
                    raise PenstockError(
                        f"{precision}: {node.op_type} {node.name!r} reads {min(reached)!r} from outside, "
                        "which the quantizer does not follow; export it as fp16 or fp32"
                    )


def quantised(model: Any) -> list[str]:
    """The activations that are quantised, in the order of the graph."""
    weights = {tensor.name for tensor in model.graph.initializer}
    taken = [node.input[0] for node in model.graph.node if node.op_type == _QUANTIZE and node.input[0] not in weights]
    return list(dict.fromkeys(taken))


def lowered_nodes(model: Any) -> list[str]:
    """The names of nodes that compute on what was quantised."""
    low = {output for node in model.graph.node if node.op_type == _DEQUANTIZE for output in node.output}
    pairs = (_QUANTIZE, _DEQUANTIZE)
    return [node.name for node in model.graph.node if node.op_type not in pairs and low & set(node.input)]


def rescale(model: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Give every quantised activation the symmetric scale of its range, in place.

    Tensors that meet in one Concat keep one scale, the largest, as they were placed: it is then no operation at all.

    Args:
        model: with Q/DQ pairs whose zero points are 0.
        ranges: the range of each activation in `quantised(model)`.
    """
    onnx = protos.onnx_package()
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    pairs = [node for node in model.graph.node if node.op_type == _QUANTIZE and node.input[0] not in weights]
    most = {node.input[0]: max(map(abs, ranges[node.input[0]])) for node in pairs}
    groups = list(_met(model, most))
    for _ in groups:  # one may join two others
        for group in groups:
            most.update(dict.fromkeys(group, max(most[name] for name in group)))
    scales: dict[str, float] = {}
    for node in pairs:
        kind = onnx.TensorProto.DataType.Name(weights[node.input[2]].data_type)
        scale = max(most[node.input[0]], np.finfo(np.float32).tiny * _MOST[kind]) / _MOST[kind]
        scales[node.input[1]] = max(scale, scales.get(node.input[1], 0.0))
    for name, scale in scales.items():
        held = onnx.numpy_helper.to_array(weights[name])
        weights[name].CopyFrom(onnx.numpy_helper.from_array(np.full_like(held, scale), name))
    _rescale_weights(model, weights)


def _rescale_weights(model: Any, weights: Mapping[str, Any]) -> None:
    """Give each channel of fp8 weights the scale of its largest: ModelOpt's are 12.4 times that (448 / 127, twice)."""
    helper = protos.onnx_package().numpy_helper
    for node in model.graph.node:
        if node.op_type == _QUANTIZE and node.input[0] in weights and is_fp8(weights[node.input[2]]):
            held, scale = helper.to_array(weights[node.input[0]]), weights[node.input[1]]
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            others = tuple(place for place in range(held.ndim) if place != axis % held.ndim)
            most = np.abs(held).max(axis=others if np.prod(scale.dims) > 1 else None).astype(np.float32)
            most = np.maximum(most, np.finfo(np.float32).tiny * _MOST["FLOAT8E4M3FN"])
            scale.CopyFrom(helper.from_array((most / _MOST["FLOAT8E4M3FN"]).reshape(scale.dims), scale.name))


def is_fp8(zero_point: Any) -> bool:
    """Whether a pair's zero point says that its numbers are E4M3."""
    return bool(zero_point.data_type == protos.onnx_package().TensorProto.FLOAT8E4M3FN)


def _met(model: Any, tensors: Collection[str]) -> Iterator[list[str]]:
    """Groups of quantised tensors that one Concat joins."""
    source = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type in (_QUANTIZE, _DEQUANTIZE)}
    for node in model.graph.node:
        if node.op_type == "Concat":
            group = [source.get(source.get(name, name), name) for name in node.input]
            if len(group) > 1 and all(name in tensors for name in group):
                yield group


def without(model: Any, kept: Collection[str]) -> Any:
    """A copy of a model whose pairs stand before operators, in which those `kept` take what the pairs took.

    Args:
        model: its weights are float32 before their pairs, as ModelOpt leaves them.
        kept: names of nodes.
    """
    found = protos.copied(model)
    source = {node.output[0]: node.input[0] for node in found.graph.node if node.op_type in (_QUANTIZE, _DEQUANTIZE)}
    for node in found.graph.node:
        if node.name in kept:
            for place, name in enumerate(node.input):
                node.input[place] = source.get(source.get(name, name), name)
    _drop_unused(found.graph)
    return found


def _drop_unused(graph: Any) -> None:
    """Take away pairs that nothing reads, and their scales."""
    ends = {value.name for value in graph.output}
    while True:
        read = {name for inner in protos.graphs_in(graph) for node in inner.node for name in node.input} | ends
        idle = [
            place
            for place, node in enumerate(graph.node)
            if node.op_type in (_QUANTIZE, _DEQUANTIZE) and not read & set(node.output)
        ]
        if not idle:
            break
        for place in reversed(idle):
            del graph.node[place]
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name not in read:
            del graph.initializer[place]
