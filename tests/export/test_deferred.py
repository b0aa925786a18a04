"""Deferred engines: what one machine leaves is enough for another to build the engine and hold it to its source."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from penstock import artifact, cuda, evidence, replay
from penstock.errors import PenstockError
from penstock.export import deferred, pipeline
from penstock.export.engine.build import build
from penstock.export.engine.recipe import of_build
from penstock.export.pipeline import Request
from penstock.signature import Dim


@pytest.fixture(scope="module")
def models(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one deferred artifact. Read only."""
    output = tmp_path_factory.mktemp("deferred") / "models"
    narrower = ({"batch": Dim(min=1, opt=1, max=1)},)
    request = Request(trained, formats=("trt",), precisions=("fp16",), output=output, defer=True, narrower=narrower)
    pipeline.export(request, lambda line: None)
    return output


def test_a_deferred_artifact_holds_graph_recipe_and_the_sources_answers(models: Path) -> None:
    held = artifact.read(models / "digits-trt-fp16")
    receipt = held.receipt
    assert receipt.model_file == "model.onnx"
    assert receipt.build["deferred"]
    assert [profile["image"][2] for profile in receipt.build["recipe"]["profiles"]] == [[1, 1, 8, 8], [64, 1, 8, 8]]
    assert receipt.source.options[-3:] == ("--profile", "batch=1,1,1", "--defer")
    assert not receipt.verification.engine_run
    kept = evidence.read(held.folder, receipt.signature)
    assert kept is not None
    assert kept.samples == receipt.verification.samples
    inputs, outputs = held.golden()
    rows = len(inputs["image"])
    assert np.array_equal(kept.rows.inputs["image"][:rows], inputs["image"])
    assert np.array_equal(kept.outputs["logits"][:rows], outputs["logits"])


def test_it_is_not_served_but_says_what_finishes_it(models: Path) -> None:
    with pytest.raises(PenstockError, match="has not been built yet: penstock build"):
        artifact.read(models / "digits-trt-fp16").load()


@pytest.mark.skipif(cuda.count() > 0, reason="there is a GPU here, which would run the engine")
def test_it_is_built_where_there_is_a_tensorrt_as_the_next_version(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models, tmp_path / "models")
    said: list[str] = []
    made = deferred.build(tmp_path / "models/digits-trt-fp16", said.append)
    assert made.folder == tmp_path / "models/digits-trt-fp16/2"
    made.check_digests()
    receipt = made.receipt
    assert receipt.model_file == "model.plan"
    assert "deferred" not in receipt.build
    assert (receipt.build["flavor"], receipt.verification.engine_run) == ("tensorrt_rtx", False)
    assert evidence.read(made.folder, receipt.signature) is not None  # for the machine that runs it
    assert any("the engine was not run" in line for line in said)
    with pytest.raises(PenstockError, match="NVIDIA GPU"):
        deferred.complete(made.folder, said.append)


def test_an_artifact_without_a_recipe_is_refused(repository: Path) -> None:
    with pytest.raises(PenstockError, match="onnx artifact without a build recipe"):
        deferred.build(repository / "digits-onnx-fp32", lambda line: None)


def test_evidence_is_left_only_where_the_model_has_not_run(repository: Path) -> None:
    assert not (artifact.read(repository / "digits-onnx-fp32").folder / evidence.EVIDENCE).exists()
    engine = artifact.read(repository / "digits-trt-fp16")
    assert (engine.folder / evidence.EVIDENCE).exists() != engine.receipt.verification.engine_run


def test_the_gate_for_an_engine_stops_another_models_answers(repository: Path) -> None:
    """What holds an engine to its source, tried on a file that this machine runs."""
    held = artifact.read(repository / "digits-onnx-fp32")
    inputs, outputs = held.golden()
    rows = evidence.filled(inputs, {"logits": outputs["logits"] * np.float32(1.5)}, held.receipt.signature)
    with pytest.raises(PenstockError, match=r"digits-onnx-fp32: the gate stopped it: output 'logits' at batch 1"):
        deferred._proven(held, rows)
    right = deferred._proven(held, evidence.filled(inputs, outputs, held.receipt.signature))
    assert right.engine_run
    assert right.samples == len(inputs["image"])
    assert "accuracy" not in replay.describe(held)


@pytest.mark.skipif(cuda.count() > 0, reason="there is a GPU here, whose TensorRT may be another")
def test_int8_beside_fp16_leaves_a_graph_for_tensorrt_8_and_one_for_later_ones(trained: Path, tmp_path: Path) -> None:
    request = Request(trained, formats=("trt",), precisions=("int8-fp16",), output=tmp_path, defer=True)
    (left,) = pipeline.export(request, lambda line: None)
    scales = {
        name: {
            tensor.data_type
            for graph in [onnx.load(str(left.folder / name)).graph]
            for node in graph.node
            if node.op_type == "QuantizeLinear"
            for tensor in graph.initializer
            if tensor.name == node.input[1]
        }
        for name in ("model.onnx", "model.later.onnx")
    }
    kinds = onnx.TensorProto
    assert scales == {"model.onnx": {kinds.FLOAT}, "model.later.onnx": {kinds.FLOAT16}}
    built = deferred.build(left.folder.parent, lambda line: None)
    # Without the other graph the engine is the same: TensorRT for RTX has taken the later one.
    (built.folder / "model.onnx").unlink()
    recipe = of_build(built.receipt.build)
    assert recipe is not None
    facts = build(built.folder / "model.onnx", recipe, tmp_path / "again.plan", tmp_path)
    assert facts["layers"] == built.receipt.build["layers"]
