"""fp16 and bf16: what leaves fp16's range stays in float32 and is told, and nothing else is kept for it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from penstock.datasets import Rows
from penstock.export.precision import emulation
from penstock.export.precision.half import ForHalf, Headroom
from penstock.export.quiet import quiet

node = helper.make_node


def drawn(seed: int, shape: Any) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = drawn(0, (32, 8))


@pytest.fixture(scope="module")
def lifted(build: Callable[..., Any]) -> Any:
    """Answers of usual sizes, by way of tensors of over 1e5."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="first"),
        node("Mul", ["h", "up"], ["high"], name="raise"),
        node("Transpose", ["high"], ["turned"], name="turn"),
        node("Transpose", ["turned"], ["back"], name="turn back"),
        node("Mul", ["back", "down"], ["s"], name="lower"),
        node("MatMul", ["s", "v"], ["y"], name="last"),
    ]
    weights = {"w": drawn(1, (8, 16)) / 2, "v": drawn(2, (16, 4)), "up": 50000.0, "down": 1 / 50000}
    return build(nodes, {"x": ["n", 8]}, {"y": ["n", 4]}, weights)


def half(source: Any, work: Path, rows: Any = X, scalable: Collection[str] = ("x",), precision: str = "fp16") -> Any:
    return ForHalf(source, precision, Rows({"x": rows}, None), dict.fromkeys(scalable), 1, work)


