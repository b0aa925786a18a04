"""Every shipped recipe by the command line: trained, exported to ONNX int8, served, and asked about raw items."""

from __future__ import annotations

import csv
import gzip
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from penstock import artifact, checkpoint, cli, data, datasets, predictions
from penstock.checkpoint import Checkpoint
from penstock.data.samples import Samples
from penstock.data.specs import Digits
from penstock.runtimes.torch import TorchRunner
from penstock.serve import predict
from penstock.train import jobs, loaders, recipe, recipefiles
from penstock.train.learner import Learner

pytest.importorskip("modelopt")
ASKED = 12  # items of the test part
# Scores may be off by what int8 costs, values by so much of their spread.
INT8 = 0.1
MODULES = {"asyncio": ("events", "queues", "tasks", "streams", "locks"), "http": ("client", "cookies", "server")}
SMALL = {
    "digits": ["epochs=2"],
    "fashion-mnist": ["dataset.path=clothes", "epochs=2", "model.kwargs.widths=[8,16]"],
    "image-folder": [
        "dataset.path=photos",
        "epochs=2",
        "model.kwargs.widths=[8,16]",
        "preprocess.height=16",
        "preprocess.width=16",
        "preprocess.resize_shorter=18",
    ],
    "csv-text": ["dataset.train=docs.csv", "epochs=6", "model.kwargs.width=16", "preprocess.length=24"],
    "csv-table": ["dataset.train=iris.csv", "dataset.target=kind", "epochs=15"],
    "regression": ["dataset.train=diabetes.csv", "dataset.target=progress", "epochs=15"],
}


@dataclass(frozen=True)
class Desk:
    """A folder with data, runs and models, and the server of these."""

    folder: Path
    url: str


def penstock(*arguments: str) -> None:
    """The command line, without a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["penstock", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code, arguments


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Each recipe trained and exported, and all that came of it served."""
    folder = tmp_path_factory.mktemp("recipes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        _pictures(folder)
        _texts(folder)
        _tables(folder)
        for name, small in SMALL.items():
            penstock("train", name, "--no-progress", *(word for change in small for word in ("--set", change)))
            penstock("export", "--format", "onnx", "--precision", "int8", f"runs/{name}/best.pth")
        command = [sys.executable, "-m", "penstock", "serve", "models/", "--port", "0", "--grpc-port", "0"]
        with (folder / "served.txt").open("w") as told:
            process = subprocess.Popen(
                [*command, "--threads", "1"],
                stdout=subprocess.PIPE,
                stderr=told,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        try:
            assert process.stdout is not None
            found = next(filter(None, (re.search(r"ready at (http://\S+)", line) for line in process.stdout)), None)
            assert found, (folder / "served.txt").read_text()
            yield Desk(folder, found[1])
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)


def _pictures(folder: Path) -> None:
    """Scans of digits: as Fashion-MNIST's files lie, and as PNG and JPEG in a folder for each of four."""
    from PIL import Image
    from sklearn.datasets import load_digits

    scans, labels = load_digits().images.astype(np.uint8) * 15, load_digits().target.astype(np.uint8)
    large = np.stack([np.asarray(Image.fromarray(scan).resize((28, 28))) for scan in scans[:700]])
    (folder / "clothes").mkdir()
    for part, rows in (("train", slice(0, 600)), ("t10k", slice(600, 700))):
        for kind, array in (("images-idx3", large[rows]), ("labels-idx1", labels[rows])):
            head = bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (folder / "clothes" / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes(), 1))
    for number, (scan, label) in enumerate(zip(scans, labels, strict=True)):
        if label < 4 and number < 600:
            path = folder / "photos" / f"scan of {label}" / f"{number}.{'png' if number % 2 else 'jpg'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(scan).resize((40, 32)).convert("RGB").save(path)


def _texts(folder: Path) -> None:
    """What Python's own modules say of themselves, by package."""
    rows = [
        (package, " ".join(paragraph.split()))
        for package, names in MODULES.items()
        for module in (import_module(f"{package}.{name}") for name in names)
        for held in [module, *(each for _, each in inspect.getmembers(module, inspect.isclass))]
        for _, each in [("", held), *inspect.getmembers(held, inspect.isfunction)]
        for paragraph in (inspect.getdoc(each) or "").split("\n\n")
        if len(paragraph) > 20
    ]
    _write(folder / "docs.csv", ["label", "text"], list(dict.fromkeys(rows)))


def _tables(folder: Path) -> None:
    """Flowers with a column of names and missing numbers; patients, of whom one column is a code."""
    from sklearn.datasets import load_diabetes, load_iris

    iris, sick = load_iris(), load_diabetes(scaled=False)
    flowers = [
        (*("" if (row + column) % 29 == 0 else f"{value}" for column, value in enumerate(values)), shape, kind)
        for row, (values, kind) in enumerate(zip(iris.data, iris.target_names[iris.target], strict=True))
        for shape in ["long, narrow" if values[2] > 3 * values[3] else "wide"]
    ]
    _write(folder / "iris.csv", ["sepal", "sepal_width", "petal", "petal_width", "shape", "kind"], flowers)
    patients = [
        (*values[:1], "f" if values[1] == 1 else "m", *values[2:], progress)
        for values, progress in zip(sick.data.tolist(), sick.target.tolist(), strict=True)
    ]
    _write(folder / "diabetes.csv", [*sick.feature_names, "progress"], patients)


