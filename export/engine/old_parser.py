"""Graphs as TensorRT 8's parser reads them; every later one reads them too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.export import protos
from penstock.export.opsets import at_opset

# The last that it reads whole.
OLD_OPSET = 17


def for_old_parser(graph: Any) -> Any:
    """The graph at `OLD_OPSET`, as TensorRT 8's parser reads it.

    It knows no CastLike. A later ReduceMean has its axes in an input, which that parser passes over: it would reduce
    every axis. Of a Shape it passes over where that starts and ends, and gives the whole. A pair after a mean over
    pixels it pulls before that mean, which it has in int8 as a pool alone.
    """
    made = at_opset(graph, OLD_OPSET)
    made = protos.copied(made) if made is graph else made
    light = protos.unloaded(made)[0]
    inferred = protos.onnx_package().shape_inference.infer_shapes(light).graph
    known = (*inferred.value_info, *inferred.input, *inferred.output)
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in known}
    kinds = {value.name: value.type.tensor_type.elem_type for value in known}
    kinds.update({tensor.name: tensor.data_type for tensor in light.graph.initializer})
    for inner in protos.graphs_in(made.graph):
        own = kinds if inner is made.graph else dict(kinds)
        own.update({tensor.name: tensor.data_type for tensor in inner.initializer})
        own.update(_constants(inner))
        for node in inner.node:
            _as_pool(node, ranks)
            _as_cast(node, own)
        nodes = [part for node in inner.node for part in _whole_shape(node)]
        nodes = [protos.copied(node) for node in nodes]
        del inner.node[:]
        inner.node.extend(nodes)
    return made


def _as_pool(node: Any, ranks: dict[str, int]) -> None:
    """Make a mean over the pixels of pictures, of rank 4, the pool that it is."""
    held = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type != "ReduceMean" or "axes" not in held or ranks.get(node.input[0]) != 4:
        return
    kept = held["keepdims"].i if "keepdims" in held else 1
    if kept and sorted(axis % 4 for axis in held["axes"].ints) == [2, 3]:
        node.op_type = "GlobalAveragePool"
        del node.attribute[:]


def _constants(graph: Any) -> Iterator[tuple[str, int]]:
    """The types of what Constant nodes hold."""
    for node in graph.node:
        for held in node.attribute if node.op_type == "Constant" else ():
            if held.name == "value":
                yield node.output[0], held.t.data_type


def _as_cast(node: Any, kinds: dict[str, int]) -> None:
    """Make a CastLike the Cast that it is, where the type of its example is known."""
    if node.op_type == "CastLike" and kinds.get(node.input[1]):
        node.op_type = "Cast"
        node.attribute.append(protos.onnx_package().helper.make_attribute("to", kinds[node.input[1]]))
        del node.input[1]


def _whole_shape(node: Any) -> Iterator[Any]:
    """A Shape that takes a part of it as one of the whole, and a Slice; any other node as it is."""
    held = {attribute.name: attribute.i for attribute in node.attribute}
    if node.op_type != "Shape" or not held:
        yield node
        return
    onnx = protos.onnx_package()
    name, result = node.name or node.output[0], node.output[0]
    ends = {"starts": held.get("start", 0), "ends": held.get("end", np.iinfo(np.int64).max), "axes": 0}
    yield onnx.helper.make_node("Shape", list(node.input), [f"{result}_whole"], name=f"{name}_whole")
    for which, value in ends.items():
        tensor = onnx.numpy_helper.from_array(np.array([value], np.int64))
        yield onnx.helper.make_node("Constant", [], [f"{result}_{which}"], name=f"{name}_{which}", value=tensor)
    yield onnx.helper.make_node(
        "Slice", [f"{result}_whole", *(f"{result}_{which}" for which in ends)], [result], name=name
    )
