"""Diff: what two models differ in is what their files and receipts say, and they are timed against each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from penstock import artifact
from penstock.errors import PenstockError
from penstock.inspection import diff, precisions
from penstock.inspection.diff import Difference

FULL, HALF, LOW, SCRIPT, ENGINE = (
    f"digits-{name}" for name in ("onnx-fp32", "onnx-fp16", "onnx-int8", "torchscript-fp32", "trt-fp16")
)
TIMES = ("latency, batch 8", "speed")
WIDTH = 256


def between(first: Path, second: Path, **more: Any) -> Difference:
    return diff.diff(first, second, **{"seconds": 0.1, **more})


def graph_of(path: Path) -> Any:
    return onnx.load(str(path / "1" / "model.onnx" if path.is_dir() else path)).graph


@pytest.fixture(scope="module")
def told(repository: Path) -> dict[str, Difference]:
    """Each variant against the float32 ONNX model."""
    return {name: between(repository / FULL, repository / name) for name in (FULL, HALF, LOW, SCRIPT, ENGINE)}


def products(path: Path, count: int, name: str = "x") -> Path:
    """An ONNX file of so many products with a square matrix; its nodes are called after their places."""
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / np.float32(WIDTH**0.5)
    values = [name, *(f"h{place}" for place in range(1, count)), "y"]
    nodes = [
        helper.make_node("MatMul", [values[place], "w"], [values[place + 1]], name=f"n{place}")
        for place in range(count)
    ]
    ends = [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["batch", WIDTH]) for value in (name, "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), str(path))
    return path


# --- Facts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [FULL, HALF, LOW, SCRIPT, ENGINE])
def test_facts_are_those_of_files_and_receipts(told: dict[str, Difference], repository: Path, name: str) -> None:
    found, receipt = told[name], artifact.read(repository / name).receipt
    assert found.names == (FULL, name)
    ours = {fact: pair[1] for fact, pair in found.facts.items()}
    assert ours["made"] == f"{receipt.format} {receipt.precision} by {receipt.runtime}"
    assert (ours["inputs"], ours["outputs"]) == ("image:float32[batch,1,8,8]", "logits:float32[batch,10]")
    number, unit = ours["size"].split()
    size = (repository / name / "1" / receipt.model_file).stat().st_size
    assert float(number) * {"kB": 1e3, "MB": 1e6}[unit] == pytest.approx(size, rel=0.01)
    (distance,) = receipt.verification.distances
    assert ours["error"] == f"logits {distance.rel_l2:.1e}"
    assert ours["agreement"] == f"{distance.agreement:.2%}"
    assert found.facts["made"][0] == "onnx fp32 by onnxruntime"


@pytest.mark.parametrize("name", [FULL, HALF, LOW, ENGINE])
def test_nodes_and_operators_are_counted_as_they_stand_in_the_graphs(
    told: dict[str, Difference], repository: Path, name: str
) -> None:
    graphs = graph_of(repository / FULL), graph_of(repository / name)
    counts = [Counter(node.op_type for node in graph.node) for graph in graphs]
    assert told[name].facts["nodes"] == tuple(str(len(graph.node)) for graph in graphs)
    assert told[name].operators == {kind: (counts[0][kind], counts[1][kind]) for kind in counts[0] | counts[1]}


def computing(graph: Any) -> dict[str, str]:
    """The operators of the digits net's nodes that compute, by name."""
    return {node.name: node.op_type for node in graph.node if "Linear" not in node.op_type and node.op_type != "Cast"}


def test_halves_differ_from_float32_in_the_precision_of_every_node(
    told: dict[str, Difference], repository: Path
) -> None:
    full = computing(graph_of(repository / FULL))
    assert computing(graph_of(repository / HALF)) == full
    assert told[HALF].nodes == {name: (f"{kind} fp32", f"{kind} fp16") for name, kind in full.items()}
    assert told[HALF].facts["precision"] == (f"{len(full)} fp32", f"{len(full)} fp16")


