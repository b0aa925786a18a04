"""The precision map: what each node of an ONNX graph computes in, by the types that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from penstock import inspection
from penstock.inspection import precisions

node = helper.make_node
FLOAT, HALF, BF16, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
INT8, UINT8, INT32, INT64, FP8 = (
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.FLOAT8E4M3FN,
)
# What arithmetic in each type is called, by ONNX's own names for them.
NAMES = {"FLOAT": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16", "DOUBLE": "fp64"}


def held(name: str, kind: int, *shape: int) -> Any:
    """A weight of ones; a single number where no shape is given."""
    array = np.ones(shape, np.float32)
    return helper.make_tensor(name, kind, shape, array.flatten().tolist())


def graph(
    nodes: list[Any], weights: list[Any] | None = None, kind: int = FLOAT, answer: int = FLOAT, opset: int = 19
) -> Any:
    """A graph from x [4, 4] to y, which ONNX itself finds right."""
    ends = [helper.make_tensor_value_info(name, of, [4, 4]) for name, of in (("x", kind), ("y", answer))]
    made = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights or [])
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)], ir_version=9
    )
    onnx.checker.check_model(model, full_check=True)
    return model.graph


def inferred(held: Any, opset: int = 19) -> dict[str, str]:
    """By ONNX's own inference, what each node's first output is in, where that is a float."""
    model = onnx.shape_inference.infer_shapes(helper.make_model(held, opset_imports=[helper.make_opsetid("", opset)]))
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.output)}
    named = {node.name or node.output[0]: TensorProto.DataType.Name(kinds[node.output[0]]) for node in held.node}
    return {name: NAMES[kind] for name, kind in named.items() if kind in NAMES}


# --- Floats ----------------------------------------------------------------------------------------------------------


def test_a_plain_graph_is_float32_in_every_node_that_computes() -> None:
    made = graph(
        [
            node("MatMul", ["x", "w"], ["a"], name="product"),
            node("Transpose", ["a"], ["b"], name="turned"),
            node("Add", ["b", "v"], ["c"], name="sum"),
            node("Relu", ["c"], ["y"], name="clip"),
        ],
        [held("w", FLOAT, 4, 4), held("v", FLOAT, 4)],
    )
    assert precisions.of_graph(made) == {"product": "fp32", "sum": "fp32", "clip": "fp32"}


@pytest.mark.parametrize(("kind", "name"), [(HALF, "fp16"), (BF16, "bf16"), (DOUBLE, "fp64")])
def test_between_casts_a_graph_is_in_the_type_that_it_is_cast_to(kind: int, name: str) -> None:
    made = graph(
        [
            node("Neg", ["x"], ["n"], name="before"),
            node("Cast", ["n"], ["h"], name="down", to=kind),
            node("MatMul", ["h", "w"], ["a"], name="product"),
            node("Reshape", ["a", "sizes"], ["r"], name="shaped"),
            node("Relu", ["r"], ["b"], name="clip"),
            node("Cast", ["b"], ["c"], name="up", to=FLOAT),
            node("Neg", ["c"], ["y"], name="after"),
        ],
        [held("w", kind, 4, 4), numpy_helper.from_array(np.array([4, 4]), "sizes")],
    )
    expected = {"before": "fp32", "product": name, "clip": name, "after": "fp32"}
    assert precisions.of_graph(made) == expected
    computing = {held.name for held in made.node if held.op_type not in ("Cast", "Reshape")}
    assert {key: value for key, value in inferred(made).items() if key in computing} == expected


def test_a_graph_whose_inputs_and_weights_are_halves_needs_no_cast_to_be_fp16() -> None:
    made = graph([node("Gemm", ["x", "w"], ["y"], name="head")], [held("w", HALF, 4, 4)], HALF, HALF)
    assert precisions.of_graph(made) == {"head": "fp16"}


STEPS = st.lists(st.sampled_from(["Neg", "Abs", "Add", "Identity", "Transpose", FLOAT, HALF, BF16, DOUBLE, INT64]))


@settings(deadline=None)
@given(STEPS)
def test_any_chain_of_casts_and_sums_is_in_the_types_that_onnx_infers(steps: list[str | int]) -> None:
    nodes, value = [], "x"
    for place, step in enumerate(steps):
        after = f"t{place}"
        if isinstance(step, int):
            nodes.append(node("Cast", [value], [after], to=step))
        else:
            nodes.append(node(step, [value] * (2 if step == "Add" else 1), [after]))
        value = after
    nodes.append(node("Cast", [value], ["y"], to=FLOAT))
    made = graph(nodes)
    computing = {held.output[0] for held in made.node if held.op_type in ("Neg", "Abs", "Add")}
    expected = {name: kind for name, kind in inferred(made).items() if name in computing}
    assert precisions.of_graph(made) == expected


def test_of_where_the_values_count_and_not_the_condition() -> None:
    made = graph(
        [
            node("Cast", ["x"], ["h"], to=HALF),
            node("Cast", ["x"], ["c"], to=TensorProto.BOOL),
            node("Where", ["c", "h", "h"], ["w"], name="pick"),
            node("Cast", ["w"], ["y"], to=FLOAT),
        ]
    )
    assert precisions.of_graph(made) == {"pick": "fp16"}


def test_a_constant_in_the_graph_gives_its_type_as_a_weight_does() -> None:
    made = graph(
        [
            node("Constant", [], ["k"], value=held("k", HALF, 4)),
            node("Cast", ["x"], ["h"], to=HALF),
            node("Mul", ["k", "h"], ["m"], name="scale"),
            node("Cast", ["m"], ["y"], to=FLOAT),
        ]
    )
    assert precisions.of_graph(made) == {"scale": "fp16"}


# --- Eight bits ------------------------------------------------------------------------------------------------------


def pair(value: str) -> list[Any]:
    """The nodes that take a value down to eight bits and up again, with the weights `scale` and `zero`."""
    return [
        node("QuantizeLinear", [value, "scale", "zero"], [f"{value}_q"], name=f"{value} down"),
        node("DequantizeLinear", [f"{value}_q", "scale", "zero"], [f"{value}_dq"], name=f"{value} up"),
    ]


@pytest.mark.parametrize(("kind", "name"), [(INT8, "int8"), (UINT8, "int8"), (FP8, "fp8")])
def test_what_takes_values_between_pairs_is_in_their_eight_bits_and_the_rest_in_float32(kind: int, name: str) -> None:
    """As onnxruntime's quantizer writes it: weights and biases are stored low, and only brought up."""
    made = graph(
        [
            *pair("x"),
            node("DequantizeLinear", ["w", "scale", "zero"], ["w_dq"], name="w up"),
            node("MatMul", ["x_dq", "w_dq"], ["a"], name="product"),
            node("Relu", ["a"], ["b"], name="clip"),
            *pair("b"),
            node("Add", ["b_dq", "x_dq"], ["c"], name="join"),
            *pair("c"),
            node("Mul", ["c_dq", "x_dq"], ["d"], name="unrounded"),
            node("Softmax", ["d"], ["y"], name="answer"),
        ],
        [held("w", kind, 4, 4), held("scale", FLOAT), held("zero", kind)],
    )
    whole = {"product": name, "clip": "fp32", "join": name}
    assert precisions.of_graph(made) == {**whole, "unrounded": "fp32", "answer": "fp32"}


