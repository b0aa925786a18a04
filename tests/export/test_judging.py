"""Judging: a lowered graph is judged as the gate will judge it, by its error, its small columns, and its accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from penstock import artifact, checkpoint, evaluation, runtimes
from penstock.checkpoint import Override
from penstock.data.specs import Digits
from penstock.datasets import Rows
from penstock.errors import GateError, PenstockError
from penstock.evaluation import Score
from penstock.export import gate, limits, pipeline, proving, verification
from penstock.export import graph as graphs
from penstock.export.judging import Judge
from penstock.export.limits import Accuracy, Budget
from penstock.export.noise import Noise
from penstock.export.pipeline import Request
from penstock.export.precision.budget import Judgement
from penstock.export.proving import Terms
from penstock.export.reference import Reference
from penstock.parity import Columns, Limits
from penstock.runtimes.torch import TorchRunner
from penstock.signature import Dim, Signature, Tensor

node = helper.make_node
BATCH = Dim(opt=4, max=16)
SIZES = (1, 2, 4, 7, 8, 16)
SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 6)),),
    outputs=(Tensor(name="y", shape=("batch", 4)), Tensor(name="z", shape=("batch", 4))),
    dims={"batch": BATCH},
)
X = np.random.default_rng(0).standard_normal((48, 6)).astype(np.float32)
TIGHT = Limits(max_error=1e-4, min_agreement=0.9)
LOOSE = Limits(max_error=10, min_agreement=0)


class Net(nn.Module):
    """Scores, and twice the scores."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.two(torch.relu(self.one(x)))
        return y, 2 * y


NET = Net().eval()
WEIGHTS = {name: tensor.detach().numpy() for name, tensor in NET.named_parameters()}