def test_int8_differs_in_what_its_plan_lowered_and_in_what_its_pairs_took_over(
    told: dict[str, Difference], repository: Path
) -> None:
    plan = artifact.read(repository / LOW).receipt.plan
    assert plan is not None
    full, low = computing(graph_of(repository / FULL)), computing(graph_of(repository / LOW))
    assert 0 < len(low) < len(full)  # the ReLUs are in the pairs' scales
    lowered = {name: (f"{kind} fp32", f"{kind} int8") for name, kind in low.items() if name not in plan.kept}
    gone = {name: (f"{kind} fp32", "-") for name, kind in full.items() if name not in low}
    assert told[LOW].nodes == {**lowered, **gone}


def test_a_model_differs_from_itself_in_nothing(told: dict[str, Difference]) -> None:
    found = told[FULL]
    assert found.nodes == {}
    assert all(ours == theirs for ours, theirs in found.operators.values())
    assert all(ours == theirs for name, (ours, theirs) in found.facts.items() if name not in TIMES)
    assert found.notes == []


def test_a_bare_file_is_compared_with_the_artifact_that_it_came_from(repository: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.onnx"
    shutil.copy(repository / FULL / "1" / "model.onnx", bare)
    for first, second in ((bare, repository / FULL), (repository / FULL, bare)):
        found = between(first, second)
        sides = {name: dict(zip(found.names, pair, strict=True)) for name, pair in found.facts.items()}
        assert found.nodes == {}
        assert set(found.names) == {str(bare), FULL}
        for fact in ("made", "error", "agreement"):
            assert sides[fact][str(bare)] == "-"
            assert sides[fact][FULL] != "-"
        for fact in ("inputs", "outputs", "size", "nodes", "precision"):
            assert sides[fact][str(bare)] == sides[fact][FULL]
        assert found.notes == []
        assert set(TIMES) <= set(found.facts)


def test_nodes_on_one_side_alone_are_named_with_a_dash_on_the_other(tmp_path: Path) -> None:
    short, long = products(tmp_path / "short.onnx", 2), products(tmp_path / "long.onnx", 3)
    assert between(short, long).nodes == {"n2": ("-", "MatMul fp32")}
    assert between(long, short).nodes == {"n2": ("MatMul fp32", "-")}


# --- Times -----------------------------------------------------------------------------------------------------------


def ratio(found: Difference) -> tuple[float, float, float]:
    reference, text = found.facts["speed"]
    assert reference == "1 (reference)"
    numbers = re.fullmatch(r"(\d+\.\d\d) by rounds \((\d+\.\d\d) to (\d+\.\d\d)\)", text)
    assert numbers is not None
    middle, low, high = map(float, numbers.groups())
    assert low <= middle <= high
    return middle, low, high


def test_latencies_are_of_the_usual_batch_with_the_ratio_between_them(told: dict[str, Difference]) -> None:
    for name in (FULL, HALF, LOW, SCRIPT):
        assert tuple(told[name].facts)[-2:] == TIMES
        pair = told[name].facts[TIMES[0]]
        assert all(re.fullmatch(r"\d+\.\d{3} ms", text) for text in pair)
        ours, theirs = (float(text.split()[0]) for text in pair)
        assert 0.5 < ratio(told[name])[0] * theirs / ours < 2  # medians of rounds, and of all runs


@pytest.mark.parametrize(("first", "second"), [(1, 24), (24, 1)])
def test_of_two_graphs_the_one_with_more_work_is_the_slower(tmp_path: Path, first: int, second: int) -> None:
    paths = [products(tmp_path / f"{count}.onnx", count) for count in (first, second)]
    _, low, high = ratio(between(*paths, batch=16))
    assert high < 0.5 if second > first else low > 2


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_the_batch_asked_for_is_the_one_that_is_timed(repository: Path, batch: int) -> None:
    found = between(repository / FULL, repository / LOW, batch=batch)
    assert f"latency, batch {batch}" in found.facts
    assert found.notes == []


class Held:
    """A runner that does nothing, of a model whose times are made up."""

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def doubted(
    monkeypatch: pytest.MonkeyPatch, path: Path, others: float, ours: list[float], theirs: list[float]
) -> list[str]:
    """What is warned of where each side took so many seconds in each round, and others had so many cores."""

    def measured(work: Any, seconds: float) -> None:
        for (_, _, cell), rounds in zip(work, (ours, theirs), strict=True):
            cell.rounds += [[value] * 3 for value in rounds]

    monkeypatch.setattr("penstock.inspection.diff.Side.load", lambda side, device: Held())
    monkeypatch.setattr("penstock.timing.measure", measured)
    monkeypatch.setattr("penstock.machine.Others.cores", lambda self: others)
    return between(path, path).warnings


def test_latencies_that_do_not_fit_the_speed_are_told_with_what_each_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = products(tmp_path / "some.onnx", 1)
    assert doubted(monkeypatch, path, 0.0, [0.02] * 5, [0.01] * 5) == []
    (warning,) = doubted(monkeypatch, path, 0.0, [0.03, 0.03, 0.02, 0.01, 0.01], [0.03, 0.03, 0.01, 0.01, 0.01])
    assert "by the latencies, medians of all runs, the second is 2.00 times as fast" in warning
    assert "by rounds, the median of 5 in each of which both ran, 1.00 times" in warning


def test_a_machine_that_is_busy_while_two_are_timed_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (warning,) = doubted(monkeypatch, products(tmp_path / "some.onnx", 1), 1.3, [0.02] * 5, [0.01] * 5)
    assert warning.startswith("the machine was busy: other processes had 1.3 of")


# --- What cannot be told ---------------------------------------------------------------------------------------------


def test_what_holds_no_graph_is_named_and_timed_all_the_same(told: dict[str, Difference], repository: Path) -> None:
    assert told[SCRIPT].notes == [f"no ONNX graph to look into: {SCRIPT}"]
    assert told[SCRIPT].facts["nodes"][1] == told[SCRIPT].facts["precision"][1] == "-"
    assert set(TIMES) <= set(told[SCRIPT].facts)
    both = between(repository / SCRIPT, repository / SCRIPT)
    assert both.notes == [f"no ONNX graph to look into: {SCRIPT}, {SCRIPT}"]
    assert both.nodes == both.operators == {}


def test_an_engine_that_cannot_run_here_is_looked_into_and_not_timed(
    told: dict[str, Difference], repository: Path
) -> None:
    reason = artifact.read(repository / ENGINE).unavailable()
    if reason is None:
        pytest.skip("this machine runs the engine")
    assert told[ENGINE].notes == [f"not timed: {reason}"]
    assert not set(TIMES) & set(told[ENGINE].facts)
    assert {pair[1].split()[1] for pair in told[ENGINE].nodes.values()} == {"fp16"}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"batch": 65}, "--batch 65: both take 1 to 64"),
        ({"device": "gpu"}, "--device 'gpu': must be cpu, cuda or cuda:N"),
    ],
)
def test_a_batch_or_device_that_cannot_be_had_is_a_note(repository: Path, more: dict[str, Any], why: str) -> None:
    found = between(repository / FULL, repository / LOW, **more)
    assert found.notes == [f"not timed: {why}"]
    assert "speed" not in found.facts


