"""The export road, end to end on a real checkpoint: what is published, what its receipt says, and what is refused."""

from __future__ import annotations

import hashlib
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from penstock import artifact, checkpoint, parity, runtimes
from penstock.artifact import Artifact
from penstock.checkpoint import Override
from penstock.errors import GateError, PenstockError
from penstock.export import formats, gate, pipeline
from penstock.export.pipeline import Request
from penstock.signature import Dim

ALL = {"onnx": ("fp32", "fp16", "int8"), "torchscript": ("fp32", "fp16"), "trt": ("fp32", "fp16", "int8")}
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
    assert seen.batches == (1, 2, 7, 64)
    assert seen.samples == 256 + 64
    assert seen.limits == gate.LIMITS[variant.receipt.precision]
    (found,) = seen.distances
    assert found.output == "logits"
    assert found.failure(seen.limits) is None
    here = runtimes.unavailable(variant.receipt.runtime, variant.receipt.build) is None
    assert seen.engine_run == here


def test_calibration_is_recorded_for_int8_and_for_nothing_else(variant: Artifact, trained: Path) -> None:
    found = variant.receipt.calibration
    if variant.receipt.precision != "int8":
        assert found is None
        return
    assert found is not None
    assert found.method == {"onnx": "minmax", "trt": "max"}[variant.receipt.format]
    assert found.samples == 256
    held = checkpoint.load(trained).calibration
    assert held is not None
    images = held.inputs["image"]
    assert found.digest == hashlib.sha256(f"image{images.dtype}{images.shape}".encode() + images.tobytes()).hexdigest()


def test_all_variants_keep_one_contract(variant: Artifact, trained: Path) -> None:
    signature = checkpoint.load(trained).card.signature
    assert variant.receipt.signature == signature
    assert {tensor.dtype for tensor in (*signature.inputs, *signature.outputs)} == {"float32"}


def test_a_variant_answers_as_the_float32_source_does(variant: Artifact, trained: Path) -> None:
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
    with runtimes.load(runtime, path, receipt.signature) as runner:
        (found,) = parity.compare(outputs, runner.run(inputs))
    assert found.rel_l2 <= gate.LIMITS[receipt.precision].max_error


def test_lower_precision_is_really_lower(variant: Artifact) -> None:
    """By the file: float32 is exact to rounding, float16 and int8 are measurably not, and hold smaller types inside."""
    error = variant.receipt.verification.distances[0].rel_l2
    precision = variant.receipt.precision
    assert {"fp32": error < 2e-6, "fp16": 1e-5 < error < 2e-3, "int8": 1e-3 < error < 0.1}[precision]
    graph_file = variant.folder / "model.onnx"
    if not graph_file.is_file():
        return
    graph = onnx.load(str(graph_file)).graph
    kinds = {onnx.TensorProto.DataType.Name(item.data_type) for item in graph.initializer if len(item.dims) > 1}
    operators = {node.op_type for node in graph.node}
    assert ("QuantizeLinear" in operators) == (precision == "int8")
    if precision == "fp16":
        assert "FLOAT16" in kinds
    elif precision == "fp32":
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
    assert "56 of 56 tensors loaded" in said[0]
    assert "mine-torchscript-fp32/1" in said[-2]
    assert "mine-torchscript-fp16/1" in said[-1]
    assert "relative error" in said[-1]
    assert "top-1 agreement" in said[-1]


def test_a_limit_that_is_passed_leaves_nothing_at_all(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(GateError) as caught:
        export(Request(trained, formats=("torchscript",), output=tmp_path / "models", max_error=1e-12))
    for part in ("output 'logits'", "at batch 1", "relative L2 error", "limit of 1e-12"):
        assert part in str(caught.value)
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
        ({"precisions": ("fp8",)}, ["--precision 'fp8'", "fp32, fp16, int8"]),
        ({"precisions": ("fp32", "fp4")}, ["--precision 'fp4'"]),
        (
            {"formats": ("torchscript",), "precisions": ("int8",)},
            ["--precision 'int8'", "torchscript holds fp32, fp16"],
        ),
        ({"formats": ("onnx", "coreml")}, ["--format 'coreml'", "onnx, torchscript, trt"]),
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
    (made,) = export(Request(trained, formats=(name,), output=tmp_path, batch=batch))
    assert made.receipt.signature.dims == {"batch": batch}
    assert max(made.receipt.verification.batches) == batch.max
    assert f"max_batch_size: {batch.max}" in (made.folder.parent / "config.pbtxt").read_text()


def test_the_gate_runs_no_batch_that_the_signature_excludes(trained: Path, tmp_path: Path) -> None:
    """An engine whose profile begins at 4 refuses a batch of 1."""
    (made,) = export(Request(trained, formats=("torchscript",), output=tmp_path, batch=Dim(min=4, opt=8, max=16)))
    assert made.receipt.verification.batches == (4, 5, 7, 16)


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


THEIRS = Override(model="./net.py:Net", model_args={"width": 6}, inputs=("image:float32[batch,3,12,12]",))


def test_somebody_elses_state_dict_and_class_become_an_artifact(theirs: Path) -> None:
    (made,) = export(Request(theirs, override=THEIRS, batch=Dim(opt=2, max=8)))
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
    for name in ("onnx", "trt"):
        with pytest.raises(PenstockError) as caught:
            export(Request(theirs, override=THEIRS, formats=(name,), precisions=("int8",)))
        assert "int8 needs real samples" in str(caught.value)
        assert "--data FILE.npz" in str(caught.value)
        assert tree(Path("models")) == []


def test_int8_is_calibrated_on_the_samples_that_are_given(theirs: Path) -> None:
    images = np.random.default_rng(0).standard_normal((40, 3, 12, 12)).astype(np.float32)
    np.savez("data.npz", image=images)
    request = Request(theirs, override=THEIRS, precisions=("int8",), data=Path("data.npz"), batch=Dim(opt=2, max=8))
    (made,) = export(request)
    assert made.receipt.calibration is not None
    assert made.receipt.calibration.samples == 40
    assert made.receipt.verification.real
    assert made.receipt.verification.samples == 40
    golden, _ = made.golden()
    assert np.array_equal(golden["image"], images[:8])


def test_int8_of_one_format_does_not_spoil_int8_of_the_other(trained: Path, tmp_path: Path) -> None:
    """ModelOpt replaces functions inside onnxruntime.quantization, which the onnx format uses too."""
    order = ("onnx", "trt", "onnx")
    made = export(Request(trained, formats=order, precisions=("int8",), output=tmp_path))
    assert [item.receipt.format for item in made] == list(order)
    assert made[0].model_path.read_bytes() == made[2].model_path.read_bytes()


def test_samples_are_counted_once_however_often_they_are_run(theirs: Path) -> None:
    np.savez("data.npz", image=np.random.default_rng(0).standard_normal((3, 3, 12, 12)).astype(np.float32))
    request = Request(theirs, override=THEIRS, formats=("torchscript",), data=Path("data.npz"))
    (made,) = export(request)
    assert made.receipt.verification.samples == 3
    assert made.receipt.verification.batches == (1, 2, 7, 64)
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
    with pytest.raises(PenstockError) as caught:
        export(Request(theirs, override=THEIRS, data=Path("data.npz")))
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
