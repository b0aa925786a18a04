"""Faults that were found by trying to break lower precision: each as it was found, and what happens now."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from penstock import artifact, evidence, parity
from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.export import deferred, judging, pipeline
from penstock.export.pipeline import Request
from penstock.receipt import AccuracyKept

NET = """
import torch
from torch import nn

class Large(nn.Module):
    \"\"\"The sums in its middle leave fp16's range; what comes out does not.\"\"\"

    def __init__(self):
        super().__init__()
        self.a, self.b, self.f = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 10)

    def forward(self, x):
        e = torch.exp(self.b(torch.relu(self.a(x))) * 6 + 4)
        return self.f(torch.log(e.sum((2, 3)) + 1))

class Row(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(8, 10)

    def forward(self, x):
        return self.f(x)
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nets in net.py, their checkpoints, and samples for each."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "net.py").write_text(NET)
    space: dict[str, Any] = {}
    exec(NET, space)
    torch.manual_seed(0)
    torch.save(space["Large"]().state_dict(), folder / "large.pth")
    row = space["Row"]()
    torch.save(row.state_dict(), folder / "row.pth")
    draw = np.random.default_rng(0)
    np.savez(folder / "pictures.npz", x=draw.standard_normal((64, 3, 16, 16)).astype(np.float32))
    x = draw.standard_normal((256, 8)).astype(np.float32)
    with torch.inference_mode():
        labels = row(torch.from_numpy(x)).argmax(1).numpy()
    np.savez(folder / "labelled.npz", x=x, labels=labels)
    np.savez(folder / "from_one.npz", x=x, labels=(labels + 1) % 10)
    np.savez(folder / "column.npz", x=x, labels=labels[:, None])
    return folder


def request(desk: Path, name: str, shape: str, data: str, **more: Any) -> Request:
    override = Override(model=f"{desk / 'net.py'}:{name}", inputs=(f"x:float32[batch,{shape}]",))
    return Request(desk / f"{name.lower()}.pth", override=override, data=desk / data, **more)


def in_true_precision(path: Path, inputs: dict[str, Any]) -> Any:
    """The answers of a graph by onnx's own reference, which overflows where fp16 does."""
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(onnx.load(str(path))).run(None, inputs)[0]


@pytest.mark.parametrize("defer", [False, True])
def test_int8_beside_fp16_overflows_nowhere_in_fp16s_own_arithmetic(desk: Path, tmp_path: Path, *, defer: bool) -> None:
    asked = request(
        desk,
        "Large",
        "3,16,16",
        "pictures.npz",
        formats=("trt",),
        precisions=("int8-fp16",),
        output=tmp_path,
        defer=defer,
    )
    (made,) = pipeline.export(asked, lambda line: None)
    inputs, outputs = made.golden()
    half = made.folder / ("model.later.onnx" if defer else "model.onnx")
    answer = in_true_precision(half, inputs)
    (name,) = outputs
    error = float(np.linalg.norm(answer - outputs[name]) / np.linalg.norm(outputs[name]))
    assert error < 0.02
    # What the receipt says is of the graph that an engine is built from, rounding as fp16 does.
    assert max(item.rel_l2 for item in made.receipt.verification.distances) == pytest.approx(error, rel=0.5)
    operators = {node.op_type for node in onnx.load(str(half)).graph.node}
    assert {"QuantizeLinear", "Cast"} <= operators


def test_the_plan_of_int8_beside_fp16_is_judged_as_it_is_built(trained: Path, tmp_path: Path) -> None:
    said: list[str] = []
    asked = Request(trained, formats=("trt",), precisions=("int8-fp16",), output=tmp_path, max_error=0.01)
    (made,) = pipeline.export(asked, said.append)
    error = max(item.rel_l2 for item in made.receipt.verification.distances)
    assert error <= 0.01
    curve = [line for line in said if f"{len(made.receipt.plan.kept)} kept in float32: error {error:.2e}" in line]  # type: ignore[union-attr]
    assert len(curve) == 1


def test_labels_that_are_not_the_models_are_refused(desk: Path, tmp_path: Path) -> None:
    def export(data: str) -> None:
        asked = request(
            desk, "Row", "8", data, precisions=("int8",), output=tmp_path, calibration="max", accuracy_drop=5.0
        )
        pipeline.export(asked, lambda line: None)

    with pytest.raises(
        PenstockError, match=r"right on 0\.00% of 256 .* guessing one of 10 classes: .* counted from 0\?"
    ):
        export("from_one.npz")
    with pytest.raises(PenstockError, match=r"labels have shape \[256, 1\]; they must be one for each row"):
        export("column.npz")
    export("labelled.npz")


def test_an_engine_is_held_to_columns_that_an_outputs_norm_hides(repository: Path) -> None:
    held = artifact.read(repository / "digits-onnx-fp32")
    inputs, outputs = held.golden()
    large = {"logits": outputs["logits"] * np.array([1e6, *[1.0] * 9], np.float32)}
    hidden = parity.small_columns("logits", large["logits"])
    assert hidden
    rows = evidence.filled(inputs, large, held.receipt.signature)
    assert [limit for _, limit in deferred._small(rows)] == [0.5] * len(hidden)


def test_an_engine_whose_budget_was_of_labels_is_held_to_its_graph(repository: Path) -> None:
    seen = artifact.read(repository / "digits-onnx-int8").receipt.verification
    assert deferred._held_to(seen) == seen.limits
    kept = AccuracyKept(source=0.9, export=0.9, samples=100, most_lost=0.5)
    wide = {
        name: limit.model_copy(update={"max_error": 1.0, "min_agreement": 0.5}) for name, limit in seen.limits.items()
    }
    graph = {item.output: item for item in seen.distances}
    for name, limit in deferred._held_to(seen.model_copy(update={"accuracy": kept, "limits": wide})).items():
        assert graph[name].rel_l2 < limit.max_error < 0.1
        assert limit.min_agreement > 0.9


def test_a_disk_that_is_full_is_no_graphs_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(judging.graphs, "write", full)
    monkeypatch.setattr(judging.emulation, "tells_more", lambda graph: False)
    judge = judging.Judge(None, None, "int8")  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No space left"):
        judge(None)


def test_what_is_built_is_published_beside_the_folder_that_was_given(repository: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "backup"
    shutil.copytree(repository / "digits-trt-fp16", renamed)
    with pytest.raises(PenstockError, match="must lie in digits-trt-fp16/1"):
        deferred.build(renamed, lambda line: None)
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]