def test_models_of_other_inputs_are_compared_and_not_timed(repository: Path, tmp_path: Path) -> None:
    other = products(tmp_path / "other.onnx", 2, "rows")
    found = between(repository / FULL, other)
    assert found.notes == ["not timed: their inputs differ"]
    assert found.facts["inputs"] == ("image:float32[batch,1,8,8]", f"rows:float32[batch,{WIDTH}]")
    assert found.nodes["n0"] == ("-", "MatMul fp32")
    assert not [name for name in found.facts if name.startswith("latency") or name == "speed"]


# --- What is refused -------------------------------------------------------------------------------------------------


def refusal(first: Path, second: Path) -> str:
    with pytest.raises(PenstockError) as caught:
        between(first, second)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_paths_that_are_no_model_are_refused_on_either_side(repository: Path, tmp_path: Path) -> None:
    text, damaged, empty = tmp_path / "notes.txt", tmp_path / "damaged.onnx", tmp_path / "empty"
    text.write_text("no model")
    damaged.write_bytes(b"no model")
    empty.mkdir()
    for path, why in (
        (text, "must be an artifact's folder or an .onnx file that is there"),
        (tmp_path / "missing", "must be an artifact's folder or an .onnx file that is there"),
        (repository / FULL / "1" / "golden.npz", "must be an artifact's folder or an .onnx file that is there"),
        (damaged, "truncated, damaged, or not an ONNX model"),
        (empty, "not an artifact"),
        (repository, "it is a repository, name one of its models: "),
    ):
        for pair in ((path, repository / FULL), (repository / FULL, path)):
            said = refusal(*pair)
            assert said.startswith(f"{path}: ")
            assert why in said