def test_a_bias_of_whole_numbers_does_not_make_a_product_anything_else() -> None:
    made = graph(
        [
            *pair("x"),
            node("DequantizeLinear", ["w", "scale", "zero"], ["w_dq"]),
            node("DequantizeLinear", ["bias", "scale", "zero32"], ["bias_dq"]),
            node("Gemm", ["x_dq", "w_dq", "bias_dq"], ["y"], name="head"),
        ],
        [
            held("w", INT8, 4, 4),
            held("bias", INT32, 4),
            held("scale", FLOAT),
            held("zero", INT8),
            held("zero32", INT32),
        ],
    )
    assert precisions.of_graph(made) == {"head": "int8"}


def test_after_a_pair_whose_scale_is_a_half_the_rest_is_fp16_and_so_is_a_product_with_whole_weights() -> None:
    made = graph(
        [
            node("Cast", ["x"], ["h"], to=HALF),
            *pair("h"),
            node("MatMul", ["h_dq", "w"], ["a"], name="product"),
            node("Relu", ["a"], ["b"], name="clip"),
            node("Cast", ["b"], ["y"], to=FLOAT),
        ],
        [held("w", HALF, 4, 4), held("scale", HALF), held("zero", INT8)],
    )
    assert precisions.of_graph(made) == {"product": "fp16", "clip": "fp16"}


