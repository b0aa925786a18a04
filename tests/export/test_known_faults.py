"""Faults that exporters in this field are known for: each is met here by the whole road, from file to artifact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from penstock import parity
from penstock.artifact import Artifact
from penstock.checkpoint import Override
from penstock.errors import GateError, PenstockError
from penstock.export import formats, graph, pipeline
from penstock.export.formats import onnx as onnx_format
from penstock.export.pipeline import Request
from penstock.export.precision import budget
from penstock.receipt import Plan
from penstock.runtimes.onnxruntime import OnnxRunner
from penstock.signature import Dim

NETS = """
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x):
        return self.two(torch.relu(self.one(x)))

class Long(Plain):
    def forward(self, x):
        return super().forward(x).cumsum(1)

class Swapped(Plain):
    def forward(self, x):
        y = super().forward(x)
        return {"zeta": y, "alpha": -2 * y}

class Stamped(Plain):
    def forward(self, x):
        stamp = torch.full_like(x[:, :1], 1.7e9) + x[:, :1]
        return torch.cat([stamp, torch.sigmoid(super().forward(x))], 1)

class Detects(Plain):
    def forward(self, x):
        y = super().forward(x)
        return torch.cat([640 * torch.sigmoid(y[:, :2]), 0.3 * torch.sigmoid(y[:, 2:])], 1)

class Unused(Plain):
    def forward(self, x, spare, scale):
        return super().forward(x) * scale[:, None]

class Batches(Plain):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8, track_running_stats=False)
    def forward(self, x):
        return super().forward(self.norm(x))

class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 12, 3, stride=2, groups=4, bias=False)
        self.norm = nn.BatchNorm2d(12)
    def forward(self, image):
        return self.norm(self.up(image))

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9000, 1000), nn.Linear(1000, 4)
    def forward(self, ids):
        return self.head(self.table(ids).mean(1))

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(500, 32), nn.Linear(32, 500, bias=False)
        self.middle, self.head.weight = nn.Linear(32, 32), self.table.weight
    def forward(self, ids):
        return self.head(torch.tanh(self.middle(self.table(ids))))