def graph(
    more: Sequence[Any] = (), weights: dict[str, Any] | None = None, answers: Sequence[str] = ("y", "z"), **changed: Any
) -> Any:
    """The net as an ONNX model, with other weights; the nodes of `more` make y and z of the scores `s`."""
    given = {name.replace("_", "."): array for name, array in changed.items()}
    held = {**WEIGHTS, "twice": np.float32(2), **given, **(weights or {})}
    nodes = [
        node("Gemm", ["x", "one.weight", "one.bias"], ["a"], transB=1),
        node("Relu", ["a"], ["b"]),
        node("Gemm", ["b", "two.weight", "two.bias"], ["s"], transB=1),
        *(more or [node("Identity", ["s"], ["y"]), node("Mul", ["s", "twice"], ["z"])]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", None]) for name in ("x", *answers)]
    made = helper.make_graph(
        nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(array, name) for name, array in held.items()]
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def reference(module: nn.Module = NET, signature: Signature = SIGNATURE, rows: Any = X) -> Reference:
    held = Rows({"x": rows}, None)
    outputs = TorchRunner(module, signature).run(held.inputs)
    noise = Noise(by="float64", values={tensor.name: 1e-7 for tensor in signature.outputs})
    return Reference(module, signature, held, outputs, len(rows), True, noise)


REFERENCE = reference()
Y = REFERENCE.outputs["y"]
TIGHT_BUDGET = Budget(dict.fromkeys("yz", TIGHT))
LOOSE_BUDGET = Budget(dict.fromkeys("yz", LOOSE))


def off(got: Any, expected: Any) -> float:
    """The relative L2 error, in float64."""
    return float(np.linalg.norm(np.float64(got) - expected) / np.linalg.norm(np.float64(expected)))


def worst(got: Any, expected: Any) -> float:
    """The largest error of any batch that the gate runs: the first and last rows in each size, and all of them."""
    parts = [slice(0, size) for size in SIZES[:-1]] + [slice(48 - size, 48) for size in SIZES[:-1]] + [slice(48)]
    return max(off(got[part], expected[part]) for part in parts)


# --- As the gate would -----------------------------------------------------------------------------------------------


def stopped(made: Any, budget: Budget, folder: Path, held: Reference = REFERENCE) -> str:
    """What the gate itself says of a graph, but for its first words and its advice."""
    path = graphs.write(made, folder)[0]
    with runtimes.load("onnxruntime", path, held.signature) as runner, pytest.raises(GateError) as caught:
        gate.verify(runner, held.rows, held.outputs, budget.limits, BATCH, budget.columns, samples=held.samples)
    return str(caught.value).removeprefix(f"{gate.STOPPED}: ").partition("; nothing was published")[0]


def faulty_at(rows: int, by: float, **changed: Any) -> Any:
    """A graph that answers as it would but for one size of the batch, in which every score is off by `by`."""
    more = [
        node("Shape", ["x"], ["shape"], start=0, end=1),
        node("Equal", ["shape", "rows"], ["is"]),
        node("Cast", ["is"], ["one"], to=TensorProto.FLOAT),
        node("Mul", ["one", "by"], ["fault"]),
        node("Add", ["s", "fault"], ["y"]),
        node("Mul", ["s", "twice"], ["z"]),
    ]
    return graph(more, {"rows": np.array([rows]), "by": np.float32(by)}, **changed)


def test_the_source_s_own_graph_is_within_its_budget() -> None:
    found = Judge(REFERENCE, TIGHT_BUDGET, "int8")(graph())
    assert found.error < 1e-6
    assert (found.drop, found.failure) == (None, None)


@pytest.mark.parametrize("change", [1e-3, 0.1, 5.0])
def test_a_changed_graph_fails_with_the_gate_s_own_words(tmp_path: Path, change: float) -> None:
    made = graph(two_bias=WEIGHTS["two.bias"] + np.float32(change))
    found = Judge(REFERENCE, TIGHT_BUDGET, "int8")(made)
    assert found.failure == stopped(made, TIGHT_BUDGET, tmp_path)
    assert found.failure.startswith("output 'y' at batch 1: relative L2 error ")
    assert found.error == pytest.approx(worst(Y + np.float32(change), Y), rel=1e-4)


@pytest.mark.parametrize("rows", SIZES)
def test_a_fault_in_a_single_batch_size_is_seen_there_as_at_the_gate(tmp_path: Path, rows: int) -> None:
    made = faulty_at(rows, 0.5)
    found = Judge(REFERENCE, TIGHT_BUDGET, "int8")(made)
    assert found.failure == stopped(made, TIGHT_BUDGET, tmp_path)
    assert f"output 'y' at batch {rows}: " in found.failure
    parts = [slice(48)] if rows == 16 else [slice(rows), slice(48 - rows, 48)]
    assert found.error == pytest.approx(max(off(Y[part] + np.float32(0.5), Y[part]) for part in parts), rel=1e-4)


def test_the_error_is_the_worst_there_is_and_the_failure_the_first() -> None:
    made = faulty_at(7, 5.0, two_bias=WEIGHTS["two.bias"] + np.float32(0.1))
    found = Judge(REFERENCE, TIGHT_BUDGET, "int8")(made)
    first, most = (off(Y[part] + np.float32(by), Y[part]) for part, by in ((slice(1), 0.1), (slice(7), 5.1)))
    assert found.failure == f"output 'y' at batch 1: relative L2 error {first:.3g} is over the limit of 0.0001"
    assert found.error == pytest.approx(max(most, off(Y[-7:] + np.float32(5.1), Y[-7:])), rel=1e-4)


def test_other_sizes_of_dimensions_are_judged_too() -> None:
    """A graph that is right at the samples' own length alone."""

    class Total(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(1)

    signature = Signature(
        inputs=(Tensor(name="x", shape=("batch", "seq")),),
        outputs=(Tensor(name="y", shape=("batch", "seq")),),
        dims={"batch": BATCH, "seq": Dim(min=2, opt=6, max=9)},
    )
    held = reference(Total(), signature)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "seq"]) for name in "xy"]
    weights = [numpy_helper.from_array(np.array(value), name) for name, value in (("axis", 1), ("six", [6]))]
    nodes = [
        node("CumSum", ["x", "axis"], ["c"]),
        node("Shape", ["x"], ["seq"], start=1, end=2),
        node("Equal", ["seq", "six"], ["is"]),
        node("Cast", ["is"], ["right"], to=TensorProto.FLOAT),
        node("Mul", ["c", "right"], ["y"]),
    ]
    made = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], weights),
        opset_imports=[helper.make_opsetid("", 19)],
        ir_version=9,
    )
    found = Judge(held, Budget({"y": TIGHT}), "int8")(made)
    assert found.error == pytest.approx(1.0)
    assert found.failure == "output 'y' at seq = 2: relative L2 error 1 is over the limit of 0.0001"


