"""Lowering: a float32 graph in a precision, for a runtime, with as few nodes kept in float32 as the budget takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import penstock
from penstock import cache
from penstock.arrays import take
from penstock.datasets import Rows
from penstock.errors import PenstockError, Say, require
from penstock.export import protos
from penstock.export.precision import budget, calibration, dynamic, qdq
from penstock.export.precision.budget import Judge, Trials
from penstock.export.precision.costs import Costs, costs
from penstock.export.precision.dynamic import ForDynamic
from penstock.export.precision.half import ForHalf, for_half
from penstock.export.precision.int8 import ForOnnxruntime
from penstock.export.precision.tensorrt import ForTensorrt
from penstock.inspection import precisions
from penstock.receipt import Calibration, Plan
from penstock.signature import Signature

Target = Literal["onnxruntime", "tensorrt"]
AUTO = "auto"
# What static scales are measured by where the user does not say.
_METHODS = {("int8", "onnxruntime"): "max", ("int8", "tensorrt"): "entropy", ("fp8", "tensorrt"): "max"}
# What has no bf16 kernels: of onnxruntime's CUDA provider, which refuses the graph (seen with 1.31 on an H100), and of
# TensorRT's parser (seen with TensorRT for RTX 1.7.1).
_NO_BF16: dict[Target, tuple[str, ...]] = {
    "onnxruntime": ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "LSTM", "GRU", "RNN"),
    "tensorrt": ("HardSwish",),
}
_SHOWN = 5
# Under this share of the multiply-adds a lowering is told to be of little use.
_LITTLE = 0.1


@dataclass(frozen=True)
class Lowered:
    """A graph in lower precision, what its scales come from, which nodes stayed, and what a receipt notes of it."""

    graph: Any
    calibration: Calibration | None
    plan: Plan
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Wish:
    """What a lowering is to be: its precision, the calibration method, and who judges it.

    `judge` sees all samples, `quick` few of them; `budget` and `ranking` are what they judge by, in words.
    """

    precision: str
    method: str
    judge: Judge
    quick: Judge
    budget: str
    ranking: str
    say: Say


def lower(
    graph: Any, signature: Signature, samples: Rows, real: Rows | None, wish: Wish, target: Target, work: Path
) -> Lowered:
    """Lower a float32 ONNX model, keeping in float32 what the budget asks for.

    Args:
        graph: `onnx.ModelProto`; left as it is.
        signature: its inputs and outputs.
        samples: what it is judged on, synthetic ones where there are no others.
        real: what scales may be measured on, or None.
        wish: the precision and the rest.
        target: the runtime that it is for.
        work: a folder for intermediate files.

    Raises:
        PenstockError: nothing can be lowered, no samples to measure scales on, or nothing is within the budget.
    """
    source, least = qdq.named(graph), signature.min_batch
    counted = costs(source, take(samples.inputs, slice(least)), least, work)
    counted = replace(counted, width=2 if wish.precision in ("fp16", "bf16") else 1)
    method = _method(wish.precision, wish.method, target, source, counted)
    lowering = _lowering(source, signature, samples, real, wish.precision, target, method, work)
    key = _key(source, signature, wish.precision, target, method, samples, real)
    trials = Trials(lowering, wish.judge, cache.key(key, wish.budget))
    quick = Trials(lowering, wish.quick, cache.key(key, wish.ranking, "ranking"))
    plan = budget.plan(lowering, trials, quick, counted, wish.say)
    notes: dict[str, Any] = {}
    if isinstance(lowering, ForHalf) and lowering.headroom:
        notes["headroom"] = [str(item) for item in lowering.headroom]
        _tell_headroom(lowering, target, wish.say)
    made = lowering.graph(plan.kept)
    held = precisions.of_graph(made.graph)
    low = {name for name, precision in held.items() if precision not in ("fp32", "fp64")}
    if not low:
        raise PenstockError(f"{wish.precision} finds nothing here that it could lower; export it as fp32")
    notes["lowered_nodes"] = len(low)
    if counted.operations and plan.lowered_operations < _LITTLE:
        wish.say(f"note: {wish.precision} lowers only {plan.lowered_operations:.1%} of the multiply-adds")
    # Between pairs of its neighbours a node computes as they do, whatever was planned of it.
    plan = plan.model_copy(update={"kept": tuple(name for name in plan.kept if name not in low)})
    if plan.points[1:]:
        _tell(plan, wish.say)
    if method == dynamic.METHOD:
        notes["rows_share_scales"] = True
    return Lowered(made, lowering.record, plan, notes)


def _lowering(
    source: Any,
    signature: Signature,
    samples: Rows,
    real: Rows | None,
    precision: str,
    target: Target,
    method: str,
    work: Path,
) -> ForHalf | ForDynamic | ForOnnxruntime | ForTensorrt:
    least = signature.min_batch
    if precision in ("fp16", "bf16"):
        without = _NO_BF16[target] if precision == "bf16" else ()
        return for_half(source, precision, signature, real or samples, work, without)
    if (precision, target) == ("int8", "onnxruntime"):
        qdq.refuse_reaching_in(source, precision)
    if method == dynamic.METHOD:
        return ForDynamic(source, work)
    if real is None:
        raise PenstockError(needs_samples(precision))
    if target == "tensorrt":
        usual = signature.dims[str(signature.batch)].opt
        return ForTensorrt(source, precision, real, method, least, usual, work)
    return ForOnnxruntime(source, real, method, least, work)


def needs_samples(precision: str) -> str:
    """What is missing where scales are to be measured and there is nothing to measure them on."""
    return (
        f"--precision {precision} needs real samples to measure its scales on, and the checkpoint holds none: give "
        "them with --data FILE.npz (one array for each input, by name) or a folder of pictures; --data random takes "
        "random numbers, and the receipt will say so"
    )


def scaled_before(graph: Any, signature: Signature, samples: Rows, method: str, work: Path) -> bool:
    """Whether int8 by onnxruntime measures its scales on samples, and not in each run.

    Args:
        graph: `onnx.ModelProto`, float32; left as it is.
        signature: its inputs and outputs.
        samples: what its cost is counted on.
        method: the calibration that was asked for.
        work: a folder for intermediate files.
    """
    source = qdq.named(graph)
    counted = costs(source, take(samples.inputs, slice(signature.min_batch)), signature.min_batch, work)
    return _method("int8", method, "onnxruntime", source, counted) != dynamic.METHOD


def _method(precision: str, method: str, target: Target, source: Any, counted: Costs) -> str:
    """How scales are found: as the user says; else dynamically where products outweigh convolutions on the CPU."""
    if method == dynamic.METHOD:
        if (precision, target) != ("int8", "onnxruntime"):
            raise PenstockError(f"--calibration dynamic: is of int8 by onnxruntime, not of {precision} for {target}")
        return method
    if method != AUTO:
        calibration.check_method(method)
        return method
    if precision == "int8" and target == "onnxruntime":
        convolutions = [node.name for node in source.graph.node if node.op_type.startswith("Conv")]
        if dynamic.products(source) and counted.share(convolutions) < 0.5:
            return dynamic.METHOD
    return _METHODS.get((precision, target), "")


def _key(
    source: Any,
    signature: Signature,
    precision: str,
    target: Target,
    method: str,
    samples: Rows,
    real: Rows | None,
) -> str:
    """The digest of all that a judgement hangs on but its budget.

    The signature is part of it: its ranges decide what is tried beyond the samples, and which inputs are scaled up.
    """
    light, weights = protos.unloaded(source)
    digests = [tensor.raw_data for tensor in weights]
    rows = [calibration.digest(rows) for rows in (samples, real) if rows is not None]
    model = light.SerializeToString(deterministic=True)
    versions = [require(name, "export", "lowering").__version__ for name in ("onnxruntime", "modelopt")]
    contract = signature.model_dump_json()
    return cache.key(penstock.__version__, *versions, contract, model, *digests, precision, target, method, *rows)


def _tell_headroom(lowering: ForHalf, target: Target, say: Say) -> None:
    """Say which tensors leave fp16's range, and that bf16 would hold them."""
    shown = [str(item) for item in lowering.headroom[:_SHOWN]]
    more = len(lowering.headroom) - len(shown)
    for line in [*shown, *([f"{more} more tensors"] if more > 0 else [])]:
        say(f"fp16: {line}")
    where = "--precision bf16" if target == "tensorrt" else "--precision bf16, on GPUs,"
    say(
        f"fp16: {len(lowering.unsafe)} nodes that touch these stay in float32; {where} has float32's range and keeps "
        "none for that"
    )


def _tell(plan: Plan, say: Say) -> None:
    """Print the curve: nodes kept, the error with them, and what is lowered then."""
    for line in budget.curve(plan.points):
        say(line)
    say(f"kept in float32: {', '.join(plan.kept)}")
