"""Dynamic int8: products with weights are lowered, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from penstock.errors import PenstockError
from penstock.export.precision.dynamic import ForDynamic, products

node = helper.make_node
SIZE = 16


def drawn(seed: int, shape: Any) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def attention(build: Callable[..., Any]) -> Any:
    """Attention of one head, a residual addition and a perceptron."""
    nodes = [
        node("MatMul", ["x", "wq"], ["q"], name="queries"),
        node("MatMul", ["x", "wk"], ["k"], name="keys"),
        node("MatMul", ["x", "wv"], ["v"], name="values"),
        node("Transpose", ["k"], ["kt"], name="turn", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"], name="scores"),
        node("Softmax", ["s"], ["p"], name="shares", axis=-1),
        node("MatMul", ["p", "v"], ["m"], name="mixed"),
        node("Add", ["m", "x"], ["r"], name="join"),
        node("MatMul", ["r", "w1"], ["h"], name="wide"),
        node("Relu", ["h"], ["c"], name="clip"),
        node("MatMul", ["c", "w2"], ["y"], name="narrow"),
    ]
    square, wide = (SIZE, SIZE), (SIZE, 4 * SIZE)
    shapes = {"wq": square, "wk": square, "wv": square, "w1": wide, "w2": wide[::-1]}
    weights = {name: drawn(20 + place, shape) / np.sqrt(shape[0]) for place, (name, shape) in enumerate(shapes.items())}
    return build(nodes, {"x": ["batch", "seq", SIZE]}, {"y": ["batch", "seq", SIZE]}, weights)


FEEDS = {"x": drawn(2, (3, 7, SIZE))}
WITH_WEIGHTS = ["queries", "keys", "values", "wide", "narrow"]


def operators(model: Any) -> list[str]:
    return [held.op_type for held in model.graph.node]


def arrays(model: Any) -> dict[str, Any]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_products_with_weights_are_lowered_and_those_of_two_activations_are_not(attention: Any, tmp_path: Path) -> None:
    lowering = ForDynamic(attention, tmp_path)
    assert lowering.nodes == WITH_WEIGHTS
    found = lowering.graph(())
    onnx.checker.check_model(found, full_check=True)
    assert operators(found).count("MatMulInteger") == len(WITH_WEIGHTS)
    assert [held.name for held in found.graph.node if held.op_type == "MatMul"] == ["scores", "mixed"]


def test_answers_are_within_a_few_percent_of_the_float_graphs_at_every_length(
    attention: Any, tmp_path: Path, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    found = ForDynamic(attention, tmp_path).graph(())
    for shape in ((1, 1), (3, 7), (2, 40)):
        feeds = {"x": np.random.default_rng(1).standard_normal((*shape, SIZE)).astype(np.float32)}
        assert 0 < off(run(attention, feeds)["y"], run(found, feeds)["y"]) < 0.05


def test_weights_are_of_seven_bits_with_a_scale_for_each_column(attention: Any, tmp_path: Path) -> None:
    held, source = arrays(ForDynamic(attention, tmp_path).graph(())), arrays(attention)
    for name, weights in source.items():
        numbers, scale = held[f"{name}_quantized"], held[f"{name}_scale"]
        most = np.abs(weights).max(0)
        assert numbers.dtype == np.int8
        assert np.allclose(scale, most / 64, rtol=1e-6, atol=0)
        assert np.array_equal(np.abs(numbers.astype(int)).max(0), np.full(len(most), 64))
        assert np.abs(numbers * scale - weights).max() <= 0.5001 * scale.max()
        assert not held[f"{name}_zero_point"].any()


@pytest.mark.parametrize("kept", [["keys"], ["queries", "narrow"], WITH_WEIGHTS])
def test_kept_nodes_stay_as_they_were(attention: Any, tmp_path: Path, kept: list[str]) -> None:
    found = ForDynamic(attention, tmp_path).graph(kept)
    onnx.checker.check_model(found, full_check=True)
    products_there = {held.name: held for held in found.graph.node if held.op_type == "MatMul"}
    assert set(products_there) == {*kept, "scores", "mixed"}
    for held in attention.graph.node:
        if held.name in kept:
            assert products_there[held.name] == held
            assert np.array_equal(arrays(found)[held.input[1]], arrays(attention)[held.input[1]])
    assert operators(found).count("MatMulInteger") == len(WITH_WEIGHTS) - len(kept)


def test_with_every_node_kept_the_graph_answers_as_the_float_one(
    attention: Any, tmp_path: Path, run: Callable[..., Any]
) -> None:
    lowering = ForDynamic(attention, tmp_path)
    assert np.array_equal(run(lowering.graph(lowering.nodes), FEEDS)["y"], run(attention, FEEDS)["y"])


def test_each_run_has_a_scale_of_its_own(
    build: Callable[..., Any], tmp_path: Path, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    """A scale that was measured beforehand would clip what is larger, and round what is smaller to nothing."""
    made = build(
        [node("MatMul", ["x", "w"], ["y"], name="one")], {"x": ["n", SIZE]}, {"y": ["n", 5]}, {"w": drawn(3, (SIZE, 5))}
    )
    found = ForDynamic(made, tmp_path).graph(())
    usual, *others = ({"x": FEEDS["x"][0] * np.float32(size)} for size in (1, 2**-20, 2**20))
    error = off(run(made, usual)["y"], run(found, usual)["y"])
    for feeds in others:
        assert np.isclose(off(run(made, feeds)["y"], run(found, feeds)["y"]), error, rtol=1e-3, atol=0)


def test_a_gemm_is_lowered_with_its_bias_in_float(
    build: Callable[..., Any], tmp_path: Path, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    for transposed in (0, 1):
        shape = (6, SIZE) if transposed else (SIZE, 6)
        made = build(
            [node("Gemm", ["x", "w", "b"], ["y"], name="head", transB=transposed)],
            {"x": ["n", SIZE]},
            {"y": ["n", 6]},
            {"w": drawn(4, shape), "b": drawn(5, 6)},
        )
        lowering = ForDynamic(made, tmp_path)
        assert lowering.nodes == ["head"]
        found = lowering.graph(())
        assert "MatMulInteger" in operators(found)
        assert np.array_equal(arrays(found)["b"], arrays(made)["b"])
        feeds = {"x": FEEDS["x"][0]}
        assert 0 < off(run(made, feeds)["y"], run(found, feeds)["y"]) < 0.04


def test_an_lstm_is_lowered_and_can_be_kept(
    build: Callable[..., Any], tmp_path: Path, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    hidden = 12
    made = build(
        [
            node("LSTM", ["x", "w", "r", "b"], ["o"], name="cells", hidden_size=hidden, direction="bidirectional"),
            node("MatMul", ["o", "v"], ["y"], name="head"),
        ],
        {"x": ["seq", "batch", SIZE]},
        {"y": ["seq", 2, "batch", 5]},
        {
            "w": drawn(6, (2, 4 * hidden, SIZE)) / 4,
            "r": drawn(7, (2, 4 * hidden, hidden)) / 4,
            "b": drawn(8, (2, 8 * hidden)) / 4,
            "v": drawn(9, (hidden, 5)),
        },
    )
    lowering = ForDynamic(made, tmp_path)
    assert lowering.nodes == ["cells", "head"]
    expected = run(made, FEEDS)["y"]
    whole, without_cells, none = (lowering.graph(kept) for kept in ((), ["cells"], ["cells", "head"]))
    assert "DynamicQuantizeLSTM" in operators(whole)
    assert "LSTM" not in operators(whole)
    assert 0 < off(expected, run(whole, FEEDS)["y"]) < 0.05
    assert "LSTM" in operators(without_cells)
    assert "MatMulInteger" in operators(without_cells)
    for name in "wrb":
        assert np.array_equal(arrays(without_cells)[name], arrays(made)[name])
    assert np.array_equal(run(none, FEEDS)["y"], expected)


def convolutions(build: Callable[..., Any], *, head: bool) -> Any:
    """A convolution, a depthwise one and a transposed one, at will with a product with weights after them."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="usual", pads=[1, 1]),
        node("Conv", ["a", "d"], ["b"], name="depthwise", pads=[1, 1], group=8),
        node("ConvTranspose", ["b", "t"], ["c"], name="transposed"),
        *([node("MatMul", ["c", "v"], ["y"], name="head")] if head else []),
    ]
    weights = {"w": drawn(10, (8, 3, 3)), "d": drawn(11, (8, 1, 3)), "t": drawn(12, (8, 4, 1))}
    if head:
        return build(nodes, {"x": ["n", 3, 10]}, {"y": ["n", 4, 5]}, {**weights, "v": drawn(13, (10, 5))})
    return build(nodes, {"x": ["n", 3, 10]}, {"c": ["n", 4, 10]}, weights)


