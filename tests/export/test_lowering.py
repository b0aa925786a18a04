"""Lowering: scales are found in the way that fits net and runtime, and no more is kept in float32 than need be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.export.lowering import Lowered, Target, Wish, lower
from penstock.export.precision import emulation
from penstock.export.precision.budget import Judgement
from penstock.inspection import precisions
from penstock.signature import Dim, Signature, Tensor

node = helper.make_node
BATCH = Dim(opt=4, max=64)


def drawn(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(model: Any, inputs: dict[str, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


@dataclass
class Net:
    """A float32 model of one input and one output, its samples, and what is said while it is lowered."""

    graph: Any
    signature: Signature
    rows: Rows
    said: list[str] = field(default_factory=list)

    def off(self, graph: Any) -> float:
        """The relative L2 error of a graph on all samples."""
        expected = run(self.graph, self.rows.inputs)
        return float(np.linalg.norm(run(graph, self.rows.inputs) - expected) / np.linalg.norm(expected))

    def judge(self, limit: float, runnable: Callable[[Any], Any] = lambda graph: graph) -> Callable[[Any], Judgement]:
        def judged(graph: Any) -> Judgement:
            error = self.off(runnable(graph))
            return Judgement(error, None, None if error <= limit else f"error {error:.2e} over {limit}")

        return judged

    def lowered(
        self,
        precision: str,
        work: Path,
        *,
        target: Target = "onnxruntime",
        method: str = "auto",
        limit: float = 1.0,
        real: bool = True,
    ) -> Lowered:
        judge = self.judge(limit)
        wish = Wish(
            precision,
            method,
            judge=judge,
            quick=judge,
            budget=f"an error of {limit}",
            ranking="an error",
            say=self.said.append,
        )
        return lower(self.graph, self.signature, self.rows, self.rows if real else None, wish, target, work)


def net(nodes: list[Any], weights: dict[str, Any], x: Any, answers: tuple[int, ...]) -> Net:
    values = [("x", ["batch", *x.shape[1:]]), ("y", ["batch", *answers])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in values]
    held = [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    inputs, outputs = ((Tensor(name=name, shape=tuple(shape)),) for name, shape in values)
    return Net(model, Signature(inputs=inputs, outputs=outputs, dims={"batch": BATCH}), Rows({"x": x}, None))


def operators(found: Lowered) -> dict[str, str]:
    return {held.name: held.op_type for held in found.graph.graph.node}


def mixed(wide: int) -> Net:
    """A convolution of 16 * 3 * 9 * 36 multiply-adds for a row, and a product of 16 * `wide`, in unnamed nodes."""
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("GlobalAveragePool", ["r"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("MatMul", ["f", "v"], ["y"]),
    ]
    weights = {"w": drawn(1, 16, 3, 3, 3), "v": drawn(2, 16, wide)}
    return net(nodes, weights, drawn(3, 32, 3, 8, 8), (wide,))


HALF = 3 * 9 * 36  # where the product does as much as the convolution


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken over from another test."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


# --- How scales are found --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wide", "method", "operator"),
    [(HALF + 1, "dynamic", "DynamicQuantizeLinear"), (HALF - 1, "max", "QuantizeLinear")],
)
def test_int8_is_dynamic_for_onnxruntime_where_products_outweigh_convolutions(
    tmp_path: Path, wide: int, method: str, operator: str
) -> None:
    made = mixed(wide)
    found = made.lowered("int8", tmp_path)
    assert found.calibration is not None
    assert found.calibration.method == method
    assert found.calibration.samples == (0 if method == "dynamic" else 32)
    assert operator in operators(found).values()
    assert 0 < made.off(found.graph) < 0.05


def test_int8_is_static_for_tensorrt_whatever_the_net(tmp_path: Path) -> None:
    made = mixed(2 * HALF)
    found = made.lowered("int8", tmp_path, target="tensorrt")
    assert found.calibration is not None
    assert (found.calibration.method, found.calibration.samples) == ("entropy", 32)
    assert "QuantizeLinear" in operators(found).values()
    assert "DynamicQuantizeLinear" not in operators(found).values()


def test_a_method_that_was_asked_for_is_taken_also_where_products_outweigh(tmp_path: Path) -> None:
    found = mixed(2 * HALF).lowered("int8", tmp_path, method="percentile=99.9")
    assert found.calibration is not None
    assert (found.calibration.method, found.calibration.samples) == ("percentile=99.9", 32)
    with pytest.raises(PenstockError, match=r"--calibration 'guess': must be one of entropy, max, percentile"):
        mixed(4).lowered("int8", tmp_path, method="guess")


def test_static_int8_without_real_samples_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as caught:
        mixed(4).lowered("int8", tmp_path, real=False)
    text = str(caught.value)
    assert text.startswith("--precision int8 needs real samples to measure its scales on")
    assert "--data FILE.npz" in text
    assert "--data random" in text
    assert "\n" not in text
    with pytest.raises(PenstockError, match=r"--precision fp8 needs real samples .*--data"):
        mixed(2 * HALF).lowered("fp8", tmp_path, target="tensorrt", real=False)


def test_dynamic_int8_and_half_precisions_need_no_real_samples(tmp_path: Path) -> None:
    made = mixed(2 * HALF)
    dynamic = made.lowered("int8", tmp_path, real=False)
    assert dynamic.calibration is not None
    assert dynamic.calibration.method == "dynamic"
    half = made.lowered("fp16", tmp_path, real=False)
    assert half.calibration is None
    for found in (dynamic, half):
        assert 0 < made.off(found.graph) < 0.05


@pytest.mark.parametrize("wide", [4, 2 * HALF])
def test_int8_for_onnxruntime_is_dynamic_where_that_is_asked_for_by_name(tmp_path: Path, wide: int) -> None:
    made = mixed(wide)
    found = made.lowered("int8", tmp_path, method="dynamic", real=False)
    assert found.calibration is not None
    assert (found.calibration.method, found.calibration.samples) == ("dynamic", 0)
    assert found.notes["rows_share_scales"] is True
    assert "rows_share_scales" not in made.lowered("int8", tmp_path, method="max").notes
    assert "DynamicQuantizeLinear" in operators(found).values()
    assert 0 < made.off(found.graph) < 0.05
    # Of the little net it is the product alone, beside a convolution that does nearly all.
    told = ["note: int8 lowers only 0.4% of the multiply-adds"]
    assert made.said == (told if wide == 4 else [])


@pytest.mark.parametrize(("precision", "target"), [("fp16", "onnxruntime"), ("int8", "tensorrt"), ("fp8", "tensorrt")])
def test_nothing_else_is_dynamic(tmp_path: Path, precision: str, target: Target) -> None:
    said = f"--calibration dynamic: is of int8 by onnxruntime, not of {precision} for {target}"
    with pytest.raises(PenstockError, match=f"^{said}$"):
        mixed(2 * HALF).lowered(precision, tmp_path, target=target, method="dynamic")


# --- What stays in float32 -------------------------------------------------------------------------------------------


def fragile() -> Net:
    """Three products, of which the second takes a column 1000 times the others by weights of a 1000th.

    One scale for all that it takes leaves nothing of the other columns; the first and the third lose little.
    """
    first, second, third = drawn(1, 8, 16) / 2, drawn(2, 16, 16) / 4, drawn(3, 16, 4) / 4
    first[:, 0] *= 1000
    second[0] /= 1000
    nodes = [
        node("MatMul", ["x", "w1"], ["a"], name="first"),
        node("MatMul", ["a", "w2"], ["b"], name="second"),
        node("Relu", ["b"], ["c"], name="clip"),
        node("MatMul", ["c", "w3"], ["y"], name="third"),
    ]
    return net(nodes, {"w1": first, "w2": second, "w3": third}, drawn(4, 64, 8), (4,))


def test_a_judge_that_takes_the_full_lowering_keeps_nothing_and_nothing_is_said(tmp_path: Path) -> None:
    made = fragile()
    found = made.lowered("int8", tmp_path, limit=10.0)
    assert found.plan.kept == ()
    assert [(point.kept, point.within) for point in found.plan.points] == [((), True)]
    assert found.plan.lowered_operations == 1
    assert found.notes["lowered_nodes"] == 3
    assert made.said == []


def test_the_node_that_the_judge_refuses_to_have_lowered_is_kept_and_no_other(tmp_path: Path) -> None:
    made = fragile()
    assert made.off(made.lowered("int8", tmp_path, limit=10.0).graph) > 0.3
    found = made.lowered("int8", tmp_path, limit=0.05)
    assert found.plan.kept == ("second",)
    assert operators(found)["second"] == "MatMul"
    assert list(operators(found).values()).count("MatMulInteger") == 2
    assert 0 < made.off(found.graph) < 0.05
    assert found.notes["lowered_nodes"] == 2
    # 8 * 16 and 16 * 4 of 8 * 16 + 16 * 16 + 16 * 4 multiply-adds
    assert np.isclose(found.plan.lowered_operations, 192 / 448)


def test_each_point_of_a_plan_is_what_the_judge_says_of_that_graph(tmp_path: Path) -> None:
    made = fragile()
    found = made.lowered("int8", tmp_path, limit=0.05)
    assert len(found.plan.points) >= 2
    assert {point.kept for point in found.plan.points} >= {(), ("second",)}
    for point in found.plan.points:
        assert point.within == (point.error <= 0.05)
        if point.kept == found.plan.kept:
            assert np.isclose(point.error, made.off(found.graph), rtol=1e-6, atol=0)


def test_the_curve_is_said_line_by_line(tmp_path: Path) -> None:
    made = fragile()
    found = made.lowered("int8", tmp_path, limit=0.05)
    whole = next(point for point in found.plan.points if not point.kept)
    one = next(point for point in found.plan.points if point.kept == ("second",))
    start, *curve, last = made.said
    assert start == f"all 3 nodes lowered: error {whole.error:.2e} over 0.05; looking for those to keep in float32"
    assert curve[0] == (
        f"  0 kept in float32: error {whole.error:.2e}, 100% of multiply-adds lowered, 0.00 MB saved, over it: "
        f"error {whole.error:.2e} over 0.05"
    )
    assert curve[1] == (
        f"  1 kept in float32: error {one.error:.2e}, 43% of multiply-adds lowered, 0.00 MB saved, within the budget"
    )
    assert [line.split()[0] for line in curve] == sorted({str(len(point.kept)) for point in found.plan.points})
    assert last == "kept in float32: second"


def test_a_convolution_kept_between_lowered_ones_is_float32_in_the_graph_and_not_counted(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w1"], ["a"], name="first", pads=[1, 1, 1, 1]),
        node("Conv", ["a", "w2"], ["b"], name="second", pads=[1, 1, 1, 1]),
        node("Conv", ["b", "w3"], ["y"], name="third"),
    ]
    weights = {"w1": drawn(1, 8, 3, 3, 3), "w2": drawn(2, 8, 8, 3, 3), "w3": drawn(3, 4, 8, 1, 1)}
    made = net(nodes, weights, drawn(4, 16, 3, 6, 6), (4, 6, 6))

    def judge(graph: Any) -> Judgement:
        (second,) = [held for held in graph.graph.node if held.name == "second"]
        return Judgement(0.1, None, None) if second.input[1] == "w2" else Judgement(0.2, None, "second is lowered")

    wish = Wish("int8", "max", judge=judge, quick=judge, budget="any", ranking="any", say=made.said.append)
    found = lower(made.graph, made.signature, made.rows, made.rows, wish, "onnxruntime", tmp_path)
    assert found.plan.kept == ("second",)
    assert found.notes["lowered_nodes"] == 2
    assert precisions.of_graph(found.graph.graph) == {"first": "int8", "second": "fp32", "third": "int8"}


def test_a_limit_that_nothing_lowered_keeps_is_refused(tmp_path: Path) -> None:
    made = fragile()
    with pytest.raises(PenstockError, match=r"no plan is within the budget: .*as fp32, .*or widen --max-error"):
        made.lowered("int8", tmp_path, limit=1e-7)
    curve = [line for line in made.said if "kept in float32: error" in line]  # how far off it is, all the same
    assert len(curve) >= 2
    assert all("saved, over it: error " in line for line in curve)


def test_static_int8_keeps_what_the_judge_refuses_too(tmp_path: Path) -> None:
    """For onnxruntime, with scales that were measured; all in float32 but what is lowered."""
    made = fragile()
    found = made.lowered("int8", tmp_path, method="max", limit=0.05)
    assert "second" in found.plan.kept
    assert found.notes["lowered_nodes"] > 0
    assert 0 < made.off(found.graph) <= 0.05
    onnx.checker.check_model(found.graph, full_check=True)


@pytest.mark.parametrize("method", ["auto", "max"])
def test_the_same_inputs_give_the_same_bytes_twice_also_where_nothing_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    made: list[Net] = []
    digests = []
    for turn in ("one", "two", "two"):
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / turn))
        work = tmp_path / f"work-{len(made)}"
        work.mkdir()
        made.append(fragile())
        found = made[-1].lowered("int8", work, method=method, limit=0.05)
        digests.append((found.graph.SerializeToString(deterministic=True), found.plan))
    assert digests[0] == digests[1] == digests[2]
    assert made[0].said == made[1].said


@pytest.mark.parametrize(
    "changed",
    [{"dims": {"batch": {"opt": 4, "max": 128}}}, {"ranges": {"x": {"low": -1, "high": 1}}}],
    ids=["a dim", "a range of values"],
)
def test_the_same_model_with_another_signature_is_judged_again(tmp_path: Path, changed: dict[str, Any]) -> None:
    made, asked = fragile(), list[Any]()

    def judge(graph: Any) -> Judgement:
        asked.append(graph)
        return Judgement(0.0, None, None)

    wish = Wish("int8", "max", judge=judge, quick=judge, budget="any", ranking="any", say=made.said.append)
    other = Signature.model_validate({**made.signature.model_dump(), **changed})
    for signature, judged in ((made.signature, 1), (made.signature, 1), (other, 2), (other, 2)):
        lower(made.graph, signature, made.rows, made.rows, wish, "onnxruntime", tmp_path)
        assert len(asked) == judged


def test_the_model_given_is_left_as_it_is_also_without_names(tmp_path: Path) -> None:
    made = mixed(4)
    before = made.graph.SerializeToString(deterministic=True)
    for precision in ("int8", "fp16"):
        made.lowered(precision, tmp_path)
    assert made.graph.SerializeToString(deterministic=True) == before


# --- fp16's range ----------------------------------------------------------------------------------------------------


def far() -> Net:
    """A product of usual size, raised over 65504 and lowered again."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="first"),
        node("Mul", ["h", "up"], ["high"], name="raise"),
        node("Mul", ["high", "down"], ["y"], name="lower"),
    ]
    return net(nodes, {"w": drawn(1, 8, 4), "up": 1e5, "down": 1e-5}, drawn(2, 32, 8), (4,))


