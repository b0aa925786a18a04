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
from penstock.signature import Range

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


def test_what_a_lower_precision_may_be_off_is_not_granted_to_fp32_beside_it(desk: Path, tmp_path: Path) -> None:
    asked = request(
        *(desk, "Row", "8", "labelled.npz"),
        precisions=("fp32", "int8"),
        output=tmp_path,
        max_error=0.1,
        min_agreement=0.5,
    )
    whole, low = pipeline.export(asked, lambda line: None)
    (kept,) = whole.receipt.verification.limits.values()
    assert kept.max_error < 1e-3
    assert kept.min_agreement > 0.99
    (kept,) = low.receipt.verification.limits.values()
    assert (kept.max_error, kept.min_agreement) == (0.1, 0.5)
    (alone,) = pipeline.export(
        request(desk, "Row", "8", "labelled.npz", output=tmp_path / "alone", max_error=0.1), lambda line: None
    )
    (kept,) = alone.receipt.verification.limits.values()
    assert kept.max_error == 0.1


def test_samples_of_nan_are_told_from_a_model_that_answers_it(desk: Path, tmp_path: Path) -> None:
    with np.load(desk / "labelled.npz") as held:
        x = held["x"][:20].copy()
    x[3, 2] = np.nan
    np.savez(tmp_path / "nan.npz", x=x)
    asked = request(desk, "Row", "8", str(tmp_path / "nan.npz"), output=tmp_path)
    with pytest.raises(PenstockError, match="input 'x' holds NaN in 1 of 20 samples, the first of which is number 3"):
        pipeline.export(asked, lambda line: None)


def test_fp16_is_tried_at_the_ends_of_a_stated_range(desk: Path, tmp_path: Path) -> None:
    """x^2 of samples within 4 stays in range; of 300, which the user says there is, it does not."""
    (tmp_path / "square.py").write_text(
        "import torch\nclass Square(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.f = torch.nn.Linear(8, 8)\n    def forward(self, x):\n"
        "        y = self.f(x) ** 2\n        return y / (1 + y.sum(1, keepdim=True))\n"
    )
    space: dict[str, Any] = {}
    exec((tmp_path / "square.py").read_text(), space)
    torch.manual_seed(0)
    torch.save(space["Square"]().state_dict(), tmp_path / "square.pth")
    said: dict[float, list[str]] = {}
    for end in (1.0, 900.0):
        override = Override(
            model=f"{tmp_path / 'square.py'}:Square",
            inputs=("x:float32[batch,8]",),
            ranges={"x": Range(low=-end, high=end)},
        )
        said[end] = []
        asked = Request(
            tmp_path / "square.pth",
            override=override,
            data=desk / "labelled.npz",
            precisions=("fp16",),
            output=tmp_path,
        )
        pipeline.export(asked, said[end].append)
    assert not any("over 65504" in line for line in said[1.0])
    assert any("on inputs at the ends of their range, over 65504" in line for line in said[900.0])
