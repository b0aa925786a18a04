"""Models that an exporter gets wrong without a word are refused, and nothing is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export import pipeline
from penstock.export.formats import Road
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

class Pairs(Base):
    def forward(self, x):
        rows, length, width = x.shape
        return self.layer(x.reshape(rows, length // 2, 2, width).sum(2))

class OtherWhenCaptured(Base):
    def forward(self, x):
        y = self.layer(x)
        if torch.compiler.is_exporting():
            y = y + (torch.arange(x.shape[1]) >= 32)[:, None]
        return y

class Noise(Base):
    def forward(self, x):
        return self.layer(x) + torch.rand(4)

class Centred(Base):
    def forward(self, x):
        return self.layer(x - x.mean(0))

class Table(Base):
    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.zeros(16, 8))
    def forward(self, x):
        return self.layer(x + self.places[: x.shape[1]])
"""
FLAT, LONG = "x:float32[batch,8]", "x:float32[batch,seq,8]"
WRONG = {
    "a branch on values, traced": (
        "Branch",
        FLAT,
        "torchscript --trace",
        r"tried traced: a trace would fix a value .*\(nets\.py:\d+: .*Python boolean\); --script keeps it",
    ),
    "a branch on values, captured": (
        "Branch",
        FLAT,
        "onnx",
        r"a branch or a number that depends on the input's values in Branch \(nets\.py:\d+\).*--script auto",
    ),
    "a branch on values, as a program": ("Branch", FLAT, "pt2", "torch.export cannot capture the model: a branch"),
    "a number read from values, traced": (
        "Number",
        FLAT,
        "torchscript --trace",
        r"a trace would fix a value .*Python float",
    ),
    "a branch on the batch size": (
        "TurnsInTheMiddle",
        FLAT,
        "onnx",
        r"depends on its batch: at batch 32 output 'output' is 2 off what it is at 64.*--batch 1",
    ),
    "rows that depend on their neighbours": (
        "Centred",
        FLAT,
        "torchscript",
        r"depends on its batch: at batch 1 .*--batch 1",
    ),
    "rows that are not the input's": ("TwiceTheRows", FLAT, "onnx", "share a dynamic first dimension"),
    "a little randomness": ("AlwaysDrops", FLAT, "onnx", "answers the same inputs differently each time"),
    "randomness": ("Noise", FLAT, "torchscript", "answers the same inputs differently each time"),
    "a norm that stays in training": ("StaysInTraining", FLAT, "onnx", r"in training mode after \.eval\(\): .*norm"),
    "a branch on a length, captured": (
        "LongTurns",
        LONG,
        "onnx",
        r"a size that the model fixes, .*seq.* <= 20; .*narrow its range with --batch or --dim",
    ),
    "a branch on a length, traced": ("LongTurns", LONG, "torchscript --trace", "a trace would fix a value"),
    "other answers at a length": ("OtherWhenCaptured", LONG, "onnx", r"at seq = 33: relative L2 error \S+ is over"),
    "a length that the model cannot take": ("Table", LONG, "onnx", r"tried x \[3, 64, 8\]\): RuntimeError: The size"),
    "odd lengths that the model cannot take": (
        "Pairs",
        LONG,
        "torchscript",
        r"the source model itself fails at sizes .*'seq': 9.*narrow the range with --batch or --dim",
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
    format, _, trace = format.partition(" ")
    road: Road = "trace" if trace else "auto"
    return pipeline.Request(nets / f"{name}.pth", (format,), output=output, override=override, road=road)


@pytest.mark.parametrize("what", WRONG)
def test_a_model_that_would_come_out_wrong_is_refused(what: str, nets: Path, tmp_path: Path) -> None:
    name, tensor, format, message = WRONG[what]
    with pytest.raises(PenstockError, match=message):
        pipeline.export(request(nets, name, tensor, format, tmp_path / "models"), lambda line: None)
    left = list((tmp_path / "models").iterdir()) if (tmp_path / "models").exists() else []
    assert left == []


@pytest.mark.parametrize(("name", "levels"), [("Branch", (0.0, 10.0)), ("Number", (0.0, 200.0))])
def test_what_depends_on_values_comes_out_right_by_the_road_that_keeps_it(
    name: str, levels: tuple[float, float], nets: Path, tmp_path: Path
) -> None:
    asked = request(nets, name, FLAT, "torchscript", tmp_path)
    (found,) = pipeline.export(asked, lambda line: None)
    assert found.receipt.build["road"] == "script"
    space: dict[str, type[torch.nn.Module]] = {}
    exec(NETS, space)
    source = space[name]()
    source.load_state_dict(torch.load(nets / f"{name}.pth", weights_only=True))
    for level in levels:
        x = torch.full((3, 8), level)
        with found.load() as runner, torch.inference_mode():
            torch.testing.assert_close(torch.from_numpy(runner.run({"x": x.numpy()})["output"]), source(x))


def test_a_branch_on_the_batch_size_is_exported_where_the_range_decides_it(nets: Path, tmp_path: Path) -> None:
    asked = request(nets, "TurnsInTheMiddle", FLAT, "onnx", tmp_path)
    override = replace(asked.override, batch=Dim(min=1, opt=8, max=16))
    (found,) = pipeline.export(replace(asked, override=override), lambda line: None)
    assert found.receipt.verification.batches == (1, 2, 7, 8, 16)


def test_a_narrower_range_lets_a_table_of_places_through(nets: Path, tmp_path: Path) -> None:
    asked = request(nets, "Table", LONG, "onnx", tmp_path)
    override = Override(model=asked.override.model, inputs=(LONG,), dims={"seq": Dim(min=1, opt=8, max=16)})
    (found,) = pipeline.export(replace(asked, override=override), lambda line: None)
    assert found.receipt.signature.dims["seq"].max == 16
