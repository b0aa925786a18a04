"""The export road, end to end on a real checkpoint: what is published, what its receipt says, and what is refused."""

from __future__ import annotations

import hashlib
import re
import resource
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from penstock import artifact, checkpoint, cli, evaluation, parity, runtimes, trial
from penstock.artifact import Artifact
from penstock.checkpoint import Override
from penstock.errors import GateError, PenstockError
from penstock.export import formats, fusion, limits, pipeline, speed
from penstock.export.formats import Built
from penstock.export.noise import Noise
from penstock.export.pipeline import Request
from penstock.export.precision import emulation
from penstock.signature import Dim

ALL = {
    "onnx": ("fp32", "fp16", "bf16", "int8"),
    "pt2": ("fp32",),
    "torchscript": ("fp32", "fp16"),
    "trt": ("fp32", "tf32", "fp16", "bf16", "int8", "int8-fp16", "fp8"),
}
VARIANTS = [f"digits-{name}-{precision}" for name, precisions in ALL.items() for precision in precisions]


def export(request: Request) -> list[Artifact]:
    return pipeline.export(request, lambda line: None)


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="session")
def others(trained: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The variants that `repository` does not hold."""
    output = tmp_path_factory.mktemp("others") / "models"
    held = {path.name for path in repository.iterdir()}
    for name, precisions in ALL.items():
        wanted = tuple(p for p in precisions if f"digits-{name}-{p}" not in held)
        if wanted:
            export(Request(trained, formats=(name,), precisions=wanted, output=output))
    return output


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, repository: Path, others: Path) -> Artifact:
    folder = repository / request.param
    return artifact.read(folder if folder.is_dir() else others / request.param)


def test_every_format_and_precision_is_tried() -> None:
    assert {name: set(formats._module(name).PRECISIONS) for name in formats.names()} == {
        name: set(precisions) for name, precisions in ALL.items()
    }
    assert set(pipeline.PRECISIONS) == {p for precisions in ALL.values() for p in precisions}


def test_a_receipt_tells_where_the_artifact_came_from(variant: Artifact, trained: Path) -> None:
    receipt = variant.receipt
    assert receipt.source.sha256 == hashlib.sha256(trained.read_bytes()).hexdigest()
    assert receipt.source.checkpoint == str(trained)
    assert receipt.source.architecture == "penstock.train.nets:ResidualNet"
    expected = len(torch.load(trained, weights_only=True)["state_dict"])
    assert receipt.source.loaded == receipt.source.expected == expected
    assert receipt.build["fused"] == 9
    card = checkpoint.load(trained).card
    assert (receipt.preprocess, receipt.labels, receipt.task, receipt.dataset) == (
        card.preprocess,
        card.labels,
        card.task,
        card.dataset,
    )


def test_a_receipt_names_the_variant_and_all_its_files(variant: Artifact) -> None:
    receipt = variant.receipt
    assert variant.folder.parent.name == receipt.name == f"digits-{receipt.format}-{receipt.precision}"
    assert receipt.version == 1
    held = {path.name for path in variant.folder.iterdir()}
    assert held == {"penstock.json", *receipt.files}
    assert {"golden.npz", receipt.model_file} <= held
    variant.check_digests()
    assert f'name: "{receipt.name}"' in (variant.folder.parent / "config.pbtxt").read_text()


def test_a_receipt_holds_what_the_gate_saw(variant: Artifact) -> None:
    seen = variant.receipt.verification
    assert seen.passed
    assert seen.real
    assert seen.batches == (1, 2, 7, 8, 32, 64)
    assert seen.samples == 256 + 64
    assert seen.noise_by == "float64"
    assert 0 < seen.noise["logits"] < 1e-5
    assert seen.limits == limits.of_variant(variant.receipt.precision, Noise(by="float64", values=seen.noise))
    (found,) = seen.distances
    assert found.output == "logits"
    assert found.failure(seen.limits["logits"]) is None
    here = runtimes.unavailable(variant.receipt.runtime, variant.receipt.build) is None
    assert seen.engine_run == here


def test_calibration_is_recorded_where_there_are_scales_and_nowhere_else(variant: Artifact, trained: Path) -> None:
    found = variant.receipt.calibration
    if variant.receipt.precision not in ("int8", "int8-fp16", "fp8"):
        assert found is None
        return
    assert found is not None
    assert found.real
    engine = variant.receipt.format == "trt" and variant.receipt.precision.startswith("int8")
    assert found.method == ("entropy" if engine else "max")
    assert found.samples == 256
    held = checkpoint.load(trained).calibration
    assert held is not None
    images = held.inputs["image"]
    assert found.digest == hashlib.sha256(f"image{images.dtype}{images.shape}".encode() + images.tobytes()).hexdigest()


def test_all_variants_keep_one_contract(variant: Artifact, trained: Path) -> None:
    signature = checkpoint.load(trained).card.signature
    assert variant.receipt.signature == signature
    assert {tensor.dtype for tensor in (*signature.inputs, *signature.outputs)} == {"float32"}


def test_a_variant_answers_as_the_float32_source_does(variant: Artifact, trained: Path, tmp_path: Path) -> None:
    """Run anew, by the runtime or what stands in for it, against the source, which the golden file must be of."""
    receipt = variant.receipt
    inputs, outputs = variant.golden()
    module = checkpoint.load(trained).module
    with torch.inference_mode():
        source = module(torch.from_numpy(inputs["image"])).numpy()
    assert np.allclose(outputs["logits"], source, rtol=0, atol=1e-5)
    runtime, path = receipt.runtime, variant.model_path
    if runtimes.unavailable(runtime, receipt.build) is not None:
        runtime, path = receipt.verification.runtime, variant.folder / "model.onnx"
        runtime, path = emulation.stand_in(onnx.load(str(path)), tmp_path) or (runtime, path)
    with runtimes.load(runtime, path, receipt.signature) as runner:
        (found,) = parity.compare(outputs, runner.run(inputs))
    assert found.rel_l2 <= receipt.verification.limits["logits"].max_error


def test_lower_precision_is_really_lower(variant: Artifact) -> None:
    """By the file: float32 is exact to rounding, float16 and int8 are measurably not, and hold smaller types inside."""
    error = variant.receipt.verification.distances[0].rel_l2
    precision = variant.receipt.precision
    low, high = {
        "fp32": (0, 2e-6),
        "tf32": (0, 2e-6) if not variant.receipt.verification.engine_run else (1e-5, 2e-3),
        "fp16": (1e-5, 2e-3),
        "bf16": (1e-3, 2e-2),
        "int8": (1e-3, 0.1),
        "int8-fp16": (1e-3, 0.1),
        "fp8": (1e-3, 0.1),
    }[precision]
    assert low <= error < high
    graph_file = variant.folder / "model.onnx"
    if not graph_file.is_file():
        return
    graph = onnx.load(str(graph_file)).graph
    kinds = {onnx.TensorProto.DataType.Name(item.data_type) for item in graph.initializer if len(item.dims) > 1}
    operators = {node.op_type for node in graph.node}
    assert ("QuantizeLinear" in operators) == (precision in ("int8", "int8-fp16", "fp8"))
    if precision in ("fp16", "bf16"):
        assert {"fp16": "FLOAT16", "bf16": "BFLOAT16"}[precision] in kinds
    elif precision in ("fp32", "tf32"):
        assert kinds == {"FLOAT"}
    for value in (*graph.input, *graph.output):
        assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_a_second_export_is_version_two_beside_the_first(trained: Path, repository: Path, tmp_path: Path) -> None:
    name = "digits-torchscript-fp32"
    shutil.copytree(repository / name, tmp_path / name)
    before = (tmp_path / name / "1" / "penstock.json").read_bytes()
    (second,) = export(Request(trained, formats=("torchscript",), output=tmp_path))
    assert second.receipt.version == 2
    assert second.folder == tmp_path / name / "2"
    assert (tmp_path / name / "1" / "penstock.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    second.check_digests()


def test_what_is_said_is_a_line_for_each_step_and_each_variant(trained: Path, tmp_path: Path) -> None:
    said: list[str] = []
    request = Request(trained, formats=("torchscript",), precisions=("fp32", "fp16"), output=tmp_path, name="mine")
    pipeline.export(request, said.append)
    assert all("\n" not in line for line in said)
    said = [line for line in said if "is slower than" not in line]  # which hangs on the processor
    assert len(said) == 6
    assert said[0] == "note: PyTorch has deprecated TorchScript; pt2 is its successor, and ONNX gives the same answers"
    assert said[1] == f"{trained}: penstock.train.nets:ResidualNet, 56 of 56 tensors loaded, from 'state_dict'"
    assert said[2] == "Conv-BatchNorm pairs fused: 9"
    assert re.fullmatch(
        r"the gate compares with the float32 source on 320 real samples; the source's own noise is \d\.\de-0[67] "
        r"\(float64\)",
        said[3],
    )
    for line, precision in zip(said[4:], ("fp32", "fp16"), strict=True):
        made = artifact.read(tmp_path / f"mine-torchscript-{precision}")
        for part in (f"mine-torchscript-{precision}/1", "relative error", "top-1 agreement", f", {made.size}"):
            assert part in line


def test_the_deprecation_of_torchscript_is_said_to_nobody_else(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(formats, "export", lambda *_: exec("raise KeyError"))
    with pytest.raises(PenstockError, match="cannot be written: KeyError"):
        pipeline.export(Request(theirs, override=THEIRS), said.append)
    assert said[-1].startswith("the gate compares with the float32 source on 64 synthetic samples; ")
    assert not [line for line in said if "TorchScript" in line]


def test_a_limit_that_is_passed_leaves_nothing_at_all(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(GateError) as caught:
        export(Request(trained, formats=("torchscript",), output=tmp_path / "models", max_error=1e-12))
    for part in ("output 'logits'", "at batch 1", "relative L2 error", "limit of 1e-12"):
        assert part in str(caught.value)
    assert str(caught.value).startswith("digits-torchscript-fp32: the gate stopped it: ")
    assert "--data" not in str(caught.value)
    assert tree(tmp_path) == ["models"]


def test_variants_before_the_one_that_fails_stay_and_it_leaves_nothing(trained: Path, tmp_path: Path) -> None:
    request = Request(trained, formats=("torchscript",), precisions=("fp32", "fp16"), output=tmp_path, max_error=1e-5)
    with pytest.raises(GateError):
        export(request)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits-torchscript-fp32"]
    artifact.read(tmp_path / "digits-torchscript-fp32").check_digests()


def test_a_failed_second_export_leaves_the_first_version_as_it_was(trained: Path, tmp_path: Path) -> None:
    request = Request(trained, formats=("torchscript",), output=tmp_path)
    export(request)
    before = tree(tmp_path)
    with pytest.raises(GateError):
        export(Request(trained, formats=("torchscript",), output=tmp_path, max_error=1e-12))
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"precisions": ("fp4",)}, ["--precision 'fp4'", "fp32, tf32, fp16, bf16, int8, int8-fp16, fp8"]),
        ({"precisions": ("fp32", "fp4")}, ["--precision 'fp4'"]),
        (
            {"formats": ("torchscript",), "precisions": ("int8",)},
            ["--precision 'int8'", "torchscript holds fp32, fp16"],
        ),
        ({"formats": ("onnx", "coreml")}, ["--format 'coreml'", "onnx, pt2, torchscript, trt"]),
        ({"formats": ("onnx", "pt2"), "precisions": ("fp16",)}, ["--precision 'fp16'", "pt2 holds fp32"]),
        ({"formats": ("pt2", "torchscript"), "opset": 18}, ["--opset 18", "--format onnx and trt take it"]),
        ({"max_error": float("nan")}, ["--max-error, --min-agreement: max_error: nan", "finite number"]),
        ({"max_error": float("inf")}, ["--max-error", "max_error: inf", "finite number"]),
        ({"max_error": -1e-9}, ["--max-error", "max_error: -1e-09", "greater than or equal to 0"]),
        ({"min_agreement": float("nan")}, ["--min-agreement: min_agreement: nan", "finite number"]),
        ({"min_agreement": 1.5}, ["--min-agreement", "1.5", "less than or equal to 1"]),
        ({"min_agreement": -0.5}, ["--min-agreement", "-0.5", "greater than or equal to 0"]),
    ],
)
def test_what_cannot_be_made_is_refused_before_any_work(
    tmp_path: Path, changes: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(PenstockError) as caught:
        export(Request(tmp_path / "there-is-no-such-checkpoint.pth", output=tmp_path / "models", **changes))
    for part in parts:
        assert part in str(caught.value)
    assert "no-such-checkpoint" not in str(caught.value)
    assert tree(tmp_path) == []


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "two words", "x" * 129])
def test_a_name_that_is_no_folder_name_is_refused(trained: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(PenstockError) as caught:
        export(Request(trained, output=tmp_path / "models", name=name))
    assert f"--name {name!r}" in str(caught.value)
    assert "letters, digits, _, - and ." in str(caught.value)
    assert tree(tmp_path) == []


def test_the_longest_name_gives_a_variant_that_is_still_a_name(trained: Path, tmp_path: Path) -> None:
    try:
        (made,) = export(Request(trained, formats=("torchscript",), output=tmp_path, name="x" * 128))
    except PenstockError:
        return
    assert artifact.MODEL_NAME.fullmatch(made.receipt.name)


@pytest.mark.parametrize("batch", [Dim(opt=1, max=1), Dim(min=8, opt=8, max=8), Dim(opt=4, max=5)])
@pytest.mark.parametrize("name", ["onnx", "torchscript"])
def test_any_range_of_batches_is_exported_and_recorded(trained: Path, tmp_path: Path, name: str, batch: Dim) -> None:
    (made,) = export(Request(trained, formats=(name,), output=tmp_path, override=Override(batch=batch)))
    assert made.receipt.signature.dims == {"batch": batch}
    assert max(made.receipt.verification.batches) == batch.max
    assert f"max_batch_size: {batch.max}" in (made.folder.parent / "config.pbtxt").read_text()


def test_the_gate_runs_no_batch_that_the_signature_excludes(trained: Path, tmp_path: Path) -> None:
    """An engine whose profile begins at 4 refuses a batch of 1."""
    override = Override(batch=Dim(min=4, opt=8, max=16))
    (made,) = export(Request(trained, formats=("torchscript",), output=tmp_path, override=override))
    assert made.receipt.verification.batches == (4, 5, 7, 8, 10, 16)


def test_without_fusing_the_answers_are_the_same_and_the_receipt_says_so(trained: Path, tmp_path: Path) -> None:
    (made,) = export(Request(trained, formats=("torchscript",), output=tmp_path, fuse=False))
    assert made.receipt.build.get("fused", 0) == 0
    assert made.receipt.verification.distances[0].rel_l2 < 2e-6


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 5)

    def forward(self, image):
        return self.head(torch.relu(self.norm(self.conv(image))).mean((2, 3)))
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with somebody's ./net.py and a bare, wrapped state_dict trained under DataParallel."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    namespace: dict[str, Any] = {"__name__": "theirs"}
    exec(NET, namespace)
    torch.manual_seed(0)
    net: nn.Module = namespace["Net"](width=6)
    net.get_submodule("norm").running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
    state = {f"module.{name}": tensor for name, tensor in net.state_dict().items()}
    torch.save({"model": state, "epoch": 90}, "ckpt.pth")
    return Path("ckpt.pth")


@contextmanager
def no_work() -> Iterator[None]:
    """Nothing may be fused, written or run in the block: what is at fault can be known before."""

    def begun(*_: Any, **__: Any) -> None:
        raise AssertionError("the work was begun")

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((fusion, "fuse"), (formats, "export"), (evaluation, "outputs"), (artifact, "draft")):
            patch.setattr(module, name, begun)
        yield


@contextmanager
def no_writing() -> Iterator[None]:
    """No format may be written in the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "export", lambda *_: pytest.fail("it was written"))
        yield


