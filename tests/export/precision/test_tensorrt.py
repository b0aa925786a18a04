"""int8 and fp8 for TensorRT: ModelOpt places the pairs in a process of its own, scales are measured on all samples."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.export.precision import emulation
from penstock.export.precision.tensorrt import ForTensorrt

ROWS = Rows({"x": np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)}, None)


def graph() -> Any:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "y")]
    made = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "g", values[:1], values[1:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def quantised() -> Any:
    """The graph with its input through a pair of Q and DQ."""
    made = graph()
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
    ]
    made.graph.node[0].input[0] = "d"
    for node in reversed(nodes):
        made.graph.node.insert(0, node)
    made.graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1]))
    made.graph.initializer.append(helper.make_tensor("zero", TensorProto.INT8, [], [0]))
    return made


def answering(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Have the other process be a shell script, which is given what Python would be."""
    stub = folder / "python"
    stub.write_text(f"#!/bin/sh\n{script}\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))


def arrays(model: Any) -> dict[str, Any]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def by_name(model: Any) -> dict[str, Any]:
    return {node.name: node for node in model.graph.node}


# --- The other process -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo Traceback >&2; echo 'ValueError: no such operator' >&2; exit 1", "ValueError: no such operator"),
        ("echo said on stdout; exit 3", "said on stdout"),
        ("exit 7", "exit code 7"),
        ("kill -9 $$", "exit code -9"),
        (r"printf '\377\376bytes' >&2; exit 1", "bytes"),
    ],
)
def test_a_failure_over_there_is_one_sentence_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, reason: str
) -> None:
    answering(monkeypatch, tmp_path, script)
    with pytest.raises(PenstockError) as caught:
        ForTensorrt(graph(), "int8", ROWS, "max", 1, 4, tmp_path)
    assert str(caught.value).startswith("ModelOpt cannot quantise the model: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_full_disk_over_there_is_a_full_disk_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, tmp_path, "echo 'OSError: [Errno 28] No space left on device' >&2; exit 1")
    with pytest.raises(OSError, match="No space left") as caught:
        ForTensorrt(graph(), "int8", ROWS, "max", 1, 4, tmp_path)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(("precision", "usual"), [("int8", 2), ("fp8", 5), ("int8", 12)])
def test_the_other_process_is_given_the_graph_and_as_many_rows_as_are_usual_and_its_file_is_the_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precision: str, usual: int
) -> None:
    onnx.save(quantised(), str(tmp_path / "answer"))
    answering(monkeypatch, tmp_path, f'shift 2; echo "$@" > {tmp_path}/asked; cp {tmp_path}/answer "$3"')
    before = graph()
    lowering = ForTensorrt(before, precision, ROWS, "max", 1, usual, tmp_path)
    asked = (tmp_path / "asked").read_text().split()
    assert asked[-1] == precision
    assert graph() == before == onnx.load(asked[0])
    with np.load(asked[1]) as archive:
        assert archive.files == ["input:x"]
        assert np.array_equal(archive["input:x"], [ROWS.inputs["x"][place % 5] for place in range(usual)])
    assert lowering.nodes == ["relu"]
    found = lowering.graph(())
    assert [node.op_type for node in found.graph.node] == ["QuantizeLinear", "DequantizeLinear", "Relu"]
    # Of all five rows, whatever ModelOpt was given.
    assert np.isclose(arrays(found)["scale"], np.abs(ROWS.inputs["x"]).max() / 127, rtol=1e-6, atol=0)
    record = lowering.record
    assert (record.method, record.samples, record.real) == ("max", 5, True)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_graph_that_came_back_as_it_went_is_not_lowered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precision: str
) -> None:
    answering(monkeypatch, tmp_path, 'cp "$3" "$5"')
    expected = f"{precision} finds no operator here that TensorRT would gain by; export it as fp16 or fp32"
    with pytest.raises(PenstockError) as caught:
        ForTensorrt(graph(), precision, ROWS, "max", 1, 4, tmp_path)
    assert str(caught.value) == expected


