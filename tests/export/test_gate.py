"""The gate: what leaves its limits, or crashes, is stopped with the output, the batch and the figure."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock.datasets import Rows
from penstock.errors import GateError, PenstockError
from penstock.export import gate, limits, steadiness
from penstock.export.noise import Noise
from penstock.export.reference import Extreme, Reference
from penstock.parity import Limits
from penstock.runtimes import BaseRunner
from penstock.runtimes.torch import TorchRunner
from penstock.signature import Arrays, Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 6)),),
    outputs=(Tensor(name="logits", shape=("batch", 4)),),
    dims={"batch": Dim(opt=4, max=16)},
)
FP32 = Limits(max_error=1e-4, min_agreement=0.995)
Change = Callable[[dict[str, Any]], dict[str, Any]]


def source() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


BATCH = SIGNATURE.dims["batch"]
ROWS = Rows({"x": np.random.default_rng(0).standard_normal((48, 6)).astype(np.float32)}, None)
REFERENCE = TorchRunner(source(), SIGNATURE).run(ROWS.inputs)


class Changed(BaseRunner):
    """The source, with its answers changed on the way out; remembers its batches."""

    def __init__(self, change: Change = lambda answer: answer, after: int = 0) -> None:
        super().__init__(SIGNATURE)
        self.inner, self.change, self.after = TorchRunner(source(), SIGNATURE), change, after
        self.batches: list[int] = []

    def run(self, feeds: Arrays) -> dict[str, Any]:
        self.batches.append(len(feeds["x"]))
        answer = self.inner.run(feeds)
        return self.change(answer) if len(self.batches) > self.after else answer


def verify(runner: Any, limits: Limits = FP32, batch: Dim = BATCH) -> Any:
    whole = len(ROWS) - len(ROWS) % batch.max
    reference = {name: array[:whole] for name, array in REFERENCE.items()}
    return gate.verify(runner, ROWS.take(whole), reference, {"logits": limits}, batch, samples=whole)


def stopped(runner: Any, limits: Limits = FP32) -> str:
    with pytest.raises(GateError) as caught:
        verify(runner, limits)
    return str(caught.value)


def test_the_source_itself_passes_with_its_figures() -> None:
    (found,) = verify(Changed())
    assert found.output == "logits"
    assert found.rel_l2 < 1e-6
    assert found.agreement == 1.0


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (5, (1, 2, 3, 5)),
        (6, (1, 2, 3, 6)),
        (7, (1, 2, 4, 7)),
        (16, (1, 2, 7, 8, 16)),
    ],
)
def test_batches_of_one_two_an_odd_number_half_and_the_most_are_run(most: int, sizes: tuple[int, ...]) -> None:
    runner, batch = Changed(), Dim(opt=1, max=most)
    assert gate.sizes(batch) == sizes
    verify(runner, batch=batch)
    assert set(sizes) == set(runner.batches)


@pytest.mark.parametrize(
    ("least", "most", "sizes"),
    [(8, 8, (8,)), (8, 9, (8, 9)), (4, 16, (4, 5, 7, 10, 16)), (7, 16, (7, 8, 11, 16)), (2, 3, (2, 3))],
)
def test_no_batch_is_run_that_the_range_excludes(least: int, most: int, sizes: tuple[int, ...]) -> None:
    runner, batch = Changed(), Dim(min=least, opt=least, max=most)
    assert gate.sizes(batch) == sizes
    verify(runner, batch=batch)
    assert set(runner.batches) == set(sizes)


def test_the_usual_batch_is_among_those_that_are_run() -> None:
    runner = Changed()
    verify(runner, batch=Dim(opt=13, max=16))
    assert set(runner.batches) == {1, 2, 7, 8, 13, 16}


@pytest.mark.parametrize("least", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("more", [3, 4, 5, 6])
def test_an_odd_batch_larger_than_one_is_always_among_them(least: int, more: int) -> None:
    batch = Dim(min=least, opt=least, max=least + more)
    sizes = gate.sizes(batch)
    assert {batch.min, batch.min + 1, batch.max} <= set(sizes)
    assert any(size % 2 and size > 1 for size in sizes)
    assert all(batch.min <= size <= batch.max for size in sizes)


def test_every_row_is_run_at_the_largest_batch() -> None:
    runner = Changed()
    verify(runner)
    assert runner.batches[-3:] == [16, 16, 16]


@pytest.mark.parametrize("scale", [1e-3, 1e-1, 10.0])
def test_perturbed_weights_are_stopped(scale: float) -> None:
    module = copy.deepcopy(source())
    with torch.no_grad():
        module[2].weight += scale * torch.randn(4, 16, generator=torch.Generator().manual_seed(1))  # type: ignore[index]
    message = stopped(TorchRunner(module, SIGNATURE))
    for part in (
        "output 'logits'",
        "at batch 1",
        "relative L2 error",
        "limit of 0.0001",
        "--max-error",
        "nothing was published",
    ):
        assert part in message


def test_weights_perturbed_within_the_limit_pass_with_the_figure_recorded() -> None:
    module = copy.deepcopy(source())
    with torch.no_grad():
        module[2].bias += 1e-3  # type: ignore[index]
    (found,) = verify(TorchRunner(module, SIGNATURE), Limits(max_error=0.01, min_agreement=0.9))
    assert 1e-4 < found.rel_l2 < 0.01


def at(row: int, value: float) -> Change:
    def change(answer: dict[str, Any]) -> dict[str, Any]:
        logits = answer["logits"].copy()
        logits[row, 0] = value
        return {"logits": logits}

    return change


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, -1])
def test_one_number_that_is_none_is_stopped_whatever_the_limits(row: int, value: float) -> None:
    assert "relative L2 error inf" in stopped(Changed(at(row, value)), Limits(max_error=1e300, min_agreement=0.0))


def test_a_fault_in_the_last_batch_alone_is_seen() -> None:
    runs = Changed()
    verify(runs)
    message = stopped(Changed(at(-1, 50.0), after=len(runs.batches) - 1))
    assert "at batch 16" in message


def test_a_fault_at_the_largest_batch_alone_is_seen() -> None:
    def only_large(answer: dict[str, Any]) -> dict[str, Any]:
        return at(3, 9.0)(answer) if len(answer["logits"]) == 16 else answer

    assert "at batch 16" in stopped(Changed(only_large))


def test_a_fault_at_an_odd_batch_alone_is_seen() -> None:
    def only_odd(answer: dict[str, Any]) -> dict[str, Any]:
        return at(0, 9.0)(answer) if len(answer["logits"]) == 7 else answer

    assert "at batch 7" in stopped(Changed(only_odd))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda answer: {"scores": answer["logits"]}, "outputs are scores; they must be logits"),
        (lambda answer: {**answer, "extra": answer["logits"]}, "outputs are logits, extra; they must be logits"),
        (lambda answer: {}, "they must be logits"),
        (lambda answer: {"logits": answer["logits"][:, :3]}, "has shape [1, 3]; it must be [1, 4]"),
        (lambda answer: {"logits": answer["logits"].T}, "has shape [4, 1] for 1 rows"),
        (lambda answer: {"logits": answer["logits"][:0]}, "has shape [0, 4] for 1 rows"),
        (lambda answer: {"logits": None}, "at batch 1"),
    ],
    ids=["renamed", "extra", "none", "narrow", "turned", "no-rows", "no-array"],
)
def test_outputs_that_are_not_the_sources_are_stopped(change: Change, said: str) -> None:
    message = stopped(Changed(change))
    assert "at batch 1" in message
    assert said in message


def test_of_an_error_of_many_lines_the_last_is_told() -> None:
    def fail(answer: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("Traceback of TorchScript\n  at line 3\n\nRuntimeError: sizes differ\n")

    assert stopped(Changed(fail)) == "the gate stopped it at batch 1: RuntimeError: RuntimeError: sizes differ"


@pytest.mark.parametrize("error", [RuntimeError("device lost"), MemoryError("no room"), KeyError("logits")])
def test_a_runner_that_raises_is_a_failure_with_its_reason(error: Exception) -> None:
    def fail(answer: dict[str, Any]) -> dict[str, Any]:
        raise error

    message = stopped(Changed(fail))
    assert "at batch 1" in message
    assert f"{type(error).__name__}: {error}" in message


def near_ties(rows: int, flipped: int) -> tuple[BaseRunner, Rows, dict[str, Any]]:
    """Rows whose two best classes differ by a hair; the runner has the two exchanged in the first `flipped`."""
    reference = np.tile(np.array([[1.0, 1.0 + 1e-6]], np.float64), (rows, 1))
    got = reference.copy()
    got[:flipped] = got[:flipped, ::-1]
    signature = Signature(
        inputs=(Tensor(name="i", dtype="int64", shape=("batch",)),),
        outputs=(Tensor(name="logits", dtype="float64", shape=("batch", 2)),),
        dims={"batch": Dim(opt=4, max=8)},
    )

    class Table(BaseRunner):
        def run(self, feeds: Arrays) -> dict[str, Any]:
            return {"logits": got[np.asarray(feeds["i"])]}

    return Table(signature), Rows({"i": np.arange(rows)}, None), {"logits": reference}


def test_agreement_is_judged_over_all_rows_not_batch_by_batch() -> None:
    limits = Limits(max_error=1e-3, min_agreement=0.99)
    runner, rows, reference = near_ties(200, flipped=2)
    (found,) = gate.verify(runner, rows, reference, {"logits": limits}, Dim(opt=4, max=8), samples=200)
    assert found.agreement == 0.99


def test_one_flip_too_many_over_all_rows_is_stopped() -> None:
    runner, rows, reference = near_ties(200, flipped=3)
    limits = Limits(max_error=1e-3, min_agreement=0.99)
    with pytest.raises(GateError) as caught:
        gate.verify(runner, rows, reference, {"logits": limits}, Dim(opt=4, max=8), samples=200)
    for part in ("'logits'", "top-1 agreement 98.50%", "limit of 99.00%", "--min-agreement"):
        assert part in str(caught.value)


def test_rows_that_fill_up_a_batch_count_once() -> None:
    runner, rows, reference = near_ties(100, flipped=2)
    again = np.arange(128) % 100  # the two that flip are among the first
    filled, expected = rows.inputs["i"][again], {"logits": reference["logits"][again]}
    limits = Limits(max_error=1e-3, min_agreement=0.98)
    (found,) = gate.verify(
        runner, Rows({"i": filled}, None), expected, {"logits": limits}, Dim(opt=4, max=64), samples=100
    )
    assert found.agreement == 0.98


def test_each_output_keeps_limits_of_its_own() -> None:
    signature = SIGNATURE.model_copy(
        update={"outputs": (Tensor(name="near", shape=("batch", 4)), Tensor(name="far", shape=("batch", 4)))}
    )

    class Shifted(BaseRunner):
        def run(self, feeds: Arrays) -> dict[str, Any]:
            x = np.asarray(feeds["x"])[:, :4]
            return {"near": x * np.float32(1 + 1e-3), "far": x * np.float32(1 + 1e-2)}

    x = ROWS.inputs["x"][:, :4]
    expected = {"near": x, "far": x}
    wide = {"near": Limits(max_error=2e-3, min_agreement=1), "far": Limits(max_error=2e-2, min_agreement=1)}
    found = gate.verify(Shifted(signature), ROWS, expected, wide, BATCH, samples=len(ROWS))
    assert {item.output: round(item.rel_l2, 4) for item in found} == {"near": 1e-3, "far": 1e-2}
    with pytest.raises(GateError, match=r"output 'far' at batch 1: relative L2 error 0.01 is over the limit of 0.002"):
        gate.verify(Shifted(signature), ROWS, expected, dict.fromkeys(wide, wide["near"]), BATCH, samples=len(ROWS))


def test_every_precision_has_limits_that_tighten_with_it() -> None:
    order = ("fp32", "tf32", "fp16", "bf16", "int8", "int8-fp16", "fp8")
    assert tuple(limits.LIMITS) == order
    errors = [limits.LIMITS[name].max_error for name in order]
    assert errors == sorted(errors)
    agreements = [limits.LIMITS[name].min_agreement for name in order]
    assert agreements == sorted(agreements, reverse=True)


NOISE = Noise(by="float64", values={"clean": 2e-7, "noisy": 1e-4})


def test_the_limits_of_float32_are_its_sources_own_noise_alone() -> None:
    found = limits.of_variant("fp32", NOISE)
    assert {name: held.max_error for name, held in found.items()} == pytest.approx(
        {"clean": 32 * 2e-7, "noisy": 32 * 1e-4}
    )
    assert {held.min_agreement for held in found.values()} == {limits.LIMITS["fp32"].min_agreement}


def test_the_limits_of_a_lower_precision_are_its_own_unless_the_noise_is_more() -> None:
    assert [held.max_error for held in limits.of_variant("fp16", NOISE).values()] == [1e-2, 1e-2]
    noisier = Noise(by="float64", values={"y": 1e-3})
    assert limits.of_variant("int8", noisier)["y"].max_error == 0.15


def test_limits_that_the_user_gives_hold_for_every_output_whatever_the_noise() -> None:
    loud = Noise(by="float64", values={"a": 0.5, "b": 1e-7})
    found = limits.of_variant("fp32", loud, max_error=0.25, min_agreement=0.5)
    assert found == dict.fromkeys("ab", Limits(max_error=0.25, min_agreement=0.5))
    assert limits.of_variant("fp16", NOISE, max_error=0.0)["clean"].max_error == 0.0
    agreement = limits.of_variant("fp32", NOISE, min_agreement=0.25)
    assert agreement["clean"] == Limits(max_error=32 * 2e-7, min_agreement=0.25)


@pytest.mark.parametrize(
    "figures", [{"max_error": -1.0}, {"max_error": np.nan}, {"max_error": np.inf}, {"min_agreement": 1.01}]
)
def test_a_limit_that_is_none_is_refused_by_its_options(figures: dict[str, float]) -> None:
    with pytest.raises(PenstockError, match=r"^--max-error, --min-agreement: "):
        limits.of_variant("fp32", NOISE, **figures)


TWO = Signature(
    inputs=(
        Tensor(name="x", shape=("batch", "seq")),
        Tensor(name="ids", dtype="int64", shape=("batch", "seq", "side")),
    ),
    outputs=(Tensor(name="total", shape=("batch",)),),
    dims={
        "batch": Dim(min=2, opt=4, max=6),
        "seq": Dim(min=3, opt=10, max=20),
        "side": Dim(min=1, opt=2, max=2),
    },
)
SAMPLES = Rows(
    {
        "x": np.random.default_rng(1).standard_normal((12, 10)).astype(np.float32),
        "ids": np.random.default_rng(2).integers(0, 9, (12, 10, 2)),
    },
    None,
)
Sizes = tuple[int, ...]


def total(x: Any, ids: Any) -> Any:
    return x.sum(1, dtype=np.float32) + ids.sum((1, 2), dtype=np.float32)


class Total(BaseRunner):
    """The sum of each row; off by `error`, or raising, where `at` says so of the sizes of batch, seq and side."""

    def __init__(self, at: Callable[[Sizes], bool] = lambda sizes: False, error: float | Exception = 0.0) -> None:
        super().__init__(TWO)
        self.at, self.error = at, error
        self.seen: list[Sizes] = []
        self.fed: list[Arrays] = []

    def run(self, feeds: Arrays) -> dict[str, Any]:
        sizes = feeds["ids"].shape
        self.seen.append(sizes)
        self.fed.append(feeds)
        answer = total(np.asarray(feeds["x"]), np.asarray(feeds["ids"]))
        if self.at(sizes):
            if isinstance(self.error, Exception):
                raise self.error
            answer = answer + np.float32(self.error)
        return {"total": answer.astype(np.float32)}


class Source(nn.Module):
    """A module that answers as a runner does; remembers what it was fed."""

    def __init__(self, runner: BaseRunner) -> None:
        super().__init__()
        self.runner = runner

    def forward(self, *inputs: torch.Tensor) -> Any:
        names = [tensor.name for tensor in self.runner.inputs]
        answer = self.runner.run({name: x.numpy() for name, x in zip(names, inputs, strict=True)})
        return tuple(torch.from_numpy(np.asarray(array)) for array in answer.values())


def reference(source: BaseRunner, signature: Signature, rows: Rows, outputs: dict[str, Any] | None = None) -> Reference:
    """A reference of `rows` whose answers are `outputs`, or the source's own for all of them at once."""
    noise = Noise(by="float64", values={tensor.name: 1e-7 for tensor in signature.outputs})
    answers = source.run(rows.inputs) if outputs is None else outputs
    return Reference(Source(source), signature, rows, answers, len(rows), True, noise)