@pytest.mark.parametrize(
    ("target", "hint"), [("onnxruntime", "--precision bf16, on GPUs, has"), ("tensorrt", "--precision bf16 has")]
)
def test_what_leaves_the_range_of_fp16_is_said_and_noted(tmp_path: Path, target: Target, hint: str) -> None:
    made = far()
    found = made.lowered("fp16", tmp_path, target=target)
    most = float(np.abs(made.rows.inputs["x"] @ drawn(1, 8, 4)).max()) * 1e5
    assert found.notes["headroom"] == [f"high gets {most:.3g} on samples, over fp16's largest number, 65504"]
    first, last = made.said
    assert first == f"fp16: {found.notes['headroom'][0]}"
    assert last.startswith("fp16: 2 nodes that touch these stay in float32; ")
    assert hint in last
    assert found.notes["lowered_nodes"] == 1
    assert made.off(found.graph) < 2e-3


def test_of_many_tensors_out_of_range_five_are_said_and_all_are_noted(tmp_path: Path) -> None:
    chain = ["h", *(f"t{place}" for place in range(8))]
    nodes = [
        node("Mul", ["x", "up"], ["h"], name="raise"),
        *(node("Abs", [one], [other], name=f"size of {one}") for one, other in pairwise(chain)),
        node("Mul", [chain[-1], "down"], ["z"], name="lower"),
        node("Abs", ["z"], ["y"], name="safe"),
    ]
    made = net(nodes, {"up": 1e5, "down": 1e-5}, drawn(2, 32, 8), (8,))
    found = made.lowered("fp16", tmp_path)
    assert len(found.notes["headroom"]) == 9
    assert [line.split()[1] for line in made.said[:5]] == chain[:5]
    assert made.said[5] == "fp16: 4 more tensors"
    assert len(made.said) == 7