def _write(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def _best(desk: Desk, name: str) -> tuple[Checkpoint, Samples]:
    """The best checkpoint of a recipe, and what it is asked about."""
    loaded = checkpoint.load(desk.folder / "runs" / name / "best.pth")
    assert loaded.card.dataset is not None
    return loaded, data.load(loaded.card.dataset)["test"].first(ASKED)


def _raw(item: Any) -> tuple[bytes, str]:
    """An item as a user has it, and what that is."""
    from PIL import Image

    if isinstance(item, bytes):
        return item, "image/jpeg" if item.startswith(b"\xff\xd8") else "image/png"
    if isinstance(item, np.ndarray):
        buffer = io.BytesIO()
        Image.fromarray(item).save(buffer, "PNG")
        return buffer.getvalue(), "image/png"
    return json.dumps({"text" if isinstance(item, str) else "row": item}).encode(), "application/json"


def _asked(url: str, body: bytes, kind: str) -> dict[str, Any]:
    request = urllib.request.Request(url, body, {"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=30) as answer:
        said: dict[str, Any] = json.load(answer)
    return said


def test_every_shipped_recipe_is_among_these() -> None:
    assert set(SMALL) == set(recipefiles.shipped())


@pytest.mark.parametrize("name", SMALL)
def test_a_raw_item_is_answered_as_training_answered_it(name: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk.folder)
    best, samples = _best(desk, name)
    rows = datasets.rows(samples, best.card.preprocess)
    first = TorchRunner(best.module, best.card.signature).run(dict(rows.inputs))[best.card.signature.outputs[0].name]
    said = [_asked(f"{desk.url}/predict/{name}-onnx-int8", *_raw(item)) for item in samples.items]
    if best.card.task == "regression":
        values = np.array([answer["values"][0] for answer in said])
        assert np.ptp(values) > 10  # they tell the rows apart
        np.testing.assert_allclose(values, first[:, 0], atol=INT8 * first.std())
        return
    wanted = predictions.of("classification", first, best.card.labels, 2)["predictions"]
    assert len({each["label"] for each in wanted}) > 1
    for each, answer in zip(wanted, said, strict=True):
        (found,) = answer["predictions"]
        assert found["score"] == pytest.approx(each["score"], abs=INT8)
        if each["score"] - each["top"][1]["score"] > 2 * INT8:  # int8 can turn none but what is all but undecided
            assert found["label"] == each["label"]


@pytest.mark.parametrize("name", SMALL)
def test_the_server_makes_the_tensors_that_training_learnt_from(
    name: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.folder)
    job = jobs.prepare(recipe.load(name, SMALL[name]))
    samples = job.parts["train"].first(ASKED)
    batch = loaders.dataset(samples, job.preprocess)[list(range(ASKED))]
    learnt, _ = Learner(job, desk.folder).ready(batch, learning=False)
    receipt = artifact.read(desk.folder / "models" / f"{name}-onnx-int8").receipt
    served = _served(SimpleNamespace(receipt=receipt, scheduler=SimpleNamespace(max_queue_rows=ASKED)), samples)
    assert set(served) == set(learnt)
    for tensor, rows in served.items():
        assert torch.equal(torch.from_numpy(rows), learnt[tensor]), tensor


def _served(model: Any, samples: Samples) -> Any:
    """What the server makes of requests of these."""
    if samples.kind == "image":
        pictures = [predict.Picture(_raw(item)[0]) for item in samples.items]
        return predict.image_inputs(model, pictures, predict.Bounds())
    body = {"texts" if samples.kind == "text" else "rows": list(samples.items)}
    return predict.json_inputs(model, json.dumps(body).encode())


NET = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self, classes: int) -> None:
        super().__init__(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, classes))
"""


def test_a_network_of_the_user_s_own_goes_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    scans = data.load(Digits())["test"].first(20)
    for number, scan in enumerate(scans.items):
        (tmp_path / f"{number:02}.png").write_bytes(_raw(scan)[0])
    own, best = ("--model", "./net.py:Net"), "runs/digits/best.pth"
    penstock("train", "digits", "--epochs", "3", "--no-progress", "--set", 'model={target="./net.py:Net"}')
    assert "on the held-out test part" in capsys.readouterr().out
    assert (tmp_path / "runs/digits/report.html").is_file()
    penstock("predict", best, "*.png", "--csv", "here.csv", *own)
    penstock("export", "--precision", "fp32", best, *own)
    penstock("predict", "models/digits-onnx-fp32", "*.png", "--csv", "exported.csv")
    here, exported = ([*csv.DictReader((tmp_path / name).open())] for name in ("here.csv", "exported.csv"))
    assert [row["label"] for row in here] == [row["label"] for row in exported]
    assert np.mean([int(row["label"]) for row in here] == scans.labels) > 0.7