THEIRS = Override(model="./net.py:Net", model_args={"width": 6}, inputs=("image:float32[batch,3,12,12]",))


def test_somebody_elses_state_dict_and_class_become_an_artifact(theirs: Path) -> None:
    (made,) = export(Request(theirs, override=replace(THEIRS, batch=Dim(opt=2, max=8))))
    receipt = made.receipt
    assert made.folder == Path("models/ckpt-onnx-fp32/1")
    assert (receipt.source.loaded, receipt.source.expected, receipt.source.prefix) == (8, 8, "module.")
    assert (receipt.source.architecture, receipt.source.arguments) == ("./net.py:Net", {"width": 6})
    assert [str(t) for t in receipt.signature.inputs] == ["image:float32[batch,3,12,12]"]
    assert [str(t) for t in receipt.signature.outputs] == ["output:float32[batch,5]"]
    assert receipt.build["fused"] == 1
    assert not receipt.verification.real
    assert receipt.verification.samples == 32
    with made.load() as runner:
        assert runner.run({"image": np.zeros((3, 3, 12, 12), np.float32)})["output"].shape == (3, 5)


def test_int8_without_real_samples_is_refused_with_the_way_to_give_them(theirs: Path) -> None:
    with no_work(), pytest.raises(PenstockError) as caught:
        export(Request(theirs, override=THEIRS, formats=("trt",), precisions=("fp32", "int8")))
    for part in ("--precision int8 needs real samples", "--data FILE.npz", "--data random"):
        assert part in str(caught.value)
    with pytest.raises(PenstockError, match=r"int8 needs real samples .*--data FILE\.npz"):
        export(Request(theirs, override=THEIRS, precisions=("int8",)))
    with no_writing(), pytest.raises(PenstockError, match=r"int8 needs real samples .*--data FILE\.npz"):
        export(Request(theirs, override=THEIRS, precisions=("fp32", "fp16", "int8")))
    assert not Path("models").exists() or not list(Path("models").iterdir())