def verify_places(runner: Any, source: Total, signature: Signature = TWO) -> Any:
    held = reference(source, signature, SAMPLES, {"total": total(*SAMPLES.inputs.values())})
    return gate.verify_places(runner, held.places, {"total": FP32})


def test_every_other_dimension_is_run_at_many_sizes_and_all_together_at_their_ends() -> None:
    runner, source = Total(), Total()
    found = verify_places(runner, source)
    assert runner.seen == source.seen
    seqs = [sizes[1] for sizes in runner.seen if sizes[2] == 2 and sizes[1] != 10]
    assert {3, 11, 20} <= set(seqs)
    assert len(set(seqs)) > 6
    assert {(6, 10, 1), (6, 10, 2), (6, 3, 1), (6, 20, 2)} <= set(runner.seen)
    assert {item.output for item in found} == {"total"}
    assert max(item.rel_l2 for item in found) == 0.0


def test_samples_are_cut_or_repeated_along_every_axis_of_the_dimension() -> None:
    runner, source = Total(), Total()
    verify_places(runner, source)
    for feeds in (*runner.fed, *source.fed):
        TWO.check(feeds)
        rows, seq, side = feeds["ids"].shape
        where = np.arange(seq) % 10
        assert np.array_equal(feeds["x"], SAMPLES.inputs["x"][:rows][:, where])
        assert np.array_equal(feeds["ids"], SAMPLES.inputs["ids"][:rows][:, where][:, :, :side])


