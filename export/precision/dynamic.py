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
        graphs.write(self._graph, self._work, paths[0].name)
        with quiet():
            quantization.quantize_dynamic(
                str(paths[0]),
                str(paths[1]),
                op_types_to_quantize=list(_TYPES),
                per_channel=True,
                reduce_range=True,  # as for static int8: full weights overflow on x86 without VNNI
                weight_type=quantization.QuantType.QInt8,
                nodes_to_exclude=sorted(kept),
                extra_options={"MatMulConstBOnly": True},
            )
        return protos.onnx_package().load(str(paths[1]))


def products(graph: Any) -> list[str]:
    """The names of the nodes that multiply by weights, but for convolutions."""
    weights = {tensor.name for tensor in graph.graph.initializer}
    return [node.name for node in graph.graph.node if node.op_type in _TYPES and weights & set(node.input[1:2])]
