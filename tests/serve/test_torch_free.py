"""Serving ONNX needs no torch: a server that cannot import it answers, and never holds it."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock.serve

if TYPE_CHECKING:
    from tests.serve.conftest import StartServer

# Read by every Python process that has its folder on PYTHONPATH.
SITE = """
import atexit, os, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0].startswith("torch"):
            with open(os.environ["TORCH_TRACE"], "a") as trace:
                trace.write(f"tried {name}\\n")
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())

@atexit.register
def report():
    held = sorted(name for name in sys.modules if name.split(".")[0].startswith("torch"))
    with open(os.environ["TORCH_TRACE"], "a") as trace:
        trace.write("".join(f"held {name}\\n" for name in held) + "ended\\n")
"""


@pytest.fixture
def without_torch(tmp_path: Path) -> tuple[dict[str, str], Callable[[], list[str]]]:
    """An environment in which importing torch fails, and a reader of what was tried and held there."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE)
    trace = tmp_path / "trace.txt"
    trace.touch()
    return {"PYTHONPATH": str(folder), "TORCH_TRACE": str(trace)}, lambda: trace.read_text().splitlines()


def test_the_blocker_does_block(without_torch: tuple[dict[str, str], Callable[[], list[str]]]) -> None:
    environment, trace = without_torch
    ran = subprocess.run([sys.executable, "-c", "import torch"], env=environment, capture_output=True, check=False)
    assert ran.returncode == 1
    assert trace() == ["tried torch", "ended"]


def test_a_server_of_an_onnx_artifact_answers_without_torch(
    repository: Path,
    scans: tuple[Any, Any],
    png: Callable[[Any], bytes],
    start_server: StartServer,
    without_torch: tuple[dict[str, str], Callable[[], list[str]]],
) -> None:
    environment, trace = without_torch
    server = start_server(repository / "digits-onnx-fp16", environment=environment)
    answers = [
        server.ask("POST", "/predict/digits-onnx-fp16", png(image), {"Content-Type": "image/png"})
        for image in scans[0][:20]
    ]
    assert {answer.status for answer in answers} == {200}
    said = [int(answer.json["predictions"][0]["label"]) for answer in answers]
    assert sum(label == truth for label, truth in zip(said, scans[1], strict=False)) >= 18
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0] * 64}]}
    assert server.ask("POST", "/v2/models/digits-onnx-fp16/infer", body).status == 200
    assert server.ask("GET", "/docs").status == 200
    server.stop()
    assert trace() == ["ended"]


def test_every_module_of_serving_is_imported_without_torch(
    without_torch: tuple[dict[str, str], Callable[[], list[str]]],
) -> None:
    environment, trace = without_torch
    modules = [f"penstock.serve.{module.name}" for module in pkgutil.iter_modules(penstock.serve.__path__)]
    assert "penstock.serve.app" in modules
    code = f"import {', '.join(modules)}, penstock.cli, penstock.runtimes.onnxruntime, penstock.runtimes.tensorrt"
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert trace() == ["ended"]


def test_a_torchscript_artifact_is_refused_in_one_line_where_torch_is_missing(
    repository: Path, without_torch: tuple[dict[str, str], Callable[[], list[str]]]
) -> None:
    environment, trace = without_torch
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", str(repository / "digits-torchscript-fp32"), "--port", "0"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 2
    (reason,) = [line for line in ran.stdout.splitlines() if line.startswith("NOT serving digits-torchscript-fp32")]
    assert "pip install" in reason
    assert "Traceback" not in ran.stderr
    assert [line for line in ran.stderr.splitlines() if line.startswith("error:")] == ran.stderr.splitlines()
    assert trace()[0].startswith("tried torch")
