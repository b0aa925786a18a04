"""Emulation: fp16, bf16 and fp8 graphs as float32 nodes that round as those do, for runtimes without the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.export import graph as graphs
from penstock.export import protos
from penstock.export.precision.qdq import is_fp8

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def stand_in(graph: Any, work: Path) -> tuple[str, Path] | None:
    """Where a graph needs emulation, or int8 pairs stand beside fp16, the runtime and file of an emulated one.

    fp16 alone is emulated where it is judged, before.
    """
    paired = any(node.op_type == _QUANTIZE for node in graph.graph.node)
    if not needed(graph) and not (paired and tells_more(graph)):
        return None
    return "onnxruntime", graphs.write(emulated(graph), work, "emulated.onnx")[0]


def needed(graph: Any) -> bool:
    """Whether a graph holds bf16, for which onnxruntime has no CPU kernels, or fp8, whose pairs it fuses wrongly.

    onnxruntime 1.32 answers fp8 pairs rightly without its extended optimisations; with them the digits net's answers
    are off by 23 times their size.
    """
    types = protos.onnx_package().TensorProto
    return _holds(graph, (types.BFLOAT16, types.FLOAT8E4M3FN))


def tells_more(graph: Any) -> bool:
    """Whether a graph is judged by its emulation: where it needs one, and for fp16.

    onnxruntime's CPU computes fp16 in float32 and drops the casts between its nodes: what overflows or is rounded there
    does not show.
    """
    return needed(graph) or _holds(graph, (protos.onnx_package().TensorProto.FLOAT16,))


def _holds(graph: Any, kinds: tuple[int, ...]) -> bool:
    return any(
        any(tensor.data_type in kinds for tensor in inner.initializer)
        or any(_casts_to(node, kind) for node in inner.node for kind in kinds)
        for inner in protos.graphs_in(graph.graph)
    )


def emulated(graph: Any) -> Any:
    """The graph in float32, rounding to fp16 or bf16 after each of its nodes in that, and to E4M3 in each fp8 pair.

    Each operator rounds once, where hardware does, so that errors are those of the type; sums are float32's.

    Args:
        graph: `onnx.ModelProto`; left as it is.
    """
    onnx = protos.onnx_package()
    inferred = onnx.shape_inference.infer_shapes(graph)
    low = {
        value.name: value.type.tensor_type.elem_type
        for inner in protos.graphs_in(inferred.graph)
        for value in (*inner.value_info, *inner.input, *inner.output)
        if value.type.tensor_type.elem_type in _halves()
    }
    made = protos.copied(graph)
    weights = {tensor.name: tensor for inner in protos.graphs_in(made.graph) for tensor in inner.initializer}
    # Innermost first: what stands inside a node is done before the node is taken over.
    for inner in reversed(list(protos.graphs_in(made.graph))):
        _emulate(inner, low, weights)
    return made


def _emulate(graph: Any, low: dict[str, int], weights: dict[str, Any]) -> None:
    """Put a graph's, or an inner graph's, rounding nodes into float32."""
    graph.ClearField("value_info")
    ranks = {name: len(tensor.dims) for name, tensor in weights.items()}
    nodes: list[Any] = []
    for node in graph.node:
        if node.op_type in (_QUANTIZE, _DEQUANTIZE) and is_fp8(weights[node.input[2]]):
            nodes += _pair_half(node, weights, ranks)
        else:
            nodes += _rounded(node, low)
    nodes = [protos.copied(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    for tensor in graph.initializer:
        _widen(tensor)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type in _halves():
            value.type.tensor_type.elem_type = protos.onnx_package().TensorProto.FLOAT


def _halves() -> tuple[int, ...]:
    types = protos.onnx_package().TensorProto
    return types.FLOAT16, types.BFLOAT16


def _rounded(node: Any, low: dict[str, int]) -> Iterator[Any]:
    """A node in float32, and after it what rounds its outputs in half precision."""
    onnx = protos.onnx_package()
    types = onnx.TensorProto
    casts = any(_casts_to(node, kind) for kind in _halves())
    for held in node.attribute:
        if held.HasField("t"):
            _widen(held.t)
    yield node
    for place, name in enumerate(node.output):
        if casts or name in low:
            node.output[place] = f"{name}_wide"
            if not casts:
                yield onnx.helper.make_node("Cast", [f"{name}_wide"], [f"{name}_rounded"], to=low[name])
            yield onnx.helper.make_node("Cast", [f"{name}_{'wide' if casts else 'rounded'}"], [name], to=types.FLOAT)


def _pair_half(node: Any, weights: dict[str, Any], ranks: dict[str, int]) -> Iterator[Any]:
    """One half of an fp8 pair as a division or product and a cast, which no optimiser takes for a pair."""
    onnx = protos.onnx_package()
    make, types = onnx.helper.make_node, onnx.TensorProto
    value, name, result = node.input[0], node.input[1], node.output[0]
    scale = onnx.numpy_helper.to_array(weights[name])
    spread = f"{result}_scale"
    if scale.ndim:  # per channel: along the axis of a weight, whose rank is known
        axis = next((held.i for held in node.attribute if held.name == "axis"), 1)
        rank = ranks[value]
        scale = scale.reshape([-1 if place == axis % rank else 1 for place in range(rank)])
    yield make("Constant", [], [spread], value=onnx.numpy_helper.from_array(scale.astype(np.float32), spread))
    middle = f"{result}_middle"
    if node.op_type == _QUANTIZE:
        ranks[result] = ranks.get(value, 0)
        yield make("Div", [value, spread], [middle])
        yield make("Cast", [middle], [result], to=types.FLOAT8E4M3FN, saturate=1)
    else:
        yield make("Cast", [value], [middle], to=types.FLOAT)
        yield make("Mul", [middle, spread], [result])


def _casts_to(node: Any, kind: int) -> bool:
    return node.op_type == "Cast" and any(held.name == "to" and held.i == kind for held in node.attribute)


def _widen(tensor: Any) -> None:
    onnx = protos.onnx_package()
    if tensor.data_type in _halves():
        wide = onnx.numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))
