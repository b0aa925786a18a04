"""Formats: found by file name, each refusing what it cannot hold, and all of them keeping one contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor as T
from torch import nn

from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export import capture, formats, pipeline
from penstock.export.formats import Source
from penstock.export.request import Request
from penstock.signature import Dim

SourceOf, Write = Callable[..., Source], Callable[..., Any]
WRITTEN = ("onnx", "torchscript", "pt2")


def test_names_are_the_files_of_the_folder() -> None:
    folder = Path(next(iter(formats.__path__)))
    assert formats.names() == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", formats.names())
def test_every_format_holds_float32_and_refuses_what_it_does_not_hold(name: str) -> None:
    formats.check(name, "fp32")
    with pytest.raises(PenstockError, match=f"--precision 'fp64': format {name} holds fp32"):
        formats.check(name, "fp64")


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PenstockError, match="--format 'tflite': must be one or more of onnx, pt2, torchscript, trt"):
        formats.check("tflite", "fp32")


# --- Every way to be called, and to answer, in every format -------------------------------------------------------


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 4)


class Keywords(Base):
    """Only by keyword, in another order than they are given in, one with a default that is left out."""

    def forward(self, *, scale: T, x: T, shift: float = 2.0) -> T:
        return self.layer(x) * scale + shift


class Reordered(Base):
    """By position or by name."""

    def forward(self, x: T, scale: T) -> T:
        return self.layer(x) * scale


class Mixed(Base):
    def forward(self, x: T, *, scale: T) -> T:
        return self.layer(x) * scale


class Dictionary(Base):
    """Keys in no order of the alphabet's."""

    def forward(self, x: T) -> dict[str, T]:
        y = self.layer(x)
        return {"zebra": y, "aux": y * 2, "middle": y.argmax(1)}


class Nested(Base):
    def forward(self, x: T) -> Any:
        y = self.layer(x)
        return {"out": y, "aux": (y * 2, [y * 3, {"deep": y * 4}])}


class Pair(NamedTuple):
    scores: T
    boxes: T


@dataclass
class Answer:
    logits: T
    hidden: T | None = None


class Names(Base):
    def forward(self, x: T) -> Any:
        y = self.layer(x)
        return Pair(scores=y, boxes=y + 1)


class Fields(Base):
    def forward(self, x: T) -> Any:
        return Answer(logits=self.layer(x))


class Unused(Base):
    """Takes three inputs and uses the one in the middle."""

    def forward(self, mask: T, x: T, extra: T) -> T:
        return self.layer(x)


class PassedThrough(Base):
    """One output is an input as it came, and another the same tensor again."""

    def forward(self, x: T) -> Any:
        y = self.layer(x)
        return {"same": x, "one": y, "two": y}


X, SCALE = "x:float32[batch,8]", "scale:float32[batch,1]"
CALLS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...], list[str]]] = {
    "keyword-only": (Keywords, (X, SCALE), ["output"]),
    "by name, in another order": (Reordered, (SCALE, X), ["output"]),
    "one by place, one by keyword": (Mixed, (SCALE, X), ["output"]),
    "a dictionary": (Dictionary, (X,), ["zebra", "aux", "middle"]),
    "nested": (Nested, (X,), ["out", "aux_0", "aux_1_0", "aux_1_1.deep"]),
    "a named tuple": (Names, (X,), ["scores", "boxes"]),
    "a dataclass": (Fields, (X,), ["logits"]),
    "unused inputs": (Unused, ("mask:bool[batch,2]", X, "extra:int64[batch]"), ["output"]),
    "an input passed through": (PassedThrough, (X,), ["same", "one", "two"]),
}


@pytest.fixture(scope="module", params=CALLS)
def called(request: pytest.FixtureRequest, source_of: SourceOf) -> tuple[Source, list[str]]:
    make, inputs, outputs = CALLS[request.param]
    return source_of(make(), *inputs, batch=Dim(opt=4, max=16)), outputs