def test_indices_and_inputs_with_ranges_are_not_scaled_up(tmp_path: Path) -> None:
    """An input with a range never gets larger: what would overflow at ten times that is no trouble."""
    nodes = [node("Mul", ["x", "up"], ["h"], name="raise"), node("Mul", ["h", "down"], ["z"], name="lower")]
    nodes.append(node("Abs", ["z"], ["y"], name="safe"))
    made = net(nodes, {"up": 10000.0, "down": 1e-4}, np.ones((4, 8), np.float32), (8,))
    assert made.lowered("fp16", tmp_path).notes["headroom"] == [
        "h gets 1e+05 on inputs 10 times the samples, over 65504"
    ]
    made.signature = Signature.model_validate({**made.signature.model_dump(), "ranges": {"x": {"low": -1, "high": 1}}})
    assert "headroom" not in made.lowered("fp16", tmp_path).notes


def test_bf16_has_nothing_of_that_to_say(tmp_path: Path) -> None:
    made = far()
    judge = made.judge(1.0, emulation.emulated)
    wish = Wish("bf16", "auto", judge=judge, quick=judge, budget="any", ranking="an error", say=made.said.append)
    found = lower(made.graph, made.signature, made.rows, None, wish, "onnxruntime", tmp_path)
    assert "headroom" not in found.notes
    assert found.plan.kept == ()
    assert made.said == []
    assert 0 < made.off(emulation.emulated(found.graph)) < 2e-2