def test_random_numbers_are_calibrated_on_where_they_are_asked_for_by_name(theirs: Path) -> None:
    (made,) = export(Request(theirs, override=THEIRS, precisions=("int8",), random_data=True))
    assert made.receipt.calibration is not None
    assert (made.receipt.calibration.real, made.receipt.calibration.samples) == (False, 128)
    assert not made.receipt.verification.real
    assert made.receipt.source.options[-2:] == ("--data", "random")


def test_a_folder_of_the_name_random_is_read_and_spelt_as_a_path(theirs: Path) -> None:
    Path("random").mkdir()
    images = np.random.default_rng(0).standard_normal((40, 3, 12, 12)).astype(np.float32)
    np.save("random/image.npy", images)
    (made,) = export(Request(theirs, override=THEIRS, formats=("torchscript",), data=Path("random")))
    assert (made.receipt.verification.real, made.receipt.verification.samples) == (True, 40)
    assert np.array_equal(made.golden()[0]["image"], images[:8])
    assert made.receipt.source.options[-2:] == ("--data", "./random")


def test_a_torchscript_file_of_lower_precision_has_its_speed_beside_float32s_in_its_receipt(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "_SECONDS", 0.05)
    full, half = export(Request(theirs, override=THEIRS, formats=("torchscript",), precisions=("fp32", "fp16")))
    assert "speed_vs_fp32" not in full.receipt.build
    middle, low, high = half.receipt.build["speed_vs_fp32"]
    assert 0 < low <= middle <= high