def test_a_package_that_is_missing_over_there_is_named_with_the_line_that_installs_it(tmp_path: Path) -> None:
    onnx.save(graph(), str(tmp_path / "graph.onnx"))
    np.savez(tmp_path / "rows.npz", **ROWS.inputs)  # type: ignore[arg-type]
    code = (
        "import runpy, sys\nsys.modules['modelopt'] = None\n"
        "runpy.run_module('penstock.export.precision.modelopt', run_name='__main__', alter_sys=True)\n"
    )
    arguments = [str(tmp_path / name) for name in ("graph.onnx", "rows.npz", "out.onnx")]
    command = [sys.executable, "-c", code, *arguments, "int8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr


# --- A residual net, placed by ModelOpt itself -----------------------------------------------------------------------

USUAL = 4


def pictures() -> Rows:
    """Rows of which the last alone, beyond those that ModelOpt gets, has a pixel 20 times the rest."""
    drawn = np.random.default_rng(1).standard_normal((48, 3, 8, 8)).astype(np.float32)
    drawn[-1, 0, 4, 4] = 60.0
    return Rows({"x": drawn}, None)


@pytest.fixture(scope="module")
def source(residual: Callable[[int], Any]) -> Any:
    return residual(32)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("int8")


@pytest.fixture(scope="module")
def int8(source: Any, work: Path) -> ForTensorrt:
    return ForTensorrt(source, "int8", pictures(), "max", 1, USUAL, work)


@pytest.fixture(scope="module")
def fp8(source: Any, tmp_path_factory: pytest.TempPathFactory) -> ForTensorrt:
    return ForTensorrt(source, "fp8", pictures(), "max", 1, USUAL, tmp_path_factory.mktemp("fp8"))


def of_activations(model: Any) -> dict[str, tuple[Any, Any]]:
    """Scale and zero point of each activation that has a pair."""
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    return {
        node.input[0]: (numpy_helper.to_array(held[node.input[1]]), held[node.input[2]])
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] not in held
    }


def test_scales_are_those_of_all_samples_and_not_of_the_rows_that_modelopt_saw(
    int8: ForTensorrt, source: Any, inside: Callable[..., Any]
) -> None:
    seen, found = inside(source, pictures().inputs), of_activations(int8.graph(()))
    assert {"x", "r1"} <= found.keys()
    for name, (scale, zero) in found.items():
        assert np.isclose(scale, np.abs(seen[name]).max() / 127, rtol=1e-5, atol=0), name
        assert zero.data_type == TensorProto.INT8
        assert not numpy_helper.to_array(zero).any()
    assert np.isclose(found["x"][0], 60 / 127, rtol=1e-5, atol=0)


