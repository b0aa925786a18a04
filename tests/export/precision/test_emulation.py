"""Emulation: float32 graphs round where bf16 and fp8 do, number for number as ml_dtypes rounds them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from penstock.datasets import Rows
from penstock.export import protos
from penstock.export.precision import emulation
from penstock.export.precision.half import ForHalf
from penstock.export.precision.int8 import ForOnnxruntime

node = helper.make_node
BF16, FP8, FLOAT = TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT


def drawn(seed: int, shape: Any) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = drawn(0, (64, 8))


def bf16(values: Any) -> Any:
    """Values rounded to bfloat16, by numpy."""
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def model(nodes: list[Any], weights: list[Any], outputs: tuple[str, ...] = ("y",)) -> Any:
    values = [helper.make_tensor_value_info(name, FLOAT, ["n", 8]) for name in ("x", *outputs)]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return made


def chain() -> Any:
    """x in bf16, times a, plus b, times itself, less a constant node; and the same product in float32 beside it."""
    a, b = (drawn(seed, 8).astype(ml_dtypes.bfloat16) for seed in (1, 20))
    c = numpy_helper.from_array(np.array(0.3, np.float32).astype(ml_dtypes.bfloat16), "c")
    nodes = [
        node("Cast", ["x"], ["low"], to=BF16),
        node("Mul", ["low", "a"], ["product"]),
        node("Add", ["product", "b"], ["sum"]),
        node("Mul", ["sum", "sum"], ["square"]),
        node("Constant", [], ["c"], value=c),
        node("Sub", ["square", "c"], ["rest"]),
        node("Cast", ["rest"], ["y"], to=FLOAT),
        node("Mul", ["x", "wide"], ["z"]),
    ]
    weights = [
        *(numpy_helper.from_array(array, name) for name, array in (("a", a), ("b", b))),
        numpy_helper.from_array(np.float32(0.3), "wide"),
    ]
    return model(nodes, weights, ("y", "z"))


@pytest.fixture(scope="module")
def source() -> Any:
    return chain()


def array(made: Any, name: str) -> Any:
    (held,) = [tensor for tensor in made.graph.initializer if tensor.name == name]
    return numpy_helper.to_array(held)


# --- bf16 ------------------------------------------------------------------------------------------------------------


def test_each_operator_rounds_its_answer_once_as_numpy_does(source: Any, run: Callable[..., Any]) -> None:
    a, b = (array(source, name).astype(np.float32) for name in "ab")
    sums = bf16(bf16(bf16(X) * a) + b)
    expected = bf16(bf16(sums * sums) - bf16(0.3))
    for rewritten in (True, False):
        got = run(emulation.emulated(source), {"x": X}, rewritten=rewritten)
        assert np.array_equal(got["y"], expected)
        assert np.array_equal(got["z"], X * np.float32(0.3))
    assert not np.array_equal(expected, (X * a + b) ** 2 - np.float32(0.3))


def test_ties_and_what_only_bf16_holds_are_rounded_as_numpy_does(run: Callable[..., Any]) -> None:
    """Halfway cases go to even; numbers beyond fp16 stay finite, and the largest float32 becomes infinite."""
    ties = np.float32(1) + np.arange(64, dtype=np.float32) * np.float32(2.0**-8)
    far = np.array([65504, 7e4, 1e30, 3.3e38, np.finfo(np.float32).max, -1e-30, 1e-38, 0], np.float32)
    rows = np.concatenate([ties, -ties, far]).reshape(-1, 8)
    made = model([node("Cast", ["x"], ["low"], to=BF16), node("Cast", ["low"], ["y"], to=FLOAT)], [])
    got = run(emulation.emulated(made), {"x": rows})["y"]
    assert np.array_equal(got, bf16(rows))
    assert np.array_equal(got.ravel()[:4], [1, 1, 1 + 2.0**-7, 1 + 2.0**-6])


def test_an_emulated_graph_is_float32_and_takes_and_gives_what_it_did(source: Any) -> None:
    found = emulation.emulated(source)
    onnx.checker.check_model(found, full_check=True)
    assert {tensor.data_type for tensor in found.graph.initializer} == {FLOAT}
    assert list(found.graph.input) == list(source.graph.input)
    assert list(found.graph.output) == list(source.graph.output)
    operators = [held.op_type for held in found.graph.node if held.op_type != "Cast"]
    assert operators == [held.op_type for held in source.graph.node if held.op_type != "Cast"]
    for name in "ab":
        assert np.array_equal(array(found, name), array(source, name).astype(np.float32))


def test_the_error_of_a_net_is_that_of_the_type(
    build: Callable[..., Any], tmp_path: Path, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    """bf16 has 8 bits: it is off by 2**-8 at most and about 2**-9 mostly, at each of the few roundings on a way."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="first"),
        node("Add", ["h", "b"], ["s"], name="shift"),
        node("Relu", ["s"], ["r"], name="clip"),
        node("MatMul", ["r", "v"], ["y"], name="last"),
    ]
    weights = {
        "w": drawn(2, (8, 32)),
        "b": drawn(3, 32),
        "v": drawn(4, (32, 8)),
    }
    made = build(nodes, {"x": ["n", 8]}, {"y": ["n", 8]}, weights)
    lowering = ForHalf(made, "bf16", Rows({"x": X}, None), {}, 1, tmp_path)
    expected = run(made, {"x": X})["y"]
    error = off(expected, run(emulation.emulated(lowering.graph(())), {"x": X})["y"])
    assert 2.0**-10 < error < 2.0**-7
    # What is kept rounds nothing, and with all kept nothing rounds.
    fewer = off(expected, run(emulation.emulated(lowering.graph(["first", "shift", "clip"])), {"x": X})["y"])
    assert 0 < fewer < error
    assert off(expected, run(lowering.graph(lowering.nodes), {"x": X})["y"]) < 1e-6


