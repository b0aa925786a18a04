"""Inspection: every kind of file is told for what it is, the commands it names are real, and nothing in it is run."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import nn

from penstock import artifact, checkpoint, cli, inspection, proof, weights
from penstock.architecture import Architecture
from penstock.card import Card
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.inspection import Inspection
from penstock.inspection import checkpoints as inspection_checkpoints
from penstock.inspection import tensors as inspection_tensors
from penstock.receipt import Calibration
from penstock.serve import declared
from penstock.signature import Dim, Signature, Tensor

onnx = pytest.importorskip("onnx")
FLOAT = onnx.TensorProto.FLOAT


class Small(nn.Module):
    """Two layers and a norm: parameters, buffers and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = self.head(self.norm(self.stem(image)).mean((2, 3)))
        return pooled


def small() -> dict[str, torch.Tensor]:
    return Small().state_dict()


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def told(path: Path) -> Inspection:
    """An inspection whose commands the command line takes."""
    found = inspection.inspect(path)
    for command in found.next:
        program, name, *words = shlex.split(command)
        assert program == "penstock"
        group = typer.main.get_command(cli.app)
        with typer.Context(group) as context:
            group.get_command(context, name).make_context(name, words)  # type: ignore[attr-defined]
    assert found.bytes > 0
    assert json.loads(json.dumps(inspection._data(found.model_dump()), allow_nan=False))["kind"] == found.kind
    return found


def refusal(path: Path) -> str:
    with pytest.raises(PenstockError) as caught:
        inspection.inspect(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


def printed(found: Inspection, capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> str:
    inspection.show(found, as_json=as_json)
    return capsys.readouterr().out


# ---- Checkpoints


def test_a_bare_state_dict_is_told_by_its_tensors(tmp_path: Path) -> None:
    found = told(saved(tmp_path / "a.pth", small()))
    assert found.kind == "state_dict"
    assert found.facts["tensors"] == "9: 8 float32 (153), 1 int64 (1)"
    assert found.facts["parameters"].startswith("145,")  # without two running statistics of 4
    assert found.facts["first tensor"] == "stem.weight [4, 3, 3, 3]"
    assert found.facts["last tensor"] == "head.bias [5]"
    assert found.facts["last layer"].startswith("head.weight: 5 outputs")
    assert "prefix" not in found.facts
    assert shlex.split(found.next[0])[-3:] == ["--input", "INPUT:float32[batch,3,HEIGHT,WIDTH]", str(found.path)]
    assert any("--model torchvision:NAME" in need for need in found.needs)
    assert "; no --input is needed for image classifiers of torchvision: and timm:" in found.needs[-1]
    assert found.promises == ("holds tensors and plain values alone: opening it runs no code",)


@pytest.mark.parametrize(
    ("head", "classes", "told_of"), [("fc", 5, True), ("classifier.1", 5, True), ("fc", 1000, False), ("up", 5, False)]
)
def test_a_picture_classifier_of_other_classes_than_libraries_make_names_their_number(
    tmp_path: Path, head: str, classes: int, told_of: bool
) -> None:
    state = {"conv1.weight": torch.zeros(4, 3, 7, 7), f"{head}.weight": torch.zeros(classes, 4)}
    found = told(saved(tmp_path / "a.pth", state))
    assert ("--model MODEL --model-args num_classes=5 --input" in found.next[0]) == told_of
    assert ("make 1000 classes without --model-args num_classes=5" in found.needs[-1]) == told_of


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("a.weight", (8, 6), "INPUT:float32[batch,6]"),
        ("a.weight", (8, 6, 3), "INPUT:float32[batch,6,LENGTH]"),
        ("a.weight", (8, 3, 3, 3, 3), "INPUT:float32[batch,3,FRAMES,HEIGHT,WIDTH]"),
        ("word_embeddings.weight", (100, 8), "ids:int64[batch,seq]"),
        ("bias", (8,), "INPUT:float32[batch,SIZES]"),
    ],
)
def test_the_input_is_guessed_from_the_first_layer(
    tmp_path: Path, name: str, shape: tuple[int, ...], wanted: str
) -> None:
    found = told(saved(tmp_path / "a.pth", {name: torch.zeros(shape)}))
    assert wanted in shlex.split(found.next[0])


@pytest.mark.parametrize(
    ("prefix", "way"),
    [
        ("module.", "export takes it off by itself"),
        ("module._orig_mod.", "export takes it off by itself"),
        ("net.", "--prefix net. takes it off"),
        ("module.net.", "--prefix module.net. takes it off"),
    ],
)
def test_a_prefix_of_all_names_is_told(tmp_path: Path, prefix: str, way: str) -> None:
    found = told(saved(tmp_path / "a.pth", {f"{prefix}{name}": held for name, held in small().items()}))
    assert found.facts["prefix"] == f"all names begin with {prefix}; {way} where the architecture is without it"
    assert found.facts["parts"] == "stem 2, norm 5, head 2"


def test_what_export_strips_is_what_it_is_said_to_strip() -> None:
    assert inspection_tensors.STRIPPED == proof.PREFIXES
    assert inspection.FOLDER_WEIGHTS == weights.FOLDER_WEIGHTS


