"""int8: Q/DQ pairs with scales measured on samples, placed for the runtime that will read them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.datasets import Rows
from penstock.errors import PenstockError, require
from penstock.export import protos
from penstock.export.precision import qdq
from penstock.export.precision.calibration import calibrate
from penstock.export.quiet import quiet

# Where a tensor goes through one of these and nowhere else, its own range is never seen: theirs is.
_CLIPS = ("Relu", "Clip")
_NOTHING = "int8 finds no operator here that it can lower; export it as fp16 or fp32"


class ForOnnxruntime:
    """Lowering for onnxruntime's kernels: activations to uint8, weights to int8, symmetric and per channel.

    Weights get 7 of the 8 bits, so that every CPU answers alike: without VNNI, x86 adds two products of uint8 by int8
    in 16 bits (vpmaddubsw), which full weights overflow: 2 * 255 * 127 > 2**15, but 2 * 255 * 64 is not.

    Args:
        graph: a float32 `onnx.ModelProto` whose nodes have names; left as it is.
        rows: the samples.
        method: the calibration method.
        least: the fewest rows that the graph takes.
        work: a folder for intermediate files.

    Raises:
        PenstockError: nothing in the graph can be lowered, or calibration fails.
    """

    def __init__(self, graph: Any, rows: Rows, method: str, least: int, work: Path) -> None:
        onnx = require("onnx", "export", "int8")
        shapes = require("onnxruntime.quantization.shape_inference", "export", "int8")
        paths = [work / name for name in ("float32.onnx", "shaped.onnx")]
        onnx.save(graph, str(paths[0]))
        with quiet():
            shapes.quant_pre_process(str(paths[0]), str(paths[1]), skip_optimization=True, skip_symbolic_shape=True)
        self._model = onnx.load(str(paths[1]))
        # The quantizer gives an answer that also goes through a clip the clip's range: such clips stay as they are.
        ends = {value.name for value in self._model.graph.output}
        nodes = self._model.graph.node
        self._left = {node.name for node in nodes if node.op_type in _CLIPS and node.input[0] in ends}
        self._left |= set(_beyond_the_quantizer(self._model.graph))
        floats = _float_tensors(self._model)
        trial = self._quantizer(dict.fromkeys(floats, (-1.0, 1.0)), ())
        self.nodes = qdq.lowered_nodes(trial.model.model)
        if not self.nodes:
            raise PenstockError(_NOTHING)
        # Every end of a node that may be lowered: which of them gets a scale hangs on what else is.
        able = [node for node in self._model.graph.node if trial.should_quantize_node(node)]
        wanted = {name for node in able for name in (*node.input, *node.output) if name in floats}
        seen = {name: _seen_as(self._model, name) for name in wanted}
        scales = calibrate(self._model, sorted(set(seen.values())), rows, method, least, work, bounded=False)
        self._ranges = {name: scales.ranges[source] for name, source in seen.items() if source in scales.ranges}
        endless = {name for name, source in seen.items() if source in scales.unbounded}
        self._left |= {node.name for node in able if endless & {*node.input, *node.output}}
        self.nodes = [name for name in self.nodes if name not in self._left]
        if not self.nodes:
            raise PenstockError(_NOTHING)
        self.record = scales.record

    def graph(self, kept: Collection[str]) -> Any:
        """The graph with all of `nodes` lowered but those `kept` in float32."""
        return self._quantizer(self._ranges, kept).model.model

    def _quantizer(self, ranges: dict[str, tuple[float, float]], kept: Collection[str]) -> Any:
        quantization = require("onnxruntime.quantization", "export", "int8")
        calibrate_ = require("onnxruntime.quantization.calibrate", "export", "int8")
        registry = require("onnxruntime.quantization.registry", "export", "int8")
        quantizer = require("onnxruntime.quantization.qdq_quantizer", "export", "int8").QDQQuantizer
        data = {
            name: calibrate_.TensorData(lowest=np.float32(low), highest=np.float32(high))
            for name, (low, high) in ranges.items()
        }
        with quiet():
            made = quantizer(
                protos.copied(self._model),
                per_channel=True,
                reduce_range=True,
                weight_qType=quantization.QuantType.QInt8,
                # uint8 activations by int8 weights is what x86's VNNI multiplies: 2.6 to 3.4 times as fast as int8 by
                # int8 there, and a ReLU's outputs get all 256 steps.
                activation_qType=quantization.QuantType.QUInt8,
                tensors_range=calibrate_.TensorsData(quantization.CalibrationMethod.MinMax, data),
                nodes_to_quantize=[],
                nodes_to_exclude=sorted({*kept, *self._left}),
                op_types_to_quantize=sorted({*registry.QLinearOpsRegistry, *registry.QDQRegistry}),
                extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
            )
            made.quantize_model()
            made.model.topological_sort()
        return made


def _beyond_the_quantizer(graph: Any) -> Iterator[str]:
    """The names of nodes that onnxruntime's quantizer fails on.

    Transposed convolutions in groups, whose channels it counts in one group alone, and weights without numbers.
    """
    empty = {tensor.name for tensor in graph.initializer if 0 in tensor.dims}
    for node in graph.node:
        grouped = node.op_type == "ConvTranspose" and any(
            held.name == "group" and held.i > 1 for held in node.attribute
        )
        if grouped or empty & set(node.input):
            yield node.name


def _float_tensors(model: Any) -> set[str]:
    """The names of float32 values that are computed or given."""
    kind = protos.onnx_package().TensorProto.FLOAT
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name for value in values if value.type.tensor_type.elem_type == kind} - weights


def _seen_as(model: Any, name: str) -> str:
    """The tensor whose range a tensor gets: that of the clip which alone takes it, or its own."""
    takers = [node for node in model.graph.node if name in node.input]
    ends = {value.name for value in model.graph.output}
    if len(takers) == 1 and takers[0].op_type in _CLIPS and name not in ends and takers[0].input[0] == name:
        return str(takers[0].output[0])
    return name