# --- fp8 -------------------------------------------------------------------------------------------------------------


def e4m3(values: Any, scale: Any) -> Any:
    """Values through a pair of E4M3, by numpy: what is beyond 448 steps is clipped to that."""
    steps = np.clip(np.asarray(values, np.float32) / scale, -448, 448)
    return steps.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale


def pair(name: str, scale: Any, axis: int | None = None) -> tuple[list[Any], list[Any]]:
    """The nodes and scales of an fp8 pair on a tensor."""
    scale = np.asarray(scale, np.float32)
    rest = [f"{name}.scale", f"{name}.zero"]
    attributes = {} if axis is None else {"axis": axis}
    nodes = [
        node("QuantizeLinear", [name, *rest], [f"{name}.q"], **attributes),
        node("DequantizeLinear", [f"{name}.q", *rest], [f"{name}.d"], **attributes),
    ]
    zero = helper.make_tensor(rest[1], FP8, scale.shape, bytes(scale.size), raw=True)
    return nodes, [numpy_helper.from_array(scale, rest[0]), zero]


def magnitudes() -> Any:
    """Of all sizes from under the smallest step to ten times the largest, halfway cases among them."""
    spread = drawn(5, 400) * np.geomspace(1e-4, 4480, 400)
    halves = np.arange(1, 9) * 2.0**-10
    steps = np.array([17, 19, 25, 27, 448, 464, 465, 480, 1e5, -448, -464, -1e5, 0, -0.0, 2.0**-9, 2.0**-11])
    return np.concatenate([spread, halves, -halves, steps]).astype(np.float32).reshape(-1, 8)


@pytest.mark.parametrize("scale", [1.0, 0.0371, 2.0**-12])
def test_a_pair_rounds_activations_as_numpy_does_and_clips_the_rest(scale: float, run: Callable[..., Any]) -> None:
    nodes, weights = pair("x", scale)
    made = model([*nodes, node("Neg", ["x.d"], ["y"])], weights)
    rows = magnitudes() * np.float32(scale)
    expected = -e4m3(rows, np.float32(scale))
    for rewritten in (True, False):
        assert np.array_equal(run(emulation.emulated(made), {"x": rows}, rewritten=rewritten)["y"], expected)
    assert np.abs(expected).max() == 448 * np.float32(scale)


