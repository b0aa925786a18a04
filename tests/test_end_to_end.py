"""The road as a user walks it: the command line alone, in a folder that holds a train.py and an export.py of theirs."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import cli

DECOY = 'raise RuntimeError("the user\'s own file was imported")\n'
NET = "import torch\n\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(4, 2)\n"
SCANS = 50


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str


def penstock(folder: Path, *arguments: str) -> Ran:
    """`python -m penstock ARGUMENTS` in `folder`."""
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def desk(folder: Path, trained: Path) -> Path:
    """A user's folder: a checkpoint, and two files whose names are those of penstock's stages."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(DECOY)
    (folder / "export.py").write_text(DECOY)
    shutil.copy(trained, folder / "best.pth")
    return folder


def half_written(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.name.startswith("."))


@dataclass(frozen=True)
class Road:
    """What the commands left: the user's folder, what export said, and the URL of the server."""

    folder: Path
    exported: Ran
    url: str


def _started(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """`penstock serve models/ --port 0`, once it answers."""
    with (folder / "server.err").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "serve", "models/", "--port", "0"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"http://\S+", line)
        if found:
            break
    else:
        raise AssertionError((folder / "server.err").read_text())
    url, give_up = found[0], time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(f"{url}/v2/health/live", timeout=5).close()
        except urllib.error.URLError:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        else:
            return process, url


@pytest.fixture(scope="module")
def road(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    """`export --format onnx --fp16 best.pth`, then `serve models/ --port 0`, stopped again at the end."""
    folder = desk(tmp_path_factory.mktemp("user"), trained)
    exported = penstock(folder, "export", "--format", "onnx", "--fp16", "best.pth")
    assert exported.code == 0, exported.err
    process, url = _started(folder)
    yield Road(folder, exported, url)
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=30)
    assert code == 0
    told = (folder / "server.err").read_text().splitlines()
    assert [line for line in told if " INFO " not in line] == []  # what was measured is told


def held_out() -> tuple[Any, Any]:
    from penstock import data
    from penstock.data.specs import Digits

    part = data.load(Digits())["test"]
    return part.items[:SCANS], part.labels[:SCANS]