def test_convolutions_are_never_touched(
    build: Callable[..., Any], tmp_path: Path, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    made = convolutions(build, head=True)
    lowering = ForDynamic(made, tmp_path)
    assert lowering.nodes == ["head"]
    found = lowering.graph(())
    assert list(found.graph.node)[:3] == list(made.graph.node)[:3]
    for name in "wdt":
        assert np.array_equal(arrays(found)[name], arrays(made)[name])
    feeds = {"x": drawn(14, (4, 3, 10))}
    assert 0 < off(run(made, feeds)["y"], run(found, feeds)["y"]) < 0.04


def test_a_graph_without_products_with_weights_is_refused(build: Callable[..., Any], tmp_path: Path) -> None:
    two = build(
        [node("Transpose", ["x"], ["t"], name="turn"), node("MatMul", ["x", "t"], ["y"], name="both")],
        {"x": ["n", 4]},
        {"y": ["n", "n"]},
        {},
    )
    for made in (convolutions(build, head=False), two):
        assert products(made) == []
        with pytest.raises(PenstockError) as caught:
            ForDynamic(made, tmp_path)
        assert str(caught.value) == "dynamic int8 lowers products with weights, and there is none; see --calibration"


def test_weights_on_the_left_are_none_that_it_lowers(build: Callable[..., Any], tmp_path: Path) -> None:
    made = build(
        [node("MatMul", ["w", "x"], ["h"], name="left"), node("MatMul", ["h", "v"], ["y"], name="right")],
        {"x": [6, SIZE]},
        {"y": [5, 3]},
        {"w": drawn(15, (5, 6)), "v": drawn(16, (SIZE, 3))},
    )
    lowering = ForDynamic(made, tmp_path)
    assert lowering.nodes == ["right"]
    (left,) = [held for held in lowering.graph(()).graph.node if held.name == "left"]
    assert left.op_type == "MatMul"
    assert list(left.input) == ["w", "x"]


def test_the_model_given_is_left_as_it_is_and_the_same_nodes_give_the_same_bytes(
    attention: Any, tmp_path: Path
) -> None:
    before = attention.SerializeToString(deterministic=True)
    lowering = ForDynamic(attention, tmp_path)
    first, second, third = (lowering.graph(kept).SerializeToString(deterministic=True) for kept in ([], ["keys"], []))
    assert attention.SerializeToString(deterministic=True) == before
    assert first == third != second


def test_the_record_says_that_no_samples_were_needed(attention: Any, tmp_path: Path) -> None:
    record = ForDynamic(attention, tmp_path).record
    assert (record.method, record.samples, record.real) == ("dynamic", 0, False)