def test_a_damaged_artifact_is_refused(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / FULL, tmp_path / FULL)
    with (tmp_path / FULL / "1" / "model.onnx").open("ab") as file:
        file.write(b"x")
    assert "its bytes are not those that the receipt vouches for" in refusal(repository / LOW, tmp_path / FULL)


# --- On the screen ---------------------------------------------------------------------------------------------------


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    words = ("--seconds", "0.1", *words)
    return subprocess.run(
        [sys.executable, "-m", "penstock", "diff", *map(str, words)], capture_output=True, text=True, check=False
    )


def test_as_json_the_command_line_gives_all_that_there_is(told: dict[str, Difference], repository: Path) -> None:
    done = command(repository / FULL, repository / HALF, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    read, expected = json.loads(done.stdout), told[HALF]
    assert read.keys() == {"names", "facts", "operators", "nodes", "notes", "warnings"}
    assert read["names"] == list(expected.names)
    assert read["notes"] == expected.notes
    for part in ("operators", "nodes"):
        assert read[part] == {name: list(pair) for name, pair in getattr(expected, part).items()}
    still = {name: list(pair) for name, pair in expected.facts.items() if name not in TIMES}
    assert {name: pair for name, pair in read["facts"].items() if name not in TIMES} == still
    assert set(TIMES) <= read["facts"].keys()


def test_on_the_command_line_a_wrong_path_is_one_line_and_exit_code_two(repository: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path / "missing.onnx"):
        done = command(path, repository / FULL)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {path}: ")
        assert done.stderr.count("\n") == 1


def test_the_table_shows_facts_and_what_differs_alone(
    told: dict[str, Difference], capsys: pytest.CaptureFixture[str]
) -> None:
    diff.show(replace(told[LOW], warnings=[]))
    lines = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines[1 : 1 + len(told[LOW].facts)] == list(told[LOW].facts)
    assert [line for line in lines if line.startswith("operator")] == [
        "operator DequantizeLinear",
        "operator QuantizeLinear",
        "operator Relu",
    ]
    assert [line for line in lines if line.startswith("node ")] == [f"node {name}" for name in told[LOW].nodes]


def test_notes_come_first_and_forty_nodes_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = {f"n{place}": ("Relu fp32", "Relu fp16") for place in range(43)}
    diff.show(Difference(("a", "b"), {"made": ("-", "-")}, {}, nodes, ["not timed: their inputs differ"]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "note: not timed: their inputs differ"
    assert sum(line.startswith("node n") for line in lines) == 40
    assert lines[-1] == "and 3 more nodes: --json lists them all"


# --- The map of what is exported -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [FULL, HALF, LOW, ENGINE])
def test_the_precision_map_of_an_export_is_its_plan(repository: Path, name: str) -> None:
    found = artifact.read(repository / name)
    kept = () if found.receipt.plan is None else found.receipt.plan.kept
    graph = graph_of(repository / name)
    heavy = [node.name for node in graph.node if node.op_type in ("Conv", "Gemm")]
    assert len(heavy) == 10
    held = precisions.of_graph(graph)
    assert {node: held[node] for node in heavy} == {
        node: "fp32" if node in kept else found.receipt.precision for node in heavy
    }
