"""Costs: multiply-adds against what ones add up to and against counting by hand, and shares of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from penstock.export.precision.costs import Costs, costs

Shape = tuple[int, ...]


def graph(nodes: Sequence[Any], weights: Mapping[str, Shape], inputs: Mapping[str, Sequence[int | str]]) -> Any:
    """A model whose weights are ones, answering with what its last node makes."""
    kind = TensorProto.FLOAT
    made = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(next(filter(None, nodes[-1].output)), kind, None)],
        [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def ones(**shapes: Shape) -> dict[str, Any]:
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


# --- Where all inputs are ones, an output is the number of products that were added up for it ---------------------

SUMS: dict[str, tuple[str, dict[str, Any], Shape, Shape]] = {
    "convolution": ("Conv", {}, (3, 8, 8), (5, 3, 3, 3)),
    "strided": ("Conv", {"strides": [2, 3]}, (3, 9, 9), (4, 3, 3, 2)),
    "dilated": ("Conv", {"dilations": [2, 2]}, (2, 9, 9), (4, 2, 3, 3)),
    "grouped": ("Conv", {"group": 2}, (6, 5, 5), (4, 3, 3, 3)),
    "depthwise": ("Conv", {"group": 6, "strides": [2, 2]}, (6, 7, 7), (6, 1, 3, 3)),
    "one axis": ("Conv", {}, (3, 16), (5, 3, 4)),
    "three axes": ("Conv", {}, (2, 4, 5, 6), (3, 2, 2, 3, 2)),
    "transposed": ("ConvTranspose", {}, (3, 4, 5), (3, 4, 3, 3)),
    "transposed and strided": ("ConvTranspose", {"strides": [2, 2]}, (3, 4, 5), (3, 4, 3, 3)),
    "linear": ("Gemm", {}, (7,), (7, 5)),
    "linear transposed": ("Gemm", {"transB": 1}, (7,), (5, 7)),
    "product": ("MatMul", {}, (7,), (7, 5)),
    "product of each": ("MatMul", {}, (3, 7), (7, 5)),
    "product with one vector": ("MatMul", {}, (3, 7), (7,)),
    "batched product": ("MatMul", {}, (4, 3, 7), (4, 7, 5)),
    "broadcast product": ("MatMul", {}, (4, 1, 3, 7), (6, 7, 5)),
}


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("case", SUMS)
def test_multiply_adds_for_one_row_are_what_ones_add_up_to(case: str, least: int, tmp_path: Path) -> None:
    kind, attributes, row, weight = SUMS[case]
    node = helper.make_node(kind, ["x", "w"], ["y"], name="node", **attributes)
    model = graph([node], {"w": weight}, {"x": ("batch", *row)})
    (summed,) = ReferenceEvaluator(model).run(None, ones(x=(1, *row)))
    found = costs(model, ones(x=(least, *row)), least, tmp_path)
    assert found == Costs({"node": int(summed.sum())}, {"node": int(np.prod(weight))})


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_whose_first_side_is_the_weight(transposed: bool, tmp_path: Path) -> None:
    shape = (4, 3) if transposed else (3, 4)
    node = helper.make_node("Gemm", ["w", "x"], ["y"], name="node", transA=int(transposed), transB=1)
    found = costs(graph([node], {"w": shape}, {"x": ("batch", 4)}), ones(x=(2, 4)), 2, tmp_path)
    # 3 by 4 times 4 by 2: 24 for two rows.
    assert found == Costs({"node": 12}, {"node": 12})


def test_a_transposed_convolution_gives_each_input_only_to_its_group(tmp_path: Path) -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="node", group=2, strides=[3, 1])
    found = costs(graph([node], {"w": (4, 3, 2, 3)}, {"x": ("batch", 4, 4, 5)}), ones(x=(2, 4, 4, 5)), 2, tmp_path)
    # Each of 80 numbers goes into 3 channels, 6 places in each. (onnx's reference runs no groups here.)
    assert found == Costs({"node": 80 * 3 * 6}, {"node": 72})


def test_a_product_of_two_activations_has_multiply_adds_and_no_weights(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], name="turn", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["y"], name="scores"),
    ]
    shape = ("batch", 2, 6, 4)
    found = costs(graph(nodes, {}, {"q": shape, "k": shape}), ones(q=(3, 2, 6, 4), k=(3, 2, 6, 4)), 3, tmp_path)
    # Two heads, 6 by 6 scores, 4 products each.
    assert found == Costs({"scores": 2 * 6 * 6 * 4}, {"scores": 0})


def test_padding_is_counted_as_it_is_multiplied(tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="node", pads=[1, 1, 1, 1])
    found = costs(graph([node], {"w": (4, 3, 3, 3)}, {"x": ("batch", 3, 8, 8)}), ones(x=(1, 3, 8, 8)), 1, tmp_path)
    assert found.operations == {"node": 4 * 8 * 8 * 3 * 9}


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_a_bias_is_a_weight_and_no_product(kind: str, tmp_path: Path) -> None:
    node = helper.make_node(kind, ["x", "w", "b"], ["y"], name="node")
    model = graph([node], {"w": (3, 3, 1, 1), "b": (3,)}, {"x": ("batch", 3, 4, 4)})
    assert costs(model, ones(x=(1, 3, 4, 4)), 1, tmp_path) == Costs({"node": 4 * 4 * 3 * 3}, {"node": 9 + 3})


# --- Recurrent layers: each of 5 steps, each gate of 4 units takes 3 inputs and 4 units ---------------------------

STEP = 4 * (3 + 4)


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
def test_recurrent_layers_multiply_for_each_step_gate_and_direction(
    kind: str, gates: int, directions: int, biased: bool, tmp_path: Path
) -> None:
    weights = {"w": (directions, gates * 4, 3), "r": (directions, gates * 4, 4)}
    if biased:
        weights["b"] = (directions, gates * 8)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], name="turn", perm=[1, 0, 2]),
        helper.make_node(
            *(kind, ["t", *weights], ["y"]),
            name="layer",
            hidden_size=4,
            direction="bidirectional" if directions == 2 else "forward",
        ),
    ]
    found = costs(graph(nodes, weights, {"x": ("batch", 5, 3)}), ones(x=(2, 5, 3)), 2, tmp_path)
    assert found.operations == {"layer": 5 * gates * STEP * directions}
    assert found.weights == {"layer": gates * STEP * directions + biased * gates * 8 * directions}


def test_a_recurrent_layer_that_gives_only_its_last_state_costs_the_same(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], name="turn", perm=[1, 0, 2]),
        helper.make_node("LSTM", ["t", "w", "r"], ["", "h"], name="layer", hidden_size=4),
    ]
    model = graph(nodes, {"w": (1, 16, 3), "r": (1, 16, 4)}, {"x": ("batch", 5, 3)})
    assert costs(model, ones(x=(1, 5, 3)), 1, tmp_path).operations == {"layer": 5 * 4 * STEP}


# --- Whole graphs and shares --------------------------------------------------------------------------------------


def net() -> Any:
    """8 by 8 through a convolution to 6 by 6, flattened, and a linear layer of 10."""
    nodes = [
        helper.make_node("Conv", ["x", "k", "c"], ["a"], name="conv"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Flatten", ["r"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "w", "b"], ["y"], name="linear"),
    ]
    weights = {"k": (2, 1, 3, 3), "c": (2,), "w": (72, 10), "b": (10,)}
    return graph(nodes, weights, {"x": ("batch", 1, 8, 8)})


def test_only_nodes_that_multiply_are_counted_and_shares_are_of_all_of_them(tmp_path: Path) -> None:
    found = costs(net(), ones(x=(1, 1, 8, 8)), 1, tmp_path)
    assert found == Costs({"conv": 2 * 36 * 9, "linear": 720}, {"conv": 20, "linear": 730})
    assert found.share(["conv"]) == 648 / 1368
    assert found.share(["linear", "relu"]) == 720 / 1368
    assert found.share(["conv", "linear", "relu", "flat"]) == 1
    assert (found.saved_bytes(["conv", "flat"]), found.saved_bytes(["conv", "linear"])) == (3 * 20, 3 * 750)
    assert (found.share([]), found.saved_bytes([])) == (0, 0)


def test_counting_leaves_the_graph_as_it_was(tmp_path: Path) -> None:
    model = net()
    before = model.SerializeToString(deterministic=True)
    costs(model, ones(x=(1, 1, 8, 8)), 1, tmp_path)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(model))


def test_a_graph_that_multiplies_nothing_has_no_costs_and_no_share(tmp_path: Path) -> None:
    model = graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], {}, {"x": ("batch", 3)})
    found = costs(model, ones(x=(1, 3)), 1, tmp_path)
    assert found == Costs({}, {})
    assert found.share(["relu"]) == 0.0


TABLES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**12), min_size=1)


@given(TABLES, st.sets(st.sampled_from("abcdef")))
def test_a_share_and_the_rest_make_the_whole(table: dict[str, int], names: set[str]) -> None:
    held = Costs(table, table)
    rest = set(table) - names
    whole = 1.0 if sum(table.values()) else 0.0
    assert held.share(names) + held.share(rest) == pytest.approx(whole, abs=1e-12)
    assert held.saved_bytes(names) + held.saved_bytes(rest) == 3 * sum(table.values())
    assert replace(held, width=2).saved_bytes(names) * 3 == held.saved_bytes(names) * 2
    assert 0 <= held.share(names) <= 1


def test_a_weight_that_several_nodes_read_is_saved_once_and_only_if_none_reads_it_in_float32(tmp_path: Path) -> None:
    make = helper.make_node
    nodes = [
        make("MatMul", ["x", "w"], ["h"], name="first"),
        make("MatMul", ["h", "w"], ["g"], name="second"),
        make("MatMul", ["g", "v"], ["y"], name="last"),
    ]
    found = costs(graph(nodes, {"w": (4, 4), "v": (4, 2)}, {"x": ("batch", 4)}), ones(x=(1, 4)), 1, tmp_path)
    saved = [found.saved_bytes(names) for names in (["first"], ["first", "second"], ["last"], ["second", "last"])]
    assert saved == [0, 3 * 16, 3 * 8, 3 * 8]
