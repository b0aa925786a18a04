"""Dynamic int8 for onnxruntime's CPU: weights quantised beforehand, activations by the largest of each run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, require
from penstock.export import graph as graphs
from penstock.export import protos
from penstock.export.quiet import quiet
from penstock.receipt import Calibration

METHOD = "dynamic"
# Convolutions stay in float32: one scale for all channels of a run ruins depthwise ones, and their integer kernel is
# slower than float32's.
_TYPES = ("MatMul", "Gemm", "LSTM")


class ForDynamic:
    """Lowering of products with weights, as transformers and LSTMs are made of; no samples are needed.

    Args:
        graph: a float32 `onnx.ModelProto` whose nodes have names; left as it is.
        work: a folder for intermediate files.

    Raises:
        PenstockError: there is no such product.
    """

    def __init__(self, graph: Any, work: Path) -> None:
        self._graph, self._work = graph, work
        self.nodes = products(graph)
        if not self.nodes:
            raise PenstockError("dynamic int8 lowers products with weights, and there is none; see --calibration")
        self.record = Calibration(method=METHOD, samples=0, digest="", real=False)

    def graph(self, kept: Collection[str]) -> Any:
        """The graph with all of `nodes` lowered but those `kept` in float32."""
        quantization = require("onnxruntime.quantization", "export", "int8")
        paths = [self._work / name for name in ("float32.onnx", "dynamic.onnx")]
        graphs.write(_apart(self._graph, kept), self._work, paths[0].name)
        with quiet():
            quantization.quantize_dynamic(
                str(paths[0]),
                str(paths[1]),
                op_types_to_quantize=list(_TYPES),
                per_channel=True,
                reduce_range=True,  # as for static int8: full weights overflow on x86 without VNNI
                weight_type=quantization.QuantType.QInt8,
                # It makes a MatMul and an Add of each Gemm first.
                nodes_to_exclude=[*sorted(kept), *(f"{name}_MatMul" for name in sorted(kept))],
                extra_options={"MatMulConstBOnly": True},
            )
        return protos.onnx_package().load(str(paths[1]))


def products(graph: Any) -> list[str]:
    """The names of the nodes that multiply by weights, but for convolutions; those that onnxruntime lowers."""
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.graph.initializer}
    wanted = {"MatMul": 2, "Gemm": 2, "LSTM": 3}
    return [
        node.name
        for node in graph.graph.node
        if node.op_type in _TYPES and ranks.get(node.input[1]) == wanted[node.op_type] and not _scaled(node)
    ]


def _scaled(node: Any) -> bool:
    """Whether a Gemm does more than multiply and add."""
    plain = {"alpha": 1.0, "beta": 1.0}
    return node.op_type == "Gemm" and any(
        (held.name in plain and held.f != plain[held.name]) or (held.name == "transA" and held.i)
        for held in node.attribute
    )


def _apart(graph: Any, kept: Collection[str]) -> Any:
    """A copy of the graph in which nodes that are kept share no weight with others: it would be lowered for both."""
    made = protos.copied(graph)
    weights = {tensor.name: tensor for tensor in made.graph.initializer}
    for node in made.graph.node:
        name = node.input[1] if node.name in kept and len(node.input) > 1 else ""
        if name in weights and sum(name in other.input for other in made.graph.node) > 1:
            node.input[1] = f"{name}_of_{node.name}"
            own = made.graph.initializer.add()
            own.CopyFrom(weights[name])
            own.name = node.input[1]
    return made
