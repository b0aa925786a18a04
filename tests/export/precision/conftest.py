"""What tests of precisions share: a small net with a residual addition, and graphs run by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

Run = Callable[..., dict[str, Any]]


def _run(model: Any, feeds: dict[str, Any], *, rewritten: bool = True) -> dict[str, Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not rewritten:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip((item.name for item in session.get_outputs()), session.run(None, feeds), strict=True))


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs a graph: `run(graph, feeds)`, or `run(graph, feeds, rewritten=False)` with every node as it stands."""
    return _run


@pytest.fixture(scope="session")
def inside() -> Run:
    """Every tensor that a float32 graph is given or computes, by name: `inside(graph, feeds)`."""

    def look(model: Any, feeds: dict[str, Any]) -> dict[str, Any]:
        shown = onnx.ModelProto()
        shown.CopyFrom(model)
        there = {value.name for value in shown.graph.output}
        names = [name for node in shown.graph.node for name in node.output if name not in there]
        shown.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
        return {**feeds, **_run(shown, feeds, rewritten=False)}

    return look


@pytest.fixture(scope="session")
def off() -> Callable[[Any, Any], float]:
    """The relative L2 error of an array: `off(expected, got)`."""

    def distance(expected: Any, got: Any) -> float:
        return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))

    return distance


def _weight(values: Any) -> Any:
    """Numbers as float32, but for whole ones, which are sizes and axes."""
    array = np.asarray(values)
    return array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """Makes a checked float32 model: `build(nodes, {"x": ["batch", 8]}, {"y": ["batch", 4]}, {"w": array})`.

    Weights that are whole numbers are int64.
    """

    def make(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], weights: dict[str, Any]) -> Any:
        ends = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in group.items()]
            for group in (inputs, outputs)
        ]
        held = [numpy_helper.from_array(_weight(array), name) for name, array in weights.items()]
        graph = helper.make_graph(nodes, "g", *ends, held)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        onnx.checker.check_model(made, full_check=True)
        return made

    return make


@pytest.fixture(scope="session")
def residual(build: Callable[..., Any]) -> Callable[[int], Any]:
    """A net of two convolutions with ReLUs, a residual addition, a pool and a Gemm, of so many channels.

    Its channels are of very different sizes, so that one scale for all of them would not do.
    """

    def make(channels: int) -> Any:
        draw = np.random.default_rng(0).standard_normal
        weights = {
            "w1": draw((channels, 3, 3, 3)) * np.geomspace(0.05, 1, channels)[:, None, None, None],
            "b1": draw(channels) / 10,
            "w2": draw((channels, channels, 3, 3)) / np.sqrt(9 * channels),
            "b2": draw(channels) / 10,
            "w3": draw((5, channels)) / np.sqrt(channels),
            "b3": draw(5) / 10,
        }
        nodes = [
            helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c1"], ["r1"], name="clip"),
            helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="second", pads=[1, 1, 1, 1]),
            helper.make_node("Add", ["c2", "r1"], ["s"], name="join"),
            helper.make_node("Relu", ["s"], ["r2"], name="clip again"),
            helper.make_node("GlobalAveragePool", ["r2"], ["p"], name="pool"),
            helper.make_node("Flatten", ["p"], ["f"], name="flat"),
            helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="head", transB=1),
        ]
        return build(nodes, {"x": ["batch", 3, 8, 8]}, {"y": ["batch", 5]}, weights)

    return make