def test_the_figures_of_fp16_are_those_of_its_rounding_also_where_the_cpu_computes_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are fp16's own numbers: only what is computed is rounded, by 2**-12 or so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(speed, "_SECONDS", 0.05)
    code = "nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))"
    Path("net.py").write_text(f"from torch import nn\n\ndef net():\n    return {code}\n")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    torch.save({name: tensor.half().float() for name, tensor in net.state_dict().items()}, "net.pth")
    override = Override(model="./net.py:net", inputs=("x:float32[batch,16]",))
    (made,) = export(Request(Path("net.pth"), override=override, precisions=("fp16",)))
    seen = made.receipt.verification
    assert 1e-5 < seen.distances[0].rel_l2 < 1e-2
    assert (seen.engine_run, seen.runtime) == (True, "onnxruntime")
    assert sorted(path.name for path in made.folder.iterdir()) == ["golden.npz", "model.onnx", "penstock.json"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"accuracy_drop": 0.5},
            "--accuracy-drop 0.5: is of a lower precision, as --int8 is, not of fp32",
        ),
        ({"calibration": "max"}, "--calibration max: is of int8 and fp8, not of fp32"),
        (
            {"calibration": "dynamic", "precisions": ("fp32", "fp16")},
            "--calibration dynamic: is of int8 and fp8, not of fp32, fp16",
        ),
        (
            {"calibration": "percentile=99.9", "precisions": ("bf16",)},
            "--calibration percentile=99.9: is of int8 and fp8, not of bf16",
        ),
    ],
)
def test_an_option_that_none_of_the_precisions_makes_use_of_is_refused(
    theirs: Path, more: dict[str, Any], said: str
) -> None:
    for name in ("onnx", "auto"):
        with no_work(), pytest.raises(PenstockError) as caught:
            export(Request(theirs, override=THEIRS, formats=(name,), **more))
        assert str(caught.value) == said
    assert not Path("models").exists()