def test_dynamic_products_are_int8_and_what_scales_them_is_float32() -> None:
    made = graph(
        [
            node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="down"),
            node("MatMulInteger", ["q", "w", "z", "wz"], ["a"], name="product"),
            node("Cast", ["a"], ["f"], name="up", to=FLOAT),
            node("Mul", ["s", "ws"], ["both"], name="scales"),
            node("Mul", ["f", "both"], ["y"], name="scaled"),
        ],
        [held("w", INT8, 4, 4), held("wz", INT8), held("ws", FLOAT)],
    )
    assert precisions.of_graph(made) == {"product": "int8", "scales": "fp32", "scaled": "fp32"}


@pytest.mark.parametrize(
    ("operator", "domain"),
    [
        ("DynamicQuantizeLSTM", "com.microsoft"),
        ("DynamicQuantizeMatMul", "com.microsoft"),
        ("MatMulIntegerToFloat", "com.microsoft"),
        ("QLinearAdd", "com.microsoft"),
        ("QGemm", "com.microsoft"),
        ("QLinearConv", ""),
        ("ConvInteger", ""),
    ],
)
def test_onnxruntimes_own_operators_on_whole_numbers_are_int8(operator: str, domain: str) -> None:
    made = helper.make_graph(
        [node(operator, ["x"], ["a"], name="low", domain=domain), node("Relu", ["a"], ["y"], name="clip")],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [4, 4])],
        [helper.make_tensor_value_info("y", FLOAT, [4, 4])],
    )
    assert precisions.of_graph(made) == {"low": "int8", "clip": "fp32"}


# --- Inside others ---------------------------------------------------------------------------------------------------


def branching(then: list[Any], other: list[Any], kind: int = FLOAT) -> Any:
    """x halved to h, and an If whose branches make `inner` of x, h and w."""
    answer = helper.make_tensor_value_info("inner", kind, [4, 4])
    branches = {
        f"{name}_branch": helper.make_graph(nodes, name, [], [answer])
        for name, nodes in (("then", then), ("else", other))
    }
    nodes = [
        node("Cast", ["x"], ["h"], name="down", to=HALF),
        node("If", ["yes"], ["chosen"], name="branch", **branches),
        node("Cast", ["chosen"], ["y"], name="up", to=FLOAT),
    ]
    return graph(nodes, [held("w", HALF, 4, 4), numpy_helper.from_array(np.array(True), "yes")])


def test_nodes_inside_an_if_are_told_by_both_names_in_the_types_that_they_read_outside() -> None:
    made = branching(
        [node("MatMul", ["h", "w"], ["p"], name="product"), node("Neg", ["p"], ["inner"], name="minus")],
        [node("Abs", ["x"], ["a"], name="size"), node("Cast", ["a"], ["inner"], to=HALF)],
        HALF,
    )
    assert precisions.of_graph(made) == {"branch/product": "fp16", "branch/minus": "fp16", "branch/size": "fp32"}
    assert precisions.summary(made) == "fp16: 1 MatMul, 1 Neg\nfp32: 1 Abs"


def test_an_if_in_an_if_has_all_three_names_and_one_without_a_name_goes_by_its_answer() -> None:
    deep = helper.make_tensor_value_info("deep", FLOAT, [4, 4])
    branches = {
        f"{name}_branch": helper.make_graph([node(kind, ["x"], ["deep"], name=kind.lower())], name, [], [deep])
        for name, kind in (("then", "Relu"), ("else", "Neg"))
    }
    made = branching([node("If", ["yes"], ["inner"], **branches)], [node("Abs", ["x"], ["inner"])])
    assert precisions.of_graph(made) == {
        "branch/inner/neg": "fp32",
        "branch/inner/relu": "fp32",
        "branch/inner": "fp32",
    }