def test_averaged_weights_a_hint_and_plain_values_are_found_in_a_dictionary(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    state = torchvision.models.squeezenet1_1(num_classes=7).state_dict()
    content = {
        "epoch": 3,
        "arch": "squeezenet1_1",
        "best": np.float64(71.5),
        "loss": torch.tensor(0.25),
        "state_dict": {f"module.{name}": held for name, held in state.items()},
        "state_dict_ema": state,
        "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]},
        "args": argparse.Namespace(lr=0.1, warmup=None),
    }
    found = told(saved(tmp_path / "a.pth", content))
    assert found.kind == "PyTorch checkpoint, a dictionary"
    assert found.facts["keys"].startswith(
        "epoch, arch, best, loss, state_dict (tensors: 52), state_dict_ema (tensors: 52)"
    )
    assert found.facts["weights"].startswith("in 'state_dict_ema': averaged weights are what is evaluated")
    assert found.facts["values"] == "epoch=3, arch=squeezenet1_1, best=71.5, loss=0.25"
    assert found.facts["in args"] == "lr=0.1"
    fits = "--model torchvision:squeezenet1_1 --model-args num_classes=7"
    assert found.facts["architecture"] == f"its arch says 'squeezenet1_1', and it fits: {fits}"
    assert found.needs == ()
    assert found.next == (
        f"penstock export --format onnx {fits} {found.path}",
        f"penstock export --format onnx --no-ema {fits} {found.path}",
    )


def test_a_hint_that_does_not_fit_is_told_and_not_followed(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    found = told(saved(tmp_path / "a.pth", {"model_name": "squeezenet1_1", "state_dict": small()}))
    assert found.facts["architecture"] == "its model_name says 'squeezenet1_1'"
    assert "--model MODEL" in found.next[0]


def test_a_lightning_checkpoint_says_so(tmp_path: Path) -> None:
    content = {
        "epoch": 9,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": {f"net.{name}": held for name, held in small().items()},
        "loops": {"fit_loop": {}},
        "hyper_parameters": {"lr": 0.1, "classes": 5},
        "lr_schedulers": [],
        "optimizer_states": [],
    }
    found = told(saved(tmp_path / "a.ckpt", content))
    assert found.facts["Lightning"] == "2.6.6"
    assert found.facts["in hyper_parameters"] == "lr=0.1, classes=5"
    assert found.facts["prefix"].startswith("all names begin with net.; --prefix net. takes it off")


def test_of_several_states_each_gets_its_command(tmp_path: Path) -> None:
    content = {"generator": small(), "critic": {"a.weight": torch.zeros(2, 3)}}
    found = told(saved(tmp_path / "gan.pth", content))
    assert "several states, generator, critic" in found.needs[0]
    assert ["--key generator" in found.next[0], "--key critic" in found.next[1]] == [True, True]
    assert "'INPUT:float32[batch,3]'" in found.next[1]


def test_a_dictionary_without_weights_is_told_and_leads_nowhere(tmp_path: Path) -> None:
    found = told(saved(tmp_path / "a.pth", {"epoch": 3, "history": [1.0, 2.0]}))
    assert found.next == ()
    assert "holds no state_dict" in found.needs[0]


def test_old_files_and_halves_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    torch.save({"a.weight": torch.zeros(2, 3, dtype=torch.float16)}, path, _use_new_zipfile_serialization=False)
    assert told(path).facts["tensors"] == "1: 1 float16 (6)"


def test_a_penstock_checkpoint_is_told_by_its_card(tmp_path: Path) -> None:
    from penstock.train.nets import ResidualNet

    made = Architecture(target="penstock.train.nets:ResidualNet", kwargs={"widths": [4, 4], "classes": 3})
    signature = Signature(
        inputs=(Tensor(name="image", shape=("batch", 1, 8, 8)),),
        outputs=(Tensor(name="logits", shape=("batch", 3)),),
        dims={"batch": Dim(opt=2, max=4)},
    )
    card = Card(name="small", architecture=made, signature=signature, labels=("a", "b", "c"), metrics={"loss": 0.5})
    rows = Rows({"image": np.zeros((5, 1, 8, 8), np.float32)}, np.arange(5))
    state = ResidualNet(widths=(4, 4), classes=3).state_dict()
    path = tmp_path / "small.pth"
    checkpoint.save(path, card, state, calibration=rows, golden=rows.take(2))
    found = told(path)
    assert found.kind == "penstock checkpoint"
    assert found.facts["inputs"] == "image:float32[batch,1,8,8]"
    assert found.facts["sizes"] == "batch from 1 to 4, usually 2"
    assert found.facts["labels"] == "3: a, b, c"
    assert found.facts["metrics"] == "loss=0.5"
    assert found.facts["samples"] == "calibration 5, golden 2, real"
    assert found.next == (f"penstock export --format onnx --precision fp32,fp16,int8 {path}",)
    assert found.needs == ()


def test_an_architecture_that_a_checkpoint_may_not_name_needs_the_readers_word(tmp_path: Path) -> None:
    signature = Signature(
        inputs=(Tensor(name="x", shape=("batch", 3)),),
        outputs=(Tensor(name="y", shape=("batch", 2)),),
        dims={"batch": Dim(opt=2, max=4)},
    )
    made = Architecture(target="somewhere.else:Net")
    checkpoint.save(tmp_path / "a.pth", Card(name="a", architecture=made, signature=signature), small())
    found = told(tmp_path / "a.pth")
    assert "your word that somewhere.else:Net may be imported" in found.needs[0]
    assert "--model somewhere.else:Net" in found.next[0]
    assert "somewhere" not in sys.modules


# ---- Code in pickles


class Evil:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.witness}",)


def test_a_pickled_module_lists_what_it_would_import(tmp_path: Path) -> None:
    found = told(saved(tmp_path / "a.pth", nn.Sequential(nn.Linear(3, 2), nn.ReLU())))
    assert found.kind == "pickled code"
    assert found.facts["imports"].splitlines()[0] == "torch.nn.modules.container.Sequential"
    assert found.details["imports"] == found.facts["imports"].splitlines()
    assert found.needs[0].startswith("--allow-pickle, and your trust")
    assert "--allow-pickle" in found.next[0]


def test_a_scripts_own_class_needs_its_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nclass Net(torch.nn.Linear): pass\ntorch.save({'model': Net(3, 2), 'epoch': 1}, 'a.pth')\n"
    )
    subprocess.run([sys.executable, script.name], cwd=tmp_path, check=True)
    found = told(tmp_path / "a.pth")
    assert "__main__.Net" in found.details["imports"]
    assert "--model ./FILE.py:Net" in found.next[0]


