"""TensorRT: the engine is built from the graph that lies beside it, within the signature's ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from penstock import artifact, engines
from penstock.errors import PenstockError
from penstock.export.formats import Options, trt


def test_the_receipt_says_which_tensorrt_built_the_engine_and_for_what(repository: Path) -> None:
    receipt = artifact.read(repository / "digits-trt-fp16").receipt
    flavor, module = engines.flavor_of(build=True)
    assert (receipt.build["flavor"], receipt.build["version"]) == (flavor, module.__version__)
    assert module.__version__ in receipt.hardware
    assert receipt.build["seconds"] > 0
    assert receipt.files.keys() >= {"model.plan", "model.onnx"}


@pytest.mark.parametrize("name", ["digits-onnx-fp32", "digits-trt-fp16"])
def test_a_graph_for_the_old_parser_is_of_opset_17_and_answers_the_same(repository: Path, name: str) -> None:
    held = artifact.read(repository / name)
    graph = onnx.load(str(held.folder / "model.onnx"))
    before = graph.SerializeToString()
    old = trt.for_old_parser(graph)
    assert [item.version for item in old.opset_import if item.domain == ""] == [17]
    assert graph.SerializeToString() == before
    inputs, _ = held.golden()
    answers: list[Any] = [
        onnxruntime.InferenceSession(model.SerializeToString()).run(None, dict(inputs))[0] for model in (graph, old)
    ]
    assert np.allclose(*answers, rtol=0, atol=1e-5)


def test_the_old_parser_takes_no_other_opset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engines, "strongly_typed", lambda _: False)
    source: Any = None  # which is not looked at
    with pytest.raises(PenstockError, match=r"--opset 18: TensorRT \S+ reads opset 17 alone"):
        trt.export(source, Options("fp32", opset=18), tmp_path, tmp_path)


def test_the_old_parser_gets_no_shape_that_starts_or_ends() -> None:
    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [
        make("Shape", ["x"], ["rows"], start=0, end=1),
        make("Shape", ["x"], ["last"], start=-1),
        make("Concat", ["rows", "last"], ["shape"], axis=0),
        make("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1),
        make("Reshape", ["mean", "shape"], ["y"]),
    ]
    ends = [value("x", 1, ["n", 3, 4])], [value("y", 1, ["n", 4])]
    graph = onnx.helper.make_graph(nodes, "g", *ends)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    old = trt.for_old_parser(model)
    assert all(not node.attribute for node in old.graph.node if node.op_type == "Shape")
    assert "ReduceMean" in {node.op_type for node in old.graph.node}  # it is of no pixels
    x = np.random.default_rng(0).standard_normal((5, 3, 4)).astype(np.float32)
    answers: list[Any] = [
        onnxruntime.InferenceSession(item.SerializeToString()).run(None, {"x": x})[0] for item in (model, old)
    ]
    assert np.array_equal(*answers)


def test_the_config_of_an_engine_that_triton_cannot_run_says_so(repository: Path) -> None:
    flavor = artifact.read(repository / "digits-trt-fp16").receipt.build["flavor"]
    lines = (repository / "digits-trt-fp16/config.pbtxt").read_text().splitlines()
    assert lines[0].startswith("# Triton has no backend") == (flavor == "tensorrt_rtx")
    assert 'name: "digits-trt-fp16"' in lines
    assert (repository / "digits-onnx-fp32/config.pbtxt").read_text().startswith("name: ")


@pytest.mark.parametrize(
    ("axes", "keepdims", "operator"), [([-1, -2], 1, "GlobalAveragePool"), ([2, 3], 0, "ReduceMean")]
)
def test_the_old_parser_gets_a_mean_over_pixels_as_a_pool(axes: list[int], keepdims: int, operator: str) -> None:
    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [make("Relu", ["x"], ["h"]), make("ReduceMean", ["h"], ["y"], axes=axes, keepdims=keepdims)]
    shape = ["n", 3, 1, 1][: 4 if keepdims else 2]
    graph = onnx.helper.make_graph(nodes, "g", [value("x", 1, ["n", 3, 4, 5])], [value("y", 1, shape)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    old = trt.for_old_parser(model)
    assert [node.op_type for node in old.graph.node] == ["Relu", operator]
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    answers: list[Any] = [
        onnxruntime.InferenceSession(item.SerializeToString()).run(None, {"x": x})[0] for item in (model, old)
    ]
    assert np.allclose(*answers, rtol=0, atol=1e-6)