def test_a_product_inside_an_if_of_what_was_quantised_outside_is_int8() -> None:
    answer = helper.make_tensor_value_info("inner", FLOAT, [4, 4])
    branches = {
        f"{name}_branch": helper.make_graph([node("MatMul", [taken, "w_dq"], ["inner"], name=name)], name, [], [answer])
        for name, taken in (("then", "x_dq"), ("else", "x"))
    }
    made = graph(
        [
            *pair("x"),
            node("DequantizeLinear", ["w", "scale", "zero"], ["w_dq"], name="w up"),
            node("If", ["yes"], ["y"], name="branch", **branches),
        ],
        [
            held("w", INT8, 4, 4),
            held("scale", FLOAT),
            held("zero", INT8),
            numpy_helper.from_array(np.array(True), "yes"),
        ],
    )
    assert precisions.of_graph(made) == {"branch/then": "int8", "branch/else": "fp32"}


def test_nodes_of_one_name_are_all_counted() -> None:
    steps = (("Neg", "x", "a"), ("Abs", "a", "b"), ("Neg", "b", "y"))
    made = graph([node(kind, [one], [other], name="same") for kind, one, other in steps])
    assert precisions.of_graph(made) == {"same": "fp32", "same (2)": "fp32", "same (3)": "fp32"}
    assert precisions.summary(made) == "fp32: 2 Neg, 1 Abs"


# --- What has none ---------------------------------------------------------------------------------------------------


def test_nodes_of_whole_numbers_alone_are_left_out() -> None:
    made = graph(
        [
            node("Shape", ["x"], ["s"], name="shape"),
            node("Gather", ["s", "first"], ["rows"], name="rows of it"),
            node("Mul", ["rows", "first"], ["none"], name="times"),
            node("Add", ["none", "size"], ["four"], name="plus"),
            node("Concat", ["four", "four"], ["both"], name="both", axis=0),
            node("Reshape", ["x", "both"], ["r"], name="shaped"),
            node("ArgMax", ["r"], ["most"], name="most", axis=1),
            node("Cast", ["most"], ["f"], name="to float", to=FLOAT),
            node("Mul", ["r", "f"], ["y"], name="computes"),
        ],
        [numpy_helper.from_array(np.array([number]), name) for name, number in (("first", 0), ("size", 4))],
    )
    assert precisions.of_graph(made) == {"computes": "fp32"}
    assert precisions.summary(made) == "fp32: 1 Mul"


def test_a_graph_that_only_moves_numbers_has_an_empty_map() -> None:
    made = graph([node("Identity", ["x"], ["i"]), node("Transpose", ["i"], ["y"])])
    assert precisions.of_graph(made) == {}
    assert precisions.summary(made) == ""


def test_a_node_without_a_name_is_known_by_its_first_output() -> None:
    made = graph([node("Relu", ["x"], ["clipped"]), node("Neg", ["clipped"], ["y"], name="minus")])
    assert precisions.of_graph(made) == {"clipped": "fp32", "minus": "fp32"}
    assert precisions.summary(made) == "fp32: 1 Relu, 1 Neg"


# --- In words --------------------------------------------------------------------------------------------------------


def test_the_summary_has_a_line_for_each_precision_and_the_most_frequent_first() -> None:
    made = graph(
        [
            node("Relu", ["x"], ["a"]),
            node("Cast", ["a"], ["h"], to=HALF),
            node("Neg", ["h"], ["b"]),
            node("Abs", ["b"], ["c"]),
            node("Neg", ["c"], ["d"]),
            node("Cast", ["d"], ["y"], to=FLOAT),
        ]
    )
    assert precisions.summary(made) == "fp16: 2 Neg, 1 Abs\nfp32: 1 Relu"


def test_of_many_operators_eight_kinds_are_named() -> None:
    kinds = ["Neg", "Abs", "Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Floor", "Ceil", "Erf"]
    names = ["x", *(f"t{place}" for place in range(1, 10)), "y"]
    made = graph([node(kind, [names[place]], [names[place + 1]]) for place, kind in enumerate(kinds)])
    listed = ", ".join(f"1 {kind}" for kind in kinds[:8])
    assert precisions.summary(made) == f"fp32: {listed} and 2 more kinds"


def test_inspection_of_a_file_shows_the_map_and_holds_it_whole(tmp_path: Path) -> None:
    made = graph([node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"], name="minus")])
    onnx.save(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), str(tmp_path / "a.onnx")
    )
    found = inspection.inspect(tmp_path / "a.onnx")
    assert found.facts["precision map"] == "fp32: 1 Relu, 1 Neg"
    assert found.details["precision_map"] == {"a": "fp32", "minus": "fp32"}