def test_every_output_is_held_to_its_own_limit() -> None:
    made = graph(twice=np.float32(2.2))  # of z alone: a tenth more
    loose = Budget({"y": TIGHT, "z": Limits(max_error=0.11, min_agreement=0.9)})
    found = Judge(REFERENCE, loose, "int8")(made)
    assert (found.failure, found.error) == (None, pytest.approx(0.1, rel=1e-4))
    tight = Budget({"y": TIGHT, "z": Limits(max_error=0.09, min_agreement=0.9)})
    said = "output 'z' at batch 1: relative L2 error 0.1 is over the limit of 0.09"
    assert Judge(REFERENCE, tight, "int8")(made).failure == said


def test_too_many_flipped_answers_are_a_failure_within_the_limit_of_errors() -> None:
    turned = {f"two.{name}": np.roll(WEIGHTS[f"two.{name}"], 1, 0) for name in ("weight", "bias")}
    flipped = np.mean(np.roll(Y, 1, 1).argmax(1) == Y.argmax(1))
    budget = Budget(dict.fromkeys("yz", Limits(max_error=10, min_agreement=0.5)))
    found = Judge(REFERENCE, budget, "int8")(graph(weights=turned))
    assert found.failure == (f"output 'y' at batch 16: top-1 agreement {flipped:.2%} is under the limit of 50.00%")


# --- Small columns ---------------------------------------------------------------------------------------------------


