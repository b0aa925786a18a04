"""Labels: what names classes, and what is refused because it names other ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from penstock import artifact, cli
from penstock.architecture import Architecture
from penstock.card import Card
from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export import labels, pipeline
from penstock.export.request import Request
from penstock.signature import BATCH, Signature, Tensor

FLOWERS = ("daisy", "rose", "tulip")


def card_of(*shape: int | str, task: str | None = "classification", names: tuple[str, ...] | None = None) -> Card:
    return Card(
        name="flowers",
        architecture=Architecture(target="net:Net"),
        signature=Signature(
            inputs=(Tensor(name="x", shape=("batch", 4)),),
            outputs=(Tensor(name="scores", shape=shape),),
            dims={"batch": BATCH},
        ),
        labels=names,
        task=task,
    )


def named(card: Card, given: str | None = None, data: Path | None = None) -> tuple[Card, list[str]]:
    said: list[str] = []
    return labels.named(Request(Path("flowers.pth"), labels=given, data=data), card, said.append), said


@pytest.fixture
def folders(tmp_path: Path) -> Callable[..., Path]:
    def make(*names: str) -> Path:
        for name in names:
            (tmp_path / "data" / name).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / "data" / name / "a.png")
        return tmp_path / "data"

    return make


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("names.txt", "daisy\nrose\r\n tulip \n\n"),
        ("names.TXT", "\ufeffdaisy\nrose\ntulip"),
        ("names.json", json.dumps(FLOWERS)),
        ("index_to_name.json", json.dumps({"2": "tulip", "0": "daisy", "1": "rose"})),
        ("index_to_name.json", json.dumps({str(n): [f"n0{n}", name] for n, name in enumerate(FLOWERS)})),
    ],
)
def test_names_are_read_from_files(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    assert labels.read(str(tmp_path / name)) == FLOWERS


def test_names_are_read_from_the_option_itself() -> None:
    assert labels.read("daisy, rose,tulip") == FLOWERS
    assert labels.read("Gänseblümchen") == ("Gänseblümchen",)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b"{", "is no JSON"),
        ("a.json", b"[" * 100_000, "is no JSON"),
        ("a.json", b'{"daisy": 0}', r"has no class '0' among 1"),
        ("a.json", b'{"1": "daisy", "2": "rose"}', r"has no class '0' among 2"),
        ("a.json", b"[1, 2]", "must be a list of names"),
        ("a.json", b'{"0": 7}', "must be a list of names"),
        ("a.json", b'"daisy"', "must be a list of names"),
        ("a.txt", b"daisy\n\nrose", "the name of class 1 is ''"),
        ("a.txt", b"daisy\nro\x1bse", r"the name of class 1 is 'ro\\x1bse'"),
        ("a.txt", b"x" * 201, "it must be 1 to 200 printable characters"),
        ("a.txt", b"", "names 0 classes"),
        ("a.txt", "Gänseblümchen".encode("latin-1"), "is not UTF-8 at byte 1"),
        ("a.txt", b"x\n" * (1 << 21) + b"x", "has more than 4 MiB"),
    ],
)
def test_files_that_hold_no_names_are_refused_with_the_rule(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PenstockError, match=words) as caught:
        named(card_of("batch", 3), str(tmp_path / name))
    assert str(caught.value).startswith("--labels ")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"--labels .*names\.txt: cannot be read: No such file"):
        labels.read(str(tmp_path / "names.txt"))


@pytest.mark.parametrize("shape", [("batch", 5), ("batch", "n"), ("batch", 3, 8, 8), ("batch",)])
def test_names_for_other_classes_than_the_models_are_refused(shape: tuple[Any, ...]) -> None:
    with pytest.raises(PenstockError, match=r"--labels daisy,rose,tulip: names 3 classes; .* one name for each"):
        named(card_of(*shape, task=None), "daisy,rose,tulip")


def test_given_names_replace_the_checkpoints_and_it_says_so() -> None:
    held, said = named(card_of("batch", 3, names=("a", "b", "c")), "daisy,rose,tulip")
    assert held.labels == FLOWERS
    assert said == ["note: --labels replaces the 3 labels of the checkpoint"]


def test_a_model_whose_classes_are_named_is_a_classifier() -> None:
    held, said = named(card_of("batch", 3, task=None), "daisy,rose,tulip")
    assert (held.labels, held.task, said) == (FLOWERS, "classification", [])
    assert named(card_of("batch", 3, task="regression"), "daisy,rose,tulip")[0].task == "regression"


def test_a_classifier_without_labels_is_told_of_once() -> None:
    held, said = named(card_of("batch", 3))
    assert held.labels is None
    assert said == ["note: no labels are known for its 3 classes: answers bear numbers; --labels names them"]
    for card in (card_of("batch", 3, names=FLOWERS), card_of("batch", 3, task="regression"), card_of("batch", 8, 3)):
        assert named(card)[1] == []


def test_folders_of_pictures_name_as_many_classes(folders: Callable[..., Path]) -> None:
    data = folders("tulip", "daisy", "rose", ".hidden")
    held, said = named(card_of("batch", 3), data=data)
    assert held.labels == FLOWERS
    assert said == [
        "note: labels are the names of the folders in --data, in alphabetical order: daisy, rose, tulip; --labels "
        "gives others"
    ]
    assert named(card_of("batch", 4), data=data)[0].labels is None
    assert named(card_of("batch", 3, names=("a", "b", "c")), data=data)[0].labels == ("a", "b", "c")


def test_folders_that_are_numbers_of_classes_name_none(folders: Callable[..., Path]) -> None:
    assert named(card_of("batch", 3), data=folders("0", "1", "2"))[0].labels is None


NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x)
"""


