"""Models that an exporter gets wrong without a word are refused, and nothing is published."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export import pipeline
from penstock.signature import Dim

NETS = """
import torch
from torch import nn

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

class Branch(Base):
    def forward(self, x):
        y = self.layer(x)
        if x.mean() > 3:
            return -y
        return y

class Number(Base):
    def forward(self, x):
        return self.layer(x) * (-1.0 if float(x.max()) > 100 else 1.0)

class TurnsInTheMiddle(Base):
    def forward(self, x):
        y = self.layer(x)
        if x.shape[0] > 40:
            return y
        return y if x.shape[0] < 20 else -y

class TwiceTheRows(Base):
    def forward(self, x):
        return torch.cat([self.layer(x), self.layer(x)])

class AlwaysDrops(Base):
    def forward(self, x):
        return self.layer(x) + 1e-3 * nn.functional.dropout(torch.ones(4), 0.5, training=True)

class StaysInTraining(Base):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
    def train(self, mode=True):
        return super().train(True)
    def forward(self, x):
        return self.norm(self.layer(x))

class LongTurns(Base):
    def forward(self, x):
        y = self.layer(x)
        return -y if x.shape[1] > 20 else y

class Table(Base):
    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.zeros(16, 8))
    def forward(self, x):
        return self.layer(x + self.places[: x.shape[1]])
"""
FLAT, LONG = "x:float32[batch,8]", "x:float32[batch,seq,8]"
WRONG = {
    "a branch on values, traced": ("Branch", FLAT, "torchscript", r"--trace would fix a value .*Python boolean"),
    "a branch on values, captured": ("Branch", FLAT, "onnx", "torch.export cannot capture the model"),
    "a number read from values, traced": ("Number", FLAT, "torchscript", r"--trace would fix a value .*Python float"),
    "a branch on the batch size, captured": ("TurnsInTheMiddle", FLAT, "onnx", "at batch 32: relative L2 error 2 is"),
    "a branch on the batch size, traced": ("TurnsInTheMiddle", FLAT, "torchscript", "--trace would fix a value"),
    "rows that are not the input's": ("TwiceTheRows", FLAT, "onnx", "share a dynamic first dimension"),
    "randomness": ("AlwaysDrops", FLAT, "onnx", "answers the same inputs differently each time"),
    "a norm that stays in training": (
        "StaysInTraining",
        FLAT,
        "onnx",
        "source model itself fails at batch 1: .*more than 1 value",
    ),
    "a branch on a length": ("LongTurns", LONG, "onnx", "at seq = 33: relative L2 error 2 is"),
    "a length that the model cannot take": (
        "Table",
        LONG,
        "onnx",
        r"source model itself fails at seq = 33: .*--dim",
    ),
}


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nets")
    (folder / "nets.py").write_text(NETS)
    return folder


def request(nets: Path, name: str, tensor: str, format: str, output: Path) -> pipeline.Request:
    space: dict[str, type[torch.nn.Module]] = {}
    exec(NETS, space)
    torch.manual_seed(0)
    torch.save(space[name]().state_dict(), nets / f"{name}.pth")
    override = Override(model=f"{nets}/nets.py:{name}", inputs=(tensor,), batch=Dim(min=1, opt=8, max=64))
    return pipeline.Request(nets / f"{name}.pth", (format,), output=output, override=override)


@pytest.mark.parametrize("what", WRONG)
def test_a_model_that_would_come_out_wrong_is_refused(what: str, nets: Path, tmp_path: Path) -> None:
    name, tensor, format, message = WRONG[what]
    with pytest.raises(PenstockError, match=message):
        pipeline.export(request(nets, name, tensor, format, tmp_path / "models"), lambda line: None)
    left = list((tmp_path / "models").iterdir()) if (tmp_path / "models").exists() else []
    assert left == []


def test_a_branch_on_values_comes_out_right_when_it_is_scripted(nets: Path, tmp_path: Path) -> None:
    asked = request(nets, "Branch", FLAT, "torchscript", tmp_path)
    (found,) = pipeline.export(pipeline.Request(**{**asked.__dict__, "script": True}), lambda line: None)
    space: dict[str, type[torch.nn.Module]] = {}
    exec(NETS, space)
    source = space["Branch"]()
    source.load_state_dict(torch.load(nets / "Branch.pth", weights_only=True))
    for level in (0.0, 10.0):
        x = torch.full((3, 8), level)
        with found.load() as runner, torch.inference_mode():
            torch.testing.assert_close(torch.from_numpy(runner.run({"x": x.numpy()})["output"]), source(x))


def test_a_narrower_range_lets_a_table_of_places_through(nets: Path, tmp_path: Path) -> None:
    asked = request(nets, "Table", LONG, "onnx", tmp_path)
    override = Override(model=asked.override.model, inputs=(LONG,), dims={"seq": Dim(min=1, opt=8, max=16)})
    (found,) = pipeline.export(pipeline.Request(**{**asked.__dict__, "override": override}), lambda line: None)
    assert found.receipt.signature.dims["seq"].max == 16