@pytest.mark.parametrize("axis", [0, 1, -1, -2, None])
def test_a_pair_on_weights_rounds_each_channel_by_its_own_scale(axis: int | None, run: Callable[..., Any]) -> None:
    """Where no axis is said it is the second, as ONNX has it."""
    weights = drawn(6, (8, 8)) * np.geomspace(0.01, 10, 8, dtype=np.float32)
    along = 1 if axis is None else axis
    scale = (np.abs(weights).max(1 - along % 2) / np.float32(448)).astype(np.float32)
    nodes, held = pair("w", scale, axis)
    made = model([*nodes, node("Mul", ["x", "w.d"], ["y"])], [numpy_helper.from_array(weights, "w"), *held])
    rounded = e4m3(weights, scale[:, None] if along % 2 == 0 else scale[None])
    got = run(emulation.emulated(made), {"x": np.ones((8, 8), np.float32)})["y"]
    assert np.array_equal(got, rounded)
    # E4M3 has eight steps from one power of two to the next: half a step is a 16th of a number at most.
    normal = np.abs(weights) > 0.02 * np.abs(weights).max(1 - along % 2, keepdims=True)
    assert 0 < (np.abs(rounded - weights) / np.abs(weights))[normal].max() <= 1 / 16


def test_the_pairs_of_a_convolution_are_along_its_output_channels(run: Callable[..., Any]) -> None:
    weights = drawn(7, (5, 3, 2))
    scale = (np.abs(weights).max((1, 2)) / 448).astype(np.float32)
    nodes, held = pair("w", scale, 0)
    values = [
        helper.make_tensor_value_info("x", FLOAT, ["n", 3, 4]),
        helper.make_tensor_value_info("y", FLOAT, ["n", 5, 3]),
    ]
    graph = helper.make_graph(
        [*nodes, node("Conv", ["x", "w.d"], ["y"])],
        "g",
        values[:1],
        values[1:],
        [numpy_helper.from_array(weights, "w"), *held],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    # A one at one place of one channel picks out one weight of each output channel.
    rounded = e4m3(weights, scale[:, None, None])
    for channel in range(3):
        x = np.zeros((1, 3, 4), np.float32)
        x[0, channel, 1] = 1
        got = run(emulation.emulated(made), {"x": x})["y"][0]
        assert np.array_equal(got[:, :2], rounded[:, channel, ::-1])


# --- When it is needed -----------------------------------------------------------------------------------------------


def test_fp32_fp16_and_int8_graphs_need_none(build: Callable[..., Any], tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="first"),
        node("Relu", ["h"], ["r"], name="clip"),
        node("MatMul", ["r", "v"], ["y"], name="last"),
    ]
    weights = {"w": drawn(8, (8, 16)), "v": drawn(9, (16, 8))}
    made, rows = build(nodes, {"x": ["n", 8]}, {"y": ["n", 8]}, weights), Rows({"x": X}, None)
    fp16, low = (ForHalf(made, precision, rows, {}, 1, tmp_path).graph(()) for precision in ("fp16", "bf16"))
    int8 = ForOnnxruntime(made, rows, "max", 1, tmp_path).graph(())
    for graph in (made, fp16, int8):
        assert not emulation.needed(graph)
        assert emulation.stand_in(graph, tmp_path) is None
    assert emulation.needed(low)


def test_bf16_and_fp8_graphs_need_it_and_what_stands_in_runs(
    source: Any, tmp_path: Path, run: Callable[..., Any]
) -> None:
    nodes, weights = pair("x", 0.1)
    eight = model([*nodes, node("Neg", ["x.d"], ["y"])], weights)
    casts = model([node("Cast", ["x"], ["low"], to=BF16), node("Cast", ["low"], ["y"], to=FLOAT)], [])
    for graph in (source, eight, casts):
        assert emulation.needed(graph)
        found = emulation.stand_in(graph, tmp_path)
        assert found is not None
        runtime, path = found
        assert runtime == "onnxruntime"
        assert path.parent == tmp_path
        got, expected = (run(each, {"x": X})["y"] for each in (onnx.load(path), emulation.emulated(graph)))
        assert np.array_equal(got, expected)


