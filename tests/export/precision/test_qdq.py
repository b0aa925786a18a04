"""Q/DQ pairs: what they lower is found, their scales are those of the data, and nodes can be taken out of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from penstock.errors import PenstockError
from penstock.export import protos
from penstock.export.precision import qdq

INT8, FP8 = TensorProto.INT8, TensorProto.FLOAT8E4M3FN
MOST = {INT8: 127, FP8: 448}
KINDS = pytest.mark.parametrize("kind", [INT8, FP8], ids=["int8", "fp8"])
DRAWN = np.random.default_rng(0)
FIRST = DRAWN.standard_normal((4, 6)).astype(np.float32) * np.geomspace(0.1, 10, 6, dtype=np.float32)
LAST = DRAWN.standard_normal((12, 3)).astype(np.float32)
FEEDS = {"x": DRAWN.standard_normal((16, 4)).astype(np.float32)}


def joined() -> Any:
    """x @ FIRST through two activations that one Concat joins, @ LAST."""
    nodes = [
        helper.make_node("MatMul", ["x", "first.w"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["l"], name="left"),
        helper.make_node("Tanh", ["a"], ["r"], name="right"),
        helper.make_node("Concat", ["l", "r"], ["c"], name="meet", axis=1),
        helper.make_node("MatMul", ["c", "last.w"], ["y"], name="last"),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])] for name, size in (("x", 4), ("y", 3))
    ]
    weights = [numpy_helper.from_array(FIRST, "first.w"), numpy_helper.from_array(LAST, "last.w")]
    graph = helper.make_graph(nodes, "g", *ends, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def paired(model: Any, kind: int, *inputs: tuple[str, str]) -> Any:
    """A copy with a pair before these inputs of these nodes: weights per column, as ModelOpt leaves them in float32."""
    made = protos.copied(model)
    weights = {tensor.name: tensor for tensor in made.graph.initializer}
    for name, node in inputs:
        if not any(tensor.name == f"{name}.scale" for tensor in made.graph.initializer):
            size = list(weights[name].dims[1:]) if name in weights else []
            scale = np.full(size, 0.5, np.float32)
            zero = helper.make_tensor(f"{name}.zero", kind, size, bytes(scale.size), raw=True)
            made.graph.initializer.extend([numpy_helper.from_array(scale, f"{name}.scale"), zero])
            with_axis = {"axis": 1} if size else {}
            rest = [f"{name}.scale", f"{name}.zero"]
            pair = [
                helper.make_node("QuantizeLinear", [name, *rest], [f"{name}.q"], f"{name}.Q", **with_axis),
                helper.make_node("DequantizeLinear", [f"{name}.q", *rest], [f"{name}.d"], f"{name}.DQ", **with_axis),
            ]
            made_by = [place for place, held in enumerate(made.graph.node) if name in held.output]
            for item in reversed(pair):
                made.graph.node.insert(made_by[0] + 1 if made_by else 0, item)
        (taker,) = [held for held in made.graph.node if held.name == node]
        taker.input[list(taker.input).index(name)] = f"{name}.d"
    onnx.checker.check_model(made, full_check=True)
    return made


EVERYWHERE = (("x", "first"), ("first.w", "first"), ("l", "meet"), ("r", "meet"), ("c", "last"), ("last.w", "last"))
RANGES = {"x": (-3.0, 2.0), "l": (0.0, 7.0), "r": (-1.0, 1.0), "c": (-1.0, 5.0)}


def scales(model: Any) -> dict[str, Any]:
    return {
        tensor.name.removesuffix(".scale"): numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.name.endswith(".scale")
    }


def by_name(model: Any) -> dict[str, Any]:
    return {node.name: node for node in model.graph.node}


# --- named -----------------------------------------------------------------------------------------------------------


@given(names=st.lists(st.sampled_from(["", "a", "a_", "Neg_0", "Neg_1", "Neg_1_", "Neg_2", "Neg_3"]), max_size=6))
def test_every_node_gets_a_name_of_its_own_and_the_model_given_keeps_its_own(names: list[str]) -> None:
    tensors = [f"t{place}" for place in range(len(names) + 1)]
    nodes = [
        helper.make_node("Neg", [one], [other], name=name)
        for name, one, other in zip(names, tensors, tensors[1:], strict=False)
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"])] for name in (tensors[0], tensors[-1])]
    model = helper.make_model(helper.make_graph(nodes, "g", *ends))
    before = model.SerializeToString()
    found = qdq.named(model)
    given_names = [node.name for node in found.graph.node]
    assert len(set(given_names)) == len(names)
    assert all(given_names)
    assert model.SerializeToString() == before
    for each in (found, model):
        for node in each.graph.node:
            node.name = "same"
    assert found == model


def test_a_model_whose_names_are_unique_stays_as_it_is() -> None:
    assert qdq.named(joined()) == joined()


# --- quantised, lowered_nodes ----------------------------------------------------------------------------------------


@KINDS
def test_quantised_are_the_activations_with_a_pair_in_the_order_of_the_graph_and_no_weights(kind: int) -> None:
    assert qdq.quantised(paired(joined(), kind, *EVERYWHERE)) == ["x", "l", "r", "c"]
    assert qdq.quantised(paired(joined(), kind, ("c", "last"), ("last.w", "last"))) == ["c"]
    assert qdq.quantised(joined()) == []


def test_an_activation_with_two_pairs_is_told_once() -> None:
    model = paired(joined(), INT8, ("x", "first"))
    again = protos.copied(by_name(model)["x.Q"])
    again.output[0], again.name = "x.more", "more"
    model.graph.node.append(again)
    assert qdq.quantised(model) == ["x"]


@KINDS
def test_lowered_are_the_nodes_that_take_what_a_pair_gives(kind: int) -> None:
    assert qdq.lowered_nodes(paired(joined(), kind, *EVERYWHERE)) == ["first", "meet", "last"]
    assert qdq.lowered_nodes(paired(joined(), kind, ("last.w", "last"))) == ["last"]
    assert qdq.lowered_nodes(joined()) == []


# --- rescale ---------------------------------------------------------------------------------------------------------


@KINDS
def test_a_scale_is_the_larger_end_of_the_range_over_the_largest_number_of_the_type(kind: int) -> None:
    model = paired(joined(), kind, ("x", "first"), ("l", "meet"), ("c", "last"))
    qdq.rescale(model, RANGES)
    found = scales(model)
    for name, most in (("x", 3), ("l", 7), ("c", 5)):
        assert found[name].dtype == np.float32
        assert found[name].shape == ()
        assert np.isclose(found[name], most / MOST[kind], rtol=1e-6, atol=0)


@KINDS
def test_tensors_that_meet_in_a_concatenation_share_the_largest_scale(kind: int) -> None:
    model = paired(joined(), kind, *EVERYWHERE)
    qdq.rescale(model, RANGES)
    found = scales(model)
    assert found["l"] == found["r"]
    assert np.isclose(found["r"], 7 / MOST[kind], rtol=1e-6, atol=0)
    assert np.isclose(found["c"], 5 / MOST[kind], rtol=1e-6, atol=0)


@KINDS
def test_a_tensor_that_is_always_zero_gets_a_scale_that_can_be_divided_by(kind: int) -> None:
    model = paired(joined(), kind, ("x", "first"))
    qdq.rescale(model, {"x": (0.0, 0.0)})
    (scale,) = scales(model).values()
    assert scale >= np.finfo(np.float32).tiny
    assert scale < 1e-30


def test_pairs_that_hold_one_scale_in_common_keep_it_so_and_large_enough_for_both() -> None:
    model = paired(joined(), INT8, ("x", "first"), ("c", "last"))
    for name in ("x.Q", "x.DQ"):
        by_name(model)[name].input[1] = "c.scale"
    qdq.rescale(model, {"x": (-9.0, 2.0), "c": (-1.0, 5.0)})
    assert np.isclose(scales(model)["c"], 9 / 127, rtol=1e-6, atol=0)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_each_channel_of_fp8_weights_gets_the_scale_of_its_largest(axis: int) -> None:
    model = paired(joined(), FP8, *EVERYWHERE)
    size = FIRST.shape[axis]
    for name in ("first.w.Q", "first.w.DQ"):
        by_name(model)[name].attribute[0].i = axis
    for tensor in model.graph.initializer:
        if tensor.name == "first.w.scale":
            tensor.CopyFrom(numpy_helper.from_array(np.ones(size, np.float32), tensor.name))
        elif tensor.name == "first.w.zero":
            tensor.CopyFrom(helper.make_tensor(tensor.name, FP8, [size], bytes(size), raw=True))
    qdq.rescale(model, RANGES)
    expected = np.array([np.abs(FIRST.take(place, axis)).max() for place in range(size)]) / 448
    assert np.allclose(scales(model)["first.w"], expected, rtol=1e-6, atol=0)


def test_fp8_weights_with_one_scale_get_that_of_the_largest() -> None:
    model = paired(joined(), FP8, ("last.w", "last"))
    for tensor in model.graph.initializer:
        if tensor.name == "last.w.scale":
            tensor.CopyFrom(numpy_helper.from_array(np.float32(1), tensor.name))
        elif tensor.name == "last.w.zero":
            tensor.CopyFrom(helper.make_tensor(tensor.name, FP8, [], b"\0", raw=True))
    qdq.rescale(model, {})
    (scale,) = scales(model).values()
    assert scale.shape == ()
    assert np.isclose(scale, np.abs(LAST).max() / 448, rtol=1e-6, atol=0)


def test_scales_of_int8_weights_are_left_as_they_were_placed() -> None:
    model = paired(joined(), INT8, *EVERYWHERE)
    qdq.rescale(model, RANGES)
    assert np.array_equal(scales(model)["first.w"], np.full(6, 0.5, np.float32))
    assert np.array_equal(scales(model)["last.w"], np.full(3, 0.5, np.float32))


def test_with_its_scales_an_int8_graph_answers_near_the_float_one(
    run: Callable[..., Any], inside: Callable[..., Any], off: Callable[..., float]
) -> None:
    model = paired(joined(), INT8, ("x", "first"), ("c", "last"))
    seen = inside(joined(), FEEDS)
    expected = seen["y"]
    qdq.rescale(model, {name: (float(seen[name].min()), float(seen[name].max())) for name in ("x", "c")})
    # The largest rounding errors, half a step of x and of c, through the weights.
    step = 0.5 / 127
    bound = step * np.abs(seen["x"]).max() * np.abs(FIRST).sum(0).max() * np.abs(LAST).sum(0).max()
    bound += step * np.abs(seen["c"]).max() * np.abs(LAST).sum(0).max()
    got = run(model, FEEDS)["y"]
    assert np.abs(got - expected).max() < bound
    assert 0 < off(expected, got) < 0.03


# --- without ---------------------------------------------------------------------------------------------------------


@KINDS
def test_a_kept_node_takes_the_float_tensors_and_pairs_that_nobody_reads_are_gone(kind: int) -> None:
    model = paired(joined(), kind, *EVERYWHERE)
    before = model.SerializeToString()
    found = qdq.without(model, {"first"})
    onnx.checker.check_model(found, full_check=True)
    assert list(by_name(found)["first"].input) == ["x", "first.w"]
    assert not {"x.Q", "x.DQ", "first.w.Q", "first.w.DQ"} & by_name(found).keys()
    assert {tensor.name for tensor in found.graph.initializer} == {
        *("first.w", "last.w"),
        *(f"{name}.{part}" for name in ("l", "r", "c", "last.w") for part in ("scale", "zero")),
    }
    for name in ("meet", "last"):
        assert by_name(found)[name] == by_name(model)[name]
    assert model.SerializeToString() == before


@KINDS
def test_a_pair_that_another_node_reads_stays_for_that_one(kind: int) -> None:
    model = paired(joined(), kind, ("a", "left"), ("a", "right"))
    found = qdq.without(model, ["left"])
    onnx.checker.check_model(found, full_check=True)
    assert list(by_name(found)["left"].input) == ["a"]
    assert list(by_name(found)["right"].input) == ["a.d"]
    assert {"a.Q", "a.DQ"} <= by_name(found).keys()


@KINDS
def test_with_every_node_kept_the_graph_is_the_float_one_again(kind: int, run: Callable[..., Any]) -> None:
    model = paired(joined(), kind, *EVERYWHERE)
    qdq.rescale(model, RANGES)
    found = qdq.without(model, qdq.lowered_nodes(model))
    onnx.checker.check_model(found, full_check=True)
    assert [node.op_type for node in found.graph.node] == ["MatMul", "Relu", "Tanh", "Concat", "MatMul"]
    assert np.array_equal(run(found, FEEDS)["y"], run(joined(), FEEDS)["y"])


def test_with_no_node_kept_the_graph_is_the_lowered_one() -> None:
    model = paired(joined(), INT8, *EVERYWHERE)
    found = qdq.without(model, ())
    assert found == model
    assert found is not model


def test_a_pair_whose_result_the_model_answers_with_stays() -> None:
    model = paired(joined(), INT8, ("a", "left"))
    model.graph.output.append(helper.make_tensor_value_info("a.d", TensorProto.FLOAT, ["n", 6]))
    found = qdq.without(model, {"left"})
    onnx.checker.check_model(found, full_check=True)
    assert {"a.Q", "a.DQ"} <= by_name(found).keys()


def test_only_zero_points_of_e4m3_are_fp8() -> None:
    kinds = (FP8, INT8, TensorProto.UINT8, TensorProto.FLOAT8E5M2)
    assert [qdq.is_fp8(helper.make_tensor("z", kind, [], b"\0", raw=True)) for kind in kinds] == [True, *[False] * 3]


# --- refuse_reaching_in ----------------------------------------------------------------------------------------------


def branching(*read: str, deep: bool = False) -> Any:
    """joined(), whose answer goes through an If that adds what it reads to a weight of its own; maybe two Ifs deep."""
    model = protos.copied(joined())
    by_name(model)["last"].output[0] = "z"
    reads, total = [*read, "own"], "own"
    nodes = []
    for place, name in enumerate(reads):
        nodes.append(helper.make_node("Add", [total, name], [f"sum{place}"], name=f"sum {place}"))
        total = f"sum{place}"
    own = numpy_helper.from_array(np.ones(3, np.float32), "own")
    for level in range(2 if deep else 1):
        answer = helper.make_tensor_value_info(total, TensorProto.FLOAT, None)
        then = helper.make_graph(nodes, f"then{level}", [], [answer], [] if level else [own])
        other = helper.make_graph(
            [helper.make_node("Identity", [f"less{level}"], [f"other{level}"])],
            f"else{level}",
            [],
            [helper.make_tensor_value_info(f"other{level}", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.zeros(3, np.float32), f"less{level}")],
        )
        condition = helper.make_node("Constant", [], [f"yes{level}"], value=numpy_helper.from_array(np.array(True)))
        total = f"chosen{level}"
        branch = helper.make_node(
            "If", [f"yes{level}"], [total], f"branch {level}", then_branch=then, else_branch=other
        )
        nodes = [condition, branch]
    nodes.append(helper.make_node("Add", ["z", total], ["y"], name="ends"))
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("read", ["z", "last.w"])
def test_a_node_inside_another_that_reads_a_tensor_or_weight_of_outside_is_refused_with_both_names(
    read: str, deep: bool
) -> None:
    if read == "last.w":
        model = branching("last.w", deep=deep)
        said = "last.w"
    else:
        model, said = branching("z", deep=deep), "z"
    with pytest.raises(PenstockError) as caught:
        qdq.refuse_reaching_in(model, "int8")
    assert str(caught.value) == (
        f"int8: If 'branch {int(deep)}' reads {said!r} from outside, which the quantizer does not follow; export it as "
        "fp16 or fp32"
    )


@pytest.mark.parametrize("deep", [False, True])
def test_a_node_inside_another_that_reads_only_its_own_is_let_through(deep: bool) -> None:
    qdq.refuse_reaching_in(branching(deep=deep), "int8")
    qdq.refuse_reaching_in(joined(), "int8")


def test_inputs_and_outputs_that_are_left_out_on_both_sides_reach_nowhere() -> None:
    """An operator outside that leaves an output out, and one inside that leaves an input out."""
    model = branching()
    (branch,) = [node for node in model.graph.node if node.op_type == "If"]
    (then,) = [held.g for held in branch.attribute if held.name == "then_branch"]
    most = numpy_helper.from_array(np.float32(2), "most")
    then.initializer.append(most)
    then.node.append(helper.make_node("Clip", ["sum0", "", "most"], ["clipped"], name="clip"))
    then.output[0].name = "clipped"
    model.graph.node.insert(0, helper.make_node("MaxPool", ["image"], ["pooled", ""], kernel_shape=[2]))
    model.graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 2, 4]))
    onnx.checker.check_model(model, full_check=True)
    qdq.refuse_reaching_in(model, "int8")
