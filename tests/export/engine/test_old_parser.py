"""Graphs for TensorRT 8's parser: of opset 17, without what it passes over or does not know, with equal answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from penstock import artifact
from penstock.export.engine.old_parser import for_old_parser

X = np.random.default_rng(0).uniform(-9, 9, (5, 3, 4)).astype(np.float32)


def model(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], weights: Any = (), opset: int = 17) -> Any:
    """A model of float32 inputs and outputs; a dtype may stand before a shape."""

    def value(name: str, shape: Any) -> Any:
        kind, sizes = shape if isinstance(shape, tuple) else (TensorProto.FLOAT, shape)
        return helper.make_tensor_value_info(name, kind, sizes)

    ends = [[value(*item) for item in group.items()] for group in (inputs, outputs)]
    graph = helper.make_graph(nodes, "g", *ends, list(weights))
    domains = {node.domain for node in nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def answer(graph: Any, **inputs: Any) -> Any:
    return onnxruntime.InferenceSession(graph.SerializeToString()).run(None, inputs)[0]


def operators(graph: Any) -> list[str]:
    return [node.op_type for node in graph.graph.node]


@pytest.mark.parametrize("name", ["digits-onnx-fp32", "digits-trt-fp16"])
def test_a_graph_is_of_opset_17_and_answers_the_same(repository: Path, name: str) -> None:
    held = artifact.read(repository / name)
    graph = onnx.load(str(held.folder / "model.onnx"))
    before = graph.SerializeToString()
    old = for_old_parser(graph)
    assert [item.version for item in old.opset_import if item.domain == ""] == [17]
    assert graph.SerializeToString() == before
    inputs, _ = held.golden()
    assert np.allclose(answer(graph, **inputs), answer(old, **inputs), rtol=0, atol=1e-5)


def test_no_shape_starts_or_ends() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["rows"], start=0, end=1),
        helper.make_node("Shape", ["x"], ["last"], start=-1),
        helper.make_node("Concat", ["rows", "last"], ["shape"], axis=0),
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Reshape", ["mean", "shape"], ["y"]),
    ]
    graph = model(nodes, {"x": ["n", 3, 4]}, {"y": ["n", 4]})
    old = for_old_parser(graph)
    assert all(not node.attribute for node in old.graph.node if node.op_type == "Shape")
    assert "ReduceMean" in operators(old)  # it is of no pixels
    assert np.array_equal(answer(graph, x=X), answer(old, x=X))


@pytest.mark.parametrize(
    ("axes", "keepdims", "operator"), [([-1, -2], 1, "GlobalAveragePool"), ([2, 3], 0, "ReduceMean")]
)
def test_a_mean_over_pixels_is_a_pool(axes: list[int], keepdims: int, operator: str) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("ReduceMean", ["h"], ["y"], axes=axes, keepdims=keepdims),
    ]
    graph = model(nodes, {"x": ["n", 3, 4, 5]}, {"y": ["n", 3, 1, 1][: 4 if keepdims else 2]})
    old = for_old_parser(graph)
    assert operators(old) == ["Relu", operator]
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    assert np.allclose(answer(graph, x=x), answer(old, x=x), rtol=0, atol=1e-6)


# --- CastLike --------------------------------------------------------------------------------------------------------


def cast_like(where: str) -> Any:
    """A graph that rounds x to the integers of an example, which comes from `where`."""
    large = numpy_helper.from_array(np.zeros(1000, np.int64), "example")
    made = {
        "input": ([], []),
        "initializer": ([], [numpy_helper.from_array(np.array([7], np.int64), "example")]),
        "weight": ([], [large]),
        "Constant": (
            [helper.make_node("Constant", [], ["example"], value=numpy_helper.from_array(np.array(7, np.int64)))],
            [],
        ),
        "computed": ([helper.make_node("Shape", ["x"], ["example"])], []),
        "unknown": ([helper.make_node("Odd", ["x"], ["example"], domain="com.example")], []),
    }
    nodes, weights = made[where]
    cast = helper.make_node("CastLike", ["x", "example"], ["whole"])
    back = helper.make_node("Cast", ["whole"], ["y"], to=TensorProto.FLOAT)
    shape: list[Any] = ["n", 3, 4]
    inputs = {"x": shape, **({"example": (TensorProto.INT64, [1])} if where == "input" else {})}
    return model([*nodes, cast, back], inputs, {"y": shape}, weights)


@pytest.mark.parametrize("where", ["input", "initializer", "weight", "Constant", "computed"])
def test_a_cast_like_an_example_is_a_cast_to_its_type(where: str) -> None:
    graph = cast_like(where)
    old = for_old_parser(graph)
    assert "CastLike" not in operators(old)
    cast = next(node for node in old.graph.node if node.op_type == "Cast")
    assert list(cast.input) == ["x"]
    assert [held.i for held in cast.attribute if held.name == "to"] == [TensorProto.INT64]
    given = {"x": X, **({"example": np.array([7], np.int64)} if where == "input" else {})}
    assert np.array_equal(answer(old, **given), answer(graph, **given))
    assert np.array_equal(answer(old, **given), np.trunc(X))


def test_a_cast_like_an_example_of_a_type_that_is_not_known_stays() -> None:
    old = for_old_parser(cast_like("unknown"))
    assert operators(old) == ["Odd", "CastLike", "Cast"]
    assert list(old.graph.node[1].input) == ["x", "example"]


def branches(first: list[Any], second: list[Any]) -> Any:
    """A graph that does the one or the other, by the sign of its first number."""
    names = ("then_branch", "else_branch")
    made = {
        name: helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", 1, ["n", 3, 4])])
        for name, nodes in zip(names, (first, second), strict=True)
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], **made),
    ]
    return model(nodes, {"x": ["n", 3, 4]}, {"y": ["n", 3, 4]}, [numpy_helper.from_array(np.float32(0), "zero")])


def rounded(branch: str, example: Any) -> list[Any]:
    return [
        example,
        helper.make_node("CastLike", ["x", "example"], [f"{branch}_whole"]),
        helper.make_node("Cast", [f"{branch}_whole"], [f"{branch}_y"], to=TensorProto.FLOAT),
    ]


def constant(number: Any) -> Any:
    return helper.make_node("Constant", [], ["example"], value=numpy_helper.from_array(np.array(number)))


def test_each_branch_of_an_if_has_examples_of_its_own() -> None:
    graph = branches(rounded("then_branch", constant(np.float32(1))), rounded("else_branch", constant(np.int64(1))))
    old = for_old_parser(graph)
    for x in (np.abs(X), -np.abs(X)):
        assert np.array_equal(answer(old, x=x), answer(graph, x=x))
        assert np.array_equal(answer(old, x=x), x if x.max() > 0 else np.trunc(x))


def test_an_example_that_is_known_in_one_branch_is_not_known_in_the_other() -> None:
    computed = helper.make_node("Shape", ["x"], ["example"])
    graph = branches(rounded("then_branch", computed), rounded("else_branch", constant(np.float32(1))))
    assert np.array_equal(answer(for_old_parser(graph), x=np.abs(X)), np.trunc(np.abs(X)))