def test_a_graph_with_fp8_and_int8_pairs_keeps_the_int8_ones(run: Callable[..., Any]) -> None:
    nodes, weights = pair("x", 0.1)
    zero = helper.make_tensor("zero", TensorProto.INT8, [], [0])
    scale = numpy_helper.from_array(np.float32(0.05), "scale")
    rest = ["scale", "zero"]
    more = [node("QuantizeLinear", ["x.d", *rest], ["q"]), node("DequantizeLinear", ["q", *rest], ["y"])]
    made = model([*nodes, *more], [*weights, scale, zero])
    found = emulation.emulated(made)
    assert [held.op_type for held in found.graph.node][-2:] == ["QuantizeLinear", "DequantizeLinear"]
    expected = np.clip(np.rint(e4m3(X, np.float32(0.1)) / np.float32(0.05)), -128, 127) * np.float32(0.05)
    assert np.array_equal(run(found, {"x": X})["y"], expected)


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_the_model_given_is_left_as_it_is(kind: str, source: Any) -> None:
    nodes, weights = pair("x", 0.1)
    made = source if kind == "bf16" else model([*nodes, node("Neg", ["x.d"], ["y"])], weights)
    before = made.SerializeToString(deterministic=True)
    first = emulation.emulated(made).SerializeToString(deterministic=True)
    assert made.SerializeToString(deterministic=True) == before
    assert emulation.emulated(made).SerializeToString(deterministic=True) == first != before


# --- fp16 ------------------------------------------------------------------------------------------------------------


def test_fp16_rounds_after_each_operator_and_overflows_where_it_does(run: Callable[..., Any]) -> None:
    weight = np.float16(1.1)
    nodes = [
        node("Cast", ["x"], ["low"], to=TensorProto.FLOAT16),
        node("Mul", ["low", "a"], ["product"]),
        node("Mul", ["product", "product"], ["square"]),
        node("Cast", ["square"], ["y"], to=FLOAT),
    ]
    made = model(nodes, [numpy_helper.from_array(weight, "a")])
    rows = np.concatenate([X, 1e3 * X[:8]])
    product = (rows.astype(np.float16).astype(np.float32) * np.float32(weight)).astype(np.float16).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = (product * product).astype(np.float16).astype(np.float32)
    assert np.isinf(expected).any()
    assert np.array_equal(run(emulation.emulated(made), {"x": rows})["y"], expected)
    assert emulation.tells_more(made)
    assert not emulation.needed(made)


def branching() -> Any:
    """x in fp16, times a; then, where the largest of x is positive, times b and itself inside an If, else negated."""
    half = TensorProto.FLOAT16

    def branch(name: str, nodes: list[Any], *weights: Any) -> Any:
        answer = helper.make_tensor_value_info(nodes[-1].output[0], half, ["n", 8])
        return helper.make_graph(nodes, name, [], [answer], weights)

    chosen = branch(
        "chosen",
        [node("Mul", ["product", "b"], ["times"]), node("Mul", ["times", "times"], ["square"])],
        numpy_helper.from_array(np.float16(1.3), "b"),
    )
    nodes = [
        node("ReduceMax", ["x"], ["most"], keepdims=0),
        node("Greater", ["most", "zero"], ["positive"]),
        node("Cast", ["x"], ["low"], to=half),
        node("Mul", ["low", "a"], ["product"]),
        node(
            "If",
            ["positive"],
            ["h"],
            then_branch=chosen,
            else_branch=branch("other", [node("Neg", ["product"], ["n"])]),
        ),
        node("Cast", ["h"], ["y"], to=FLOAT),
    ]
    return model(nodes, [numpy_helper.from_array(np.float16(1.1), "a"), numpy_helper.from_array(np.float32(0), "zero")])


