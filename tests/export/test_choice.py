"""Choice: the fastest candidate is taken, or the more precise of those that tie, and the receipt says why."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from penstock import artifact, replay, runtimes
from penstock.artifact import Artifact
from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export import choice, formats, pipeline, speed
from penstock.export.formats import onnx as onnx_format
from penstock.export.pipeline import Request
from penstock.parity import Distance, Limits
from penstock.receipt import Candidate, Choice, Receipt, Source, Verification
from penstock.signature import Dim, Signature, Tensor
from penstock.timing import Cell

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 6)),),
    outputs=(Tensor(name="y", shape=("batch", 4)), Tensor(name="z", shape=("batch",))),
    dims={"batch": Dim(opt=4, max=16)},
)


def candidate(precision: str, format: str = "onnx") -> Artifact:
    """An artifact that is nothing but its receipt; its outputs are off by 0.01 and 0.02."""
    errors = {"y": 0.01, "z": 0.02}
    verification = Verification(
        runtime="onnxruntime",
        engine_run=True,
        samples=8,
        real=True,
        batches=(1, 16),
        distances=tuple(Distance(output=name, max_abs=1, rel_l2=off, cosine=1) for name, off in errors.items()),
        limits=dict.fromkeys(errors, Limits(max_error=1, min_agreement=0)),
        passed=True,
    )
    receipt = Receipt(
        schema=2,
        name=f"net-{format}-{precision}",
        version=1,
        created=datetime(2026, 1, 1, tzinfo=timezone.utc),
        format=format,
        precision=precision,
        runtime="onnxruntime",
        model_file="model.onnx",
        files={},
        source=Source(checkpoint="net.pth", sha256="0", architecture="nets:Net", loaded=1, expected=1),
        signature=SIGNATURE,
        verification=verification,
        hardware="any CPU",
    )
    return Artifact(Path("nowhere"), receipt)


def chosen(times: dict[str, Sequence[float]], refused: Sequence[Candidate] = ()) -> Choice:
    """The choice between ONNX files of some precisions, each with the seconds of a run in every round."""
    found = [candidate(precision) for precision in times]
    cells = {f"net-onnx-{name}": Cell(4, [[seconds] for seconds in rounds]) for name, rounds in times.items()}
    return choice.choose(found, cells, refused)


def near(seconds: float, spread: float, seed: int = 0) -> list[float]:
    """The times of twenty rounds, each off by up to `spread` of itself."""
    return (seconds * (1 + np.random.default_rng(seed).uniform(-spread, spread, 20))).tolist()


# --- What is chosen --------------------------------------------------------------------------------------------------


def test_one_that_is_clearly_faster_is_chosen() -> None:
    found = chosen({"fp32": near(2.0, 0.1, 1), "int8": near(1.0, 0.1, 2)})
    assert found.chosen == "net-onnx-int8"
    assert found.reason == "the fastest of those within the budget"
    assert (found.batch, found.rounds) == (4, 20)


def test_of_two_that_tie_the_more_precise_is_taken_and_the_reason_says_of_which() -> None:
    found = chosen({"int8": [1.0] * 20, "fp32": [1.04, 1.03, 0.96, 0.99] * 5})
    assert found.chosen == "net-onnx-fp32"
    assert "as fast as net-onnx-int8 as far as can be told" in found.reason
    assert "and more precise" in found.reason


@pytest.mark.parametrize("slower", [1.01, 1.05, 3.0])
def test_one_that_is_more_precise_and_slower_for_certain_is_not_taken(slower: float) -> None:
    assert chosen({"fp32": [slower] * 20, "int8": [1.0] * 20}).chosen == "net-onnx-int8"


def test_a_faster_one_that_is_also_more_precise_is_taken() -> None:
    assert chosen({"int8": near(2.0, 0.1, 1), "fp32": near(1.0, 0.1, 2)}).chosen == "net-onnx-fp32"


def test_of_many_the_most_precise_of_those_that_tie_with_the_fastest_is_taken() -> None:
    times = {"fp32": [1.5] * 20, "fp16": [1.02, 0.99] * 10, "bf16": [1.01, 0.99] * 10, "int8": [1.0] * 20}
    assert chosen(times).chosen == "net-onnx-fp16"
    assert chosen({**times, "fp16": [1.2] * 20}).chosen == "net-onnx-bf16"
    assert chosen({**times, "fp8": [0.5] * 20}).chosen == "net-onnx-fp8"


def test_one_that_ties_with_another_but_not_with_the_fastest_is_not_taken() -> None:
    """Ties do not add up: fp32 ties with fp16, and fp16 with int8."""
    times = {"fp32": [1.08] * 20, "fp16": [1.08, 1.0, 1.0, 1.08] * 5, "int8": [1.04] * 10 + [1.0] * 10}
    found = chosen(times)
    assert found.chosen == "net-onnx-fp16"
    fp32 = next(item for item in found.candidates if item.precision == "fp32")
    assert fp32.times_as_slow is not None
    assert fp32.times_as_slow[0] <= 1


rounds = st.lists(st.floats(1e-4, 1e-2), min_size=5, max_size=5)
measured = st.dictionaries(st.sampled_from(choice.ORDER), rounds, min_size=1)


@settings(max_examples=50, deadline=None)
@given(measured, st.randoms(use_true_random=False), st.sampled_from([0.25, 1.0, 64.0]))
def test_neither_order_nor_unit_nor_repetition_changes_the_choice(
    times: dict[str, list[float]], random: Any, unit: float
) -> None:
    shuffled = list(times)
    random.shuffle(shuffled)
    first = chosen(times)
    assert chosen(times) == first
    assert chosen({name: times[name] for name in shuffled}) == first
    in_unit = chosen({name: [unit * seconds for seconds in held] for name, held in times.items()})
    assert (in_unit.chosen, in_unit.reason) == (first.chosen, first.reason)


@settings(max_examples=50, deadline=None)
@given(measured)
def test_what_is_chosen_is_no_slower_for_certain_than_any_other(times: dict[str, list[float]]) -> None:
    """Slower in every single round is slower for certain, whatever is drawn."""
    found = chosen(times)
    mine = times[found.chosen.removeprefix("net-onnx-")]
    fastest = min(times.values(), key=np.median)
    assert not all(ours > theirs for ours, theirs in zip(mine, fastest, strict=True))


# --- What is said of it ----------------------------------------------------------------------------------------------


def test_every_candidate_is_listed_by_precision_and_then_the_refused_as_they_are() -> None:
    refused = [Candidate(format="trt", precision=name, refused="no GPU") for name in ("fp8", "fp32")]
    found = chosen({"int8": [1.0] * 5, "fp32": [2.0] * 5, "fp16": [3.0] * 5}, refused)
    assert [item.precision for item in found.candidates] == ["fp32", "fp16", "int8", "fp8", "fp32"]
    assert list(found.candidates[3:]) == refused
    for item, seconds in zip(found.candidates[:3], (2.0, 3.0, 1.0), strict=True):
        assert (item.name, item.format) == (f"net-onnx-{item.precision}", "onnx")
        assert (item.median_s, item.times_as_slow) == (seconds, (seconds, seconds))
        assert item.confidence == float(seconds > 1)
        assert item.error == 0.02
        assert item.refused is None


def test_a_median_is_that_of_the_medians_of_rounds() -> None:
    found = choice.choose([candidate("fp32")], {"net-onnx-fp32": Cell(4, [[1.0, 9.0, 9.0], [3.0], [2.0, 4.0]])}, [])
    assert found.candidates[0].median_s == 3.0  # of 9, 3 and 3


def test_a_table_has_a_line_for_each_candidate_one_for_each_reason_and_the_choice() -> None:
    refused = [Candidate(format="trt", precision=name, refused="no GPU") for name in ("fp16", "int8")]
    refused += [Candidate(format="onnx", precision="fp16", refused="no kernels")]
    assert choice.table(chosen({"fp32": [0.002] * 5, "int8": [0.001] * 5}, refused)) == [
        "  net-onnx-fp32: 2.000 ms at batch 4, 2.00 to 2.00 times the chosen one's (95 %)",
        "  net-onnx-int8: 1.000 ms at batch 4, chosen",
        "  trt fp16, trt int8: no GPU",
        "  onnx fp16: no kernels",
        "net-onnx-int8: the fastest of those within the budget",
    ]


@pytest.mark.parametrize(
    ("found", "cells"),
    [
        ([], {}),
        ([candidate("fp32")], {"net-onnx-fp32": Cell(4)}),
        ([candidate("fp32"), candidate("int8")], {"net-onnx-fp32": Cell(4, [[1.0]]), "net-onnx-int8": Cell(4)}),
    ],
    ids=["nothing", "one without times", "one of two without times"],
)
def test_no_times_are_refused(found: list[Artifact], cells: dict[str, Cell]) -> None:
    with pytest.raises(PenstockError, match="--format auto: there is no candidate whose time could be taken"):
        choice.choose(found, cells, [])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("net-onnx-int8: no plan is within it: 3 nodes", "no plan is within it: 3 nodes"),
        ("nothing before", "nothing before"),
        (f"net: {'x' * 400}", "x" * 300),
    ],
)
def test_a_reason_is_what_comes_after_the_name_and_no_more_than_a_few_lines(error: str, words: str) -> None:
    assert choice.reason_of(PenstockError(error)) == words


# --- How sure it is --------------------------------------------------------------------------------------------------


def exact(ratios: Sequence[float]) -> tuple[float, float, float, list[float]]:
    """The bounds of 95 % of all resamples of an odd number of ratios, the share over 1, and all shares.

    The median of a resample is at most the k-th smallest of n where more than half of n draws are among the first k.
    """
    ordered, n = sorted(ratios), len(ratios)
    shares = [
        sum(comb(n, hits) * (k / n) ** hits * (1 - k / n) ** (n - hits) for hits in range(n // 2 + 1, n + 1))
        for k in range(n + 1)
    ]
    low, high = (next(k for k in range(1, n + 1) if shares[k] >= wanted) for wanted in (0.025, 0.975))
    return ordered[low - 1], ordered[high - 1], 1 - shares[sum(ratio <= 1 for ratio in ratios)], shares


@pytest.mark.parametrize("count", [3, 5, 7, 11, 19])
@pytest.mark.parametrize("middle", [0.8, 1.0, 1.02, 1.3])
def test_a_span_is_that_of_all_resamples_there_could_be(count: int, middle: float) -> None:
    ratios = np.random.default_rng(count).normal(middle, 0.1, count).tolist()
    low, high, sure, shares = exact(ratios)
    # 2000 resamples settle the bounds where no step of the distribution is near them.
    assert min(abs(share - bound) for share in shares for bound in (0.025, 0.975)) > 3 * np.sqrt(0.025 * 0.975 / 2000)
    found = choice._span(Cell(1, [[1.0]] * count), Cell(1, [[ratio] for ratio in ratios]))
    assert found[:2] == (low, high)
    assert abs(found[2] - sure) <= 5 * np.sqrt(sure * (1 - sure) / 2000)


def test_a_span_is_of_ratios_in_one_round_whatever_happens_between_rounds() -> None:
    drift = np.geomspace(1, 1000, 20)
    fast, slow = (Cell(1, [[factor * by] for by in drift]) for factor in (1.0, 1.25))
    assert choice._span(fast, slow) == pytest.approx((1.25, 1.25, 1.0))
    assert choice._span(slow, fast) == pytest.approx((0.8, 0.8, 0.0))


# --- Who is a candidate ----------------------------------------------------------------------------------------------


def every_variant() -> set[tuple[str, str]]:
    """The formats that auto looks at, with all the precisions that each of them says that it holds."""
    modules = {name: importlib.import_module(f"penstock.export.formats.{name}") for name in choice.FORMATS}
    return {(name, precision) for name, module in modules.items() for precision in module.PRECISIONS}


def told(place: str, precisions: Sequence[str] = choice.ORDER) -> tuple[set[tuple[str, str]], dict[Any, str | None]]:
    able, refused = choice.candidates(precisions, place)
    assert len(set(able)) == len(able)
    reasons = {(item.format, item.precision): item.refused for item in refused}
    assert len(reasons) == len(refused)
    return set(able), reasons


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
def test_every_variant_that_there_is_is_able_or_refused_with_a_reason(place: str) -> None:
    able, reasons = told(place)
    assert able.isdisjoint(reasons)
    assert able | reasons.keys() == every_variant()
    assert all(reasons.values())


def test_on_a_cpu_float32_and_int8_may_be_fast_and_half_precision_is_not() -> None:
    able, reasons = told("cpu")
    assert able - {("trt", name) for name in choice.ORDER} == {
        ("onnx", "fp32"),
        ("onnx", "int8"),
        ("torchscript", "fp32"),
    }
    for variant in (("onnx", "fp16"), ("onnx", "bf16"), ("torchscript", "fp16")):
        assert reasons[variant] == f"no CPU kernels for {variant[1]}: it would be computed in fp32, with casts"


def test_on_a_gpu_half_precision_is_a_candidate_too() -> None:
    able, _ = told("cuda:0")
    assert able >= {("onnx", "fp32"), ("onnx", "fp16"), ("onnx", "bf16"), ("onnx", "int8"), ("torchscript", "fp16")}


def test_engines_are_candidates_where_tensorrt_runs_and_else_say_why_not() -> None:
    able, reasons = told("cpu")
    why = runtimes.unavailable("tensorrt", {})
    if why is None:
        assert able >= {("trt", name) for name in choice.ORDER}
    else:
        assert "TensorRT" in why
        assert {name: reasons["trt", name] for name in choice.ORDER} == dict.fromkeys(choice.ORDER, why)


def test_only_precisions_that_are_wanted_are_candidates_or_refused() -> None:
    able, reasons = told("cpu", ("int8", "fp16"))
    assert {precision for _, precision in (*able, *reasons)} == {"int8", "fp16"}


# --- The whole road --------------------------------------------------------------------------------------------------


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Artifact]:
    """Exports with `--format auto`, measuring briefly."""
    monkeypatch.setattr(pipeline, "_AUTO_S", 0.2)
    monkeypatch.setattr(speed, "_SECONDS", 0.05)

    def run(request: Request, said: list[str]) -> Artifact:
        (published,) = pipeline.export(replace(request, formats=("auto",)), said.append)
        return published

    return run


def test_auto_publishes_one_artifact_that_verifies_and_says_what_else_there_was(
    trained: Path, tmp_path: Path, export: Callable[..., Artifact]
) -> None:
    said: list[str] = []
    request = Request(trained, precisions=choice.ORDER, output=tmp_path / "models", accuracy_drop=2.0)
    published = export(request, said)
    assert [path.name for path in request.output.iterdir()] == [published.receipt.name]
    home = request.output / published.receipt.name
    assert sorted(path.name for path in home.iterdir()) == ["1", "config.pbtxt"]

    made = published.receipt.choice
    assert made is not None
    assert (made.chosen, made.device) == (published.receipt.name, choice.device())
    assert (made.batch, made.rounds) == (published.receipt.signature.dims["batch"].opt, 20)
    assert {(item.format, item.precision) for item in made.candidates} == every_variant()
    able, refused = choice.candidates(choice.ORDER, choice.device())
    assert set(refused) <= set(made.candidates)
    timed = {(item.format, item.precision): item for item in made.candidates if item.median_s is not None}
    assert timed.keys() == set(able)
    mine = timed[published.receipt.format, published.receipt.precision]
    assert mine.times_as_slow == (1.0, 1.0)
    for item in timed.values():
        assert item.median_s is not None
        assert item.times_as_slow is not None
        low, high = item.times_as_slow
        assert low <= high
        assert high >= 1  # none is faster for certain
    assert mine.error == max(item.rel_l2 for item in published.receipt.verification.distances)
    assert set(choice.table(made)) <= set(said)

    again = artifact.read(home)
    assert (again.folder, again.receipt.to_json()) == (published.folder, published.receipt.to_json())
    lines: list[str] = []
    replay.verify(home, lines.append)
    assert lines[-1] == f"verified: {published.receipt.name} version 1 answers as its source does"
    assert (home / artifact.CONFIG).read_text().startswith(f'name: "{published.receipt.name}"')

    second = export(replace(request, precisions=(published.receipt.precision,)), [])
    if second.receipt.name == published.receipt.name:
        assert artifact.versions(home) == [1, 2]
        replay.verify(home, lambda line: None)
    assert not [path.name for path in request.output.iterdir() if path.name.startswith(".")]


def test_a_candidate_that_the_gate_stops_is_listed_with_its_reason_and_another_is_taken(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: Callable[..., Artifact]
) -> None:
    def damaged(*arguments: Any) -> formats.Built:
        built = written(*arguments)
        file = arguments[2] / built.model_file
        model = onnx.load(str(file))
        next(node for node in model.graph.node if node.op_type == "Relu").op_type = "Identity"
        onnx.save(model, str(file))
        return built

    written = onnx_format.export
    monkeypatch.setattr(onnx_format, "export", damaged)
    published = export(Request(trained, output=tmp_path / "models"), [])
    assert published.receipt.name == "digits-torchscript-fp32"
    assert [path.name for path in (tmp_path / "models").iterdir()] == [published.receipt.name]
    assert published.receipt.choice is not None
    stopped = {(item.format, item.precision): item for item in published.receipt.choice.candidates}["onnx", "fp32"]
    assert stopped.refused is not None
    assert stopped.refused.startswith("the gate stopped it: output 'logits' at batch 1: relative L2 error")
    assert (stopped.median_s, stopped.confidence, stopped.name) == (None, None, "")


def bare(tmp_path: Path, net: nn.Module, inputs: str) -> Request:
    """A request for a bare state_dict of somebody's net, without any samples."""
    torch.save(net.state_dict(), tmp_path / "net.pth")
    layers = ", ".join(f"nn.{layer}" for layer in net)  # type: ignore[attr-defined]
    (tmp_path / "net.py").write_text(f"from torch import nn\n\ndef net():\n    return nn.Sequential({layers})\n")
    override = Override(model=f"{tmp_path / 'net.py'}:net", inputs=(inputs,))
    return Request(tmp_path / "net.pth", override=override, precisions=choice.ORDER, output=tmp_path / "models")


