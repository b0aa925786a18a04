"""Trials: a runtime that crashes takes a process of its own with it, and the crash is told in one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock import artifact, machine, trial
from penstock.errors import PenstockError
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 2)),),
    outputs=(Tensor(name="y", shape=("batch", 2)),),
    dims={"batch": Dim(min=3, opt=4, max=5)},
)


def python(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Have the other process be a shell script, which is given what Python would be."""
    stub = folder / "python"
    stub.write_text(f"#!/bin/sh\n{script}\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))


@pytest.mark.parametrize("name", ["SEGV", "ABRT", "ILL", "BUS", "FPE", "KILL"])
def test_a_crash_is_one_sentence_with_the_file_the_runtime_and_the_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    python(monkeypatch, tmp_path, f"echo noise; echo noise >&2; ulimit -c 0; kill -{name} $$")
    with pytest.raises(PenstockError) as caught:
        trial.attempt("onnxruntime", tmp_path / "model.onnx", SIGNATURE)
    said = f"model.onnx: onnxruntime crashes on it (SIG{name}); try another --precision or --format"
    assert str(caught.value) == said


@pytest.mark.parametrize("code", [0, 1, 2, 139])
def test_whatever_ends_in_good_order_is_left_for_the_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    python(monkeypatch, tmp_path, f"echo noise; echo noise >&2; exit {code}")
    trial.attempt("onnxruntime", tmp_path / "model.onnx", SIGNATURE)
    assert capfd.readouterr() == ("", "")


def test_a_runtime_that_never_ends_is_told_and_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python(monkeypatch, tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    monkeypatch.setattr(trial, "TIMEOUT_S", 0.5)
    with pytest.raises(PenstockError, match=r"model\.onnx: onnxruntime does not finish loading it within 0\.5 s"):
        trial.attempt("onnxruntime", tmp_path / "model.onnx", SIGNATURE)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_the_other_process_is_given_the_runtime_the_file_and_the_contract(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python(monkeypatch, tmp_path, f"printf '%s\\n' \"$@\" > {tmp_path}/asked")
    trial.attempt("tensorrt", tmp_path / "a model.plan", SIGNATURE, "cuda:0", careful=True)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == "-c"
    assert "'penstock.trial'" in asked[1]
    assert asked[2:4] == ["tensorrt", str(tmp_path / "a model.plan")]
    assert asked[4:6] == ["cuda:0", "careful"]
    assert Signature.model_validate(json.loads(asked[6])) == SIGNATURE
    trial.attempt("onnxruntime", tmp_path / "model.onnx")
    assert (tmp_path / "asked").read_text().splitlines()[4:] == ["cpu", "as-usual"]


def test_a_file_of_the_user_s_is_not_imported_over_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "numpy.py").write_text("open('witness', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    held = artifact.read(repository / "digits-onnx-fp32")
    trial.attempt("onnxruntime", held.model_path, held.receipt.signature)
    assert not Path("witness").exists()


def test_the_model_is_run_at_its_smallest_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from penstock.runtimes.fake import FakeRunner

    seen: list[tuple[int, ...]] = []
    real = FakeRunner.run
    monkeypatch.setattr(FakeRunner, "run", lambda self, feeds: seen.append(feeds["x"].shape) or real(self, feeds))
    trial._run("fake", str(tmp_path / "none"), "cpu", "as-usual", SIGNATURE.model_dump_json())
    assert seen == [(3, 2)]


def test_a_real_file_is_really_loaded_and_run_over_there(repository: Path, tmp_path: Path) -> None:
    held = artifact.read(repository / "digits-onnx-fp32")
    trial.attempt("onnxruntime", held.model_path, held.receipt.signature)
    damaged = tmp_path / "model.onnx"
    damaged.write_bytes(b"no model")
    trial.attempt("onnxruntime", damaged)
    command = [sys.executable, "-m", "penstock.trial", "onnxruntime"]
    codes = [
        subprocess.run([*command, str(path), "cpu", "as-usual"], capture_output=True, check=False).returncode
        for path in (held.model_path, damaged)
    ]
    assert codes == [0, 1]


def test_a_model_that_computes_more_numbers_than_the_machine_holds_is_told_and_ends_nothing_else(
    tmp_path: Path,
) -> None:
    onnx = pytest.importorskip("onnx")
    wanted = machine.memory_bytes() // 4 + 2**20  # float32, of which the file says only how many
    size = onnx.helper.make_tensor("size", onnx.TensorProto.INT64, [1], [wanted])
    nodes = [
        onnx.helper.make_node("ConstantOfShape", ["size"], ["many"]),
        onnx.helper.make_node("ReduceSum", ["many"], ["sum"]),
        onnx.helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch"]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], [size])
    path = tmp_path / "model.onnx"
    opsets = [onnx.helper.make_opsetid("", 18)]
    path.write_bytes(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    with pytest.raises(
        PenstockError, match=r"onnxruntime needs more memory for it than this machine has \([\d,.]+ GB\)"
    ):
        trial.needs_care("onnxruntime", path)


def test_a_file_that_a_runtime_survives_only_with_care_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python(monkeypatch, tmp_path, 'ulimit -c 0; case "$*" in *careful*) exit 0;; esac; kill -SEGV $$')
    assert trial.needs_care("onnxruntime", tmp_path / "model.onnx", SIGNATURE)
    python(monkeypatch, tmp_path, "exit 0")
    assert not trial.needs_care("onnxruntime", tmp_path / "model.onnx", SIGNATURE)
    python(monkeypatch, tmp_path, "ulimit -c 0; kill -SEGV $$")
    with pytest.raises(PenstockError, match="crashes on it"):
        trial.needs_care("onnxruntime", tmp_path / "model.onnx", SIGNATURE)


def test_a_trial_ends_with_the_process_that_began_it(tmp_path: Path) -> None:
    path = tmp_path / "never.onnx"
    os.mkfifo(path)  # whoever opens it waits for ever
    begin = f"from pathlib import Path; from penstock import trial; trial.attempt('onnxruntime', Path({str(path)!r}))"
    with subprocess.Popen([sys.executable, "-c", begin]) as began:
        children = Path(f"/proc/{began.pid}/task/{began.pid}/children")
        give_up = time.monotonic() + 30
        while not (found := children.read_text().split()):
            assert time.monotonic() < give_up
            time.sleep(0.01)
        held = opened_by_a_reader(path, give_up)  # and nothing will come
        began.kill()
    while Path(f"/proc/{found[0]}").exists() and _state(found[0]) != "Z":
        assert time.monotonic() < give_up, "it runs on"
        time.sleep(0.01)
    os.close(held)


def opened_by_a_reader(path: Path, give_up: float) -> int:
    """A pipe's other end, once somebody reads from it."""
    while time.monotonic() < give_up:
        with contextlib.suppress(OSError):
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    raise AssertionError("nobody reads it")


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"