@pytest.mark.parametrize(("batch", "rows"), [(Dim(opt=1, max=1), 1), (Dim(opt=4, max=5), 5), (Dim(opt=8, max=12), 8)])
def test_a_few_rows_that_the_range_of_batches_takes_are_run(batch: Dim, rows: int) -> None:
    runner = Total()
    verify_places(runner, Total(), TWO.model_copy(update={"dims": {**TWO.dims, "batch": batch}}))
    assert {sizes[0] for sizes in runner.seen} == {rows}


def test_no_fewer_rows_are_run_than_the_range_of_batches_takes() -> None:
    runner = Total()
    batch = Dim(min=11, opt=12, max=12)
    verify_places(runner, Total(), TWO.model_copy(update={"dims": {**TWO.dims, "batch": batch}}))
    assert {sizes[0] for sizes in runner.seen} == {11}


@pytest.mark.parametrize("least", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("more", [0, 1, 2, 3, 6])
def test_an_odd_size_within_the_range_is_among_them_where_there_is_one(least: int, more: int) -> None:
    runner = Total()
    seq = Dim(min=least, opt=least, max=least + more)
    verify_places(runner, Total(), TWO.model_copy(update={"dims": {**TWO.dims, "seq": seq}}))
    sizes = {seen[1] for seen in runner.seen if seen[2] == 2 and seen[1] != 10} | ({10} & {least, least + more})
    assert {least, least + more} <= sizes <= set(range(least, least + more + 1))
    assert any(size % 2 for size in sizes) or (more == 0 and least % 2 == 0)


def test_a_model_whose_batch_alone_moves_has_nothing_more_to_run() -> None:
    runner, source = Changed(), Changed()
    assert gate.verify_places(runner, reference(source, SIGNATURE, ROWS, REFERENCE).places, {"logits": FP32}) == []
    assert runner.batches == source.batches == []


@pytest.mark.parametrize("size", [3, 11, 20])
def test_a_fault_at_one_size_of_a_dimension_is_stopped_with_its_name_and_size(size: int) -> None:
    with pytest.raises(GateError) as caught:
        verify_places(Total(lambda sizes: sizes[1] == size, 1.0), Total())
    for part in (f"output 'total' at seq = {size}: relative L2 error", "limit of 0.0001", "nothing was published"):
        assert part in str(caught.value)


def test_a_runner_that_fails_at_one_size_of_a_dimension_is_stopped_with_its_name_and_size() -> None:
    error = RuntimeError("a frame\nsizes differ")
    with pytest.raises(GateError) as caught:
        verify_places(Total(lambda sizes: sizes[1] == 20, error), Total())
    assert "RuntimeError: sizes differ" in str(caught.value)
    assert "at seq = 20" in str(caught.value)


def test_a_source_that_fails_at_a_size_that_was_promised_is_told_how_to_narrow_it() -> None:
    source = Total(lambda sizes: sizes[1] == 20, IndexError("a frame\nposition 16 is out of range"))
    with pytest.raises(GateError) as caught:
        verify_places(Total(), source)
    assert "the source model itself fails at seq = 20: " in str(caught.value)
    assert "position 16 is out of range; narrow the range with --batch or --dim" in str(caught.value)
    assert "a frame" not in str(caught.value)


def test_agreement_is_not_asked_of_a_few_rows() -> None:
    """One of two rows that flips is 50%, and says nothing."""
    rows = Rows({"x": np.ones((2, 2), np.float32)}, None)
    signature = Signature(
        inputs=(Tensor(name="x", shape=("batch", "seq")),),
        outputs=(Tensor(name="logits", shape=("batch", 2)),),
        dims={"batch": Dim(min=2, opt=2, max=2), "seq": Dim(opt=2, max=4)},
    )

    class Tie(BaseRunner):
        def __init__(self, tilt: float) -> None:
            super().__init__(signature)
            self.tilt = tilt

        def run(self, feeds: Arrays) -> dict[str, Any]:
            return {"logits": np.tile(np.array([1.0, 1.0 + self.tilt]), (len(feeds["x"]), 1))}

    found = gate.verify_places(Tie(1e-9), reference(Tie(-1e-9), signature, rows).places, {"logits": FP32})
    assert {item.agreement for item in found} == {None}


# --- The source itself --------------------------------------------------------------------------------------------

FLAT = Signature(
    inputs=(Tensor(name="x", shape=("batch", 4)),),
    outputs=(Tensor(name="y", shape=("batch", 4)),),
    dims={"batch": Dim(opt=4, max=16)},
)
POINTS = Rows({"x": np.random.default_rng(3).standard_normal((32, 4)).astype(np.float32)}, None)


class Doubling(BaseRunner):
    """Doubles its rows, and answers what `change` makes of that."""

    def __init__(self, change: Callable[[Any], Any] = lambda y: y) -> None:
        super().__init__(FLAT)
        self.change = change
        self.batches: list[int] = []

    def run(self, feeds: Arrays) -> dict[str, Any]:
        x = np.asarray(feeds["x"])
        self.batches.append(len(x))
        return {"y": self.change(2 * x)}


def check(source: Doubling, signature: Signature = FLAT, limit: float = 1e-5) -> None:
    held = reference(source, signature, POINTS, {"y": 2 * POINTS.inputs["x"]})
    steadiness.check_source(held, {"y": Limits(max_error=limit, min_agreement=0.9)})


def test_a_source_that_answers_alike_is_run_again_and_at_every_size_that_the_gate_tries() -> None:
    source = Doubling()
    check(source)
    assert source.batches[0] == 16
    assert sorted(set(source.batches)) == list(gate.sizes(FLAT.dims["batch"]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_source_that_answers_no_number_is_refused_with_output_and_count(value: float) -> None:
    outputs = {"y": np.ones((32, 4), np.float32)}
    outputs["y"][[3, 5, 23, 25], 1] = value  # of 20 samples, the first twelve over again
    source = Doubling()
    with pytest.raises(PenstockError) as caught:
        steadiness.check_source(replace(reference(source, FLAT, POINTS, outputs), samples=20), {"y": FP32})
    for part in ("answers NaN or Inf in output 'y' for 2 of 20 samples", "--data", "--range NAME=LOW,HIGH"):
        assert part in str(caught.value)
    assert source.batches == []


def test_a_source_that_answers_otherwise_the_second_time_is_refused() -> None:
    with pytest.raises(PenstockError) as caught:
        check(Doubling(lambda y: y + np.float32(0.01)))
    said = "the model answers the same inputs differently each time; an export of it cannot be proven"
    assert str(caught.value) == said


@pytest.mark.parametrize("size", [1, 2, 4, 7, 8])
def test_a_source_whose_rows_depend_on_the_size_of_their_batch_is_refused_with_size_and_figure(size: int) -> None:
    with pytest.raises(PenstockError) as caught:
        check(Doubling(lambda y: y * np.float32(1.5) if len(y) == size else y))
    for part in (
        "the model's answer for a row depends on its batch: ",
        f"at batch {size} output 'y' is 0.5 off what it is at 16",
        "--batch 1 exports it for single rows",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_source_that_answers_no_number_in_smaller_batches_depends_on_its_batch(value: float) -> None:
    with pytest.raises(PenstockError, match="at batch 7 output 'y' is inf off what it is at 16"):
        check(Doubling(lambda y: y * np.float32(value) if len(y) == 7 else y))


def test_a_row_that_depends_on_its_neighbours_is_seen_at_the_end_of_the_samples_too() -> None:
    first = POINTS.inputs["x"][0]

    def centre(y: Any) -> Any:
        return y if len(y) == 16 or np.array_equal(y[0], 2 * first) else y * np.float32(2)

    with pytest.raises(PenstockError, match="depends on its batch: at batch 1 "):
        check(Doubling(centre))


def test_of_a_source_for_one_size_alone_the_batch_is_not_asked() -> None:
    source = Doubling()
    check(source, FLAT.with_batch(Dim(min=16, opt=16, max=16)))
    assert source.batches == [16]


def test_rounding_within_the_limit_is_no_dependence_on_the_batch() -> None:
    rounded = Doubling(lambda y: y * np.float32(1 + 1e-6) if len(y) == 7 else y)
    check(rounded, limit=1e-5)
    with pytest.raises(PenstockError, match="at batch 7"):
        check(rounded, limit=1e-7)


def test_a_source_that_fails_at_a_smaller_batch_is_told_with_the_batch() -> None:
    def fail(y: Any) -> Any:
        if len(y) == 7:
            raise ValueError("a frame\nno odd batches")
        return y

    with pytest.raises(GateError) as caught:
        check(Doubling(fail))
    assert "the source model itself fails at batch 7: " in str(caught.value)
    assert "no odd batches; narrow the range with --batch or --dim" in str(caught.value)


def test_a_little_randomness_is_no_rounding() -> None:
    generator = np.random.default_rng(0)
    source = Doubling(lambda y: (y + 1e-5 * generator.standard_normal(y.shape)).astype(np.float32))
    with pytest.raises(PenstockError, match="answers the same inputs differently each time"):
        check(source, limit=1e-2)


def test_a_source_that_gives_one_answer_for_all_samples_proves_nothing() -> None:
    source = Doubling(lambda y: np.ones_like(y))
    held = reference(source, FLAT, POINTS, {"y": np.ones((32, 4), np.float32)})
    with pytest.raises(PenstockError, match=r"one answer for all 32 samples.*--data"):
        steadiness.check_source(held, {"y": Limits(max_error=1e-5, min_agreement=0.9)})


def test_an_answer_as_long_as_the_longest_row_of_the_batch_depends_on_it() -> None:
    source = Doubling(lambda y: y[:, : int(1 + (np.abs(y).max() > 3))])
    with pytest.raises(PenstockError, match=r"depends on its batch: output 'y' has shape .*total_length="):
        check(source)


def extremes(source: Doubling, runner: Doubling, accepted: float | None = None) -> None:
    rows = Rows({"x": POINTS.inputs["x"][:4] * np.float32(100)}, None)
    beyond = Extreme(
        "inputs 100 times the samples", rows, source.run(rows.inputs), Noise(by="float64", values={"y": 0})
    )
    held = reference(source, FLAT, POINTS)
    gate.verify_extremes(runner, Reference(**{**held.__dict__, "extremes": (beyond,)}), accepted)


@pytest.mark.parametrize(
    "change",
    [
        lambda y: np.where(np.abs(y) > 20, np.inf, y),
        lambda y: np.where(np.abs(y) > 20, np.nan, y),
        lambda y: np.where(np.abs(y) > 20, -y, y),
        lambda y: np.clip(y, -20, 20),
    ],
    ids=["overflow", "no number", "a branch", "a bound"],
)
def test_what_shows_far_beyond_the_samples_alone_is_stopped(change: Callable[[Any], Any]) -> None:
    extremes(Doubling(), Doubling())
    with pytest.raises(GateError, match=r"output 'y' at inputs 100 times the samples: .*--range NAME=LOW,HIGH"):
        extremes(Doubling(), Doubling(lambda y: change(y).astype(np.float32)))


def test_rounding_and_the_users_own_limit_pass_far_beyond_the_samples() -> None:
    extremes(Doubling(), Doubling(lambda y: y * np.float32(1.0001)))
    extremes(Doubling(), Doubling(lambda y: y * np.float32(1.2)), accepted=0.5)


def test_small_answers_far_beyond_the_samples_are_measured_by_the_usual_ones() -> None:
    """A sigmoid is 1e-30 there, and what a kernel makes of it 1e-8."""
    source = Doubling(lambda y: np.where(np.abs(y) > 20, np.float32(1e-30), y))
    extremes(source, Doubling(lambda y: np.where(np.abs(y) > 20, np.float32(1e-8), y)))


class Keeps(nn.Module):
    """Takes away the mean of the first batch that it has met."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = x.mean(0) if self.mean is None else self.mean
        return x - self.mean


def test_a_source_that_keeps_something_from_its_first_run_is_refused() -> None:
    module, fresh = Keeps(), Keeps()
    noise = Noise(by="float64", values={"y": 1e-7})
    with torch.inference_mode():
        outputs = {"y": module(torch.from_numpy(POINTS.inputs["x"])).numpy()}
    held = Reference(module, FLAT, POINTS, outputs, 32, True, noise, fresh)
    with pytest.raises(PenstockError, match="the model keeps something of what it was run on before: output 'y'"):
        steadiness.check_source(held, {"y": Limits(max_error=1e-5, min_agreement=0.5)})