def png(image: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def test_export_leaves_one_whole_model_and_says_how_near_it_is_to_its_source(road: Road) -> None:
    (folder,) = (road.folder / "models").iterdir()
    assert folder.name == "digits-onnx-fp16"
    assert {path.name for path in (folder / "1").iterdir()} == {"model.onnx", "golden.npz", "penstock.json"}
    assert (folder / "config.pbtxt").is_file()
    assert half_written(road.folder) == []
    assert re.search(r"models/digits-onnx-fp16/1: relative error \S+, top-1 agreement \d+\.\d+%", road.exported.out)
    assert "56 of 56 tensors loaded" in road.exported.out
    receipt = json.loads((folder / "1" / "penstock.json").read_text())
    assert receipt["verification"]["passed"]
    assert receipt["verification"]["real"]


def test_uploads_of_held_out_scans_are_recognised(road: Road) -> None:
    def upload(image: Any) -> int:
        boundary = "user"
        body = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="scan.png"\r\n'
            "Content-Type: image/png\r\n\r\n"
        ).encode()
        request = urllib.request.Request(
            f"{road.url}/predict/digits-onnx-fp16",
            data=body + png(image) + f"\r\n--{boundary}--\r\n".encode(),
            headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(json.load(response)["predictions"][0]["label"])

    images, labels = held_out()
    with ThreadPoolExecutor(8) as pool:
        said = np.array(list(pool.map(upload, images)))
    assert np.mean(said == labels) >= 0.95


def test_tritonclient_recognises_held_out_scans(road: Road) -> None:
    client_module = pytest.importorskip("tritonclient.http")
    receipt = json.loads((road.folder / "models/digits-onnx-fp16/1/penstock.json").read_text())["preprocess"]
    images, labels = held_out()
    pixels = images[:, None].astype(np.float32) * np.float32(receipt["scale"])
    tensor = ((pixels - np.float32(receipt["mean"][0])) / np.float32(receipt["std"][0])).astype(np.float32)
    wanted = client_module.InferInput("image", list(tensor.shape), "FP32")
    wanted.set_data_from_numpy(tensor)
    with client_module.InferenceServerClient(road.url.removeprefix("http://")) as client:
        logits = client.infer("digits-onnx-fp16", [wanted]).as_numpy("logits")
    assert logits.shape == (SCANS, 10)
    assert np.mean(logits.argmax(1) == labels) >= 0.95


@pytest.mark.parametrize("against", [[], ["--against", "best.pth"]], ids=["golden", "checkpoint"])
def test_verify_proves_the_artifact_again(
    against: list[str], road: Road, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = in_this_process(road.folder, ["verify", "models/digits-onnx-fp16", *against], monkeypatch, capsys)
    assert (ran.code, ran.err) == (0, "")
    assert "digests as in the receipt" in ran.out
    assert re.search(r"logits: relative L2 error \d\.\d+e-0[345] \(limit 1\.00e-02\)", ran.out)
    assert ran.out.endswith("verified: digits-onnx-fp16 version 1 answers as its source does\n")
    assert ("compared with best.pth on 320 real samples, at batches 1, 2, 7, 8, 32, 64" in ran.out) == bool(against)


def test_a_bare_script_option_takes_no_file_for_its_value(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = desk(tmp_path, trained)
    arguments = ["export", "--format", "torchscript", "--script", "best.pth"]
    ran = in_this_process(folder, arguments, monkeypatch, capsys)
    assert (ran.code, ran.err) == (0, "")
    receipt = json.loads((folder / "models/digits-torchscript-fp32/1/penstock.json").read_text())
    assert receipt["build"]["road"] == "script"
    assert receipt["source"]["options"] == ["--script=script"]


def test_health_exits_with_0_for_a_ready_server(road: Road) -> None:
    ran = penstock(road.folder, "health", road.url)
    assert (ran.code, ran.err) == (0, "")
    assert "ready" in ran.out


def test_health_exits_with_1_where_nobody_answers(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        ran = penstock(tmp_path, "health", f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert ran.code == 1
    assert "no answer" in ran.out
    assert "Traceback" not in ran.err


def test_eval_scores_the_artifact_and_the_checkpoint_alike(road: Road) -> None:
    def score(path: str) -> float:
        ran = penstock(road.folder, "eval", path)
        assert ran.code == 0, ran.err
        found = re.search(r"(\d+\.\d+)% correct \((\d+) of 360\)", ran.out)
        assert found, ran.out
        return float(found[1])

    with ThreadPoolExecutor(2) as pool:
        artifact, checkpoint = pool.map(score, ["models/digits-onnx-fp16", "best.pth"])
    assert min(artifact, checkpoint) >= 95
    assert abs(artifact - checkpoint) <= 1


# --- What goes wrong is one line, and leaves nothing -------------------------------------------------------------


class Marker:
    """Pickles into a call that would leave a file behind if it were ever loaded as code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def refused(ran: Ran, *parts: str) -> None:
    assert ran.code == 2, (ran.out, ran.err)
    assert len(ran.err.splitlines()) == 1, ran.err
    assert ran.err.startswith("error: ")
    for part in parts:
        assert part in ran.err


Case = tuple[list[str], list[str]]  # arguments of `penstock export`, and what its error line must say
EXPORTS: dict[str, Case] = {
    "a missing file": (["nowhere.pth"], ["nowhere.pth: no such file"]),
    "a truncated file": (["truncated.pth"], ["truncated.pth", "truncated, damaged, or not a PyTorch checkpoint"]),
    "a text file": (["notes.txt"], ["notes.txt", "not a PyTorch checkpoint"]),
    "pickled code": (["evil.pth"], ["evil.pth", "needs pickled code", "mkdir"]),
    "an unknown format": (["--format", "gguf", "best.pth"], ["--format 'gguf'", "onnx, pt2, torchscript, trt"]),
    "an unknown precision": (
        ["--precision", "fp12", "best.pth"],
        ["--precision 'fp12'", "fp32, tf32, fp16, bf16, int8, int8-fp16, fp8"],
    ),
    "two precisions for one variant": (["--fp16", "--fp8", "best.pth"], ["--fp16 and --fp8"]),
    "a batch that is no number": (["--batch", "eight", "best.pth"], ["--batch 'eight'", "whole number"]),
    "a bad input": (
        ["--model", "./net.py:Net", "--input", "x:float32(4)", "bare.pth"],
        ["x:float32(4)", "NAME:DTYPE[SIZE"],
    ),
    "an unwritable output": (
        ["--output", "notes.txt/models", "best.pth"],
        ["--output notes.txt/models", "cannot be written"],
    ),
    "what the gate stops": (
        ["--format", "torchscript", "--max-error", "0", "best.pth"],
        ["the gate stopped it", "output 'logits'", "relative L2 error"],
    ),
}
MORE_EXPORTS: dict[str, Case] = {
    "a folder": (["."], ["is a folder"]),
    "an empty file": (["empty.pth"], ["empty.pth", "truncated, damaged, or not a PyTorch checkpoint"]),
    "one unknown format of two": (["--format", "onnx,gguf", "best.pth"], ["--format 'gguf'"]),
    "a precision the format has not": (
        ["--format", "torchscript", "--int8", "best.pth"],
        ["--precision 'int8'", "torchscript"],
    ),
    "a precision twice": (["--precision", "fp32", "--fp16", "best.pth"], ["--precision fp32 and --fp16"]),
    "batch 0": (["--batch", "0", "best.pth"], ["--batch '0'", "from 1"]),
    "a batch of thousands of digits": (["--batch", "9" * 5000, "best.pth"], ["--batch", "from 1 to 999999"]),
    "two batches": (["--batch", "1,8", "best.pth"], ["--batch '1,8'", "MIN,OPT,MAX"]),
    "batches out of order": (["--batch", "8,4,64", "best.pth"], ["--batch '8,4,64'", "min <= opt <= max"]),
    "an input of an unknown dtype": (
        ["--model", "./net.py:Net", "--input", "x:float33[batch,4]", "bare.pth"],
        ["x:float33[batch,4]", "float33"],
    ),
    "an input the model cannot take": (
        ["--model", "./net.py:Net", "--input", "x:float32[batch,5]", "bare.pth"],
        ["x:float32[batch,5]", "correct --input"],
    ),
    "a model that is not in its file": (
        ["--model", "./net.py:Nett", "--input", "x:float32[batch,4]", "bare.pth"],
        ["./net.py:Nett", "has no 'Nett'"],
    ),
    "a checkpoint of another architecture": (
        ["--model", "./net.py:Net", "--input", "x:float32[batch,4]", "other.pth"],
        ["1 missing (bias)", "1 mis-shaped (weight [3, 4] for [2, 4])"],
    ),
    "no format": (["--format", ",", "best.pth"], ["--format ','", "must name at least one"]),
    "no precision": (["--precision", "", "best.pth"], ["--precision ''", "must name at least one"]),
    "an error without end": (["--max-error", "inf", "best.pth"], ["--max-error", "finite"]),
    "int8 without samples": (
        ["--int8", "--calibration", "max", "--model", "./net.py:Net", "--input", "x:float32[batch,4]", "bare.pth"],
        ["--precision int8 needs real samples", "--data FILE.npz"],
    ),
    "a range of no dimension": (["--dim", "seq=1,8,64", "best.pth"], ["--dim seq", "those are batch"]),
    "a range without sizes": (
        ["--dim", "batch", "best.pth"],
        ["--dim 'batch'", "must read NAME=…, as in seq=1,128,512"],
    ),
    "a misspelt dimension": (["--dim", "btach=1,8,64", "best.pth"], ["--dim btach", "those are batch"]),
    "values of no input": (["--range", "ids=0,9", "best.pth"], ["--range ids", "those are image"]),
    "values out of order": (["--range", "image=9,0", "best.pth"], ["--range image=9,0", "low <= high"]),
    "values without a bound": (["--range", "image=9", "best.pth"], ["--range image=9", "NAME=LOW,HIGH"]),
    "an output there is not": (["--keep", "logit", "best.pth"], ["--keep 'logit'", "outputs are output"]),
    "both roads to TorchScript": (["--trace", "--script", "best.pth"], ["--trace and --script", "one or the other"]),
    "a road there is not": (["--script=later", "best.pth"], ["--script 'later'", "--script auto"]),
    "an opset for no ONNX": (["--format", "pt2", "--opset", "18", "best.pth"], ["--opset 18", "onnx and trt take it"]),
    "an exported model": (["models/x.onnx"], ["models/x.onnx: no such file"]),
    "a path of too many characters": (["x" * 300], ["File name too long"]),
    "inputs that the checkpoint names itself": (
        ["--input", "image:float32[batch,1,8,8]", "best.pth"],
        ["--input 'image:float32[batch,1,8,8]'", "names its own inputs"],
    ),
    "a file for output": (["--output", "notes.txt", "best.pth"], ["--output notes.txt", "cannot be written"]),
    "a bad name": (["--name", "../digits", "best.pth"], ["--name '../digits'", "letters, digits"]),
    "a checkpoint that names no architecture": (["bare.pth"], ["bare.pth: names no architecture", "--model"]),
}


@pytest.fixture(scope="module")
def bad_desk(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder that also holds files that are no checkpoints. No test may change it."""
    torch = pytest.importorskip("torch")
    folder = desk(tmp_path_factory.mktemp("bad"), trained)
    content = trained.read_bytes()
    (folder / "truncated.pth").write_bytes(content[: len(content) // 2])
    (folder / "empty.pth").write_bytes(b"")
    (folder / "notes.txt").write_text("not a checkpoint\n" * 10)
    torch.save({"state_dict": Marker(folder / "pwned")}, folder / "evil.pth")
    (folder / "net.py").write_text(NET)
    torch.save({"state_dict": {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}}, folder / "bare.pth")
    torch.save({"state_dict": {"weight": torch.zeros(3, 4)}}, folder / "other.pth")
    return folder


@pytest.fixture(scope="module")
def exports(bad_desk: Path) -> Iterator[dict[str, Future[Ran]]]:
    """The commands of EXPORTS, under way two at a time: each spends its two seconds on importing torch."""
    pool = ThreadPoolExecutor(2)
    yield {what: pool.submit(penstock, bad_desk, "export", *arguments) for what, (arguments, _) in EXPORTS.items()}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("what", EXPORTS)
def test_an_export_that_cannot_be_is_one_line(what: str, exports: dict[str, Future[Ran]]) -> None:
    refused(exports[what].result(), *EXPORTS[what][1])


def test_exports_that_cannot_be_leave_nothing(bad_desk: Path, exports: dict[str, Future[Ran]]) -> None:
    for running in exports.values():
        running.result()
    models = bad_desk / "models"
    assert not models.exists() or list(models.iterdir()) == []
    assert half_written(bad_desk) == []
    assert not (bad_desk / "pwned").exists()
    assert (bad_desk / "notes.txt").read_text() == "not a checkpoint\n" * 10


def in_this_process(
    folder: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ran:
    """The same command line without a process of its own."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return Ran(int(ended.value.code or 0), out, err)


@pytest.mark.parametrize("what", MORE_EXPORTS)
def test_another_export_that_cannot_be_is_one_line(
    what: str, bad_desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, parts = MORE_EXPORTS[what]
    refused(in_this_process(bad_desk, ["export", *arguments], monkeypatch, capsys), *parts)


VERIFIES: dict[str, Case] = {
    "no artifact": (["models/nothing"], ["models/nothing: no such folder"]),
    "a checkpoint": (["best.pth"], ["best.pth"]),
    "samples without a checkpoint": (["models/x", "--data", "rows.npz"], ["--data needs --against CKPT"]),
}


@pytest.mark.parametrize("what", VERIFIES)
def test_what_cannot_be_verified_is_one_line(
    what: str, bad_desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, parts = VERIFIES[what]
    refused(in_this_process(bad_desk, ["verify", *arguments], monkeypatch, capsys), *parts)


@pytest.mark.parametrize("path", ["models/nothing", "notes.txt", "truncated.pth"])
def test_eval_of_what_is_no_model_is_one_line(
    path: str, bad_desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(in_this_process(bad_desk, ["eval", path], monkeypatch, capsys), path)


def test_serving_where_there_are_no_models_is_one_line(tmp_path: Path) -> None:
    refused(penstock(tmp_path, "serve", "models/", "--port", "0"), "models", "no such file or folder")
    (tmp_path / "models").mkdir()
    refused(penstock(tmp_path, "serve", "models/", "--port", "0"), "holds no models")


def test_serving_models_none_of_which_loads_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello")
    ran = penstock(tmp_path, "serve", "text.onnx", "--port", "0")
    refused(ran, "no model can be served")
    assert "NOT serving text" in ran.out


def test_serving_at_a_port_in_use_is_one_line(road: Road) -> None:
    port = road.url.rpartition(":")[2]
    refused(penstock(road.folder, "serve", "models/", "--port", port), f"--port {port}", "choose another --port")


def test_one_format_named_twice_is_one_variant(trained: Path, tmp_path: Path) -> None:
    folder = desk(tmp_path, trained)
    ran = penstock(folder, "export", "--format", "torchscript,torchscript", "best.pth")
    assert ran.code == 0, ran.err
    assert [path.name for path in (folder / "models/digits-torchscript-fp32").iterdir() if path.is_dir()] == ["1"]


def test_eval_takes_somebody_else_s_checkpoint_with_its_class(trained: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = desk(tmp_path, trained)
    (folder / "net.py").write_text(NET)
    linear = torch.nn.Linear(4, 2)
    torch.save(linear.state_dict(), folder / "bare.pth")
    rows = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    labels = linear(torch.from_numpy(rows)).argmax(1).numpy()
    labels[:5] = 1 - labels[:5]
    np.savez(folder / "data.npz", x=rows, labels=labels)
    options = ["--data", "data.npz", "--model", "./net.py:Net", "--input", "x:float32[batch,4]"]
    ran = penstock(folder, "eval", "bare.pth", *options)
    assert (ran.code, ran.out.splitlines()[0]) == (0, "bare.pth: 90.00% correct (45 of 50)"), ran.err


def test_eval_tells_all_figures_and_writes_them(trained: Path, tmp_path: Path) -> None:
    folder = desk(tmp_path, trained)
    ran = penstock(folder, "eval", "best.pth", "--per-class", "--json", "all.json", "--csv", "classes.csv")
    assert ran.code == 0, ran.err
    first, *rest = ran.out.splitlines()
    held = json.loads((folder / "all.json").read_text())
    assert first == f"best.pth: {held['accuracy']:.2%} correct ({held['correct']} of 360)"
    for name in ("top-5 accuracy", "macro F1", "calibration error", "most often taken"):
        assert any(line.strip().startswith(name) for line in rest), ran.out
    assert sum(map(sum, held["confusion"])) == 360
    table = (folder / "classes.csv").read_text().splitlines()
    assert table[0] == "class,precision,recall,f1,support,answered"
    assert [line.split(",")[0] for line in table[1:]] == [str(digit) for digit in range(10)]
    assert [line.split()[0] for line in rest[-12:-2]] == [str(digit) for digit in range(10)]
    ran = penstock(folder, "eval", "best.pth", "--json", "same", "--csv", "same")
    refused(ran, "same", "name another")


def test_predict_runs_a_checkpoint_and_an_artifact_here(road: Road) -> None:
    images, labels = held_out()
    (road.folder / "scans").mkdir()
    for number, image in enumerate(images):
        (road.folder / "scans" / f"{number:02}.png").write_bytes(png(image))
    answers = []
    for model in ("best.pth", "models/digits-onnx-fp16"):
        ran = penstock(road.folder, "predict", model, "scans/", "--csv", "out.csv")
        assert (ran.code, ran.out, ran.err) == (0, "", "50 answered, 0 failed\n")
        head, *rows = (road.folder / "out.csv").read_text().splitlines()
        assert head == "file,label,score"
        answers.append([int(row.split(",")[1]) for row in rows])
    assert (np.array(answers) == labels).mean() > 0.9
    refused(
        penstock(road.folder, "predict", "best.pth", "scans/", "--retries", "3"), "--retries", "best.pth is run here"
    )
    refused(penstock(road.folder, "predict", "gone.pth", "scans/"), "gone.pth", "no such file")


def test_an_export_that_is_terminated_takes_its_draft_away(trained: Path, tmp_path: Path) -> None:
    folder = desk(tmp_path, trained)
    command = [sys.executable, "-m", "penstock", "export", "--precision", "fp32,fp16,int8", "best.pth"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(folder.glob("models/.draft-*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.terminate()
    assert process.wait(60) == 143
    assert list(folder.glob("models/.draft-*")) == []