def test_each_stage_of_an_export_is_told_with_its_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stagednet.py").write_text(NET)
    torch.save({"head.weight": torch.eye(3, 4), "head.bias": torch.zeros(3)}, "a.pth")
    told: list[str] = []
    override = Override(model="./stagednet.py:Net", inputs=("x:float32[batch,4]",))
    request = Request(Path("a.pth"), precisions=("fp32", "fp16"), override=override)
    pipeline.export(request, lambda line: None, told.append)
    steps = ("writing", "comparing with the source", "measuring its speed")
    assert told[0].startswith("loading")
    assert told[1:] == [f"onnx {name}, {n} of 2: {step}" for n, name in ((1, "fp32"), (2, "fp16")) for step in steps]


def test_the_command_line_names_the_classes_of_an_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flowernet.py").write_text(NET)
    state = {"head.weight": torch.from_numpy(np.eye(3, 4, dtype=np.float32)), "head.bias": torch.zeros(3)}
    torch.save(state, "flowers.pth")
    words = ["export", "--model", "./flowernet.py:Net", "--input", "x:float32[batch,4]", "flowers.pth"]
    ran = CliRunner().invoke(cli.app, [*words, "--labels", "daisy,rose,tulip"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    receipt = artifact.read(Path("models/flowers-onnx-fp32")).receipt
    assert (receipt.labels, receipt.task) == (FLOWERS, "classification")
    options = receipt.source.options
    assert options[options.index("--labels") + 1] == "daisy,rose,tulip"
    again = CliRunner().invoke(cli.app, [*words, "--labels", "a,rose,tulip"], catch_exceptions=False)
    assert "labels differ from version 1's, first of class 0: it was 'daisy' and is 'a' now" in again.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--data", "flower"], "--data flower: no such file or folder; the nearest is 'flowers'"),
        (["--labels", "names.txt"], "--labels names.txt: cannot be read: No such file or directory"),
        (["--model", "./net.py:Net"], "--model ./net.py: no such file"),
    ],
)
def test_files_that_are_not_there_are_told_before_the_checkpoint_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.pth").write_bytes(b"read, it would be damaged")
    Path("flowers").mkdir()
    ran = CliRunner().invoke(cli.app, ["export", "a.pth", *words])
    assert told in str(ran.exception)