"""
FLAT = "x:float32[batch,8]"
Export = Callable[..., Artifact]


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nets") / "nets.py"
    path.write_text(NETS)
    return path


def made(name: str) -> nn.Module:
    space: dict[str, type[nn.Module]] = {"__name__": "nets"}
    exec(NETS, space)
    torch.manual_seed(0)
    return space[name]().eval()


@pytest.fixture
def export(nets: Path, tmp_path: Path) -> Export:
    """Exports a class of NETS: `export("Plain", FLAT, module=…, batch=…, format="onnx", opset=17)`."""

    def run(name: str, *inputs: str, module: nn.Module | None = None, wrapped: Any = None, **more: Any) -> Artifact:
        kept = {field: more.pop(field) for field in ("batch", "dims", "choice") if field in more}
        path, format = tmp_path / f"{name}.pth", more.pop("format", "onnx")
        torch.save(wrapped or (module or made(name)).state_dict(), path)
        override = Override(model=f"{nets}:{name}", inputs=inputs, **kept)
        request = Request(path, (format,), output=tmp_path / "models", override=override)
        (published,) = pipeline.export(replace(request, **more), lambda line: None)
        return published

    return run


def nothing_published(folder: Path) -> bool:
    return not (folder / "models").exists() or not list((folder / "models").iterdir())


def answer(artifact: Artifact, **inputs: Any) -> dict[str, Any]:
    with artifact.load() as runner:
        return runner.run(inputs)


@pytest.mark.parametrize("format", ["onnx", "torchscript", "pt2"])
def test_an_example_batch_of_one_does_not_freeze_the_batch_axis(export: Export, format: str) -> None:
    found = export("Plain", FLAT, batch=Dim(min=1, opt=1, max=6), format=format)
    source = made("Plain")
    for rows in (1, 2, 5, 6):
        x = torch.randn(rows, 8)
        with torch.inference_mode():
            torch.testing.assert_close(torch.from_numpy(answer(found, x=x.numpy())["output"]), source(x))


def test_a_misspelt_axis_name_is_refused_with_those_there_are(export: Export, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"--dim sequ.*those are batch, seq"):
        export("Long", "x:float32[batch,seq,8]", dims={"sequ": Dim(min=1, opt=4, max=9)})
    assert nothing_published(tmp_path)


@pytest.mark.parametrize("format", ["onnx", "torchscript", "pt2"])
def test_dictionary_outputs_keep_their_own_names(export: Export, format: str) -> None:
    found, x = export("Swapped", FLAT, format=format), torch.randn(3, 8)
    with torch.inference_mode():
        expected = made("Swapped")(x)
    got = answer(found, x=x.numpy())
    assert set(got) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(torch.from_numpy(got[name]), value)


def test_a_wrong_score_does_not_hide_beside_a_large_number(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(graph: onnx.ModelProto, *rest: Any) -> None:
        (held,) = [tensor for tensor in graph.graph.initializer if tensor.name == "two.bias"]
        held.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(held) + np.float32(0.1), held.name))
        saved(graph, *rest)

    saved = graph.save
    monkeypatch.setattr(onnx_format.graphs, "save", shifted)
    with pytest.raises(GateError, match=r"'output', columns 1, 2, 3, … of axis 1, small beside the others: .*limit of"):
        export("Stamped", FLAT)
    assert nothing_published(tmp_path)
    monkeypatch.undo()
    assert export("Stamped", FLAT).receipt.verification.passed


def test_int8_scores_that_would_all_be_zero_beside_boxes_in_pixels_stay_in_float32(
    export: Export, tmp_path: Path
) -> None:
    drawn = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=drawn)
    asked = {"data": tmp_path / "rows.npz", "precisions": ("int8",), "min_agreement": 0.5, "calibration": "max"}
    found = export("Detects", FLAT, **asked)
    assert found.receipt.plan is not None
    assert found.receipt.plan.kept
    assert not found.receipt.plan.points[0].within
    x = drawn[:8]
    scores = answer(found, x=x)["output"][:, 2:]
    with torch.inference_mode():
        expected = made("Detects")(torch.from_numpy(x)).numpy()[:, 2:]
    assert np.linalg.norm(scores - expected) < 0.5 * np.linalg.norm(expected)


def test_a_graph_whose_small_columns_are_lost_is_stopped(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=drawn)
    monkeypatch.setattr(budget, "plan", lambda *_: Plan(lowered_operations=1.0))
    with pytest.raises(
        GateError, match=r"columns 2, 3 of axis 1, small .*relative L2 error 1 of their own.*limit of 0\.5"
    ):
        export(
            *("Detects", FLAT), data=tmp_path / "rows.npz", precisions=("int8",), min_agreement=0.5, calibration="max"
        )
    assert nothing_published(tmp_path)


@pytest.mark.parametrize("format", ["onnx", "torchscript", "pt2"])
def test_an_unused_argument_stays_an_input_in_its_place(export: Export, format: str) -> None:
    found = export("Unused", FLAT, "spare:float32[batch,2]", "scale:float32[batch]", format=format)
    x, spare, scale = torch.randn(3, 8), torch.randn(3, 2), torch.randn(3)
    got = answer(found, x=x.numpy(), spare=spare.numpy(), scale=scale.numpy())["output"]
    with torch.inference_mode():
        torch.testing.assert_close(torch.from_numpy(got), made("Unused")(x, spare, scale))
    if format == "onnx":
        held = onnx.load(str(found.model_path)).graph
        assert [value.name for value in held.input] == ["x", "spare", "scale"]


def test_a_norm_without_running_statistics_is_refused_by_name(export: Export, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"norm.*running statistics"):
        export("Batches", FLAT)
    assert nothing_published(tmp_path)


@pytest.mark.parametrize("format", ["onnx", "torchscript"])
def test_a_norm_is_folded_right_into_a_transposed_grouped_convolution(export: Export, format: str) -> None:
    module = made("Transposed")
    with torch.no_grad():
        norm = module.get_submodule("norm")
        for tensor, low, high in (
            (norm.running_mean, -1, 1),
            (norm.running_var, 0.5, 2),
            (norm.weight, 0.5, 2),
            (norm.bias, -1, 1),
        ):
            tensor.uniform_(low, high)
    found = export("Transposed", "image:float32[batch,8,5,5]", module=module, format=format)
    assert found.receipt.build["fused"] == 1
    image = torch.randn(3, 8, 5, 5)
    with torch.inference_mode():
        torch.testing.assert_close(torch.from_numpy(answer(found, image=image.numpy())["output"]), module(image))


def test_a_numpy_metric_does_not_make_a_checkpoint_unloadable(export: Export) -> None:
    wrapped = {"state_dict": made("Plain").state_dict(), "best": np.float64(0.93), "epoch": np.int64(7)}
    assert export("Plain", FLAT, wrapped=wrapped).receipt.source.loaded == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("two.bias"), r"two\.bias"),
        (lambda state: state.update(three=torch.zeros(3)), "three"),
        (lambda state: state.update({"one.weight": torch.zeros(16, 9)}), r"one\.weight.*\[16, 9\]"),
    ],
)
def test_no_tensor_is_left_random_or_aside(
    export: Export, tmp_path: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    state = made("Plain").state_dict()
    change(state)
    with pytest.raises(PenstockError, match=said):
        export("Plain", FLAT, wrapped=state)
    assert nothing_published(tmp_path)


def test_a_model_of_36_megabytes_is_one_file(export: Export) -> None:
    found = export("Wide", "ids:int64[batch,6]")
    assert found.model_path.stat().st_size > 35e6
    held = {path.name for path in found.folder.iterdir()}
    assert {name for name in held if name.startswith("model")} == {"model.onnx"}


def test_a_simplifier_leaves_dynamic_axes_dynamic_and_the_check_after_it_would_know(export: Export) -> None:
    found = export("Long", "x:float32[batch,seq,8]", dims={"seq": Dim(min=1, opt=4, max=9)})
    model = onnx.load(str(found.model_path))
    for value in (*model.graph.input, *model.graph.output):
        assert [dim.dim_param for dim in value.type.tensor_type.shape.dim][:2] == ["batch", "seq"]
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
    with pytest.raises(PenstockError, match="seq"):
        graph.check(model, found.receipt.signature)


def test_an_error_is_not_zero_because_of_a_number_that_is_none() -> None:
    expected, got = {"y": np.ones((2, 3), np.float32)}, {"y": np.ones((2, 3), np.float32)}
    got["y"][1, 2] = np.nan
    (found,) = parity.compare(expected, got)
    assert not found.rel_l2 <= 1e30


def test_tied_weights_are_stored_once(export: Export) -> None:
    state = made("Tied").state_dict()
    del state["head.weight"]  # as save_pretrained leaves it out
    found = export("Tied", "ids:int64[batch,seq]", wrapped=state)
    sizes = [numpy_helper.to_array(item).size for item in onnx.load(str(found.model_path)).graph.initializer]
    assert sizes.count(500 * 32) == 1
    assert found.model_path.stat().st_size < 1.3 * 4 * (500 * 32 + 32 * 33)
    assert found.receipt.source.tied == 1


def test_a_comparison_that_crashes_is_no_pass(export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("cannot be compared")

    monkeypatch.setattr(OnnxRunner, "run", fail)
    with pytest.raises(GateError, match="cannot be compared"):
        export("Plain", FLAT)
    assert nothing_published(tmp_path)


def _scaled(model: Any) -> None:
    """One weight of 212 off by a hundredth."""
    held = next(item for item in model.graph.initializer if list(item.dims) in ([16, 8], [8, 16]))
    array = numpy_helper.to_array(held).copy()
    array.flat[0] += 0.01
    held.CopyFrom(numpy_helper.from_array(array, held.name))


def _without_relu(model: Any) -> None:
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type = "Identity"


@pytest.mark.parametrize("fault", [_scaled, _without_relu])
def test_a_fault_put_into_a_graph_after_export_is_stopped_with_nothing_published(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Any], None]
) -> None:
    written = onnx_format.export

    def damaged(source: Any, options: Any, folder: Path, work: Path) -> formats.Built:
        built = written(source, options, folder, work)
        model = onnx.load(str(folder / built.model_file))
        fault(model)
        onnx.save(model, str(folder / built.model_file))
        return built

    monkeypatch.setattr(onnx_format, "export", damaged)
    with pytest.raises(GateError, match=r"the gate stopped it: output 'output' at batch 1: relative L2 error"):
        export("Plain", FLAT)
    assert nothing_published(tmp_path)
