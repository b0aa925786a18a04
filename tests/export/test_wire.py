"""uint8 on the wire: artifacts that take pixels answer as those that take numbers do, through the same gate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from torch import nn

from penstock import artifact, checkpoint, evaluation
from penstock.artifact import Artifact
from penstock.card import Card
from penstock.checkpoint import Checkpoint, Override
from penstock.datasets import Rows
from penstock.errors import GateError, PenstockError
from penstock.export import pipeline, verification
from penstock.export import wire as wires
from penstock.export.pipeline import Request
from penstock.export.reference import refer
from penstock.preprocess import ImagePreprocess

PIXELS = {"onnx": ("fp32", "fp16", "int8"), "torchscript": ("fp32", "fp16"), "pt2": ("fp32",)}
NAMES = [f"{name}-{precision}" for name, precisions in PIXELS.items() for precision in precisions]


def silent(line: str) -> None:
    pass


def export(request: Request) -> list[Artifact]:
    return pipeline.export(request, silent)


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """Variants of `trained` that take uint8, by format and precision. Read only."""
    output = tmp_path_factory.mktemp("pixels") / "models"
    found = []
    for name, precisions in PIXELS.items():
        found += export(Request(trained, formats=(name,), precisions=precisions, output=output, pixels=True))
    return {f"{item.receipt.format}-{item.receipt.precision}": item for item in found}


@pytest.fixture(scope="module")
def others(trained: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """The same variants on the float road."""
    output = tmp_path_factory.mktemp("numbers") / "models"
    export(Request(trained, formats=("torchscript",), precisions=("fp16",), output=output))
    export(Request(trained, formats=("pt2",), output=output))
    folders = [*repository.iterdir(), *output.iterdir()]
    return {folder.name.removeprefix("digits-"): artifact.read(folder) for folder in folders if folder.is_dir()}


@pytest.fixture(scope="module")
def loaded(trained: Path) -> Checkpoint:
    return checkpoint.load(trained)


def image_of(card: Card) -> ImagePreprocess:
    assert card.preprocess is not None
    return card.preprocess


@pytest.mark.parametrize("name", NAMES)
def test_pixels_get_the_answers_that_their_numbers_get_bit_for_bit(
    name: str, made: dict[str, Artifact], others: dict[str, Artifact], scans: tuple[Any, Any], loaded: Checkpoint
) -> None:
    pixels = scans[0][:7]
    with made[name].load() as runner, others[name].load() as other:
        found = runner.run({"image": pixels[..., None]})
        expected = other.run({"image": image_of(loaded.card).normalize(pixels)})
    assert found["logits"].tobytes() == expected["logits"].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_gate_holds_them_to_the_limits_of_the_float_road(
    name: str, made: dict[str, Artifact], others: dict[str, Artifact]
) -> None:
    ours, theirs = made[name].receipt, others[name].receipt
    assert ours.verification.limits == theirs.verification.limits
    assert ours.verification.noise == theirs.verification.noise
    assert ours.verification.samples == theirs.verification.samples
    assert ours.verification.real
    (near,), (expected,) = ours.verification.distances, theirs.verification.distances
    assert near.rel_l2 == pytest.approx(expected.rel_l2, rel=1e-3)
    assert ours.calibration == theirs.calibration
    assert ours.plan == theirs.plan


@pytest.mark.parametrize("name", NAMES)
def test_a_receipt_says_that_pixels_are_taken_and_its_golden_rows_are_such(
    name: str, made: dict[str, Artifact], loaded: Checkpoint
) -> None:
    found, (image,) = made[name], loaded.card.signature.inputs
    receipt = found.receipt
    assert receipt.name == f"digits-uint8-{name}"
    assert str(receipt.signature.inputs[0]) == "image:uint8[batch,8,8,1]"
    assert receipt.signature.dims == loaded.card.signature.dims
    assert receipt.preprocess == image_of(loaded.card).model_copy(update={"dtype": "uint8"})
    assert receipt.source.options[:2] == ("--input", "uint8")
    inputs, _ = found.golden()
    assert inputs[image.name].dtype == np.uint8
    assert "data_type: TYPE_UINT8 dims: [8, 8, 1]" in (found.folder.parent / "config.pbtxt").read_text()


def test_pictures_and_held_out_samples_are_scored_as_on_the_float_road(
    made: dict[str, Artifact], others: dict[str, Artifact]
) -> None:
    scores = []
    for found in (made["onnx-int8"], others["onnx-int8"]):
        rows = evaluation.held_out(found.receipt.dataset, found.receipt.preprocess)
        with found.load() as runner:
            scores.append(evaluation.evaluate(runner, rows, found.receipt.signature))
    assert scores[0] == scores[1]


def test_verify_compares_with_the_checkpoint_anew_and_takes_pictures(
    made: dict[str, Artifact], trained: Path, scans: tuple[Any, Any], tmp_path: Path
) -> None:
    for number, pixels in enumerate(scans[0][:6]):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    said: list[str] = []
    for data in (None, tmp_path):
        verification.verify(made["onnx-fp32"].folder, trained, data, None, said.append)
    assert sum(line.startswith("compared with") for line in said) == 2
    numbers = tmp_path / "numbers.npz"
    np.savez(numbers, image=np.zeros((2, 1, 8, 8), np.float32))
    with pytest.raises(PenstockError, match=r"input 'image' has dtype float32; it must be uint8"):
        verification.verify(made["onnx-fp32"].folder, trained, numbers, None, silent)


def test_an_artifact_that_decodes_otherwise_than_its_checkpoint_is_caught(
    made: dict[str, Artifact], trained: Path, tmp_path: Path
) -> None:
    content = torch.load(trained, weights_only=True)
    content["preprocess"]["mean"] = [0.5]
    for part in ("golden", "calibration"):
        content.pop(part)
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(GateError, match=r"does not answer as .*other.pth does"):
        verification.verify(made["onnx-fp32"].folder, tmp_path / "other.pth", None, None, silent)


def test_a_name_that_the_float_road_has_is_refused_since_its_clients_send_numbers(
    trained: Path, repository: Path
) -> None:
    with pytest.raises(PenstockError, match=r"takes image:float32.*new one takes image:uint8.*choose another --name"):
        export(Request(trained, name="digits", output=repository, pixels=True))


def test_a_model_whose_pixels_nothing_tells_of_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self): super().__init__(4, 3)"
    )
    torch.save(nn.Linear(4, 3).state_dict(), tmp_path / "net.pth")
    override = Override(model=f"{tmp_path}/net.py:Net", inputs=("x:float32[batch,4]",))
    with pytest.raises(
        PenstockError,
        match=r"^--input uint8: .*net.pth records no preprocessing .*leave it out, and artifacts take x:float",
    ):
        export(Request(tmp_path / "net.pth", override=override, output=tmp_path / "models", pixels=True))
    assert not (tmp_path / "models").exists()


def test_samples_that_come_of_no_pixels_are_refused(loaded: Checkpoint) -> None:
    wire = wires.of(Path("best.pth"), loaded.card, pixels=True)
    with pytest.raises(
        PenstockError, match=r"^--input uint8: the samples are no pictures, .*give pictures with --data"
    ):
        wire.pixels(Rows({"image": np.full((2, 1, 8, 8), 0.1234, np.float32)}, None), "the samples")


def test_rows_go_there_and_back_with_their_labels(loaded: Checkpoint) -> None:
    wire = wires.of(Path("best.pth"), loaded.card, pixels=True)
    pixels = np.random.default_rng(0).integers(0, 256, (37, 8, 8, 1), np.uint8)
    rows = Rows({"image": pixels}, np.arange(37), real=False)
    back = wire.pixels(wire.numbers(rows), "rows")
    assert np.array_equal(back.inputs["image"], pixels)
    assert back.labels is rows.labels
    assert not back.real
    plain = wires.of(Path("best.pth"), loaded.card, pixels=False)
    assert plain.numbers(rows) is plain.pixels(rows, "rows") is rows


def test_without_samples_pictures_are_drawn_and_the_darkest_and_brightest_are_tried(loaded: Checkpoint) -> None:
    bare = replace(loaded, golden=None, calibration=None)
    wire = wires.of(Path("best.pth"), bare.card, pixels=True)
    source = refer(bare, wire.samples(bare, None))
    assert not source.real
    seen = wire.reference(source)
    assert seen.rows.inputs["image"].dtype == np.uint8
    assert len(np.unique(seen.rows.inputs["image"])) == 256
    assert [(item.what, np.unique(item.rows.inputs["image"]).tolist()) for item in seen.extremes] == [
        ("black pictures", [0]),
        ("white pictures", [255]),
    ]
    assert seen.outputs is source.outputs


def test_labelled_pictures_are_held_to_an_accuracy(trained: Path, scans: tuple[Any, Any], tmp_path: Path) -> None:
    for number in range(40):
        folder = tmp_path / "pictures" / str(scans[1][number])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(scans[0][number]).save(folder / f"{number}.png")
    asked = Request(trained, precisions=("int8",), data=tmp_path / "pictures", accuracy_drop=5.0, pixels=True)
    (found,) = export(replace(asked, output=tmp_path / "models"))
    kept = found.receipt.verification.accuracy
    assert kept is not None
    assert kept.samples == 40


@pytest.mark.parametrize("precision", ["fp16", "int8-fp16"])
def test_every_graph_left_for_an_engine_takes_pixels(trained: Path, tmp_path: Path, precision: str) -> None:
    asked = Request(trained, formats=("trt",), precisions=(precision,), output=tmp_path, defer=True, pixels=True)
    (found,) = export(asked)
    assert found.receipt.build["recipe"]["profiles"][-1]["image"][0] == [1, 8, 8, 1]
    for file in found.folder.glob("*.onnx"):
        graph = onnx.load(file).graph
        assert graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
        takers = [node for node in graph.node if "image" in node.input]
        assert [(node.op_type, node.attribute[0].i) for node in takers] == [("Cast", onnx.TensorProto.FLOAT)]