def looping() -> Any:
    """x in fp16, three times times a inside a Loop."""
    half = TensorProto.FLOAT16
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Mul", ["held", "a"], ["next"]), node("Identity", ["go"], ["going"])],
        "body",
        [value("turn", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("held", half, ["n", 8])],
        [value("going", TensorProto.BOOL, []), value("next", half, ["n", 8])],
    )
    nodes = [
        node("Cast", ["x"], ["low"], to=half),
        node("Loop", ["three", "", "low"], ["h"], body=body),
        node("Cast", ["h"], ["y"], to=FLOAT),
    ]
    return model(nodes, [numpy_helper.from_array(np.float16(1.1), "a"), numpy_helper.from_array(np.array(3), "three")])


def fp16(values: Any) -> Any:
    """Values rounded to fp16, by numpy."""
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)


def computed_in_fp16(made: Any) -> list[str]:
    """The operators, inside others too, that take fp16 and do not only cast it; and the weights that are held in it."""
    half, found = TensorProto.FLOAT16, []
    for inner in protos.graphs_in(made.graph):
        low = {held.output[0] for held in inner.node if emulation._casts_to(held, half)}
        found += [held.op_type for held in inner.node if held.op_type != "Cast" and low & set(held.input)]
        found += [tensor.name for tensor in inner.initializer if tensor.data_type == half]
        ends = (*inner.input, *inner.output)
        found += [value.name for value in ends if value.type.tensor_type.elem_type == half]
    return found


@pytest.mark.parametrize("made", [branching(), looping()], ids=["If", "Loop"])
def test_what_stands_inside_a_node_is_emulated_too_and_nothing_computes_in_fp16(made: Any) -> None:
    before = made.SerializeToString(deterministic=True)
    assert emulation.tells_more(made)
    assert not emulation.needed(made)
    assert computed_in_fp16(made)
    found = emulation.emulated(made)
    onnx.checker.check_model(found, full_check=True)
    assert computed_in_fp16(found) == []
    assert made.SerializeToString(deterministic=True) == before


def test_a_graph_whose_only_fp16_stands_inside_a_node_is_judged_by_its_emulation() -> None:
    nodes = [
        node("Cast", ["x"], ["low"], to=TensorProto.FLOAT16),
        node("Neg", ["low"], ["less"]),
        node("Cast", ["less"], ["inner"], to=FLOAT),
    ]
    plain = [node("Neg", ["x"], ["inner"])]
    for then, tells in ((nodes, True), (plain, False)):
        answer = helper.make_tensor_value_info("inner", FLOAT, ["n", 8])
        branches = {
            f"{name}_branch": helper.make_graph(held, name, [], [answer])
            for name, held in (("then", then), ("else", plain))
        }
        yes = numpy_helper.from_array(np.array(True), "yes")
        assert emulation.tells_more(model([node("If", ["yes"], ["y"], **branches)], [yes])) == tells


@pytest.mark.parametrize("rewritten", [True, False])
@pytest.mark.parametrize(
    ("rows", "endless"),
    [(X, "nowhere"), (-np.abs(X), "nowhere"), (200 * np.abs(X) + 250, "inside"), (1e5 * np.abs(X) + 7e4, "outside")],
    ids=["small", "the other branch", "over inside", "over outside"],
)
def test_inside_an_if_numbers_are_rounded_and_overflow_as_outside(
    rows: Any, endless: str, run: Callable[..., Any], rewritten: bool
) -> None:
    product = fp16(fp16(rows) * fp16(1.1))
    assert np.isinf(product).all() == (endless == "outside")
    with np.errstate(over="ignore"):
        times = fp16(product * fp16(1.3))
        expected = fp16(times * times) if rows.max() > 0 else -product
    assert np.isinf(expected).all() == (endless != "nowhere")
    assert np.isfinite(expected).all() == (endless == "nowhere")
    assert np.array_equal(run(emulation.emulated(branching()), {"x": rows}, rewritten=rewritten)["y"], expected)


@pytest.mark.parametrize("size", [1, 1e5])
def test_a_loop_rounds_in_each_turn(size: float, run: Callable[..., Any]) -> None:
    rows = np.float32(size) * X
    expected = fp16(rows)
    for _ in range(3):
        expected = fp16(expected * fp16(1.1))
    assert np.isinf(expected).any() == (size > 1)
    assert np.array_equal(run(emulation.emulated(looping()), {"x": rows})["y"], expected)