@pytest.mark.parametrize("format", WRITTEN)
def test_every_call_and_answer_keeps_names_order_and_values(
    called: tuple[Source, list[str]], write: Write, format: str
) -> None:
    source, outputs = called
    assert [tensor.name for tensor in source.signature.outputs] == outputs
    written = write(source, format)
    written.check(1, 2, 16)
    feeds = written.feeds(3)
    before = {name: array.copy() for name, array in feeds.items()}
    written.run(feeds)
    for name, array in feeds.items():
        assert np.array_equal(array, before[name])


@pytest.mark.parametrize("format", WRITTEN)
def test_one_output_kept_of_several_is_that_one(source_of: SourceOf, write: Write, format: str) -> None:
    source = source_of(Dictionary(), X, keep=("aux",))
    written = write(source, format)
    feeds = written.feeds(3)
    found = written.run(feeds)
    assert list(found) == ["aux"]
    with torch.inference_mode():
        expected = source.inner(torch.from_numpy(feeds["x"]))["aux"]
    assert np.allclose(found["aux"], expected.numpy(), atol=1e-6)


def test_the_module_is_captured_once_for_all_formats(
    source_of: SourceOf, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    program, graph = capture.program, capture.onnx_graph
    monkeypatch.setattr(capture, "program", lambda *given: (runs.append("program"), program(*given))[1])
    monkeypatch.setattr(capture, "onnx_graph", lambda *given: (runs.append("graph"), graph(*given))[1])
    source = source_of(Reordered(), X, SCALE)
    for format in ("pt2", "onnx", "pt2", "onnx"):
        write(source, format)
    assert runs == ["program", "graph"]


def test_a_capture_that_failed_is_not_tried_again(source_of: SourceOf, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def fail(*_: Any) -> None:
        runs.append("program")
        raise PenstockError("cannot be captured")

    monkeypatch.setattr(capture, "program", fail)
    source = source_of(Reordered(), X, SCALE)
    for _ in range(3):
        with pytest.raises(PenstockError, match="cannot be captured"):
            _ = source.program
    assert runs == ["program"]


# --- TorchScript archives as checkpoints --------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("road", ["script", "trace"])
def test_a_torchscript_archive_goes_to_torchscript_and_onnx_and_keeps_its_answers(tmp_path: Path, road: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    program = torch.jit.script(net) if road == "script" else torch.jit.trace(net, torch.randn(2, 3, 8, 8))
    program.save(str(tmp_path / "theirs.pt"))
    override = Override(inputs=("image:float32[batch,3,8,8]",), batch=Dim(opt=2, max=8))
    request = Request(
        tmp_path / "theirs.pt", formats=("torchscript", "onnx"), output=tmp_path / "models", override=override
    )
    made = pipeline.export(request, lambda line: None)
    image = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    with torch.inference_mode():
        expected = net(torch.from_numpy(image)).numpy()
    assert made[0].receipt.build["road"] == "as it was"
    for item in made:
        assert (item.receipt.source.kind, item.receipt.source.architecture) == ("torchscript", "torchscript")
        assert item.receipt.source.loaded == item.receipt.source.expected == 9
        with item.load() as runner:
            assert np.allclose(runner.run({"image": image})["output"], expected, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_torchscript_archive_does_not_go_to_pt2_and_is_told_what_does(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(8, 4).eval()).save(str(tmp_path / "theirs.pt"))
    override = Override(inputs=(X,))
    request = Request(tmp_path / "theirs.pt", formats=("pt2",), output=tmp_path / "models", override=override)
    with pytest.raises(PenstockError) as caught:
        pipeline.export(request, lambda line: None)
    for part in ("torch.export does not take TorchScript programs", "--format torchscript and onnx", "--model"):
        assert part in str(caught.value)
    assert not (tmp_path / "models").exists()