# --- Where there is nothing to lower ---------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_graph_of_whole_numbers_alone_is_refused(tmp_path: Path, precision: str) -> None:
    made = net([node("Neg", ["x"], ["y"], name="minus")], {}, drawn(1, 8, 3), (3,))
    for value in (*made.graph.graph.input, *made.graph.graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT64
    onnx.checker.check_model(made.graph, full_check=True)
    ends = ((Tensor(name=name, dtype="int64", shape=("batch", 3)),) for name in "xy")
    made.signature = Signature(inputs=next(ends), outputs=next(ends), dims={"batch": BATCH})
    made.rows = Rows({"x": np.arange(1, 25).reshape(8, 3)}, None)
    with pytest.raises(PenstockError, match=f"^{precision} finds nothing here that it could lower; export it as fp32$"):
        made.lowered(precision, tmp_path)


def test_fp16_where_every_node_would_leave_its_range_is_refused(tmp_path: Path) -> None:
    nodes = [node("Mul", ["x", "up"], ["h"], name="raise"), node("Mul", ["h", "down"], ["y"], name="lower")]
    made = net(nodes, {"up": 1e5, "down": 1e-5}, drawn(2, 32, 8), (8,))
    with pytest.raises(PenstockError, match=r"^fp16 finds nothing here that it could lower; export it as fp32$"):
        made.lowered("fp16", tmp_path)
    judge = made.judge(1.0, emulation.emulated)
    wish = Wish("bf16", "auto", judge, judge, budget="any", ranking="an error", say=made.said.append)
    found = lower(made.graph, made.signature, made.rows, None, wish, "tensorrt", tmp_path)
    assert "bf16" in precisions.of_graph(found.graph.graph).values()


def test_bf16_for_onnxruntime_of_a_pool_alone_is_refused_and_for_tensorrt_it_is_lowered(tmp_path: Path) -> None:
    made = net([node("GlobalAveragePool", ["x"], ["y"], name="pool")], {}, drawn(3, 8, 3, 4, 4), (3, 1, 1))
    judge = made.judge(1.0, emulation.emulated)
    wish = Wish("bf16", "auto", judge, judge, budget="any", ranking="an error", say=made.said.append)
    with pytest.raises(PenstockError, match=r"^bf16 finds nothing here that it could lower"):
        lower(made.graph, made.signature, made.rows, None, wish, "onnxruntime", tmp_path)
    assert lower(made.graph, made.signature, made.rows, None, wish, "tensorrt", tmp_path).plan.kept == ()
