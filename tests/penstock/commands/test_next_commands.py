"""What a stranger types wrongly: each mistake is told with the nearest that is meant, or the command to go on with."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.doctor.tinymodel import identity


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "best.pth").touch()
    (folder / "models").mkdir()
    (folder / "tiny.onnx").write_bytes(identity("fp32"))
    return folder


def penstock(place: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "penstock", *words]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=place, timeout=120, check=False)
    return ran.returncode, ran.stdout + ran.stderr


MISTAKES = {
    "a recipe's name": (["train", "digts"], "did you mean digits?"),
    "no recipe": (["train"], "as in penstock train digits"),
    "a field of a recipe": (["train", "digits", "--set", "optim.l=3"], "did you mean lr?"),
    "a checkpoint's name": (["export", "bset.pth"], "the nearest is 'best.pth'"),
    "no checkpoint": (["export", "xyz.pth"], "penstock train digits leaves one"),
    "a folder's name": (["export", "rnus/best.pth"], "there is no folder rnus"),
    "a model where a checkpoint is wanted": (["export", "tiny.onnx"], "penstock serve takes an .onnx file"),
    "a format": (["export", "--format", "onxx", "best.pth"], "the nearest is 'onnx'"),
    "a precision": (["export", "--precision", "fp17", "best.pth"], "the nearest is 'fp16'"),
    "a file where an artifact is wanted": (["verify", "tiny.onnx"], "see penstock inspect tiny.onnx"),
    "an artifact's name": (["verify", "modles"], "the nearest is 'models'"),
    "nothing to serve": (["serve", "nothing"], "penstock export writes models"),
    "an empty repository": (["serve", "models"], "penstock export --output models CHECKPOINT"),
    "keys that are not there": (["serve", "tiny.onnx", "--keys", "k.json"], "penstock keys add k.json NAME"),
    "a mode": (["serve", "tiny.onnx", "--mode", "pol"], "explicit, none, poll"),
    "a bare file to measure": (["bench", "tiny.onnx"], "penstock serve tiny.onnx"),
    "an address without its scheme": (["bench", "127.0.0.1:8000"], "penstock bench http://127.0.0.1:8000"),
    "a file to predict": (["predict", "http://127.0.0.1:1", "bets.pth"], "the nearest is 'best.pth'"),
    "nobody to predict": (["predict", "http://127.0.0.1:1", "tiny.onnx"], "penstock serve"),
    "nobody to measure": (["bench", "http://127.0.0.1:1"], "penstock serve"),
    "nobody to check": (["check", "http://127.0.0.1:1"], "penstock serve models/"),
    "nobody to check a model of": (["check", "http://127.0.0.1:1", "digits"], "penstock serve models/"),
    "two models to check": (["check", "http://127.0.0.1:1", "a", "--model", "b"], "MODEL is a; give one or the other"),
    "a file to inspect": (["inspect", "tiny.onx"], "the nearest is 'tiny.onnx'"),
    "a stage": (["doctor", "srve"], "the nearest is 'serve'"),
    "a command": (["serv"], "serve"),
    "an option": (["serve", "tiny.onnx", "--prot", "1"], "--port"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_what_is_meant(place: Path, mistake: str) -> None:
    words, hint = MISTAKES[mistake]
    code, said = penstock(place, *words)
    assert code == 2
    assert hint in said
    assert "Traceback" not in said


def test_a_server_that_nobody_began_is_told_with_the_command(place: Path) -> None:
    code, said = penstock(place, "health", "http://127.0.0.1:1")
    assert (code, said) == (
        1,
        "http://127.0.0.1:1: no answer: Connection refused; start it with: penstock serve models/\n",
    )


def test_a_port_that_is_taken_is_told_with_the_option(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = penstock(place, "serve", "tiny.onnx", "--port", port)
    assert code == 2
    assert f"--port {port}: another program listens there" in said
    assert "choose another --port" in said