@pytest.mark.parametrize(
    "more", [{"accuracy_drop": 0.5}, {"calibration": "max"}, {"calibration": "dynamic"}, {"calibration": "auto"}]
)
def test_an_option_that_one_of_the_precisions_makes_use_of_is_taken(more: dict[str, Any]) -> None:
    pipeline._refuse_idle(Request(Path("net.pth"), precisions=("fp32", "int8"), **more))


def test_int8_is_calibrated_on_the_samples_that_are_given(theirs: Path) -> None:
    images = np.random.default_rng(0).standard_normal((40, 3, 12, 12)).astype(np.float32)
    np.savez("data.npz", image=images)
    override = replace(THEIRS, batch=Dim(opt=2, max=8))
    request = Request(theirs, override=override, precisions=("int8",), data=Path("data.npz"))
    (made,) = export(request)
    assert made.receipt.calibration is not None
    assert made.receipt.calibration.samples == 40
    assert made.receipt.verification.real
    assert made.receipt.verification.samples == 40
    golden, _ = made.golden()
    assert np.array_equal(golden["image"], images[:8])


def test_int8_of_one_format_does_not_spoil_int8_of_the_other(trained: Path, repository: Path, tmp_path: Path) -> None:
    """ModelOpt replaces functions inside onnxruntime.quantization, which the onnx format uses too."""
    before = artifact.read(repository / "digits-onnx-int8")  # made before any int8 for TensorRT
    order = ("trt", "onnx")
    made = export(Request(trained, formats=order, precisions=("int8",), output=tmp_path))
    assert [item.receipt.format for item in made] == list(order)
    assert before.model_path.read_bytes() == made[1].model_path.read_bytes()


def test_samples_are_counted_once_however_often_they_are_run(theirs: Path) -> None:
    np.savez("data.npz", image=np.random.default_rng(0).standard_normal((3, 3, 12, 12)).astype(np.float32))
    request = Request(theirs, override=THEIRS, formats=("torchscript",), data=Path("data.npz"))
    (made,) = export(request)
    assert made.receipt.verification.samples == 3
    assert made.receipt.verification.batches == (1, 2, 7, 8, 32, 64)
    inputs, outputs = made.golden()
    assert {len(array) for array in (*inputs.values(), *outputs.values())} == {3}


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"picture": np.zeros((4, 3, 12, 12), np.float32)}, "input 'picture' is unknown"),
        ({"image": np.zeros((4, 3, 12, 12))}, "dtype float64; it must be float32"),
        ({"image": np.zeros((4, 1, 12, 12), np.float32)}, "[4, 1, 12, 12]; it must be [batch, 3, 12, 12]"),
    ],
)
def test_samples_that_do_not_fit_the_model_are_refused_by_file(
    theirs: Path, arrays: dict[str, np.ndarray], said: str
) -> None:
    np.savez("data.npz", **arrays)  # type: ignore[arg-type]
    with no_work(), pytest.raises(PenstockError) as caught:
        export(Request(theirs, override=THEIRS, data=Path("data.npz")))
    assert not Path("models").exists()
    assert "--data data.npz" in str(caught.value)
    assert said in str(caught.value)


def test_a_model_that_cannot_batch_is_refused_with_its_shapes(theirs: Path) -> None:
    fixed = Override(model=THEIRS.model, model_args=THEIRS.model_args, inputs=("image:float32[1,3,12,12]",))
    with pytest.raises(PenstockError) as caught:
        export(Request(theirs, override=fixed))
    for part in ("share a dynamic first dimension", "image:float32[1,3,12,12]", "output:float32[1,5]"):
        assert part in str(caught.value)


def test_inputs_renamed_by_the_user_are_refused_in_a_sentence(trained: Path, tmp_path: Path) -> None:
    override = Override(inputs=("pixels:float32[batch,1,8,8]",))
    with pytest.raises(PenstockError, match=r"--input 'pixels:.*names its own inputs, image:.*leave --input out"):
        export(Request(trained, formats=("torchscript",), output=tmp_path / "models", override=override))
    assert tree(tmp_path) == []