class Stamped(nn.Module):
    """The scores, the first of them in the thousands."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = NET(x)[0] * torch.tensor([1e5, 1.0, 1.0, 1.0])
        return y, 2 * y


def stamped(scale: Sequence[float]) -> Any:
    more = [node("Mul", ["s", "scale"], ["y"]), node("Mul", ["y", "twice"], ["z"])]
    return graph(more, {"scale": np.array(scale, np.float32)})


SMALL = Columns(output="y", axis=1, places=(1, 2, 3))


def test_small_columns_that_are_lost_are_a_failure_though_the_output_is_as_good_as_right(tmp_path: Path) -> None:
    held, made = reference(Stamped()), stamped([1e5, 0, 0, 0])
    assert Judge(held, LOOSE_BUDGET, "int8")(made) == Judgement(
        pytest.approx(worst(held.outputs["y"] * np.float32([1, 0, 0, 0]), held.outputs["y"]), rel=1e-3), None, None
    )
    budget = Budget(LOOSE_BUDGET.limits, [(SMALL, 0.5)])
    found = Judge(held, budget, "int8")(made)
    assert found.error < 1e-3
    assert found.failure == (
        f"{SMALL}, small beside the others: relative L2 error 1 of their own is over the limit of 0.5"
    )
    assert found.failure == stopped(made, budget, tmp_path, held)


@pytest.mark.parametrize(("factor", "fails"), [(0.6, False), (0.4, True)])
def test_small_columns_may_lose_what_their_own_limit_takes(factor: float, fails: bool) -> None:
    held, budget = reference(Stamped()), Budget(LOOSE_BUDGET.limits, [(SMALL, 0.5)])
    found = Judge(held, budget, "int8")(stamped([1e5, factor, factor, factor]))
    assert (found.failure is not None) is fails


@pytest.mark.parametrize(
    ("precision", "accepted", "limit"),
    [
        ("int8", None, 0.5),
        ("fp16", 0.7, 0.7),
        ("fp32", None, 1e-3),
        ("fp32", 0.01, 0.01),
    ],
)
def test_what_small_columns_must_keep_hangs_on_the_precision_and_what_the_user_accepts(
    precision: str, accepted: float | None, limit: float
) -> None:
    held = reference(Stamped())
    held = replace(held, noise=held.noise.model_copy(update={"columns": ((SMALL, 1e-7),)}))
    assert limits.of_columns(precision, held, accepted) == [(SMALL, limit)]
    noisy = replace(held, noise=held.noise.model_copy(update={"columns": ((SMALL, 0.05),)}))
    assert limits.of_columns(precision, noisy, accepted) == [(SMALL, 32 * 0.05)]


def test_columns_of_an_output_within_one_are_held_in_float32_alone() -> None:
    held = replace(REFERENCE, outputs={"y": np.tanh(Y)})
    held = replace(held, noise=held.noise.model_copy(update={"columns": ((SMALL, 1e-7),)}))
    assert limits.of_columns("int8", held) == []
    assert limits.of_columns("fp32", held) == [(SMALL, 1e-3)]


# --- Rankings --------------------------------------------------------------------------------------------------------


def test_a_ranking_is_the_share_of_what_is_allowed_on_the_first_rows() -> None:
    budget = Budget({"y": Limits(max_error=0.1, min_agreement=1), "z": Limits(max_error=0.5, min_agreement=1)})
    found = Judge(REFERENCE, budget, "int8", few=True)(graph(twice=np.float32(2.2)))
    assert found == Judgement(pytest.approx(0.1 / 0.5, rel=1e-4), None, None)
    made = graph(two_bias=WEIGHTS["two.bias"] + np.float32(0.1))
    share = off(Y[:32] + np.float32(0.1), Y[:32]) / 0.1
    assert Judge(REFERENCE, budget, "int8", few=True)(made) == Judgement(pytest.approx(share, rel=1e-4), None, None)


def test_a_ranking_looks_at_small_columns_and_not_at_labels() -> None:
    held = reference(Stamped())
    labelled = Accuracy(Rows({"x": X}, np.zeros(48, np.int64)), Score(48, 48), 0)
    budget = Budget(LOOSE_BUDGET.limits, [(SMALL, 0.25)], labelled)
    found = Judge(held, budget, "int8", few=True)(stamped([1e5, 0.9, 0.9, 0.9]))
    assert found == Judgement(pytest.approx(0.1 / 0.25, rel=1e-4), None, None)


def test_a_graph_that_is_right_ranks_last_whatever_the_limit() -> None:
    for limit in (0.0, 1e-4, 1.0):
        budget = Budget(dict.fromkeys("yz", Limits(max_error=limit, min_agreement=1)))
        right, wrong = (
            Judge(REFERENCE, budget, "int8", few=True)(made).error
            for made in (graph(), graph(two_bias=WEIGHTS["two.bias"] + np.float32(0.01)))
        )
        assert right < wrong < float("inf")


# --- Graphs that do not run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("few", [False, True], ids=["all", "few"])
@pytest.mark.parametrize(
    "made",
    [
        graph(one_weight=WEIGHTS["one.weight"].T.copy()),
        graph([node("Nonsense", ["s"], ["y"]), node("Mul", ["s", "twice"], ["z"])]),
        graph([node("Identity", ["s"], ["p"]), node("Mul", ["s", "twice"], ["q"])], answers=("p", "q")),
        graph([node("Reshape", ["s", "four"], ["y"]), node("Mul", ["s", "twice"], ["z"])], {"four": np.array([4, 4])}),
    ],
    ids=["other sizes", "no such operator", "other outputs", "one batch alone"],
)
def test_a_graph_that_cannot_be_run_is_infinitely_far_off_and_says_why_in_a_line(made: Any, few: bool) -> None:
    found = Judge(REFERENCE, LOOSE_BUDGET, "int8", few=few)(made)
    assert (found.error, found.drop) == (float("inf"), None)
    assert found.failure is not None
    assert found.failure.startswith("it cannot be run: ")
    assert len(found.failure) > 30
    assert "\n" not in found.failure


def test_a_graph_that_answers_no_numbers_is_infinitely_far_off() -> None:
    found = Judge(REFERENCE, LOOSE_BUDGET, "int8")(graph(two_bias=np.full(4, np.nan, np.float32)))
    assert found.error == float("inf")
    assert found.failure == "output 'y' at batch 1: relative L2 error inf is over the limit of 10"


# --- Types that no kernel takes --------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(-1.3, 1.7, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


ONE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 6)),),
    outputs=(Tensor(name="y", shape=("batch", 6)),),
    dims={"batch": BATCH},
)
SCALE = Scaled().scale.detach().numpy()


def scaled(nodes: list[Any], weights: list[Any]) -> Any:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 6]) for name in "xy"]
    return helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], weights),
        opset_imports=[helper.make_opsetid("", 19)],
        ir_version=9,
    )


def halved(kind: int, dtype: Any) -> tuple[Any, Any, Any]:
    """The product in a half precision: as a graph, and by numpy; and the weights as that precision has them."""
    low = SCALE.astype(dtype)
    nodes = [
        node("Cast", ["x"], ["low"], to=kind),
        node("Mul", ["low", "scale"], ["product"]),
        node("Cast", ["product"], ["y"], to=TensorProto.FLOAT),
    ]
    wide = X.astype(dtype).astype(np.float32) * low.astype(np.float32)
    return (
        scaled(nodes, [numpy_helper.from_array(low, "scale")]),
        wide.astype(dtype).astype(np.float32),
        low.astype(np.float32),
    )


def test_bf16_which_no_kernel_takes_is_judged_by_the_rounding_of_every_operator() -> None:
    held = reference(Scaled(), ONE)
    made, rounded, _ = halved(TensorProto.BFLOAT16, ml_dtypes.bfloat16)
    error = worst(rounded, held.outputs["y"])
    enough, too_little = (Budget({"y": Limits(max_error=error * by, min_agreement=0)}) for by in (1.01, 0.99))
    assert Judge(held, enough, "bf16")(made) == Judgement(pytest.approx(error, rel=1e-3), None, None)
    found = Judge(held, too_little, "bf16")(made)
    assert found.failure is not None
    assert "relative L2 error" in found.failure


def test_fp16_is_judged_by_the_rounding_of_every_operator_which_onnxruntime_leaves_out() -> None:
    held = reference(Scaled(), ONE)
    made, rounded, low = halved(TensorProto.FLOAT16, np.float16)
    error = worst(rounded, held.outputs["y"])
    assert error > 1.2 * worst(X * low, held.outputs["y"])
    assert Judge(held, Budget({"y": LOOSE}), "fp16")(made) == Judgement(pytest.approx(error, rel=1e-3), None, None)


def test_what_overflows_in_fp16_is_an_infinite_error_though_onnxruntime_s_cpu_computes_it_in_float32() -> None:
    low = numpy_helper.from_array(np.float16(6e4), "large")
    small = numpy_helper.from_array(np.float16(1 / 6e4), "small")
    nodes = [
        node("Cast", ["x"], ["low"], to=TensorProto.FLOAT16),
        node("Mul", ["low", "large"], ["beyond"]),
        node("Mul", ["beyond", "small"], ["back"]),
        node("Cast", ["back"], ["y"], to=TensorProto.FLOAT),
    ]
    found = Judge(reference(Scaled(), ONE), Budget({"y": LOOSE}), "fp16")(scaled(nodes, [low, small]))
    assert found.error == np.inf
    assert found.failure is not None


def test_fp8_is_judged_by_the_rounding_of_its_type() -> None:
    step = np.float32(0.02)
    nodes = [
        node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "step", "zero"], ["d"]),
        node("Mul", ["d", "scale"], ["y"]),
    ]
    zero = helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0])
    weights = [numpy_helper.from_array(SCALE, "scale"), numpy_helper.from_array(step, "step"), zero]
    held = reference(Scaled(), ONE)
    rounded = (X / step).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * step * SCALE
    error = worst(rounded, held.outputs["y"])
    assert error > 0.01
    found = Judge(held, Budget({"y": LOOSE}), "fp8")(scaled(nodes, weights))
    assert found == Judgement(pytest.approx(error, rel=1e-3), None, None)


# --- Accuracy on labels ----------------------------------------------------------------------------------------------


TRUTH = np.where(np.arange(48) % 4, Y.argmax(1), 3 - Y.argmax(1))  # the source is right in three of four
TURNED = {f"two.{name}": np.roll(WEIGHTS[f"two.{name}"], 1, 0) for name in ("weight", "bias")}
SOURCE_RIGHT, TURNED_RIGHT = (float(np.mean(held.argmax(1) == TRUTH)) for held in (Y, np.roll(Y, 1, 1)))


def labelled(most_lost: float) -> Accuracy:
    return proving.accuracy(REFERENCE, Rows({"x": X}, TRUTH), most_lost)


def test_the_source_s_own_score_is_what_points_are_lost_from() -> None:
    assert SOURCE_RIGHT == 0.75
    found = labelled(1.5)
    assert (found.source, found.most_lost) == (Score(36, 48), 1.5)
    assert found.lost(Score(33, 48)) == pytest.approx(6.25)
    assert found.lost(Score(39, 48)) == pytest.approx(-6.25)


def test_too_many_lost_points_are_told_with_the_limit_and_the_samples() -> None:
    found = labelled(6.25)
    assert found.failure(6.25) is None
    assert found.failure(-3.0) is None
    said = "top-1 accuracy falls by 6.50 points from 75.00%, over --accuracy-drop 6.25 (48 labelled samples)"
    assert found.failure(6.5) == said


@pytest.mark.parametrize("few", [0, 3])
def test_a_judge_counts_right_answers_where_that_is_asked(few: int) -> None:
    lost = 100 * (SOURCE_RIGHT - TURNED_RIGHT)
    assert lost > 20
    found = Judge(REFERENCE, Budget(LOOSE_BUDGET.limits, (), labelled(lost + few)), "int8")(graph(weights=TURNED))
    assert (found.drop, found.failure) == (pytest.approx(lost), None)
    found = Judge(REFERENCE, Budget(LOOSE_BUDGET.limits, (), labelled(lost - 1)), "int8")(graph(weights=TURNED))
    assert found.drop == pytest.approx(lost)
    assert found.failure == (
        f"top-1 accuracy falls by {lost:.2f} points from 75.00%, over --accuracy-drop {lost - 1:g} "
        "(48 labelled samples)"
    )


def test_where_both_accuracy_and_error_are_over_accuracy_is_what_is_told_and_the_error_counts_too() -> None:
    lost = 100 * (SOURCE_RIGHT - TURNED_RIGHT)
    made = graph(weights=TURNED)
    over, within = (
        Judge(REFERENCE, Budget(TIGHT_BUDGET.limits, (), labelled(most)), "int8")(made) for most in (0, 100)
    )
    assert over.failure is not None
    assert over.failure.startswith("top-1 accuracy falls by ")
    assert within.failure is not None
    assert within.failure.startswith("output 'y' at batch 1: relative L2 error ")
    assert within.drop == over.drop == pytest.approx(lost)


def test_accuracy_is_asked_of_lower_precisions_and_their_other_limits_then_only_catch_what_is_broken() -> None:
    terms = Terms(REFERENCE, accuracy=labelled(1.0))
    assert terms.budget("int8").accuracy is terms.accuracy
    assert set(terms.budget("int8").limits.values()) == {Limits(max_error=1.0, min_agreement=0.5)}
    assert terms.budget("fp32") == Terms(REFERENCE).budget("fp32")
    both = Terms(REFERENCE, max_error=0.2, min_agreement=0.75, accuracy=labelled(1.0))
    assert set(both.budget("int8").limits.values()) == {Limits(max_error=0.2, min_agreement=0.75)}


def test_budgets_differ_in_words_wherever_they_differ() -> None:
    budgets = [
        TIGHT_BUDGET,
        LOOSE_BUDGET,
        Budget(TIGHT_BUDGET.limits, [(SMALL, 0.5)]),
        Budget(TIGHT_BUDGET.limits, [(SMALL, 0.25)]),
        Budget(TIGHT_BUDGET.limits, (), labelled(1.0)),
        Budget(TIGHT_BUDGET.limits, (), labelled(2.0)),
    ]
    assert len({str(budget) for budget in budgets}) == len(budgets)
    assert len({budget.ranking() for budget in budgets}) == 4  # labels do not rank


def test_budgets_of_the_same_inputs_with_other_labels_differ_in_words_though_the_score_is_the_same() -> None:
    right = Y.argmax(1) == TRUTH
    others = np.where(np.roll(right, 1), Y.argmax(1), (Y.argmax(1) + 1) % 4)
    budgets = [
        Budget(TIGHT_BUDGET.limits, (), proving.accuracy(REFERENCE, Rows({"x": X}, labels), 1.0))
        for labels in (TRUTH, TRUTH.copy(), others)
    ]
    assert {budget.accuracy.source for budget in budgets if budget.accuracy} == {Score(36, 48)}
    first, again, other = map(str, budgets)
    assert first == again != other


@pytest.mark.parametrize(("most_lost", "passes"), [(90.0, True), (5.0, False)])
def test_the_gate_counts_right_answers_of_the_file_itself(tmp_path: Path, most_lost: float, passes: bool) -> None:
    path = graphs.write(graph(weights=TURNED), tmp_path)[0]
    budget = Budget(LOOSE_BUDGET.limits, (), labelled(most_lost))
    if passes:
        kept = proving.prove(REFERENCE, "onnxruntime", path, budget, "int8").accuracy
        assert kept is not None
        assert (kept.source, kept.export, kept.samples, kept.most_lost) == (0.75, TURNED_RIGHT, 48, 90.0)
        return
    lost = 100 * (SOURCE_RIGHT - TURNED_RIGHT)
    with pytest.raises(GateError) as caught:
        proving.prove(REFERENCE, "onnxruntime", path, budget, "int8")
    assert str(caught.value) == (
        f"the gate stopped it: top-1 accuracy falls by {lost:.2f} points from 75.00%, over --accuracy-drop 5 "
        "(48 labelled samples); nothing was published under its name"
    )


# --- The whole road --------------------------------------------------------------------------------------------------


def test_accuracy_that_is_asked_for_without_labels_is_refused_with_the_way_to_give_them(
    trained: Path, tmp_path: Path
) -> None:
    rows = evaluation.held_out(Digits(), checkpoint.load(trained).card.preprocess)
    np.savez(tmp_path / "rows.npz", **rows.inputs)
    request = Request(trained, precisions=("int8",), output=tmp_path / "models", accuracy_drop=1.0)
    with pytest.raises(PenstockError) as caught:
        pipeline.export(replace(request, data=tmp_path / "rows.npz"), lambda line: None)
    text = str(caught.value)
    assert text.startswith("--accuracy-drop needs labels: an array `labels` of class numbers in the --data file")
    assert "a folder of pictures for each class" in text
    assert "--max-error sets a budget that needs none" in text
    assert "\n" not in text
    assert not (tmp_path / "models").exists()


def test_accuracy_of_a_model_that_records_no_data_is_refused_with_the_way_to_give_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(6, 4)\n")
    torch.save(nn.Linear(6, 4).state_dict(), tmp_path / "net.pth")
    override = Override(model=f"{tmp_path / 'net.py'}:net", inputs=("x:float32[batch,6]",))
    request = Request(
        tmp_path / "net.pth", precisions=("fp16",), output=tmp_path / "models", accuracy_drop=1.0, override=override
    )
    with pytest.raises(PenstockError, match=r"no data set is recorded .*give it with --data FILE\.npz"):
        pipeline.export(request, lambda line: None)
    assert not (tmp_path / "models").exists()


def test_an_export_with_an_accuracy_budget_records_both_scores_and_verifies_against_its_source(
    trained: Path, tmp_path: Path
) -> None:
    held = checkpoint.load(trained)
    rows = evaluation.held_out(held.card.dataset, held.card.preprocess, "val")
    request = Request(trained, precisions=("fp32", "int8"), output=tmp_path / "models", accuracy_drop=2.0)
    full, low = pipeline.export(request, lambda line: None)
    assert full.receipt.verification.accuracy is None
    kept = low.receipt.verification.accuracy
    assert kept is not None
    assert rows.labels is not None
    with torch.inference_mode():
        source = held.module(torch.from_numpy(rows.inputs["image"]))
    source = source["logits"] if isinstance(source, dict) else source
    with low.load() as runner:
        answers = [runner.run({"image": rows.inputs["image"][row : row + 1]})["logits"] for row in range(len(rows))]
    assert kept.samples == len(rows.labels)
    assert kept.source == np.mean(source.numpy().argmax(1) == rows.labels)
    assert kept.export == np.mean(np.concatenate(answers).argmax(1) == rows.labels)
    assert 100 * (kept.source - kept.export) <= kept.most_lost == 2.0
    assert low.receipt.plan is not None
    assert all(point.drop is not None for point in low.receipt.plan.points)

    said: list[str] = []
    verification.verify(low.folder.parent, trained, None, None, said.append)
    assert said[-1] == f"verified: {low.receipt.name} version 1 answers as its source does"
    again = artifact.read(low.folder.parent).receipt
    assert again.verification.accuracy == kept
    assert again.source.options[again.source.options.index("--accuracy-drop") + 1] == "2.0"