def of_type(model: Any) -> dict[str, int]:
    """The type of each tensor, as ONNX infers it."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    return {
        **{value.name: value.type.tensor_type.elem_type for value in values},
        **{tensor.name: tensor.data_type for tensor in model.graph.initializer},
    }


def by_name(model: Any) -> dict[str, Any]:
    return {held.name: held for held in model.graph.node}


# --- Out of range ----------------------------------------------------------------------------------------------------


def test_without_care_a_large_activation_is_infinite_in_fp16(
    lifted: Any, tmp_path: Path, run: Callable[..., Any], inside: Callable[..., Any]
) -> None:
    """What the tests below would see if nothing were kept."""
    from modelopt.onnx import autocast

    assert np.abs(inside(lifted, {"x": X})["high"]).max() > 1e5
    onnx.save(lifted, str(tmp_path / "lifted.onnx"))
    with quiet():
        careless = autocast.convert_to_mixed_precision(
            str(tmp_path / "lifted.onnx"), low_precision_type="fp16", keep_io_types=True, data_max=np.inf
        )
    assert not np.isfinite(run(careless, {"x": X}, rewritten=False)["y"]).all()


def test_what_leaves_the_range_stays_in_float32_and_answers_are_right(
    lifted: Any, tmp_path: Path, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    lowering = half(lifted, tmp_path)
    assert lowering.unsafe == {"raise", "turn", "turn back", "lower"}
    assert lowering.nodes == ["first", "last"]
    found = lowering.graph(())
    types = of_type(found)
    assert {types[name] for name in ("high", "turned", "back")} == {TensorProto.FLOAT}
    assert {types[name] for name in ("w", "v")} == {TensorProto.FLOAT16}
    expected = run(lifted, {"x": X})["y"]
    # numpy's float16 rounds after every node, which onnxruntime's CPU kernels do not.
    (rounded,) = ReferenceEvaluator(found).run(None, {"x": X})
    for got in (run(found, {"x": X})["y"], run(found, {"x": X}, rewritten=False)["y"], rounded):
        assert np.isfinite(got).all()
        assert 0 < off(expected, got) < 2e-3


def test_each_tensor_out_of_range_is_told_with_its_figure_and_the_largest_number(
    lifted: Any, tmp_path: Path, inside: Callable[..., Any]
) -> None:
    told = half(lifted, tmp_path).headroom
    most = float(np.abs(inside(lifted, {"x": X})["high"]).max())
    assert [item.tensor for item in told] == ["high", "turned", "back"]
    for item in told:
        assert np.isclose(item.samples, most, rtol=1e-6, atol=0)
        assert most < item.scaled < 10.001 * most
        assert str(item) == f"{item.tensor} gets {most:.3g} on samples, over fp16's largest number, 65504"


def scaled(build: Callable[..., Any], by: float, work: Path, scalable: Collection[str] = ()) -> Any:
    """The lowering of `x * by`, and of that times weights, on samples whose largest is 1."""
    made = build(
        [node("Mul", ["x", "by"], ["h"], name="scale"), node("MatMul", ["h", "w"], ["y"], name="product")],
        {"x": ["n", 8]},
        {"y": ["n", 2]},
        {"by": by, "w": np.full((8, 2), 1e-4)},
    )
    return half(made, work, np.tile(np.linspace(0.1, 1, 8, dtype=np.float32), (4, 1)), scalable)


# A quarter of the largest number is 16376.
@pytest.mark.parametrize(("by", "told"), [(16370.0, False), (16380.0, True), (65000.0, True)])
def test_a_tensor_within_a_quarter_of_the_range_is_near_its_end(
    build: Callable[..., Any], tmp_path: Path, by: float, told: bool
) -> None:
    lowering = scaled(build, by, tmp_path)
    texts = [str(item) for item in lowering.headroom]
    assert texts == ([f"h gets {by:.3g} on samples, near fp16's largest number, 65504"] if told else [])
    assert lowering.unsafe == ({"scale", "product"} if told else set())


def test_a_tensor_that_overflows_on_larger_inputs_alone_is_kept_and_told(
    build: Callable[..., Any], tmp_path: Path
) -> None:
    lowering = scaled(build, 7000.0, tmp_path, ["x"])
    (item,) = lowering.headroom
    assert (item.tensor, item.samples, item.scaled) == ("h", 7000, 70000)
    assert str(item) == "h gets 7e+04 on inputs 10 times the samples, over 65504"
    assert lowering.unsafe == {"scale", "product"}
    assert lowering.nodes == []
    assert scaled(build, 6000.0, tmp_path, ["x"]).headroom == ()


def test_an_input_that_is_not_scalable_is_not_scaled(build: Callable[..., Any], tmp_path: Path) -> None:
    """The mask stays 0 and 1, the positions stay those of the table."""
    made = build(
        [
            node("Mul", ["x", "by"], ["h"], name="first"),
            node("Mul", ["mask", "by"], ["m"], name="second"),
            node("Add", ["h", "m"], ["y"], name="join"),
        ],
        {"x": ["n", 8], "mask": ["n", 8]},
        {"y": ["n", 8]},
        {"by": 7000.0},
    )
    rows = Rows({"x": np.ones((4, 8), np.float32), "mask": np.ones((4, 8), np.float32)}, None)
    figures = {}
    for scalable in (["x"], ["mask"], ["x", "mask"], []):
        told = ForHalf(made, "fp16", rows, dict.fromkeys(scalable), 1, tmp_path).headroom
        figures[tuple(scalable)] = {item.tensor: (item.samples, item.scaled) for item in told}
    assert figures == {
        ("x",): {"h": (7000, 70000), "y": (14000, 77000)},
        ("mask",): {"m": (7000, 70000), "y": (14000, 77000)},
        ("x", "mask"): {"h": (7000, 70000), "m": (7000, 70000), "y": (14000, 140000)},
        (): {},
    }


@pytest.mark.parametrize(("ends", "reached"), [((-50.0, 50.0), 50.0), ((-2.0, 60.0), 60.0), ((0.0, 1.0), 1.0)])
def test_an_input_whose_range_is_stated_is_tried_at_its_ends(
    build: Callable[..., Any], tmp_path: Path, ends: tuple[float, float], reached: float
) -> None:
    """Samples within 1 say nothing of what fp16 does at 50, which the user says there is."""
    made = build([node("Mul", ["x", "by"], ["y"], name="first")], {"x": ["n", 8]}, {"y": ["n", 8]}, {"by": 2000.0})
    rows = Rows({"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)}, None)
    told = ForHalf(made, "fp16", rows, {"x": ends}, 1, tmp_path).headroom
    over = 2000 * reached > 65504
    assert [(item.tensor, item.scaled) for item in told] == ([("y", 2000 * reached)] if over else [])
    if over:
        assert "on inputs at the ends of their range, over 65504" in str(told[0])


def test_a_tensor_that_is_always_tiny_is_told_and_kept(build: Callable[..., Any], tmp_path: Path) -> None:
    """Under 2**-14 fp16 loses bits; all zeros lose nothing."""
    lowering = scaled(build, 1e-5, tmp_path)
    assert str(lowering.headroom[0]) == (
        "h gets 1.0e-05 at most, under fp16's smallest number of full precision, 6.1e-05"
    )
    assert "scale" in lowering.unsafe
    assert scaled(build, 0.0, tmp_path).headroom == ()


@pytest.mark.parametrize(
    ("samples", "scale", "said"),
    [
        (65504.1, 1.0, "over fp16's largest number, 65504"),
        (65504.0, 1.0, "near fp16's largest number, 65504"),
        (float("inf"), float("inf"), "gets inf on samples, over"),
        (100.0, float("inf"), "gets inf on inputs 10 times the samples, over 65504"),
    ],
)
def test_a_text_says_what_the_trouble_is(samples: float, scale: float, said: str) -> None:
    text = str(Headroom("some/tensor", samples, scale))
    assert text.startswith("some/tensor gets ")
    assert said in text


# --- Samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000, 5000])
def test_an_extreme_in_the_last_row_is_seen(build: Callable[..., Any], tmp_path: Path, count: int) -> None:
    made = build([node("Abs", ["x"], ["y"], name="size")], {"x": ["n", 8]}, {"y": ["n", 8]}, {})
    rows = np.ones((count, 8), np.float32)
    rows[-1, -1] = -1e5
    assert [item.samples for item in half(made, tmp_path, rows, ()).headroom] == [1e5, 1e5]


def test_256_rows_at_most_are_looked_at_and_those_evenly_spread(build: Callable[..., Any], tmp_path: Path) -> None:
    """Each row has an extreme in a column of its own, so that the columns told are the rows that were looked at."""
    columns = [f"column{place}" for place in range(400)]
    nodes = [node("Split", ["x"], columns, name="split", axis=1, num_outputs=400)]
    made = build(nodes, {"x": ["n", 400]}, {columns[0]: ["n", 1]}, {})
    told = half(made, tmp_path, np.ones((400, 400), np.float32) + np.float32(1e5) * np.eye(400, dtype=np.float32), ())
    looked_at = [columns.index(item.tensor) for item in told.headroom if item.tensor != "x"]
    assert len(looked_at) == 256
    assert np.diff(looked_at).max() == 2
    assert (looked_at[0], looked_at[-1]) == (0, 399)


# --- Constants -------------------------------------------------------------------------------------------------------


def normalised(build: Callable[..., Any]) -> Any:
    """x / (|x| + 1e-12)."""
    nodes = [
        node("ReduceL2", ["x", "axis"], ["size"], name="norm"),
        node("Add", ["size", "epsilon"], ["divisor"], name="guard"),
        node("Div", ["x", "divisor"], ["y"], name="divide"),
    ]
    return build(nodes, {"x": ["n", 8]}, {"y": ["n", 8]}, {"epsilon": 1e-12, "axis": [1]})


def test_an_epsilon_that_fp16_takes_for_zero_stays_float32(
    build: Callable[..., Any], tmp_path: Path, run: Callable[..., Any]
) -> None:
    rows = X.copy()
    rows[::2] = 0
    source = normalised(build)
    lowering = half(source, tmp_path, rows)
    assert lowering.headroom == ()
    assert "guard" in lowering.unsafe
    found = lowering.graph(())
    (epsilon,) = [tensor for tensor in found.graph.initializer if tensor.name == "epsilon"]
    assert epsilon.data_type == TensorProto.FLOAT
    assert numpy_helper.to_array(epsilon) == np.float32(1e-12)
    types = of_type(found)
    assert {types[name] for name in by_name(found)["guard"].input} == {TensorProto.FLOAT}
    got = run(found, {"x": rows})["y"]
    assert not np.isnan(got).any()
    assert np.array_equal(got[::2], rows[::2])
    assert np.allclose(got, run(source, {"x": rows})["y"], rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("constant", "kept"),
    [
        (1e-12, True),
        (2.0**-25, True),  # half of the smallest number: rounds to even, 0
        (2.0**-24, False),
        (0.0, False),
        (65504.0, False),
        (65600.0, True),
        (-3.4e38, True),
        (-np.inf, True),
        ([1e-12, 1.0], False),
    ],
)
def test_a_constant_is_kept_where_fp16_takes_it_for_zero_or_infinity(
    build: Callable[..., Any], tmp_path: Path, constant: Any, kept: bool
) -> None:
    nodes = [
        node("Greater", ["x", "c"], ["b"], name="compare"),
        node("Where", ["b", "one", "x"], ["y"], name="choose"),
    ]
    made = build(nodes, {"x": ["n", 2]}, {"y": ["n", 2]}, {"c": constant, "one": 1.0})
    lowering = half(made, tmp_path, X[:4, :2])
    assert lowering.headroom == ()
    assert lowering.unsafe == ({"compare"} if kept else set())


def test_a_constant_that_is_a_node_is_seen_too(build: Callable[..., Any], tmp_path: Path) -> None:
    value = numpy_helper.from_array(np.float32(-1e9), "value")
    nodes = [
        node("Constant", [], ["c"], name="constant", value=value),
        node("Max", ["x", "c"], ["y"], name="bound"),
    ]
    made = build(nodes, {"x": ["n", 8]}, {"y": ["n", 8]}, {})
    assert "bound" in half(made, tmp_path).unsafe


# --- What both types promise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_inputs_and_outputs_are_float32_whatever_the_inside(lifted: Any, tmp_path: Path, precision: str) -> None:
    lowering = half(lifted, tmp_path, precision=precision)
    for kept in ((), ["first"], ["last"], lowering.nodes):
        found = lowering.graph(kept)
        onnx.checker.check_model(found, full_check=True)
        for values, expected in ((found.graph.input, lifted.graph.input), (found.graph.output, lifted.graph.output)):
            assert [value.name for value in values] == [value.name for value in expected]
            assert [value.type for value in values] == [value.type for value in expected]


def test_bf16_has_the_range_and_keeps_nothing_for_it(
    lifted: Any, tmp_path: Path, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    lowering = half(lifted, tmp_path, precision="bf16")
    assert lowering.unsafe == set()
    assert lowering.headroom == ()
    assert lowering.nodes == ["first", "raise", "lower", "last"]
    found = lowering.graph(())
    assert {of_type(found)[name] for name in ("w", "v", "high", "s")} == {TensorProto.BFLOAT16}
    assert 0 < off(run(lifted, {"x": X})["y"], run(emulation.emulated(found), {"x": X})["y"]) < 2e-2


@pytest.mark.parametrize(("precision", "kind"), [("fp16", TensorProto.FLOAT16), ("bf16", TensorProto.BFLOAT16)])
def test_kept_nodes_take_and_give_float32_and_no_node_is_taken_for_another(
    build: Callable[..., Any], tmp_path: Path, precision: str, kind: int
) -> None:
    """Names are matched as they are: a dot is a dot, and the name of one may begin that of another."""
    names = ["block.1", "block.10", "blockx1", "block.1/relu", "a+(b)"]
    tensors = ["x", "t0", "t1", "t2", "t3", "y"]
    nodes = [node("Mul", [tensors[place], f"w{place}"], [tensors[place + 1]], name=names[place]) for place in range(5)]
    made = build(nodes, {"x": ["n", 8]}, {"y": ["n", 8]}, {f"w{place}": 1.5 + place for place in range(5)})
    for kept in (["block.1"], ["a+(b)"], ["block.10", "block.1/relu"]):
        found = half(made, tmp_path, precision=precision).graph(kept)
        types = of_type(found)
        for place, name in enumerate(names):
            assert types[f"w{place}"] == (TensorProto.FLOAT if name in kept else kind), (kept, name)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_with_every_node_kept_the_graph_answers_as_the_float_one(
    build: Callable[..., Any], tmp_path: Path, run: Callable[..., Any], precision: str
) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="first"),
        node("Tanh", ["h"], ["t"], name="squash"),
        node("MatMul", ["t", "v"], ["y"], name="last"),
    ]
    made = build(nodes, {"x": ["n", 8]}, {"y": ["n", 4]}, {"w": drawn(3, (8, 16)), "v": drawn(4, (16, 4))})
    lowering = half(made, tmp_path, precision=precision)
    assert lowering.nodes == ["first", "squash", "last"]
    found = lowering.graph(lowering.nodes)
    assert np.allclose(run(found, {"x": X})["y"], run(made, {"x": X})["y"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_model_given_is_left_as_it_is_and_the_same_nodes_give_the_same_bytes(
    lifted: Any, tmp_path: Path, precision: str
) -> None:
    before = lifted.SerializeToString(deterministic=True)
    lowering = half(lifted, tmp_path, precision=precision)
    first, second, third = (lowering.graph(kept).SerializeToString(deterministic=True) for kept in ([], ["first"], []))
    assert lifted.SerializeToString(deterministic=True) == before
    assert first == third != second


def test_nodes_that_compute_nothing_are_none_to_choose(build: Callable[..., Any], tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["x"], ["t"], name="turn"),
        node("Reshape", ["t", "shape"], ["r"], name="shape"),
        node("Relu", ["r"], ["y"], name="clip"),
    ]
    made = build(nodes, {"x": ["n", 8]}, {"y": ["m"]}, {"shape": [-1]})
    assert half(made, tmp_path).nodes == ["clip"]