def test_auto_without_samples_measures_what_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: Callable[..., Artifact]
) -> None:
    monkeypatch.setattr(choice, "device", lambda: "cpu")
    request = bare(tmp_path, nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10)), "x:float32[batch,16]")
    said: list[str] = []
    made = export(request, said).receipt.choice
    assert made is not None
    timed = {(item.format, item.precision) for item in made.candidates if item.median_s is not None}
    assert timed >= {("onnx", "fp32"), ("onnx", "int8"), ("torchscript", "fp32")}
    assert {(item.format, item.precision) for item in made.candidates} == every_variant()
    assert set(choice.table(made)) <= set(said)


def test_auto_without_samples_lists_what_lacks_them_and_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: Callable[..., Artifact]
) -> None:
    monkeypatch.setattr(choice, "device", lambda: "cpu")
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten())
    published = export(bare(tmp_path, net, "x:float32[batch,3,6,6]"), [])
    assert published.receipt.precision == "fp32"
    assert published.receipt.choice is not None
    found = {(item.format, item.precision): item for item in published.receipt.choice.candidates}
    for variant in (("onnx", "fp32"), ("torchscript", "fp32")):
        assert found[variant].median_s is not None
    lacking = found["onnx", "int8"]
    assert lacking.median_s is None
    assert lacking.refused is not None
    assert lacking.refused.startswith("--precision int8 needs real samples to measure its scales on")
