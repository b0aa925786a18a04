"""int8 for TensorRT: ModelOpt works in a process of its own, and what goes wrong there is told here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.export.precision import int8

ROWS = Rows({"x": np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)}, None)


def graph() -> Any:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "y")]
    made = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def quantised() -> Any:
    """The graph with its input through a pair of Q and DQ."""
    made = graph()
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["d"]),
    ]
    made.graph.node[0].input[0] = "d"
    for node in reversed(nodes):
        made.graph.node.insert(0, node)
    made.graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1]))
    return made


def answering(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Have the other process be a shell script, which is given what Python would be."""
    stub = folder / "python"
    stub.write_text(f"#!/bin/sh\n{script}\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))


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
        int8.for_tensorrt(graph(), ROWS, tmp_path)
    assert str(caught.value).startswith("ModelOpt cannot quantise the model: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_other_process_is_given_the_graph_and_the_rows_and_its_file_is_the_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = quantised()
    onnx.save(answer, str(tmp_path / "answer"))
    answering(monkeypatch, tmp_path, f'shift 2; echo "$@" > {tmp_path}/asked; cp {tmp_path}/answer "$3"')
    before = graph()
    found, calibration = int8.for_tensorrt(before, ROWS, tmp_path)
    asked = (tmp_path / "asked").read_text().split()
    assert asked[-1] == calibration.method == "max"
    assert found == answer
    assert graph() == before == onnx.load(asked[0])
    with np.load(asked[1]) as archive:
        assert np.array_equal(archive["x"], ROWS.inputs["x"])
    assert calibration.samples == 5


def test_a_graph_that_came_back_as_it_went_is_no_int8(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, tmp_path, 'cp "$3" "$5"')
    with pytest.raises(PenstockError, match=r"--precision int8 finds no operator here .*; export it as fp16 or fp32"):
        int8.for_tensorrt(graph(), ROWS, tmp_path)


def test_a_graph_without_an_operator_that_onnxruntime_lowers_is_refused(tmp_path: Path) -> None:
    made = graph()
    made.graph.node[0].op_type = "Erf"
    with pytest.raises(PenstockError, match=r"--precision int8 finds no operator here .*; export it as fp16 or fp32"):
        int8.for_onnxruntime(made, ROWS, tmp_path)


def test_a_package_that_is_missing_over_there_is_named_with_the_line_that_installs_it(tmp_path: Path) -> None:
    onnx.save(graph(), str(tmp_path / "graph.onnx"))
    np.savez(tmp_path / "rows.npz", **ROWS.inputs)  # type: ignore[arg-type]
    code = (
        "import runpy, sys\nsys.modules['modelopt'] = None\n"
        "runpy.run_module('penstock.export.precision.modelopt', run_name='__main__', alter_sys=True)\n"
    )
    arguments = [str(tmp_path / name) for name in ("graph.onnx", "rows.npz", "out.onnx")]
    command = [sys.executable, "-c", code, *arguments, "max"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("quantise", [int8.for_onnxruntime, int8.for_tensorrt])
def test_without_real_rows_nothing_is_begun(tmp_path: Path, quantise: Any) -> None:
    with pytest.raises(PenstockError, match="int8 needs real samples"):
        quantise(graph(), None, tmp_path)
    assert list(tmp_path.iterdir()) == []
