"""int8 for onnxruntime: types, scales and placement are those of its kernels, and nodes can be kept in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.export import protos
from penstock.export.precision.int8 import ForOnnxruntime
from penstock.inspection import precisions

ROWS = Rows({"x": np.random.default_rng(1).standard_normal((48, 3, 8, 8)).astype(np.float32)}, None)


@pytest.fixture(scope="module")
def source(residual: Callable[[int], Any]) -> Any:
    return residual(16)


@pytest.fixture(scope="module")
def lowering(source: Any, tmp_path_factory: pytest.TempPathFactory) -> ForOnnxruntime:
    return ForOnnxruntime(source, ROWS, "max", 1, tmp_path_factory.mktemp("int8"))


@pytest.fixture(scope="module")
def lowered(lowering: ForOnnxruntime) -> Any:
    return lowering.graph(())


def arrays(model: Any) -> dict[str, Any]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def by_name(model: Any) -> dict[str, Any]:
    return {node.name: node for node in model.graph.node}


def makers(model: Any) -> dict[str, Any]:
    """The node that makes each tensor."""
    return {name: node for node in model.graph.node for name in node.output}


def pairs(model: Any) -> dict[str, tuple[Any, Any]]:
    """Scale and zero point of each activation, by the name that it has in the float32 graph."""
    held = arrays(model)
    return {
        node.input[0].removesuffix("_QuantizeLinear_Input"): (held[node.input[1]], held[node.input[2]])
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }


@pytest.mark.parametrize(("node", "weight"), [("first", "w1"), ("second", "w2"), ("head", "w3")])
def test_weights_are_symmetric_per_channel_and_of_seven_bits(lowered: Any, source: Any, node: str, weight: str) -> None:
    held, weights = arrays(lowered), arrays(source)[weight]
    pair = makers(lowered)[by_name(lowered)[node].input[1]]
    assert pair.op_type == "DequantizeLinear"
    numbers, scale, zero = (held[name] for name in pair.input)
    assert numbers.dtype == zero.dtype == np.int8
    assert not zero.any()
    shape = (-1, *[1] * (weights.ndim - 1))
    most = np.abs(weights).reshape(len(weights), -1).max(1)
    assert np.allclose(scale, most / 64, rtol=1e-6, atol=0)
    assert np.array_equal(np.abs(numbers).reshape(len(weights), -1).max(1), np.full(len(weights), 64))
    # A quotient that is next to a half may be rounded to either side.
    exact = weights.astype(np.float64) / scale.astype(np.float64).reshape(shape)
    assert np.abs(numbers - exact).max() <= 0.5 + 1e-5


def test_activations_are_uint8_with_the_scales_of_their_ranges(
    lowered: Any, source: Any, inside: Callable[..., Any]
) -> None:
    seen, found = inside(source, ROWS.inputs), pairs(lowered)
    # What a ReLU clips has the range of what is left of it; a Flatten's answer has that of what it takes.
    assert set(found) == {"x", "r1", "c2", "r2", "p", "f", "y"}
    for name, (scale, zero) in found.items():
        low, high = min(0.0, float(seen[name].min())), max(0.0, float(seen[name].max()))
        assert zero.dtype == np.uint8
        assert np.isclose(scale, (high - low) / 255, rtol=1e-5, atol=0), name
        assert abs(int(zero) + low / float(scale)) <= 0.5 + 1e-5, name
    assert {name for name, (_, zero) in found.items() if zero == 0} == {"r1", "r2", "p", "f"}


@pytest.mark.parametrize(
    ("node", "weight", "bias"), [("first", "w1", "b1"), ("second", "w2", "b2"), ("head", "w3", "b3")]
)
def test_a_bias_is_int32_in_steps_of_the_input_by_the_weights(
    lowered: Any, source: Any, node: str, weight: str, bias: str
) -> None:
    held, made = arrays(lowered), makers(lowered)
    activation, weights, biases = (made[name] for name in by_name(lowered)[node].input)
    numbers, scale, zero = (held[name] for name in biases.input)
    assert numbers.dtype == zero.dtype == np.int32
    assert not zero.any()
    step = held[activation.input[1]].astype(np.float64) * held[weights.input[1]].astype(np.float64)
    assert np.allclose(scale, step, rtol=1e-6, atol=0)
    assert np.abs(numbers - arrays(source)[bias] / step).max() <= 0.5 + 1e-3


def test_answers_are_within_a_few_percent_of_the_float_graphs(
    lowered: Any, source: Any, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    expected = run(source, ROWS.inputs)["y"]
    for rewritten in (True, False):
        assert 0 < off(expected, run(lowered, ROWS.inputs, rewritten=rewritten)["y"]) < 0.04


def test_samples_that_it_was_not_calibrated_on_are_answered_as_well(
    lowered: Any, source: Any, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    feeds = {"x": np.random.default_rng(2).standard_normal((5, 3, 8, 8)).astype(np.float32)}
    assert off(run(source, feeds)["y"], run(lowered, feeds)["y"]) < 0.06


def test_with_every_node_kept_the_graph_answers_as_the_float_one(
    lowering: ForOnnxruntime, source: Any, run: Callable[..., Any]
) -> None:
    found = lowering.graph(lowering.nodes)
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in found.graph.node}
    assert np.allclose(run(found, ROWS.inputs)["y"], run(source, ROWS.inputs)["y"], rtol=0, atol=1e-6)


def test_the_nodes_that_can_be_kept_are_those_that_take_what_is_quantised(lowering: ForOnnxruntime) -> None:
    assert lowering.nodes == ["first", "second", "join", "pool", "flat", "head"]


def test_a_kept_node_takes_float_weights_and_the_input_that_it_alone_reads(
    lowering: ForOnnxruntime, lowered: Any, source: Any
) -> None:
    found = lowering.graph({"first"})
    assert list(by_name(found)["first"].input) == ["x", "w1", "b1"]
    for name in ("w1", "b1"):
        assert np.array_equal(arrays(found)[name], arrays(source)[name])
    assert "x" in pairs(lowered)
    assert "x" not in pairs(found)
    second = by_name(lowering.graph(["second"]))["second"]
    assert list(second.input)[1:] == ["w2", "b2"]


def test_what_is_not_kept_stays_lowered(lowering: ForOnnxruntime, lowered: Any) -> None:
    found = lowering.graph({"second"})
    for name in ("first", "join", "head"):
        assert by_name(found)[name] == by_name(lowered)[name]


def test_nodes_are_sorted_and_the_checker_takes_the_graph_whatever_is_kept(lowering: ForOnnxruntime) -> None:
    for kept in ((), *([name] for name in lowering.nodes), lowering.nodes[::2], lowering.nodes):
        onnx.checker.check_model(lowering.graph(kept), full_check=True)


def test_inputs_and_outputs_stay_as_they_are(lowered: Any, source: Any) -> None:
    for found, expected in ((lowered.graph.input, source.graph.input), (lowered.graph.output, source.graph.output)):
        assert [protos.form(value) for value in found] == [protos.form(value) for value in expected]
        assert [value.name for value in found] == [value.name for value in expected]


def test_the_model_given_is_left_as_it_is_and_the_same_nodes_give_the_same_bytes(source: Any, tmp_path: Path) -> None:
    before = source.SerializeToString(deterministic=True)
    made = [ForOnnxruntime(source, ROWS, "max", 1, tmp_path) for _ in range(2)]
    graphs = [each.graph(kept) for each in made for kept in (("first",), (), ("first",))]
    assert source.SerializeToString(deterministic=True) == before
    first, second, third, *again = [graph.SerializeToString(deterministic=True) for graph in graphs]
    assert first == third != second
    assert again == [first, second, third]


def test_the_record_says_what_the_scales_come_from(source: Any, tmp_path: Path) -> None:
    drawn = Rows(ROWS.inputs, None, real=False)
    for method, rows in (("max", ROWS), ("percentile=99", drawn)):
        record = ForOnnxruntime(source, rows, method, 1, tmp_path).record
        assert (record.method, record.samples, record.real) == (method, 48, rows.real)


def test_an_outlier_is_clipped_by_the_percentile_and_not_by_the_maximum(
    source: Any, tmp_path: Path, inside: Callable[..., Any]
) -> None:
    wild = ROWS.inputs["x"].copy()
    wild[-1, 0, 0, 0] = 400.0
    rows = Rows({"x": wild}, None)
    scales = {
        method: pairs(ForOnnxruntime(source, rows, method, 1, tmp_path).graph(()))["x"][0]
        for method in ("max", "percentile=99.9")
    }
    assert np.isclose(scales["max"], (400 - wild.min()) / 255, rtol=1e-5, atol=0)
    # The share is found to within a bin: a 4096th of 512.
    clip = np.quantile(np.abs(wild), 0.999) + 0.125
    assert scales["percentile=99.9"] <= 2 * clip / 255


def test_a_batch_that_is_fixed_is_calibrated_as_many_rows_at_a_time(
    source: Any, lowering: ForOnnxruntime, lowered: Any, tmp_path: Path
) -> None:
    fixed = protos.copied(source)
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    found = pairs(ForOnnxruntime(fixed, ROWS, "max", 4, tmp_path).graph(()))
    for name, (scale, zero) in pairs(lowered).items():
        assert np.isclose(found[name][0], scale, rtol=1e-5, atol=0)
        assert abs(int(found[name][1]) - int(zero)) <= 1


@pytest.mark.parametrize("kept", [["first"], ["second"], ["head"], ["first", "head"], ["second", "head"]])
def test_a_product_that_is_kept_is_float32_wherever_it_stands_and_the_others_are_int8(
    lowering: ForOnnxruntime, kept: list[str]
) -> None:
    mapped = precisions.of_graph(lowering.graph(kept).graph)
    products = ("first", "second", "head")
    assert {name: mapped[name] for name in products} == {name: "fp32" if name in kept else "int8" for name in products}


# --- Clips -----------------------------------------------------------------------------------------------------------


def clipped(build: Callable[..., Any], *, shared: bool) -> Any:
    """A product whose answers go through a Clip from 0 to 1.5, and at will into another product too."""
    draw = np.random.default_rng(3).standard_normal
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="one"),
        helper.make_node("Clip", ["h", "low", "high"], ["c"], name="clip"),
        helper.make_node("MatMul", ["c", "v"], ["y"], name="two"),
    ]
    outputs = {"y": ["n", 3]}
    if shared:
        nodes.append(helper.make_node("MatMul", ["h", "v"], ["z"], name="three"))
        outputs["z"] = ["n", 3]
    weights = {"w": draw((4, 6)), "v": draw((6, 3)), "low": 0.0, "high": 1.5}
    return build(nodes, {"x": ["n", 4]}, outputs, weights)


FLAT = Rows({"x": np.random.default_rng(4).standard_normal((32, 4)).astype(np.float32)}, None)


def test_a_tensor_that_a_clip_alone_takes_has_the_range_that_is_left(
    build: Callable[..., Any], tmp_path: Path, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    source = clipped(build, shared=False)
    lowered = ForOnnxruntime(source, FLAT, "max", 1, tmp_path).graph(())
    for name in {"h", "c"} & pairs(lowered).keys():
        scale, zero = pairs(lowered)[name]
        assert np.isclose(scale, 1.5 / 255, rtol=1e-5, atol=0)
        assert zero == 0
    assert {"h", "c"} & pairs(lowered).keys()
    assert off(run(source, FLAT.inputs)["y"], run(lowered, FLAT.inputs)["y"]) < 0.04


def test_a_tensor_that_another_node_wants_whole_keeps_its_own_range(
    build: Callable[..., Any], tmp_path: Path, inside: Callable[..., Any]
) -> None:
    source = clipped(build, shared=True)
    lowered = ForOnnxruntime(source, FLAT, "max", 1, tmp_path).graph(())
    values = inside(source, FLAT.inputs)["h"]
    assert np.isclose(pairs(lowered)["h"][0], np.ptp(values) / 255, rtol=1e-5, atol=0)


# --- Refusals --------------------------------------------------------------------------------------------------------


def test_a_graph_without_an_operator_that_onnxruntime_lowers_is_refused(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    made = build([helper.make_node("Erf", ["x"], ["y"], name="erf")], {"x": ["n", 4]}, {"y": ["n", 4]}, {})
    with pytest.raises(PenstockError) as caught:
        ForOnnxruntime(made, FLAT, "max", 1, tmp_path)
    assert str(caught.value) == "int8 finds no operator here that it can lower; export it as fp16 or fp32"


def test_a_sample_that_makes_a_nan_is_named(source: Any, tmp_path: Path) -> None:
    broken = ROWS.inputs["x"].copy()
    broken[7, 0, 3, 3] = np.nan
    with pytest.raises(PenstockError, match="calibration: input 'x' holds NaN or Inf in sample 7;"):
        ForOnnxruntime(source, Rows({"x": broken}, None), "max", 1, tmp_path)


def test_indices_are_no_activations(tmp_path: Path, run: Callable[..., Any], off: Callable[..., float]) -> None:
    draw = np.random.default_rng(5).standard_normal
    weights = {"table": draw((50, 8)).astype(np.float32), "w": draw((8, 3)).astype(np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["g"], name="look"),
            helper.make_node("MatMul", ["g", "w"], ["y"], name="product"),
        ],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    rows = Rows({"ids": np.arange(50)}, None)
    lowering = ForOnnxruntime(source, rows, "max", 1, tmp_path)
    lowered = lowering.graph(())
    onnx.checker.check_model(lowered, full_check=True)
    assert "product" in lowering.nodes
    assert by_name(lowered)["look"].input[1] == "ids"
    assert 0 < off(run(source, rows.inputs)["y"], run(lowered, rows.inputs)["y"]) < 0.04


# --- What the quantizer fails on -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "lowered"), [(1, {"first", "up"}), (2, {"first"})])
def test_a_transposed_convolution_in_groups_stays_in_float32_and_the_rest_is_lowered(
    build: Callable[..., Any],
    tmp_path: Path,
    run: Callable[..., Any],
    off: Callable[..., float],
    group: int,
    lowered: set[str],
) -> None:
    draw = np.random.default_rng(6).standard_normal
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["c", "v"], ["y"], name="up", strides=[2, 2], group=group),
    ]
    weights = {"w": draw((4, 3, 3, 3)), "v": draw((4, 6 // group, 2, 2))}
    source = build(nodes, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 16, 16]}, weights)
    lowering = ForOnnxruntime(source, ROWS, "max", 1, tmp_path)
    found = lowering.graph(())
    onnx.checker.check_model(found, full_check=True)
    assert set(lowering.nodes) == lowered
    mapped = precisions.of_graph(found.graph)
    assert {name for name, precision in mapped.items() if precision == "int8"} == lowered
    assert 0 < off(run(source, ROWS.inputs)["y"], run(found, ROWS.inputs)["y"]) < 0.04


def test_a_product_with_weights_of_no_numbers_stays_as_it_is(
    build: Callable[..., Any], tmp_path: Path, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="full"),
        helper.make_node("MatMul", ["x", "e"], ["z"], name="empty"),
        helper.make_node("Concat", ["h", "z"], ["y"], name="join", axis=1),
    ]
    weights = {"w": np.random.default_rng(7).standard_normal((4, 6)), "e": np.zeros((4, 0))}
    source = build(nodes, {"x": ["n", 4]}, {"y": ["n", 6]}, weights)
    lowering = ForOnnxruntime(source, FLAT, "max", 1, tmp_path)
    found = lowering.graph(())
    assert "full" in lowering.nodes
    assert "empty" not in lowering.nodes
    assert list(by_name(found)["empty"].input)[1] == "e"
    assert 0 < off(run(source, FLAT.inputs)["y"], run(found, FLAT.inputs)["y"]) < 0.04


def masked(build: Callable[..., Any], way: str) -> Any:
    """A product, a mask of -Inf by `way`, a Softmax, and another product."""
    draw = np.random.default_rng(8).standard_normal
    mask = np.where(np.arange(6) % 3 == 2, -np.inf, 0.0)
    masks = {
        "Add": [helper.make_node("Add", ["h", "mask"], ["m"], name="hide")],
        "Where": [
            helper.make_node("Equal", ["mask", "zero"], ["seen"], name="seen"),
            helper.make_node("Where", ["seen", "h", "mask"], ["m"], name="hide"),
        ],
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        *masks[way],
        helper.make_node("Softmax", ["m"], ["p"], name="share", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"], name="last"),
    ]
    weights = {"w": draw((4, 6)), "v": draw((6, 3)), "mask": mask, **({"zero": 0.0} if way == "Where" else {})}
    return build(nodes, {"x": ["n", 4]}, {"y": ["n", 3]}, weights)


@pytest.mark.parametrize("way", ["Add", "Where"])
def test_what_takes_or_gives_a_mask_of_inf_stays_in_float32_and_others_are_lowered(
    build: Callable[..., Any], tmp_path: Path, run: Callable[..., Any], off: Callable[..., float], way: str
) -> None:
    source = masked(build, way)
    lowering = ForOnnxruntime(source, FLAT, "max", 1, tmp_path)
    found = lowering.graph(())
    onnx.checker.check_model(found, full_check=True)
    assert {"first", "last"} <= set(lowering.nodes)
    assert not {"hide", "share"} & set(lowering.nodes)
    assert "m" not in pairs(found)
    mapped = precisions.of_graph(found.graph)
    assert {name: mapped[name] for name in ("first", "hide", "share", "last")} == {
        "first": "int8",
        "hide": "fp32",
        "share": "fp32",
        "last": "int8",
    }
    got = run(found, FLAT.inputs)["y"]
    assert np.isfinite(got).all()
    assert 0 < off(run(source, FLAT.inputs)["y"], got) < 0.04


def test_a_graph_in_which_every_node_gets_inf_is_refused(build: Callable[..., Any], tmp_path: Path) -> None:
    weights = {"w": np.full((4, 3), 3e38)}
    source = build(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="one")], {"x": ["n", 4]}, {"y": ["n", 3]}, weights
    )
    with pytest.raises(
        PenstockError, match=r"^int8 finds no operator here that it can lower; export it as fp16 or fp32$"
    ):
        ForOnnxruntime(source, Rows({"x": np.full((8, 4), 2, np.float32)}, None), "max", 1, tmp_path)
