"""Deferred engines: what one machine leaves is enough for another to build the engine and hold it to its source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from penstock import artifact, cuda, evidence, replay, runtimes, trial
from penstock.artifact import Artifact
from penstock.errors import PenstockError
from penstock.export import deferred, pipeline
from penstock.export.engine.build import build
from penstock.export.engine.recipe import of_build
from penstock.export.pipeline import Request
from penstock.inspection.artifacts import graph_of as inspection_graph
from penstock.runtimes import Runner
from penstock.signature import Dim

NO_GPU = pytest.mark.skipif(cuda.count() > 0, reason="there is a GPU here, which would run the engine")


@pytest.fixture(scope="module")
def models(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one deferred artifact. Read only."""
    output = tmp_path_factory.mktemp("deferred") / "models"
    narrower = ({"batch": Dim(min=1, opt=1, max=1)},)
    request = Request(trained, formats=("trt",), precisions=("fp16",), output=output, defer=True, narrower=narrower)
    pipeline.export(request, lambda line: None)
    return output


@pytest.fixture(scope="module")
def built_once(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository in which that artifact has been built. Read only."""
    output = tmp_path_factory.mktemp("built") / "models"
    shutil.copytree(models, output)
    deferred.build(output / "digits-trt-fp16", lambda line: None, level=0)
    return output


@pytest.fixture
def built(built_once: Path, tmp_path: Path) -> Artifact:
    """A built engine, to be changed."""
    shutil.copytree(built_once, tmp_path / "models")
    return artifact.read(tmp_path / "models" / "digits-trt-fp16")


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
    with pytest.raises(PenstockError, match=r"built yet; on the machine that is to run it: penstock build \S+-fp16$"):
        artifact.read(models / "digits-trt-fp16").load()


@NO_GPU
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


@NO_GPU
def test_options_take_the_place_of_the_recipes_and_what_was_built_can_be_built_again(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "models/digits-trt-fp16"
    shutil.copytree(models / "digits-trt-fp16", home)
    monkeypatch.chdir(home)
    asked = artifact.read(home).receipt.build["recipe"]

    def differs(made: Artifact) -> dict[str, Any]:
        """What its recipe says that the deferred one's did not; the flavor is the one that was here."""
        return {name: held for name, held in made.receipt.build["recipe"].items() if asked.get(name) != held}

    made = deferred.build(Path(), lambda line: None, level=1)
    assert made.folder == home / "2"
    assert {"flavor": "tensorrt_rtx", **differs(made)} == {"flavor": "tensorrt_rtx", "level": 1}
    held = evidence.read(made.folder, made.receipt.signature)
    assert held is not None
    monkeypatch.chdir(made.folder)
    again = deferred.build(Path(), lambda line: None, level=0, limit_s=600.0)
    assert again.folder == home / "3"
    assert {"flavor": "tensorrt_rtx", **differs(again)} == {"flavor": "tensorrt_rtx", "level": 0, "limit_s": 600.0}
    kept = evidence.read(again.folder, again.receipt.signature)
    assert kept is not None
    assert (kept.samples, len(kept.places)) == (held.samples, len(held.places))
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == ["1", "2", "3", home.name, "models"]


@NO_GPU
def test_an_engine_built_again_says_nothing_that_was_true_of_the_one_before(built: Artifact) -> None:
    """The version before was built and run on another machine."""
    before = {
        "gpu": "NVIDIA A10",
        "compute_capability": "8.6",
        "driver": "550.54.15",
        "cuda": "12.4",
        "flags": ["FP16"],
        "timing_cache": "0",
        "speed_vs_fp16": [2.0, 1.9, 2.1],
        "layers": 1_000_000,
        "seconds": 1_000_000.0,
        "warnings": ["of the other machine"],
        "road": "kept, since it is of the model",
    }
    verification = built.receipt.verification.model_copy(update={"engine_run": True})
    receipt = built.receipt.model_copy(
        update={"verification": verification, "build": {**built.receipt.build, **before}}
    )
    (built.folder / artifact.RECEIPT).write_text(receipt.to_json())
    again = deferred.build(built.folder, lambda line: None).receipt
    assert not again.verification.engine_run
    assert {name for name, fact in before.items() if again.build.get(name) == fact} == {"road"}
    assert not {"gpu", "compute_capability", "driver", "cuda", "speed_vs_fp16", "deferred"} & again.build.keys()


@NO_GPU
def test_an_engine_that_this_machine_runs_is_held_to_its_source_and_never_stopped_by_its_speed(
    built: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried with the graph beside the engine in the engine's place."""
    load = runtimes.load

    def loaded(runtime: str, path: Path, *given: Any, **options: Any) -> Runner:
        return load("onnxruntime", path.with_name("model.onnx"), *given, **options)

    monkeypatch.setattr(runtimes, "unavailable", lambda *_: None)
    monkeypatch.setattr(runtimes, "load", loaded)
    monkeypatch.setattr(trial, "attempt", lambda *_: None)
    recipe = {**built.receipt.build["recipe"], "precision": "int8"}
    build = {**built.receipt.build, "recipe": recipe}
    receipt = built.receipt.model_copy(update={"precision": "int8", "build": build})
    (built.folder / artifact.RECEIPT).write_text(receipt.to_json())
    said: list[str] = []
    again = deferred.build(built.folder, said.append).receipt
    assert again.verification.engine_run
    assert again.verification.runtime == "tensorrt"
    assert "speed_vs_fp16" not in again.build
    (note,) = [line for line in said if "note: " in line]
    assert "its speed was not compared with fp16's" in note


def test_an_artifact_without_a_recipe_is_refused(repository: Path) -> None:
    with pytest.raises(PenstockError, match="is an artifact of format onnx, without a build recipe"):
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
    # What is told of it is of the graph that it was built from.
    assert (left.receipt.build["opset"], built.receipt.build["graph"]) == (17, "model.later.onnx")
    opset = onnx.load(str(built.folder / "model.later.onnx")).opset_import[0].version
    assert built.receipt.build["opset"] == opset != 17
    kept = inspection_graph(built)
    assert [node.name for node in kept.node] == [
        node.name for node in onnx.load(str(built.folder / "model.later.onnx")).graph.node
    ]
    # Without the other graph the engine is the same: TensorRT for RTX has taken the later one.
    (built.folder / "model.onnx").unlink()
    recipe = of_build(built.receipt.build)
    assert recipe is not None
    facts = build(built.folder / "model.onnx", recipe, tmp_path / "again.plan", tmp_path, built.receipt.signature)
    assert facts["layers"] == built.receipt.build["layers"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runtime": "onnxruntime"}, "runtime is onnxruntime; by its signature and format it is tensorrt"),
        ({"precision": "fp32"}, "build.recipe.precision is fp16"),
        ({"recipe": {"profiles": [{"image": [[1, 1, 8, 8], [1, 1, 8, 8], [2, 1, 8, 8]]}]}}, "build.recipe.profiles is"),
        ({"files": None}, "model.onnx, which the engine is built from, has no digest"),
    ],
    ids=["runtime", "precision", "profiles", "graph"],
)
def test_a_receipt_that_promises_another_engine_than_its_recipe_makes_is_refused(
    models: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    shutil.copytree(models, tmp_path / "models")
    path = tmp_path / "models" / "digits-trt-fp16" / "1" / artifact.RECEIPT
    content = json.loads(path.read_text())
    content["build"]["recipe"].update(change.pop("recipe", {}))
    if "files" in change:
        content["files"]["golden"] = content["files"].pop("model.onnx")
        content["model_file"] = "golden"
        path.with_name("model.onnx").rename(path.with_name("golden"))
        change = {}
    path.write_text(json.dumps({**content, **change}))
    with pytest.raises(PenstockError, match=words):
        deferred.build(path.parent.parent, lambda line: None)
    assert [version.name for version in path.parent.parent.iterdir() if version.is_dir()] == ["1"]


def test_evidence_that_the_receipt_does_not_vouch_for_is_not_read(
    built: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: digest for name, digest in built.receipt.files.items() if name != evidence.EVIDENCE}
    found = Artifact(built.folder, built.receipt.model_copy(update={"files": files}))
    golden, _ = built.golden()
    held = deferred._evidence(found)
    assert held.samples == len(golden["image"])
    assert deferred._evidence(built).samples > held.samples
