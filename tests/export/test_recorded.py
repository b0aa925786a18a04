"""Checkpoints of texts and of table rows: exported in fp32 and int8 with their own samples, and scored on CSV files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("tokenizers")
pytest.importorskip("torch")

import torch

from penstock import architecture, artifact, checkpoint, datasets, evaluation, probe, tabular, textual
from penstock.architecture import Architecture
from penstock.card import Card
from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export import pipeline
from penstock.export.request import Request
from penstock.preprocessing import Preprocess
from penstock.signature import Dim, Signature

NETS = '''
import torch
from torch import nn

class Bag(nn.Module):
    """The mean of the words' vectors, and a layer."""

    def __init__(self, tokens, classes):
        super().__init__()
        self.table, self.head = nn.Embedding(tokens, 32), nn.Linear(32, classes)

    def forward(self, ids):
        known = (ids != 0).unsqueeze(2).float()
        return self.head((self.table(ids) * known).sum(1) / known.sum(1).clamp(min=1.0))

class Mlp(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, row):
        return self.layers(row)
'''
THINGS, FAULTS, JOYS = (
    ("pump", "valve", "pipe", "gate", "weir"),
    ("leaks", "is broken", "rattles"),
    ("runs", "holds", "is new"),
)
SAYINGS = [
    (f"The {thing} of house {house} {end}{'!' * (house % 2)}", label)
    for house in range(8)
    for thing in THINGS
    for label, ends in (("bad", FAULTS), ("good", JOYS))
    for end in ends
]


def flowers() -> list[dict[str, Any]]:
    """scikit-learn's irises, one column of which has become words."""
    datasets_ = pytest.importorskip("sklearn.datasets")
    held = datasets_.load_iris()
    return [
        {"sepal": float(row[0]), "petal": float(row[2]), "width": "wide" if row[3] > 1 else "slim",
         "label": str(held.target_names[target])}
        for row, target in zip(held.data, held.target, strict=True)
    ]  # fmt: skip


def trained(
    folder: Path, name: str, net: str, held: Preprocess, inputs: Any, labels: Any, names: tuple[str, ...]
) -> Path:
    """A checkpoint of ours of a net that has been trained for a second."""
    file = folder / "nets.py"
    file.write_text(NETS)
    size = {"tokens": held.tokens} if held.kind == "text" else {"features": held.features}  # type: ignore[union-attr]
    made = Architecture(target=f"{file}:{net}", kwargs={**size, "classes": len(names)})
    torch.manual_seed(0)
    module = architecture.build(made).train()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    (array,) = inputs.values()
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(array)), torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    signature = Signature(inputs=held.tensors(), outputs=(), dims={"batch": Dim(opt=8, max=32)})
    signature, _ = probe.complete(module.eval(), signature)
    signature = signature.model_copy(update={"outputs": (signature.outputs[0].model_copy(update={"name": "logits"}),)})
    card = Card(name=name, architecture=made, signature=signature, preprocess=held, labels=names, task="classification")
    rows = datasets.Rows(inputs, labels)
    path = folder / f"{name}.pth"
    checkpoint.save(path, card, module.state_dict(), rows, rows.take(64))
    return path


@pytest.fixture(scope="module")
def sayings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts, names = [text for text, _ in SAYINGS], ("bad", "good")
    held = textual.fit(texts, size=100, least=1, length=12)
    labels = np.array([names.index(label) for _, label in SAYINGS])
    return trained(tmp_path_factory.mktemp("sayings"), "sayings", "Bag", held, held.rows(texts), labels, names)


@pytest.fixture(scope="module")
def irises(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = flowers()
    names = tuple(sorted({record["label"] for record in records}))
    held = tabular.fit(records, ("sepal", "petal", "width"))
    labels = np.array([names.index(record["label"]) for record in records])
    return trained(tmp_path_factory.mktemp("irises"), "irises", "Mlp", held, held.rows(records), labels, names)


def export(path: Path, net: str, output: Path, *precisions: str, **told: Any) -> list[artifact.Artifact]:
    request = Request(
        path,
        formats=("onnx",),
        precisions=precisions,
        output=output,
        override=Override(model=f"{path.parent / 'nets.py'}:{net}"),
        **told,
    )
    return pipeline.export(request, lambda line: None)


def written(path: Path, header: list[str], records: list[Any]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *records])
    return path


def test_a_checkpoint_of_texts_is_exported_with_its_tokenizer(sayings: Path, tmp_path: Path) -> None:
    held = checkpoint.load(sayings, Override(model=f"{sayings.parent / 'nets.py'}:Bag")).card
    data = written(tmp_path / "test.csv", ["text", "label"], [list(saying) for saying in SAYINGS])
    for found in export(sayings, "Bag", tmp_path / "models", "fp32", "int8"):
        receipt = artifact.read(found.folder).receipt
        assert receipt.preprocess == held.preprocess
        assert receipt.verification.real
        assert receipt.signature.inputs[0].dtype == "int64"
        rows = datasets.read(data, receipt.preprocess, receipt.labels, task=receipt.task)
        with found.load() as runner:
            assert evaluation.evaluate(runner, rows, receipt.signature).accuracy > 0.95


def test_a_checkpoint_of_table_rows_is_exported_with_its_columns(irises: Path, tmp_path: Path) -> None:
    records = [list(record.values()) for record in flowers()]
    data = written(tmp_path / "test.csv", ["sepal", "petal", "width", "label"], records)
    exported = export(irises, "Mlp", tmp_path / "models", "fp32", "int8", data=data, accuracy_drop=2.0)
    for found in exported:
        receipt = artifact.read(found.folder).receipt
        assert receipt.preprocess is not None
        assert receipt.preprocess.kind == "table"
        rows = datasets.read(data, receipt.preprocess, receipt.labels, task=receipt.task)
        with found.load() as runner:
            assert evaluation.evaluate(runner, rows, receipt.signature).accuracy > 0.9
    assert exported[1].receipt.verification.accuracy is not None


@pytest.mark.parametrize(("name", "net", "what"), [("sayings", "Bag", "texts"), ("irises", "Mlp", "table rows")])
def test_uint8_is_of_pictures_alone(
    name: str, net: str, what: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    with pytest.raises(PenstockError, match=f"--input uint8: .* takes {what}; it is of pictures alone"):
        export(path, net, tmp_path / "models", "fp32", pixels=True)