def test_importing_what_a_pickle_names_would_have_run_code_and_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = tmp_path / "witness"
    (tmp_path / "sly_module.py").write_text(
        f"from pathlib import Path\nPath({str(witness)!r}).touch()\nclass Net:\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import sly_module  # type: ignore[import-not-found]

    path = saved(tmp_path / "a.pth", {"model": sly_module.Net()})
    del sys.modules["sly_module"]
    assert witness.exists()  # importing does run it
    witness.unlink()
    found = told(path)
    assert "sly_module.Net" in found.details["imports"]
    assert not witness.exists()
    assert "sly_module" not in sys.modules


@pytest.mark.parametrize("road", ["torch", "old torch", "beside weights"])
def test_a_pickle_that_runs_a_command_is_never_led_on(tmp_path: Path, road: str) -> None:
    witness, path = tmp_path / "witness", tmp_path / "a.pth"
    content = {"state_dict": small(), "extra": Evil(witness)} if road == "beside weights" else Evil(witness)
    torch.save(content, path, _use_new_zipfile_serialization=road != "old torch")
    found = told(path)
    assert not witness.exists()
    assert f"{os.system.__module__}.system" in found.details["imports"]
    assert found.needs[0].startswith("never to be opened: a model has no use for")
    assert found.next == ()
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    torch.load(path, weights_only=False)
    assert witness.exists()  # it would have


@pytest.mark.parametrize(
    ("name", "reaches"),
    [
        ("os.system", True),
        ("torch.os.system", True),
        ("builtins.eval", True),
        ("subprocess.Popen", True),
        ("builtins.getattr", False),  # bound methods are pickled so
        ("collections.Counter", False),
        ("__main__.Net", False),
        ("mine.code.Net", False),
        ("posixpath_like.Net", False),
    ],
)
def test_what_no_model_has_a_use_for_is_told_from_what_some_have(name: str, reaches: bool) -> None:
    assert (inspection_checkpoints._REACHING.fullmatch(name) is not None) == reaches


# ---- Safetensors, transformers, timm


def test_of_safetensors_only_the_header_is_read(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "a.safetensors"
    safetensors.save_file(small(), path, metadata={"format": "pt", "step": "12"})
    found = told(path)
    assert found.kind == "safetensors weights"
    assert found.facts["metadata"] == "format=pt, step=12"
    assert found.facts["tensors"] in ("9: 1 int64 (1), 8 float32 (153)", "9: 8 float32 (153), 1 int64 (1)")
    assert found.facts["last layer"].startswith("head.weight: 5 outputs")
    assert "INPUT:float32[batch,3,HEIGHT,WIDTH]" in found.next[0]


@pytest.mark.parametrize("cut", [4, 40, -1])
def test_a_cut_safetensors_file_is_refused(tmp_path: Path, cut: int) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "a.safetensors"
    safetensors.save_file(small(), path)
    path.write_bytes(path.read_bytes()[:cut])
    assert "damaged" in refusal(path)


@pytest.mark.parametrize(
    "header", ["[]", "{}x", '{"a": 1}', '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}']
)
def test_a_strange_safetensors_header_is_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    assert "damaged" in refusal(path)


def bert(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=20
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_a_transformers_folder_is_told_with_its_inputs(tmp_path: Path) -> None:
    folder = bert(tmp_path / "bert")
    found = told(folder)
    assert found.kind == "transformers model folder"
    assert found.facts["architectures"] == "BertForSequenceClassification"
    assert found.facts["model_type"] == "bert"
    assert found.facts["inputs"].splitlines()[0] == "input_ids:int64[batch,seq]"
    assert found.next == (f"penstock export --format onnx {folder}",)
    assert told(folder / "model.safetensors").path == folder


def test_code_in_a_transformers_folder_is_not_run(tmp_path: Path) -> None:
    folder, witness = bert(tmp_path / "bert"), tmp_path / "witness"
    (folder / "modeling.py").write_text(f"open({str(witness)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "modeling.Config", "AutoModel": "modeling.Net"}, "architectures": ["Net"]}
    (folder / "config.json").write_text(json.dumps(config))
    found = told(folder)
    assert "code of its own (auto_map in config.json), which is never run" in found.needs[0]
    assert found.next == ()
    assert not witness.exists()


@pytest.mark.parametrize("config", ["{", "[]", '{"model_type": 3}', '{"architectures": 5}', "{}"])
def test_a_strange_config_is_refused_or_told_in_words(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    try:
        found = inspection.inspect(tmp_path)
    except PenstockError as error:
        assert "config.json" in str(error)  # noqa: PT017 (refused or told: either is right)
    else:
        assert found.needs


def test_shards_are_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "its weights are in shards" in inspection.inspect(tmp_path).needs[0]


def test_timms_config_names_the_model_of_the_weights_beside_it(tmp_path: Path) -> None:
    timm, safetensors = pytest.importorskip("timm"), pytest.importorskip("safetensors.torch")
    state = timm.create_model("test_resnet", num_classes=6).state_dict()
    safetensors.save_file({name: held.contiguous() for name, held in state.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"architecture": "test_resnet", "num_classes": 6}')
    found = told(tmp_path)
    path = tmp_path / "model.safetensors"
    assert found.path == path
    assert found.next == (f"penstock export --format onnx --model timm:test_resnet --model-args num_classes=6 {path}",)


# ---- Programs


def test_torchscript_is_read_and_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pt"
    torch.jit.trace(Small().eval(), torch.zeros(2, 3, 8, 8)).save(str(path))  # type: ignore[no-untyped-call]
    monkeypatch.setattr(torch.jit, "load", None)
    found = told(path)
    assert found.kind == "TorchScript program"
    assert found.facts["class"] == "Small"
    assert found.facts["forward"] == "(image: Tensor) -> Tensor"
    assert found.facts["tensors"] == "9: 153 float32, 1 int64"
    assert "--input 'image:float32[batch,SIZES]'" in found.next[0]


class Two(nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 2.0) -> torch.Tensor:
        return ids * scale if mask is None else ids * mask


def test_a_scripted_forward_names_its_arguments_and_their_defaults(tmp_path: Path) -> None:
    torch.jit.script(Two()).save(str(tmp_path / "a.pt"))
    found = told(tmp_path / "a.pt")
    assert found.details["forward"] == ["ids: Tensor", "mask: Optional[Tensor]=None", "scale: float=2."]
    assert found.next == (f"penstock export --format onnx --input 'ids:float32[batch,SIZES]' {tmp_path / 'a.pt'}",)


def test_a_torchscript_archive_without_its_code_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/constants.pkl", b"")
        archive.writestr("a/code/x.py", b"")
        archive.writestr("a/data.pkl", pickle.dumps({}))
    assert "damaged, or not TorchScript" in refusal(tmp_path / "a.pt")


def exported(path: Path) -> Path:
    batch = torch.export.Dim("batch", min=1, max=512)
    shapes = ({0: batch},)
    torch.export.save(torch.export.export(Small().eval(), (torch.zeros(3, 3, 8, 8),), dynamic_shapes=shapes), path)
    return path


def test_an_exported_program_is_told_with_what_it_was_captured_for(tmp_path: Path) -> None:
    found = told(exported(tmp_path / "a.pt2"))
    assert found.kind == "exported program (.pt2)"
    assert found.facts["inputs"] == "image:float32[batch,3,8,8]"
    assert "from 1 to 512" in found.facts["captured for"]
    assert found.facts["parameters"].startswith("145,")
    assert found.facts["written by"] == f"torch {torch.__version__}"
    assert found.next == (f"penstock export --format onnx {found.path}",)


def test_an_exported_program_with_more_than_tensors_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = exported(tmp_path / "a.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a/data/aotinductor/model.so", b"\x7fELF")
    monkeypatch.setattr(torch.export, "load", None)
    found = told(path)
    assert "--allow-pickle, and your trust: it holds the entry" in found.needs[0]
    assert found.promises == ()
    assert found.next == (f"penstock export --format onnx --allow-pickle {path}",)
    assert found.facts["written by"] == f"torch {torch.__version__}"


# ---- ONNX


def model(nodes: list[Any], weights: list[Any], opsets: dict[str, int] | None = None, ir_version: int = 8) -> Any:
    ends = [onnx.helper.make_tensor_value_info(name, FLOAT, ["batch", 3]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    imports = [onnx.helper.make_opsetid(name, version) for name, version in (opsets or {"": 18}).items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=ir_version, producer_name="by hand")


def added(place: str | None = None, dtype: Any = np.float32, **facts: int) -> Any:
    """y = x + w, with w in a file outside the model's if that has a place."""
    tensor = onnx.numpy_helper.from_array(np.ones(3, dtype), "w")
    if place is not None:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": place, "offset": "0", "length": "12", **facts}.items():
            tensor.external_data.add(key=key, value=str(value))
    return model([onnx.helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def test_an_onnx_model_is_told_without_torch_or_a_run(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    onnx.save(added(), path)
    found = told(path)
    assert found.kind == "ONNX model"
    assert found.facts["producer"] == "by hand"
    assert (found.facts["IR version"], found.facts["opset"]) == ("8", "ai.onnx=18")
    assert (found.facts["inputs"], found.facts["outputs"]) == ("x:float32[batch,3]", "y:float32[batch,3]")
    assert found.facts["nodes"] == "1: 1 Add"
    assert found.facts["parameters"] == "3 float32"
    assert found.facts["precision"] == "fp32: 100% of the weights"
    assert found.facts["largest"] == "w [3]"
    assert found.needs[0].startswith("onnxruntime 1.20 or later, for opset 18 and IR version 8")
    assert found.next == (f"penstock serve {path}",)


@pytest.mark.parametrize("place", ["../../etc/passwd", "/etc/passwd", "", ".", "a\0b", "link.data"])
def test_weights_outside_the_folder_are_not_looked_at(tmp_path: Path, place: str) -> None:
    (tmp_path / "link.data").symlink_to("/etc/passwd")
    path = tmp_path / "a.onnx"
    path.write_bytes(added(place).SerializeToString())
    found = told(path)
    assert "leads out of the model's folder; it was not looked at" in found.needs[-1]
    assert found.next == ()
    assert found.promises == ()


def test_weights_beside_the_model_are_looked_for(tmp_path: Path) -> None:
    path, beside = tmp_path / "a.onnx", tmp_path / "sub" / "w.data"
    path.write_bytes(added("sub/w.data").SerializeToString())
    assert "sub/w.data, which is missing" in told(path).needs[-1]
    beside.parent.mkdir()
    beside.write_bytes(bytes(11))
    assert "is truncated: 11 bytes, and the model wants 12" in told(path).needs[-1]
    beside.write_bytes(np.ones(3, np.float32).tobytes())
    found = told(path)
    assert found.facts["external data"] == "sub/w.data: present"
    assert found.next == (f"penstock serve {path}",)


def test_quantised_half_and_plain_graphs_are_told_apart(tmp_path: Path) -> None:
    scale = onnx.numpy_helper.from_array(np.float32(0.1), "s")
    zero = onnx.numpy_helper.from_array(np.int8(0), "z")
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        onnx.helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    path = tmp_path / "a.onnx"
    onnx.save(model(nodes, [scale, zero]), path)
    assert told(path).facts["precision"] == "int8: 1 QuantizeLinear, 1 DequantizeLinear"
    onnx.save(added(dtype=np.float16), path)
    assert told(path).facts["precision"] == "fp16: 100% of the weights"


def test_operators_of_a_strangers_library_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    onnx.save(model([onnx.helper.make_node("Magic", ["x"], ["y"], domain="my.ops")], [], {"": 18, "my.ops": 3}), path)
    found = told(path)
    assert found.facts["opset"] == "ai.onnx=18, my.ops=3"
    assert "its own operators my.ops.Magic" in found.needs[1]
    assert found.next == ()


def test_nodes_and_weights_inside_branches_count(tmp_path: Path) -> None:
    def branch(name: str) -> Any:
        weight = onnx.numpy_helper.from_array(np.ones(3, np.float32), f"w{name}")
        node = onnx.helper.make_node("Add", ["x", f"w{name}"], [name])
        end = onnx.helper.make_tensor_value_info(name, FLOAT, ["batch", 3])
        return onnx.helper.make_graph([node], name, [], [end], [weight])

    condition = onnx.numpy_helper.from_array(np.array(True), "c")
    node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    onnx.save(model([node], [condition]), tmp_path / "a.onnx")
    found = told(tmp_path / "a.onnx")
    assert found.details["operators"] == {"If": 1, "Add": 2}
    assert found.details["parameters"] == {"bool": 1, "float32": 6}


def test_versions_that_the_onnxruntime_here_does_not_take_are_told(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "a.onnx"
    path.write_bytes(model([onnx.helper.make_node("Relu", ["x"], ["y"])], [], {"": 500}).SerializeToString())
    found = told(path)
    assert "is here, and does not take these versions" in found.needs[1]
    assert found.next == ()


def test_what_torch_exports_is_told(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    path = tmp_path / "a.onnx"
    torch.onnx.export(
        Small().eval(),
        (torch.zeros(2, 3, 8, 8),),
        path,
        dynamo=True,
        verbose=False,
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        external_data=False,
    )
    found = told(path)
    assert found.facts["inputs"] == "image:float32[batch,3,8,8]"
    assert found.facts["outputs"] == "logits:float32[batch,5]"
    assert found.details["operators"]["Conv"] == 1
    assert found.next == (f"penstock serve {path}",)


# ---- Samples and engines


def test_samples_are_told_by_their_headers(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    np.savez_compressed(path, ids=np.zeros((5, 7), np.int64), labels=np.arange(5))
    found = told(path)
    assert found.facts == {"ids": "int64 [5, 7]", "labels": "int64 [5]"}
    assert found.promises == ("may be given as --data to export, eval, bench and verify --against",)
    assert "--input 'ids:int64[batch,7]'" in found.next[1]


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"a": np.zeros((2, 3)), "b": np.zeros((3, 3))}, "one number of rows in all arrays: they have 2, 3"),
        ({"a": np.array(["x", "y"])}, "numbers in 'a'"),
        ({"a": np.array([{}, {}], dtype=object)}, "numbers in 'a': it holds object"),
        ({"a": np.float32(1)}, "rows in 'a'"),
        ({"labels": np.arange(3)}, "an array for each input"),
    ],
)
def test_arrays_that_are_no_samples_say_why(tmp_path: Path, arrays: dict[str, Any], why: str) -> None:
    np.savez(tmp_path / "s.npz", **arrays)
    found = told(tmp_path / "s.npz")
    assert why in found.needs[0]
    assert found.next == ()


def test_an_engine_says_which_tensorrt_made_it_and_that_it_needs_a_receipt(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(b"ftrt" + bytes(20) + bytes((10, 13, 3, 9)) + bytes(100))
    found = told(path)
    assert found.kind == "TensorRT engine"
    assert found.facts["by its header"] == "TensorRT 10.13.3.9"
    assert "which only its receipt (penstock.json) tells" in found.needs[0]
    path.write_bytes(b"something else")
    assert told(path).facts == {}


# ---- What cannot be told


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.pth", b"", "is empty, 0 bytes"),
        ("a.onnx", b"", "is empty, 0 bytes"),
        ("a.pth", b"PK\x03\x04" + b"x" * 100, "truncated or damaged (its end is missing)"),
        ("a.npz", b"PK\x03\x04" + b"x" * 100, "truncated or damaged (its end is missing)"),
        ("a.pth", b"hello world", "not a PyTorch checkpoint (it begins like text: 'hello world')"),
        ("a.onnx", b"hello", "not an ONNX model"),
        ("a.onnx", b"\x08\x08", "holds no graph"),
        ("a.txt", b"hello", "is none of what penstock knows"),
        ("a.pth", b"<!DOCTYPE html><html>", "is a web page"),
        ("a.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        ("penstock.json", b"{", "damaged receipt"),
    ],
)
def test_what_is_no_model_is_refused_in_a_sentence(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert why in refusal(tmp_path / name)


def test_a_folder_of_pictures_is_no_place_to_export_into(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.JPG").write_bytes(b"")
    assert f"a folder of pictures, which models are given: penstock predict MODEL {tmp_path}" in refusal(tmp_path)


def test_missing_files_pipes_and_empty_folders_are_refused(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "none.pth")
    assert "holds no models" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.pth")
    assert "not a regular file" in refusal(tmp_path / "pipe.pth")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "hello")
    assert "a zip file that holds neither" in refusal(tmp_path / "a.zip")


@pytest.mark.parametrize("kind", ["pth", "pt", "pt2", "onnx", "npz"])
def test_a_file_cut_anywhere_is_refused_or_told_but_never_fails_otherwise(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "pth":
        saved(path, small())
    elif kind == "pt":
        torch.jit.trace(Small().eval(), torch.zeros(2, 3, 8, 8)).save(str(path))  # type: ignore[no-untyped-call]
    elif kind == "pt2":
        exported(path)
    elif kind == "onnx":
        onnx.save(added(), path)
    else:
        np.savez(path, a=np.zeros((4, 3)))
    whole = path.read_bytes()
    for size in range(1, len(whole), max(1, len(whole) // 12)):
        path.write_bytes(whole[:size])
        with pytest.raises(PenstockError, match=r"truncated|damaged|is none of"):
            inspection.inspect(path)
    for place in range(0, len(whole), max(1, len(whole) // 12)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            inspection.inspect(path)
        except PenstockError as error:
            assert str(path) in str(error)  # noqa: PT017 (some flips change nothing that is read)


# ---- What is shown


def test_lines_are_aligned_and_one_fact_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.pth", nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    first, *lines = printed(told(path), capsys).splitlines()
    assert first.startswith(f"{path}: pickled code, ")
    assert "  imports  torch.nn.modules.activation.ReLU" in lines
    assert sum(line.startswith("  imports  ") for line in lines) == 3
    assert lines[-1].startswith("  next     penstock export")


def test_names_in_a_file_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.pth", {"\x1b[2J\rok\ud800.weight": torch.zeros(2, 3), "note\u202e.bias": torch.zeros(2)})
    found = told(path)
    text = printed(found, capsys) + printed(found, capsys, as_json=True)
    text.encode()
    assert not {"\x1b", "\r", "\u202e"} & set(text)
    assert r"\x1b[2J\rok\ud800.weight [2, 3]" in text


def test_json_holds_the_same_and_all_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(saved(tmp_path / "a.pth", {"state_dict": small(), "best": float("nan")}))
    content = json.loads(printed(found, capsys, as_json=True), parse_constant=pytest.fail)
    assert content["path"] == str(found.path)
    assert content["facts"] == found.facts
    assert content["details"]["tensors"]["head.weight"] == ["float32", [5, 4]]
    assert content["next"] == list(found.next)


def test_odd_paths_are_quoted_for_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(Path("-my net.pth"), small())
    found = told(Path("-my net.pth"))
    assert found.next[0].endswith(" './-my net.pth'")


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_the_command_line_ends_with_two_on_what_it_cannot_tell(tmp_path: Path) -> None:
    (tmp_path / "a.pth").touch()
    ran = run("inspect", "a.pth", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "error: a.pth: is empty, 0 bytes; copy or download it again\n"


def test_the_command_for_a_librarys_model_works_as_it_is(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    pytest.importorskip("onnxscript")
    state = timm.create_model("test_resnet", num_classes=6).state_dict()
    (command,) = told(saved(tmp_path / "a.pth", {"arch": "test_resnet", "state_dict": state})).next
    ran = run(*shlex.split(command)[1:], "--batch", "1,2,3", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (folder,) = artifact.find([tmp_path / "models"])
    found = told(folder)
    assert found.facts["verified"].startswith("passed on ")
    assert "SYNTHETIC samples" in found.facts["verified"]
    ran = run(*shlex.split(found.next[1])[1:], cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_without_torch_artifacts_onnx_safetensors_and_samples_are_still_told(tmp_path: Path) -> None:
    saved(tmp_path / "a.pth", small())
    onnx.save(added(), tmp_path / "a.onnx")
    np.savez(tmp_path / "a.npz", a=np.zeros((4, 3)))
    header = b'{"a.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom pathlib import Path\nfrom penstock import inspection\n"
        "for name in ('a.onnx', 'a.npz', 'a.safetensors'):\n    print(inspection.inspect(Path(name)).kind)\n"
        "try:\n    inspection.inspect(Path('a.pth'))\nexcept inspection.PenstockError as error:\n    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ran.stdout.splitlines() == [
        "ONNX model",
        "samples (.npz)",
        "safetensors weights",
        "inspecting a.pth needs torch, which is not installed: pip install 'penstock[export]'",
    ], ran.stderr


# ---- Artifacts and repositories


def test_a_trained_checkpoint_leads_to_export_and_eval(trained: Path) -> None:
    found = told(trained)
    assert found.kind == "penstock checkpoint"
    assert found.facts["samples"] == "calibration 256, golden 64, real"
    assert found.facts["preprocessing"].startswith("L picture to 8 x 8")
    assert found.next[1] == f"penstock eval {trained}"


@pytest.mark.parametrize("variant", ["digits-onnx-fp32", "digits-onnx-int8", "digits-torchscript-fp32"])
def test_an_artifact_is_told_by_its_receipt(repository: Path, trained: Path, variant: str) -> None:
    folder = repository / variant
    found = told(folder)
    receipt = artifact.read(folder).receipt
    assert found.kind == "penstock artifact"
    assert found.facts["format"] == f"{receipt.format} {receipt.precision}, run by {receipt.runtime}"
    assert found.facts["source"].startswith(f"{trained} (sha256 {receipt.source.sha256[:12]}…), penstock.train.nets:")
    assert f"{receipt.source.loaded} of {receipt.source.expected} tensors loaded" in found.facts["source"]
    assert "passed on 320 real samples, batches 1, 2," in found.facts["verified"]
    assert found.facts["figures"].startswith("logits: relative L2 error ")
    assert "(limit " in found.facts["figures"]
    assert ("calibration" in found.facts) == variant.endswith("int8")
    assert f"{receipt.model_file}: " in found.facts["files"]
    assert found.facts["this machine"] == "can run it"
    assert found.needs == ()
    assert "its files are those that the receipt was written for" in found.promises
    assert found.next[:3] == (
        f"penstock serve {folder}",
        f"penstock verify {folder}",
        f"penstock verify {folder} --against {trained}",
    )
    assert found.details["schema"] == receipt.schema_version
    for path in (folder / "1", folder / "1" / "penstock.json"):
        assert told(path).facts == found.facts


def changed(repository: Path, folder: Path, **changes: Any) -> Path:
    """A copy of the int8 artifact whose receipt says something else."""
    shutil.copytree(repository / "digits-onnx-int8", folder)
    held = artifact.read(folder)
    receipt = held.receipt.model_copy(update=changes)
    (held.folder / "penstock.json").write_text(receipt.to_json())
    return folder


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Calibration(method="max", samples=128, digest="ab" * 32, real=True), "max, 128 samples, sha256 abababababab…"),
        (
            Calibration(method="percentile=99.9", samples=128, digest="cd" * 32, real=False),
            "percentile=99.9, 128 RANDOM samples, sha256 cdcdcdcdcdcd…",
        ),
        (Calibration(method="dynamic", samples=0, digest=""), "dynamic: scales are measured in each run"),
    ],
    ids=["real", "random", "dynamic"],
)
def test_what_scales_were_measured_on_is_called_what_it_is(
    repository: Path, tmp_path: Path, found: Calibration, said: str
) -> None:
    folder = changed(repository, tmp_path / "digits-onnx-int8", calibration=found)
    assert told(folder).facts["calibration"] == said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--data", "rows.npz", "--int8"), " --data rows.npz"),
        (("--data", "./random"), " --data ./random"),
        (("--model", "./net.py:Net", "--data", "a b.npz"), " --model ./net.py:Net --data 'a b.npz'"),
        (("--data", "random"), ""),
        (("--model", "./net.py:Net"), " --model ./net.py:Net"),
    ],
)
def test_an_artifact_leads_to_a_comparison_on_the_samples_that_it_was_exported_on(
    repository: Path, trained: Path, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    source = artifact.read(repository / "digits-onnx-int8").receipt.source.model_copy(update={"options": options})
    folder = changed(repository, tmp_path / "digits-onnx-int8", source=source)
    assert told(folder).next[2] == f"penstock verify {folder} --against {trained}{words}"


def test_an_artifact_whose_folder_was_renamed_leads_to_the_name_in_its_receipt(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(repository / "digits-onnx-fp32", "tam")
    why = "a folder named digits-onnx-fp32, as its receipt has it: penstock serve refuses it as tam; "
    for path in ("tam", "tam/1"):
        found = told(Path(path))
        assert found.needs == (f"{why}mv -- tam digits-onnx-fp32",)
        assert found.next[:2] == ("penstock serve digits-onnx-fp32", f"penstock verify {path}")
    several = told(tmp_path)
    assert several.needs == (f"tam: {why}mv -- {tmp_path / 'tam'} {tmp_path / 'digits-onnx-fp32'}",)
    assert several.next == (f"penstock inspect {tmp_path / 'tam'}",)
    Path("digits-onnx-fp32").mkdir()
    found = told(Path("tam"))
    assert found.needs == (f"{why}another beside it has that name, so move it to a folder of its own first",)
    assert found.next[0] == "penstock verify tam"


def test_a_version_of_an_artifact_is_served_from_within(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository / "digits-onnx-fp32" / "1")
    assert told(Path()).next[0] == "penstock serve ."
    assert declared.by_name([Path()]) == {"digits-onnx-fp32": Path()}


def test_a_file_of_an_artifact_leads_to_it(repository: Path) -> None:
    folder = repository / "digits-onnx-fp16" / "1"
    for name in ("model.onnx", "golden.npz"):
        found = told(folder / name)
        assert found.next == (f"penstock inspect {folder}",)
        assert found.promises == (f"what the receipt of the artifact in {folder} says of it",)
    assert told(folder / "model.onnx").facts["precision"].startswith("fp16")


def test_an_engine_that_this_machine_cannot_run_says_what_to_rebuild(repository: Path) -> None:
    folder = repository / "digits-trt-fp16"
    if artifact.read(folder).unavailable() is None:
        pytest.skip("this machine runs it")
    found = told(folder)
    assert found.facts["this machine"] == "cannot run it"
    assert "the graph alone was run, the engine not yet" in found.facts["verified"]
    assert found.next == (f"penstock verify {folder}", f"penstock build {folder}")
    assert told(folder / "1" / "model.plan").kind == "TensorRT engine"


def test_a_damaged_artifact_names_the_files_and_leads_to_another_export(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "digits-onnx-fp32"
    shutil.copytree(repository / "digits-onnx-fp32", folder)
    data = (folder / "1" / "model.onnx").read_bytes()
    (folder / "1" / "model.onnx").write_bytes(data[:-1] + b"?")
    (folder / "1" / "golden.npz").unlink()
    found = told(folder)
    assert "model.onnx has changed since its receipt was written" in " ".join(found.needs)
    assert "golden.npz is missing" in " ".join(found.needs)
    assert "NOT as in the receipt" in found.facts["files"]
    assert not any("its files are those" in promise for promise in found.promises)
    assert found.next[0].startswith("penstock export --format onnx --precision fp32")


def test_a_damaged_engine_is_led_to_another_export_too(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "digits-trt-fp16"
    shutil.copytree(repository / "digits-trt-fp16", folder)
    (folder / "1" / "golden.npz").unlink()
    assert told(folder).next[0].startswith("penstock export --format trt --precision fp16")


def test_a_repository_has_a_line_for_each_model(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(repository, folder)
    (folder / "digits-onnx-fp16" / "1" / "penstock.json").write_text("{")
    found = told(folder)
    assert found.kind == "model repository of 5"
    assert found.facts["digits-onnx-int8"].startswith("version 1, onnx int8 by onnxruntime, ")
    assert found.facts["digits-onnx-fp16"] == "DAMAGED"
    assert any("damaged receipt" in need for need in found.needs)
    assert str(folder / "digits-onnx-fp16") not in " ".join(found.next[:2])


def test_an_artifact_is_told_without_torch(repository: Path) -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom pathlib import Path\nfrom penstock import inspection\n"
        f"repository = Path({str(repository)!r})\n"
        "print(inspection.inspect(repository).facts['digits-torchscript-fp32'])\n"
        "print(inspection.inspect(repository / 'digits-onnx-fp32').facts['this machine'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    first, second = ran.stdout.splitlines()
    assert first.endswith("does not run here")
    assert second == "can run it"
