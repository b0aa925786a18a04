"""The gate: what leaves its limits, or crashes, is stopped with the output, the batch and the figure."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock.datasets import Rows
from penstock.errors import GateError
from penstock.export import gate
from penstock.parity import Limits
from penstock.runtimes import BaseRunner
from penstock.runtimes.torch import TorchRunner
from penstock.signature import Arrays, Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 6)),),
    outputs=(Tensor(name="logits", shape=("batch", 4)),),
    dims={"batch": Dim(opt=4, max=16)},
)
FP32 = gate.LIMITS["fp32"]
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
    return gate.verify(runner, ROWS.take(whole), reference, limits, batch)


def stopped(runner: Any, limits: Limits = FP32) -> str:
    with pytest.raises(GateError) as caught:
        verify(runner, limits)
    return str(caught.value)


def test_the_source_itself_passes_with_its_figures() -> None:
    sizes, (found,) = verify(Changed())
    assert sizes == (1, 2, 7, 16)
    assert found.output == "logits"
    assert found.rel_l2 < 1e-6
    assert found.agreement == 1.0


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (5, (1, 2, 3, 5)), (6, (1, 2, 3, 6)), (7, (1, 2, 7)), (16, (1, 2, 7, 16))],
)
def test_batches_of_one_two_an_odd_number_and_the_most_are_run(most: int, sizes: tuple[int, ...]) -> None:
    runner = Changed()
    assert verify(runner, batch=Dim(opt=1, max=most))[0] == sizes
    assert set(sizes) == set(runner.batches)


@pytest.mark.parametrize(
    ("least", "most", "sizes"),
    [(8, 8, (8,)), (8, 9, (8, 9)), (4, 16, (4, 5, 7, 16)), (7, 16, (7, 8, 16)), (2, 3, (2, 3))],
)
def test_no_batch_is_run_that_the_range_excludes(least: int, most: int, sizes: tuple[int, ...]) -> None:
    runner = Changed()
    assert verify(runner, batch=Dim(min=least, opt=least, max=most))[0] == sizes
    assert set(runner.batches) == set(sizes)


@pytest.mark.parametrize("least", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("more", [3, 4, 5, 6])
def test_an_odd_batch_larger_than_one_is_always_among_them(least: int, more: int) -> None:
    batch = Dim(min=least, opt=least, max=least + more)
    sizes, _ = verify(Changed(), batch=batch)
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
    _, (found,) = verify(TorchRunner(module, SIGNATURE), Limits(max_error=0.01, min_agreement=0.9))
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
        (lambda answer: {"logits": answer["logits"].T}, "it must be [1, 4]"),
        (lambda answer: {"logits": answer["logits"][:0]}, "has shape [0, 4]"),
        (lambda answer: {"logits": None}, "at batch 1"),
    ],
    ids=["renamed", "extra", "none", "narrow", "turned", "no-rows", "no-array"],
)
def test_outputs_that_are_not_the_sources_are_stopped(change: Change, said: str) -> None:
    message = stopped(Changed(change))
    assert "at batch 1" in message
    assert said in message


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
    _, (found,) = gate.verify(runner, rows, reference, limits, Dim(opt=4, max=8))
    assert found.agreement == 0.99


def test_one_flip_too_many_over_all_rows_is_stopped() -> None:
    runner, rows, reference = near_ties(200, flipped=3)
    with pytest.raises(GateError) as caught:
        gate.verify(runner, rows, reference, Limits(max_error=1e-3, min_agreement=0.99), Dim(opt=4, max=8))
    for part in ("'logits'", "top-1 agreement 98.50%", "limit of 99.00%", "--min-agreement"):
        assert part in str(caught.value)


def test_every_precision_has_limits_that_tighten_with_it() -> None:
    assert set(gate.LIMITS) == {"fp32", "fp16", "int8"}
    errors = [gate.LIMITS[name].max_error for name in ("fp32", "fp16", "int8")]
    assert errors == sorted(errors)