def test_another_method_gives_other_scales_at_the_same_places(
    int8: ForTensorrt, source: Any, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What ModelOpt placed does not hang on the method: it is not asked again here.
    answering(monkeypatch, tmp_path, f'cp {work}/placed.onnx "$5"')
    entropy = ForTensorrt(source, "int8", pictures(), "entropy", 1, USUAL, tmp_path)
    assert entropy.nodes == int8.nodes
    assert entropy.record.method == "entropy"
    found, largest = of_activations(entropy.graph(())), of_activations(int8.graph(()))
    assert found.keys() == largest.keys()
    assert all(found[name][0] <= largest[name][0] for name in found)
    # All but one value of x are under 6, and to hold that one costs the others four bits.
    assert found["x"][0] < 10 / 127 < largest["x"][0]


def test_biases_stay_float32_and_unquantised(int8: ForTensorrt, source: Any) -> None:
    found = int8.graph(())
    for node, bias in (("first", "b1"), ("second", "b2"), ("head", "b3")):
        assert by_name(found)[node].input[2] == bias
        assert np.array_equal(arrays(found)[bias], arrays(source)[bias])
        assert arrays(found)[bias].dtype == np.float32


def test_weights_are_symmetric_per_channel_and_kept_in_float32_before_their_pairs(
    int8: ForTensorrt, source: Any
) -> None:
    found = int8.graph(())
    held = arrays(found)
    for weight in ("w1", "w2"):
        (pair,) = [node for node in found.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == weight]
        assert np.array_equal(held[weight], arrays(source)[weight])
        most = np.abs(held[weight]).reshape(len(held[weight]), -1).max(1)
        assert np.allclose(held[pair.input[1]], most / 127, rtol=1e-5, atol=0)
        assert not held[pair.input[2]].any()
        assert held[pair.input[2]].dtype == np.int8


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_residual_addition_takes_its_convolution_as_it_is_and_one_branch_quantised_at_most(
    precision: str, request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue(precision).graph(())
    low = {name for node in found.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    (answer,) = by_name(found)["second"].output
    join = by_name(found)["join"]
    assert answer in join.input
    assert len(low & set(join.input)) <= 1
    assert [node.name for node in found.graph.node if answer in node.input] == ["join"]


def test_int8_answers_are_within_a_few_percent_of_the_float_graphs(
    int8: ForTensorrt, source: Any, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    feeds = pictures().inputs
    found = int8.graph(())
    onnx.checker.check_model(found, full_check=True)
    assert 0 < off(run(source, feeds)["y"], run(found, feeds, rewritten=False)["y"]) < 0.08


def test_fp8_pairs_are_e4m3_with_the_largest_magnitudes_at_448(
    fp8: ForTensorrt, source: Any, inside: Callable[..., Any]
) -> None:
    seen, found = inside(source, pictures().inputs), fp8.graph(())
    onnx.checker.check_model(found, full_check=True)
    held = {tensor.name: tensor for tensor in found.graph.initializer}
    placed = [node for node in found.graph.node if node.op_type == "QuantizeLinear"]
    assert {node.input[0] for node in placed} >= {"r1", "w2"}
    for node in placed:
        assert held[node.input[2]].data_type == TensorProto.FLOAT8E4M3FN
        scale, name = numpy_helper.to_array(held[node.input[1]]), node.input[0]
        if name in held:
            weights = numpy_helper.to_array(held[name])
            expected = np.abs(weights).reshape(len(weights), -1).max(1) / 448
            assert scale.shape == expected.shape, name
        else:
            expected = np.abs(seen[name]).max() / 448
        assert np.allclose(scale, expected, rtol=1e-5, atol=0), name
    assert by_name(found)["second"].input[2] == "b2"


def test_fp8_answers_are_within_a_few_percent_of_the_float_graphs(
    fp8: ForTensorrt, source: Any, run: Callable[..., Any], off: Callable[..., float]
) -> None:
    feeds = pictures().inputs
    got = run(emulation.emulated(fp8.graph(())), feeds)["y"]
    assert 0 < off(run(source, feeds)["y"], got) < 0.08


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_with_every_node_kept_the_graph_answers_as_the_float_one(
    precision: str, request: pytest.FixtureRequest, source: Any, run: Callable[..., Any]
) -> None:
    lowering = request.getfixturevalue(precision)
    found = lowering.graph(lowering.nodes)
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in found.graph.node}
    assert np.allclose(run(found, pictures().inputs)["y"], run(source, pictures().inputs)["y"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_kept_node_takes_float_tensors_and_others_stay_as_they_are(
    precision: str, request: pytest.FixtureRequest
) -> None:
    lowering = request.getfixturevalue(precision)
    whole, found = lowering.graph(()), lowering.graph({"second"})
    onnx.checker.check_model(found, full_check=True)
    assert list(by_name(found)["second"].input) == ["r1", "w2", "b2"]
    assert not any(node.input[0] == "w2" for node in found.graph.node if node.op_type == "QuantizeLinear")
    for name in set(lowering.nodes) - {"second"}:
        assert by_name(found)[name] == by_name(whole)[name]