class InPlace(nn.Module):
    """Works on its input where it lies, so that running it twice on one array differs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.mul_(2.0))


def test_a_model_that_works_in_place_is_compared_on_the_inputs_that_were_given(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = InPlace()
    torch.save(module.state_dict(), tmp_path / "a.pth")
    code = (
        "import torch\nfrom torch import nn\n\nclass InPlace(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.head = nn.Linear(4, 3)\n\n"
        "    def forward(self, x):\n        return self.head(x.mul_(2.0))\n"
    )
    (tmp_path / "inplace.py").write_text(code)
    images = np.random.default_rng(0).standard_normal((70, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=images)
    override = Override(model=f"{tmp_path / 'inplace.py'}:InPlace", inputs=("x:float32[batch,4]",))
    request = Request(
        tmp_path / "a.pth",
        formats=("torchscript",),
        output=tmp_path / "models",
        override=override,
        data=tmp_path / "data.npz",
    )
    (made,) = export(request)
    inputs, outputs = made.golden()
    assert np.array_equal(inputs["x"], images[:8])
    with torch.inference_mode():
        expected = module(torch.from_numpy(images[:8].copy())).numpy()
    assert np.allclose(outputs["output"], expected, rtol=0, atol=1e-6)


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A real limit of the operating system's: writing more fails with an OSError, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("onnx", "fp32"), ("onnx", "fp16"), ("onnx", "int8"), ("torchscript", "fp32"), ("trt", "fp32")],
)
def test_a_disk_that_fills_up_is_told_and_nothing_is_left(
    trained: Path, tmp_path: Path, name: str, precision: str
) -> None:
    output = tmp_path / "models"
    with files_no_larger_than(20_000), pytest.raises(PenstockError) as caught:
        export(Request(trained, formats=(name,), precisions=(precision,), output=output))
    assert f"--output {output}: cannot be written" in str(caught.value)
    assert "nothing was published" in str(caught.value)
    assert tree(output) == []


def refused(request: Request) -> str:
    with pytest.raises(PenstockError) as caught:
        export(request)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_contract_under_the_name_is_refused_before_the_work(theirs: Path, trained: Path) -> None:
    export(Request(theirs, override=THEIRS, formats=("torchscript",)))
    before = tree(Path("models"))
    with no_work():
        message = refused(Request(trained, name="ckpt", formats=("onnx", "torchscript")))
    for part in ("models/ckpt-torchscript-fp32: version 1", "image:float32[batch,3,12,12]", "choose another --name"):
        assert part in message
    assert tree(Path("models")) == before


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_place_that_is_taken_by_something_else_is_refused_before_the_work(theirs: Path, kind: str) -> None:
    place = Path("models/ckpt-onnx-fp16")
    place.parent.mkdir()
    if kind == "file":
        place.touch()
    else:
        place.mkdir()
    with no_work():
        message = refused(Request(theirs, override=THEIRS, precisions=("fp32", "fp16")))
    assert message == f"{place}: exists and is not a model folder; choose another --name or --output"


def test_a_gate_on_synthetic_samples_ends_with_the_way_to_give_real_ones(theirs: Path) -> None:
    with pytest.raises(GateError) as caught:
        export(Request(theirs, override=THEIRS, formats=("torchscript",), max_error=0.0, precisions=("fp16",)))
    assert str(caught.value).startswith("ckpt-torchscript-fp16: the gate stopped it: output 'output' at batch 1: ")
    assert str(caught.value).endswith("; the samples were synthetic, and --data gives real ones")
    assert tree(Path("models")) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("aten::strange"), "cannot be written: KeyError: 'aten::strange'"),
        (RuntimeError("\n the first line\nthe second"), "cannot be written: RuntimeError: the first line"),
        (AssertionError(), "cannot be written: AssertionError"),
        (PenstockError("it is too large"), "it is too large"),
    ],
)
def test_whatever_an_exporter_fails_with_is_one_line_with_the_variants_name(
    theirs: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(formats, "export", fail)
    assert refused(Request(theirs, override=THEIRS)) == f"ckpt-onnx-fp32: {said}"
    assert tree(Path("models")) == []


def test_a_runtime_that_crashes_on_a_file_is_one_sentence_and_nothing_is_published(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(name: str, source: Any, options: Any, folder: Path, work: Path) -> Built:
        (folder / "model.onnx").write_bytes(b"a graph that crashes its runtime")
        return Built(runtime="onnxruntime", model_file="model.onnx", hardware="any")

    monkeypatch.setattr(formats, "export", write)
    stub = Path("python").absolute()
    stub.write_text('#!/bin/sh\necho "$@" > asked; ulimit -c 0; kill -SEGV $$\n')
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))
    message = refused(Request(theirs, override=THEIRS))
    said = "ckpt-onnx-fp32: model.onnx: onnxruntime crashes on it (SIGSEGV); try another --precision or --format"
    assert message == said
    assert Path("asked").read_text().partition("alter_sys=True) ")[2].startswith("onnxruntime models/.draft-")
    assert tree(Path("models")) == []


def test_torchscript_which_pytorch_has_run_here_already_is_not_tried_elsewhere(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "attempt", lambda *_: pytest.fail("it was tried"))
    export(Request(theirs, override=THEIRS, formats=("torchscript",)))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bare(code: str, inputs: str, **override: Any) -> Request:
    """A request for ./a.py:Net, whose forward is `code` over `x` and one weight, as TorchScript."""
    head = "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def __init__(self):\n"
    head += (
        "        super().__init__()\n        self.weight = nn.Parameter(torch.ones(1))\n\n    def forward(self, x):\n"
    )
    Path("a.py").write_text(head + "".join(f"        {line}\n" for line in code.splitlines()))
    torch.save({"weight": torch.ones(1)}, "a.pth")
    named = Override(model="./a.py:Net", inputs=(inputs,), **override)
    return Request(Path("a.pth"), formats=("torchscript",), override=named)


@pytest.mark.parametrize(
    "code",
    [
        "return x * self.weight + torch.rand_like(x)",
        "return nn.functional.dropout(x * self.weight, 0.5, training=True)",
        "self.turns = getattr(self, 'turns', 0) + 1\nreturn x * self.weight + self.turns",
    ],
    ids=["noise", "dropout", "count"],
)
def test_a_source_that_answers_differently_each_time_is_refused(desk: Path, code: str) -> None:
    message = refused(bare(code, "x:float32[batch,3]"))
    assert message == "the model answers the same inputs differently each time; an export of it cannot be proven"
    assert not Path("models").exists()


def test_a_source_whose_answers_are_no_numbers_is_not_taken_for_one_that_changes(desk: Path) -> None:
    message = refused(bare("return x * self.weight / 0 * 0", "x:float32[batch,3]"))
    assert message.startswith("the source model itself answers NaN or Inf in output 'output' for 64 of 64 samples; ")
    assert not Path("models").exists()


def test_a_source_whose_rounding_settles_nothing_is_refused_before_the_work_unless_that_is_accepted(desk: Path) -> None:
    request = bare("return (x + 1e6) * (x + 1e6) - 1e12 * self.weight", "x:float32[batch,3]")
    with no_writing():
        message = refused(request)
    found = re.fullmatch(
        r"the model's own rounding moves output 'output' by (\S+): float32 does not settle its answers, and an export "
        r"could not be proven; --max-error (\S+) accepts that",
        message,
    )
    assert found is not None
    assert 32 * float(found[1]) == pytest.approx(float(found[2]), rel=0.5)
    (made,) = export(replace(request, max_error=float(found[2])))
    assert made.receipt.verification.limits["output"].max_error == float(found[2])


def test_limits_of_the_users_that_are_tighter_than_rounding_stop_exports_and_not_the_source(theirs: Path) -> None:
    request = Request(theirs, override=THEIRS, formats=("torchscript",), precisions=("fp16",), max_error=1e-9)
    with pytest.raises(GateError, match=r"ckpt-torchscript-fp16: the gate stopped it: .* is over the limit of 1e-09"):
        export(request)


def test_a_model_whose_rows_are_not_the_batchs_is_refused_for_want_of_a_shared_batch(desk: Path) -> None:
    message = refused(bare("return torch.cat([x, x]) * self.weight", "x:float32[batch,3]"))
    assert "must share a dynamic first dimension" in message
    assert "x:float32[batch,3] -> output:float32[output_0,3]" in message


def test_a_model_without_batchnorm_says_nothing_of_fusing(desk: Path) -> None:
    said: list[str] = []
    (made,) = pipeline.export(bare("return x * self.weight", "x:float32[batch,3]"), said.append)
    assert not [line for line in said if "BatchNorm" in line or "fused" in line]
    assert not {"fused", "fuse_note"} & set(made.receipt.build)


@pytest.mark.parametrize("size", [1, 33, 64])
def test_a_fault_at_one_size_of_another_dimension_is_stopped_with_its_name(desk: Path, size: int) -> None:
    code = (
        "y = x.sum(1, keepdim=True) * self.weight\n"
        f"if torch.jit.is_scripting() and x.shape[1] == {size}:\n    y = y + 1\nreturn y"
    )
    request = bare(code, "x:float32[batch,seq]", dims={"seq": Dim(opt=8, max=64)})
    message = refused(replace(request, road="script"))
    assert f"a-torchscript-fp32: the gate stopped it: output 'output' at seq = {size}: " in message


def test_a_source_that_fails_in_the_range_it_was_given_says_at_which_sizes(desk: Path) -> None:
    table = "return x * self.weight + torch.zeros(16)[: x.shape[1]]"
    message = refused(bare(table, "x:float32[batch,seq]"))
    assert message.startswith("the model fails on inputs x:float32[batch,seq] (tried x [3, 64]): RuntimeError: ")
    (made,) = export(bare(table, "x:float32[batch,seq]", dims={"seq": Dim(opt=8, max=16)}))
    assert made.receipt.signature.dims["seq"] == Dim(opt=8, max=16)


@pytest.mark.parametrize("name", ["onnx", "torchscript", "pt2"])
def test_an_output_axis_that_is_computed_from_a_dimension_is_exported(desk: Path, name: str) -> None:
    request = bare("return x[:, ::2] * self.weight", "x:float32[batch,seq]", dims={"seq": Dim(min=4, opt=8, max=32)})
    (made,) = export(replace(request, formats=(name,)))
    with made.load() as runner:
        assert runner.run({"x": np.ones((2, 9), np.float32)})["output"].shape == (2, 5)


def test_samples_fewer_than_the_smallest_batch_of_the_range_still_prove_an_export(
    trained: Path, tmp_path: Path
) -> None:
    override = Override(batch=Dim(min=100, opt=100, max=128))
    (made,) = export(Request(trained, formats=("torchscript",), output=tmp_path, override=override))
    assert made.receipt.verification.samples == 256 + 64
    assert min(made.receipt.verification.batches) == 100


@pytest.mark.parametrize("stem", ["my-net", "my net", "2net", "net.v2", "naïve"])
@pytest.mark.parametrize("road", ["trace", "script"])
def test_a_file_of_any_name_gives_a_torchscript_file_that_loads(desk: Path, stem: str, road: Any) -> None:
    request = bare("return x * self.weight", "x:float32[batch,3]")
    Path("a.py").rename(f"{stem}.py")
    override = replace(request.override, model=f"./{stem}.py:Net")
    (made,) = export(replace(request, override=override, road=road))
    assert made.receipt.source.architecture == f"./{stem}.py:Net"
    assert made.receipt.build["road"] == road
    made.load().close()


def test_the_options_that_were_given_are_recorded(theirs: Path, trained: Path) -> None:
    (given,) = export(Request(theirs, override=THEIRS, formats=("torchscript",), fuse=False))
    (own,) = export(Request(trained, formats=("torchscript",)))
    words = given.receipt.source.options
    assert words[words.index("--model") + 1] == THEIRS.model
    assert words[words.index("--input") + 1] == THEIRS.inputs[0]
    assert "--no-fuse" in words
    assert own.receipt.source.options == ()


def rebuild(made: Artifact) -> Artifact:
    """Run the command that a receipt gives, as the command line takes it, into another repository."""
    words = shlex.split(artifact.rebuild_command(made))
    assert words[:2] == ["penstock", "export"]
    done = CliRunner().invoke(cli.app, [*words[1:], "--output", "again"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (folder,) = Path("again").iterdir()
    again = artifact.read(folder)
    assert again.receipt.signature == made.receipt.signature
    assert (again.receipt.format, again.receipt.precision) == (made.receipt.format, made.receipt.precision)
    assert again.receipt.source == made.receipt.source
    return again


def test_the_command_that_rebuilds_a_model_of_the_users_gives_the_same_contract(theirs: Path) -> None:
    override = replace(THEIRS, batch=Dim(min=2, opt=4, max=8))
    (made,) = export(Request(theirs, override=override, formats=("torchscript",)))
    assert rebuild(made).receipt.name == "ckpt-torchscript-fp32"


def test_the_command_that_rebuilds_keeps_arguments_and_ranges_of_any_form(desk: Path) -> None:
    code = (
        "from torch import nn\n\nclass Net(nn.Linear):\n    def __init__(self, widths, act='relu', bias=False):\n"
        '        assert (widths, act, bias) == ([3, 2], "it\'s", None)\n        super().__init__(*widths)\n'
    )
    Path("my nets").mkdir()
    Path("my nets/net.py").write_text(code)
    torch.save(nn.Linear(3, 2).state_dict(), "my ckpt.pth")
    override = Override(
        model="./my nets/net.py:Net",
        model_args={"widths": [3, 2], "act": "it's", "bias": None},
        inputs=("x:float32[n,seq,3]",),
        dims={"n": Dim(min=1, opt=2, max=4), "seq": Dim(min=2, opt=5, max=9)},
    )
    (made,) = export(Request(Path("my ckpt.pth"), override=override, formats=("torchscript",)))
    assert rebuild(made).receipt.signature.dims == override.dims


def test_the_command_that_rebuilds_a_model_of_a_trusted_architecture_needs_no_more(desk: Path, trained: Path) -> None:
    override = Override(batch=Dim(opt=2, max=16))
    rebuild(*export(Request(trained, override=override, formats=("torchscript",))))


def test_the_command_that_rebuilds_suits_a_checkpoint_that_names_its_own_inputs(desk: Path, trained: Path) -> None:
    override = Override(model="penstock.train.nets:ResidualNet")
    rebuild(*export(Request(trained, override=override, formats=("torchscript",))))


def test_the_command_that_rebuilds_keeps_arguments_that_were_given_for_a_trusted_architecture(
    desk: Path, trained: Path
) -> None:
    content = torch.load(trained, weights_only=True)
    content["architecture"]["kwargs"] = {"widths": [1]}
    torch.save(content, "wrong.pth")
    override = Override(model_args={"widths": [24, 48, 96]})
    rebuild(*export(Request(Path("wrong.pth"), override=override, formats=("torchscript",))))


def test_the_command_that_rebuilds_scripts_what_was_scripted(desk: Path) -> None:
    (made,) = export(replace(bare("return x * self.weight", "x:float32[batch,3]"), road="script"))
    assert rebuild(made).receipt.build["road"] == "script"


def test_the_command_that_rebuilds_keeps_limits_that_were_widened(theirs: Path) -> None:
    request = Request(theirs, override=THEIRS, formats=("torchscript",), precisions=("fp16",))
    (made,) = export(replace(request, max_error=0.5, min_agreement=0.1))
    assert rebuild(made).receipt.verification.limits == made.receipt.verification.limits


@pytest.mark.parametrize("road", ["trace", "script"])
def test_a_road_to_torchscript_is_of_torchscript_alone(theirs: Path, road: Any) -> None:
    with no_work(), pytest.raises(PenstockError, match=f"--{road}: is of TorchScript"):
        export(Request(theirs, override=THEIRS, formats=("onnx",), road=road))


def test_a_torchscript_program_is_refused_as_pt2_before_the_work(desk: Path) -> None:
    torch.jit.save(torch.jit.trace(nn.Linear(3, 2).eval(), torch.ones(2, 3)), desk / "program.pt")
    override = Override(inputs=("x:float32[batch,3]",))
    with (
        no_work(),
        pytest.raises(PenstockError, match=r"--format pt2: torch\.export does not take"),
    ):
        export(Request(desk / "program.pt", override=override, formats=("onnx", "pt2")))
