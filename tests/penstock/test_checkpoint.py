"""Checkpoints: loaded as weights only, each tensor accounted for, and bad files refused by name."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock import checkpoint
from penstock.architecture import Architecture
from penstock.card import Card
from penstock.checkpoint import Override
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess
from penstock.signature import Dim, Range, Signature, Tensor
from penstock.state import Choice

LINEAR = Override(
    model="torch.nn:Linear", model_args={"in_features": 3, "out_features": 2}, inputs=("x:float32[batch,3]",)
)
NET = Architecture(target="penstock.train.nets:ResidualNet", kwargs={"widths": [4, 4], "classes": 3})
SIGNATURE = Signature(
    inputs=(Tensor(name="image", shape=("batch", 1, 8, 8)),),
    outputs=(Tensor(name="logits", shape=("batch", 3)),),
    dims={"batch": Dim(opt=2, max=4)},
)
ROWS = Rows({"image": np.random.default_rng(0).random((5, 1, 8, 8), np.float32)}, np.arange(5))


def card(**changes: Any) -> Card:
    return Card.model_validate({"name": "small", "architecture": NET, "signature": SIGNATURE, **changes})


def weights() -> dict[str, torch.Tensor]:
    from penstock.train.nets import ResidualNet

    torch.manual_seed(1)
    return ResidualNet(widths=(4, 4), classes=3).state_dict()


def linear() -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    return nn.Linear(3, 2).state_dict()


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def refusal(path: Path, override: Override = LINEAR) -> str:
    with pytest.raises(PenstockError) as caught:
        checkpoint.load(path, override)
    assert str(path) in str(caught.value)
    return str(caught.value)


class Evil:
    """A pickle that makes a file when it is loaded by plain pickle."""

    def __init__(self, witness: Path, road: str) -> None:
        self.call = (
            (os.system, (f"touch {witness}",)) if road == "system" else (exec, (f"open({str(witness)!r}, 'w')",))
        )

    def __reduce__(self) -> Any:
        return self.call


class Custom:
    """A class that somebody pickled beside their weights."""


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "new" / "small.pth"
    checkpoint.save(path, card(labels=("a", "b", "c")), weights(), calibration=ROWS, golden=ROWS.take(2))
    loaded = checkpoint.load(path)
    assert loaded.card == card(labels=("a", "b", "c"))
    assert all(torch.equal(tensor, weights()[name]) for name, tensor in loaded.module.state_dict().items())
    assert loaded.proof.loaded == loaded.proof.expected == len(weights())
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert not loaded.module.training
    for held, expected in ((loaded.calibration, ROWS), (loaded.golden, ROWS.take(2))):
        assert held is not None
        assert np.array_equal(held.inputs["image"], expected.inputs["image"])
        assert np.array_equal(held.labels, expected.labels)


def test_a_checkpoint_may_be_read_without_penstock(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.pth", card(), weights())
    content = torch.load(tmp_path / "a.pth", weights_only=True)
    assert content["architecture"]["target"] == NET.target
    assert content["state_dict"].keys() == weights().keys()


def test_a_save_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    checkpoint.save(path, card(), weights())
    before = path.read_bytes()

    class Unpicklable(torch.Tensor):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(path, card(), {"w": torch.zeros(1).as_subclass(Unpicklable)})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.pth"]


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.pth")


def test_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    assert "is a folder; give a checkpoint file" in refusal(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello, world\n",
        b"global os.system type a.b\n",
        b"{}",
        b"\x80",
        b"\x80\x02",
        b"PK\x03\x04",
        b"\0" * 1000,
    ],
    ids=["empty", "text", "telling-text", "json", "opcode", "protocol", "zip-magic", "zeros"],
)
def test_a_file_that_is_no_checkpoint_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.pth"
    path.write_bytes(content)
    assert "truncated, damaged, or not a PyTorch checkpoint" in refusal(path)


def test_a_real_checkpoint_cut_anywhere_is_refused_by_name(trained: Path, tmp_path: Path) -> None:
    whole = trained.read_bytes()
    path = tmp_path / "cut.pth"
    for share in (0.001, 0.25, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        assert "truncated, damaged, or not a PyTorch checkpoint" in refusal(path, Override())
    path.write_bytes(whole[:-1])
    assert "truncated, damaged, or not a PyTorch checkpoint" in refusal(path, Override())


@pytest.mark.parametrize("road", ["system", "exec"])
@pytest.mark.parametrize("form", ["zip", "legacy", "pickle", "pickle-4"])
def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path, form: str, road: str) -> None:
    witness, path = tmp_path / "witness", tmp_path / "evil.pth"
    content = {"hook": Evil(witness, road), "epoch": 3}
    if form.startswith("pickle"):
        path.write_bytes(pickle.dumps(content, protocol=4 if form == "pickle-4" else 2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    message = refusal(path)
    assert not witness.exists()
    assert "pickled code" in message
    assert road in message
    assert "weights only" in message
    torch.load(path, weights_only=False) if form in ("zip", "legacy") else pickle.loads(path.read_bytes())
    assert witness.exists(), "the file is harmless: this test proves nothing"


def test_a_pickled_class_is_named_and_the_way_out_is_given(tmp_path: Path) -> None:
    message = refusal(saved(tmp_path / "custom.pth", {"state_dict": linear(), "config": Custom()}))
    assert "Custom" in message
    assert "save model.state_dict() and give the class with --model" in message


def test_a_whole_pickled_module_is_refused_with_its_class(tmp_path: Path) -> None:
    message = refusal(saved(tmp_path / "module.pth", nn.Linear(3, 2)))
    assert "torch.nn.modules.linear.Linear" in message
    assert "model.state_dict()" in message


@pytest.mark.parametrize(("content", "kind"), [([1, 2], "list"), (torch.zeros(2), "Tensor"), (None, "NoneType")])
def test_content_that_is_no_dictionary_is_refused_with_its_type(tmp_path: Path, content: Any, kind: str) -> None:
    assert f"holds a {kind}; a checkpoint holds a dictionary" in refusal(saved(tmp_path / "a.pth", content))


def test_a_dictionary_of_numbered_tensors_is_refused_by_name(tmp_path: Path) -> None:
    refusal(saved(tmp_path / "a.pth", {0: torch.zeros(1)}))


@pytest.mark.parametrize("wrapper", ["", "state_dict", "model", "net"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "model._orig_mod.module."])
def test_somebody_elses_checkpoint_loads_from_any_wrapper_and_prefix(tmp_path: Path, wrapper: str, prefix: str) -> None:
    state = {prefix + name: tensor for name, tensor in linear().items()}
    path = saved(tmp_path / "theirs-v2.final.pth", {wrapper: state, "epoch": 9} if wrapper else state)
    loaded = checkpoint.load(path, LINEAR)
    assert (loaded.proof.loaded, loaded.proof.expected) == (2, 2)
    assert (loaded.proof.wrapper, loaded.proof.prefix) == (wrapper, prefix)
    assert all(torch.equal(tensor, linear()[name]) for name, tensor in loaded.module.state_dict().items())
    assert loaded.card.name == "theirs-v2-final"
    assert (loaded.calibration, loaded.golden) == (None, None)


def test_the_outputs_of_somebody_elses_model_are_found_by_running_it(tmp_path: Path) -> None:
    loaded = checkpoint.load(saved(tmp_path / "a.pth", linear()), LINEAR)
    assert [str(tensor) for tensor in loaded.card.signature.outputs] == ["output:float32[batch,2]"]


@pytest.mark.parametrize("key", ["golden", "calibration"])
@pytest.mark.parametrize("value", [torch.ones(3), {"method": "max"}, "yes", 7])
def test_a_key_of_somebody_elses_that_penstock_uses_too_means_nothing(tmp_path: Path, key: str, value: Any) -> None:
    loaded = checkpoint.load(saved(tmp_path / "a.pth", {"state_dict": linear(), key: value}), LINEAR)
    assert (loaded.calibration, loaded.golden) == (None, None)


@pytest.mark.parametrize("key", ["golden", "calibration"])
@pytest.mark.parametrize("value", [{"inputs": {}}, {"inputs": {"image": 3}, "labels": None}, [1]])
def test_damaged_samples_are_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    checkpoint.save(tmp_path / "a.pth", card(), weights())
    content = torch.load(tmp_path / "a.pth", weights_only=True)
    refusal(saved(tmp_path / "b.pth", content | {key: value}), Override())


@pytest.mark.parametrize("key", ["golden", "calibration"])
@pytest.mark.parametrize("image", [torch.zeros(5, 1, 8, 9), torch.zeros(5, 1, 8, 8).double()], ids=["shape", "dtype"])
def test_samples_that_do_not_fit_the_signature_are_refused_by_name(
    tmp_path: Path, key: str, image: torch.Tensor
) -> None:
    checkpoint.save(tmp_path / "a.pth", card(), weights())
    content = torch.load(tmp_path / "a.pth", weights_only=True)
    value = {"inputs": {"image": image}, "labels": None}
    message = refusal(saved(tmp_path / "b.pth", content | {key: value}), Override())
    assert f"its {key} samples are damaged" in message
    assert "input 'image' has" in message


@pytest.mark.parametrize("model", [None, NET.target])
def test_inputs_for_a_checkpoint_that_names_its_own_are_refused_with_both(tmp_path: Path, model: str | None) -> None:
    checkpoint.save(tmp_path / "a.pth", card(), weights())
    override = Override(model=model, inputs=("pixels:float32[batch,1,8,8]",))
    message = refusal(tmp_path / "a.pth", override)
    for part in ("--input 'pixels:float32[batch,1,8,8]'", "image:float32[batch,1,8,8]", "leave --input out"):
        assert part in message


def test_a_checkpoint_that_names_no_architecture_asks_for_one(tmp_path: Path) -> None:
    message = refusal(saved(tmp_path / "a.pth", linear()), Override())
    assert "names no architecture" in message
    for model in ("torchvision:resnet18", "timm:convnext_tiny", "./net.py:Net"):
        assert f"--model {model}" in message


def test_a_checkpoint_that_names_no_inputs_asks_for_them(tmp_path: Path) -> None:
    override = Override(model="torch.nn:Linear", model_args=LINEAR.model_args)
    message = refusal(saved(tmp_path / "a.pth", linear()), override)
    assert "names no inputs" in message
    assert "--input 'image:float32[batch,3,224,224]'" in message


def test_another_architecture_is_refused_with_the_names_that_do_not_fit(trained: Path) -> None:
    message = refusal(trained, Override(model_args={"widths": [24, 48]}))
    assert "ResidualNet" in message
    assert "unexpected (blocks.2.conv1.weight" in message
    assert "mis-shaped (head.weight [10, 96] for [10, 48])" in message
    message = refusal(trained, Override(model_args={"widths": [24, 48, 96, 96]}))
    assert "missing (blocks.3.conv1.weight" in message


def test_an_argument_given_replaces_the_recorded_one_and_keeps_the_others(trained: Path) -> None:
    loaded = checkpoint.load(trained, Override(model_args={"classes": 10}))
    assert loaded.card.architecture.kwargs == {"channels": 1, "widths": [24, 48, 96], "classes": 10}


def test_an_architecture_that_the_checkpoint_names_is_not_imported_unasked(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    kwargs = {"command": f"touch {witness}"}
    checkpoint.save(tmp_path / "a.pth", card(architecture={"target": "os:system", "kwargs": kwargs}), weights())
    message = refusal(tmp_path / "a.pth", Override())
    assert "'os:system'" in message
    assert "--model os:system" in message
    assert not witness.exists()


def test_a_file_that_the_checkpoint_names_is_not_imported_unasked(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    code = tmp_path / "net.py"
    code.write_text(f"import pathlib\npathlib.Path({str(witness)!r}).touch()\n")
    checkpoint.save(tmp_path / "a.pth", card(architecture={"target": f"{code}:Net"}), weights())
    refusal(tmp_path / "a.pth", Override())
    assert not witness.exists()


@pytest.mark.parametrize("name", ["__builtins__", "_Residual", "", "Residual.Net", "nn.Linear", "1", "a b"])
def test_of_the_trusted_module_only_public_names_are_trusted(tmp_path: Path, name: str) -> None:
    architecture = {"target": f"penstock.train.nets:{name}"}
    checkpoint.save(tmp_path / "a.pth", card(architecture=architecture), weights())
    assert "if you trust it, give it yourself" in refusal(tmp_path / "a.pth", Override())


@pytest.mark.parametrize(
    "kwargs", [{"checkpoint_path": "evil.pth"}, {"pretrained": True}], ids=lambda kwargs: str(*kwargs)
)
def test_a_librarys_network_that_a_file_names_loads_no_weights(tmp_path: Path, kwargs: dict[str, Any]) -> None:
    pytest.importorskip("timm")
    named = card(architecture={"target": "timm:test_resnet", "kwargs": kwargs})
    checkpoint.save(tmp_path / "a.pth", named, weights())
    assert "weights are the checkpoint's, and none are downloaded" in refusal(tmp_path / "a.pth", Override())


@pytest.mark.parametrize(
    "target", ["timm:hf-hub:a/b", "timm:./net.py", "torchvision:../net:Net", "transformers:folder"]
)
def test_of_a_library_only_what_it_lists_is_trusted(tmp_path: Path, target: str) -> None:
    checkpoint.save(tmp_path / "a.pth", card(architecture={"target": target}), weights())
    assert "if you trust it, give it yourself" in refusal(tmp_path / "a.pth", Override())


@pytest.mark.parametrize(
    ("target", "file"),
    [
        ("penstock.train.nets:/evil.py:Net", "penstock.train.nets:/evil.py"),
        ("penstock.train.nets:evil.py:Net", "penstock.train.nets:evil.py"),
        ("penstock.train.nets:ResidualNet/../evil.py:Net", "penstock.train.nets:ResidualNet/../evil.py"),
        ("penstock.train.nets.py:Net", "penstock.train.nets.py"),
        ("./penstock.train.nets.py:Net", "penstock.train.nets.py"),
        ("penstock/train/nets.py:Net", "penstock/train/nets.py"),
        ("evil_nets_here:Net", "evil_nets_here.py"),
    ],
)
def test_no_path_that_looks_like_the_trusted_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    witness = tmp_path / "witness"
    if "/.." in file:
        Path(file).parent.parent.mkdir()
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(
        f"from pathlib import Path\nPath({str(witness)!r}).touch()\n"
        "from penstock.train.nets import ResidualNet as Net\n"
    )
    checkpoint.save(tmp_path / "a.pth", card(architecture={"target": target, "kwargs": NET.kwargs}), weights())
    message = refusal(tmp_path / "a.pth", Override())
    assert f"names the architecture {target!r}, whose import would run its code" in message
    assert not witness.exists()
    checkpoint.load(tmp_path / "a.pth", Override(model=target))
    assert witness.exists(), "the file is harmless: this test proves nothing"
    sys.modules.pop("evil_nets_here", None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("images", r"is a module, not a torch\.nn\.Module"),
        ("bert", r"is a module, not a torch\.nn\.Module"),
        ("torch", "has no 'torch'"),
        ("Windows", "has no 'Windows'"),
    ],
)
def test_only_networks_are_made_of_what_the_trusted_module_holds(tmp_path: Path, name: str, said: str) -> None:
    architecture = {"target": f"penstock.train.nets:{name}"}
    checkpoint.save(tmp_path / "a.pth", card(architecture=architecture), weights())
    with pytest.raises(PenstockError, match=said):
        checkpoint.load(tmp_path / "a.pth")


def test_an_architecture_that_the_user_names_too_is_imported(tmp_path: Path) -> None:
    kwargs = {"in_features": 3, "out_features": 2}
    signature = Signature(
        inputs=(Tensor(name="x", shape=("batch", 3)),),
        outputs=(Tensor(name="y", shape=("batch", 2)),),
        dims={"batch": Dim(opt=2, max=4)},
    )
    theirs = card(architecture={"target": "torch.nn:Linear", "kwargs": kwargs}, signature=signature)
    checkpoint.save(tmp_path / "a.pth", theirs, linear())
    assert "--model torch.nn:Linear" in refusal(tmp_path / "a.pth", Override())
    loaded = checkpoint.load(tmp_path / "a.pth", Override(model="torch.nn:Linear"))
    assert isinstance(loaded.module, nn.Linear)
    assert loaded.card.signature == signature


RECORDER = """
from penstock.train.nets import ResidualNet

class Net(ResidualNet):
    def __init__(self, **given):
        assert not given, f"given {given}"
        super().__init__(widths=(4, 4), classes=3)
"""


def test_arguments_of_the_checkpoints_own_go_to_no_other_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(RECORDER)
    checkpoint.save(tmp_path / "a.pth", card(), weights())
    loaded = checkpoint.load(tmp_path / "a.pth", Override(model="./net.py:Net"))
    assert loaded.card.architecture == Architecture(target="./net.py:Net")
    assert "given {'width': 3}" in refuse("a.pth", Override(model="./net.py:Net", model_args={"width": 3}))


def refuse(path: str, override: Override) -> str:
    with pytest.raises(PenstockError) as caught:
        checkpoint.load(Path(path), override)
    return str(caught.value)


def test_arguments_of_the_checkpoints_own_go_to_the_class_that_it_names(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.pth", card(), weights())
    loaded = checkpoint.load(tmp_path / "a.pth", Override(model=NET.target))
    assert loaded.card.architecture == NET


@pytest.mark.parametrize("suffix", [".onnx", ".plan", ".engine"])
def test_a_file_that_is_exported_already_says_so(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"\x08\x0a")
    assert "is exported already, not a checkpoint; penstock serve takes an .onnx file" in refusal(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_one_changed_byte_of_the_weights_is_refused_with_the_entry_it_lies_in(
    tmp_path: Path, trained: Path, share: float
) -> None:
    whole = trained.read_bytes()
    with zipfile.ZipFile(trained) as archive:
        entries = [entry for entry in archive.infolist() if "/data/" in entry.filename and entry.file_size > 1000]
    entry = entries[int(len(entries) * share)]
    name = len(entry.filename.encode())
    extra = int.from_bytes(whole[entry.header_offset + 28 : entry.header_offset + 30], "little")
    index = entry.header_offset + 30 + name + extra + int(entry.file_size * share)
    path = tmp_path / "flipped.pth"
    path.write_bytes(whole[:index] + bytes([whole[index] ^ 0x10]) + whole[index + 1 :])
    assert f"damaged: the checksum of its entry {entry.filename!r} is wrong" in refusal(path, Override())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sparse", "meta", "nested"])
def test_weights_that_hold_no_dense_data_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    if kind == "nested":
        weight = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(3)])
    else:
        weight = torch.zeros(2, 3).to_sparse() if kind == "sparse" else torch.empty(2, 3, device="meta")
    path = saved(tmp_path / "a.pth", {"weight": weight, "bias": torch.zeros(2)})
    assert (
        "must be dense and hold real numbers; these are sparse, nested, meta, quantised or complex: weight"
        in refusal(path)
    )


@pytest.mark.parametrize(
    ("outputs", "declared"),
    [
        ((Tensor(name="logits", dtype="float16", shape=("batch", 3)),), "logits:float16[batch,3]"),
        ((Tensor(name="logits", shape=("batch", 4)),), "logits:float32[batch,4]"),
        ((Tensor(name="logits", shape=(2, 3)),), "logits:float32[2,3]"),
        ((Tensor(name="logits", shape=("batch", 3, 1)),), "logits:float32[batch,3,1]"),
        (
            (Tensor(name="logits", shape=("batch", 3)), Tensor(name="more", shape=("batch", 3))),
            "logits:float32[batch,3], more:float32[batch,3]",
        ),
    ],
)
def test_declared_outputs_that_are_not_the_models_are_refused_with_both(
    tmp_path: Path, outputs: tuple[Tensor, ...], declared: str
) -> None:
    checkpoint.save(tmp_path / "a.pth", card(signature=SIGNATURE.model_copy(update={"outputs": outputs})), weights())
    message = refusal(tmp_path / "a.pth", Override())
    assert f"declares the outputs {declared}, but the model gives output:float32[batch,3]" in message


@pytest.mark.parametrize("labels", [("a", "b"), ("a", "b", "c", "d"), ()])
def test_labels_of_another_number_than_the_classes_are_refused_with_both(
    tmp_path: Path, labels: tuple[str, ...]
) -> None:
    checkpoint.save(tmp_path / "a.pth", card(labels=labels), weights())
    said = f"has {len(labels)} labels; its first output has 3 classes"
    assert said in refusal(tmp_path / "a.pth", Override())


GREY = ImagePreprocess(input="image", mode="L", height=8, width=8, mean=(0.5,), std=(0.5,))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input": "picture"}, "its preprocessing makes 'picture' of float32[1, 8, 8]"),
        ({"dtype": "uint8"}, "its preprocessing makes 'image' of uint8[8, 8, 1]"),
        ({"height": 9}, "its preprocessing makes 'image' of float32[1, 9, 8]"),
        ({"width": 4}, "its preprocessing makes 'image' of float32[1, 8, 4]"),
        ({"mode": "RGB", "mean": (0.5,) * 3, "std": (0.5,) * 3}, "its preprocessing makes 'image' of float32[3, 8, 8]"),
    ],
)
def test_preprocessing_that_makes_another_input_is_refused_with_both(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    fitting = card(preprocess=GREY.model_dump())
    checkpoint.save(tmp_path / "fits.pth", fitting, weights())
    assert checkpoint.load(tmp_path / "fits.pth").card == fitting
    checkpoint.save(tmp_path / "a.pth", card(preprocess={**GREY.model_dump(), **changes}), weights())
    message = refusal(tmp_path / "a.pth", Override())
    assert said in message
    assert "the inputs are image:float32[batch,1,8,8]" in message


def test_ranges_that_are_given_replace_those_of_the_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.pth", card(), weights())
    for override in (Override(dims={"batch": Dim(opt=3, max=9)}), Override(batch=Dim(opt=3, max=9))):
        loaded = checkpoint.load(tmp_path / "a.pth", override)
        assert loaded.card.signature.dims == {"batch": Dim(opt=3, max=9)}
        assert loaded.card.signature.inputs == SIGNATURE.inputs
    both = Override(dims={"batch": Dim(opt=3, max=9)}, batch=Dim(opt=1, max=1))
    assert checkpoint.load(tmp_path / "a.pth", both).card.signature.dims == {"batch": Dim(opt=1, max=1)}


def test_ranges_of_somebody_elses_inputs_are_those_that_were_given(tmp_path: Path) -> None:
    inputs = ("x:float32[batch,seq,3]",)
    override = Override(
        model=LINEAR.model, model_args=LINEAR.model_args, inputs=inputs, dims={"seq": Dim(opt=2, max=5)}
    )
    loaded = checkpoint.load(saved(tmp_path / "a.pth", linear()), override)
    assert loaded.card.signature.dims["seq"] == Dim(opt=2, max=5)
    assert [str(tensor) for tensor in loaded.card.signature.outputs] == ["output:float32[batch,seq,2]"]


def test_a_range_of_a_dimension_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.pth", card(), weights())
    with pytest.raises(PenstockError, match=r"--dim seq: not a dynamic dimension of the inputs; those are batch$"):
        checkpoint.load(tmp_path / "a.pth", Override(dims={"seq": Dim(opt=1, max=2)}))
    fixed = Override(model=LINEAR.model, model_args=LINEAR.model_args, inputs=("x:float32[2,3]",))
    fixed = replace(fixed, dims={"batch": Dim(opt=1, max=2)})
    with pytest.raises(PenstockError, match=r"--dim batch: not a dynamic dimension of the inputs; those are none$"):
        checkpoint.load(saved(tmp_path / "b.pth", linear()), fixed)


@pytest.mark.parametrize("batch", [Dim(min=8, opt=8, max=16), Dim(opt=1, max=1)])
def test_the_samples_of_a_checkpoint_outlive_a_range_of_batches_that_their_number_is_not_in(
    tmp_path: Path, batch: Dim
) -> None:
    checkpoint.save(tmp_path / "a.pth", card(), weights(), calibration=ROWS, golden=ROWS.take(2))
    for override in (Override(batch=batch), Override(dims={"batch": batch})):
        loaded = checkpoint.load(tmp_path / "a.pth", override)
        assert loaded.card.signature.dims == {"batch": batch}
        assert loaded.calibration is not None
        assert np.array_equal(loaded.calibration.inputs["image"], ROWS.inputs["image"])


def test_another_schema_is_refused_with_both_numbers(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.pth", card(penstock=2), weights())
    assert "checkpoint schema 2; this penstock reads 1" in refusal(tmp_path / "a.pth", Override())


def test_a_damaged_description_is_refused_with_the_field(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.pth", card(), weights())
    content = torch.load(tmp_path / "a.pth", weights_only=True)
    content["signature"]["inputs"][0]["dtype"] = "float33"
    message = refusal(saved(tmp_path / "b.pth", content), Override())
    assert "signature.inputs.0.dtype" in message
    assert "'float33'" in message


def test_a_bad_input_of_the_users_is_named(tmp_path: Path) -> None:
    override = Override(model=LINEAR.model, model_args=LINEAR.model_args, inputs=("x:float33[batch,3]",))
    with pytest.raises(PenstockError, match="float33"):
        checkpoint.load(saved(tmp_path / "a.pth", linear()), override)


def test_an_input_that_the_model_fails_on_is_named_with_the_reason(tmp_path: Path) -> None:
    override = Override(model=LINEAR.model, model_args=LINEAR.model_args, inputs=("x:float32[batch,4]",))
    with pytest.raises(PenstockError) as caught:
        checkpoint.load(saved(tmp_path / "a.pth", linear()), override)
    for part in ("x:float32[batch,4]", "RuntimeError", "correct --input"):
        assert part in str(caught.value)


@pytest.mark.parametrize("key", ["arch", "model_name", "architecture"])
def test_a_file_that_says_what_it_holds_weights_of_is_quoted(tmp_path: Path, key: str) -> None:
    content = {key: "resnet18", "state_dict": linear()}
    message = refusal(saved(tmp_path / "a.pth", content), Override())
    assert f"(its {key!r} says 'resnet18': perhaps --model timm:resnet18 or --model torchvision:resnet18)" in message
    message = refusal(saved(tmp_path / "b.pth", {key: "resnet18", "epoch": 3}), Override())
    assert "holds no state_dict" in message
    assert "--model timm:resnet18" in message
    for odd in ("two words", "$(touch x)", "", 18):
        assert f"its {key!r} says" not in refusal(saved(tmp_path / "c.pth", content | {key: odd}), Override())


def test_what_is_chosen_of_a_file_is_loaded(tmp_path: Path) -> None:
    other = {name: tensor + 1 for name, tensor in linear().items()}
    path = saved(tmp_path / "a.pth", {"model": linear(), "model_ema": other})
    for choice, expected in ((Choice(), other), (Choice(ema=False), linear()), (Choice(key="model"), linear())):
        loaded = checkpoint.load(path, replace(LINEAR, choice=choice))
        assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.module.state_dict().items())
    assert "--ema: the file holds no averaged weights" in refusal(
        saved(tmp_path / "b.pth", linear()), replace(LINEAR, choice=Choice(ema=True))
    )


def test_what_may_stay_initial_is_the_same_in_every_load(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", {"weight": linear()["weight"]})
    override = replace(LINEAR, choice=Choice(partial=("bias",)))
    torch.manual_seed(1)
    first = checkpoint.load(path, override)
    after = torch.rand(1)
    torch.manual_seed(2)
    second = checkpoint.load(path, override)
    assert first.proof.initial == ("bias",)
    assert torch.equal(first.module.bias, second.module.bias)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after), "making a model moves the user's own random numbers"


def test_half_precision_weights_become_a_float32_model(tmp_path: Path) -> None:
    state = {name: tensor.to(torch.bfloat16) for name, tensor in linear().items()}
    loaded = checkpoint.load(saved(tmp_path / "a.pth", state), LINEAR)
    assert loaded.proof.dtypes == ("bfloat16",)
    assert {tensor.dtype for tensor in loaded.module.state_dict().values()} == {torch.float32}


def test_weights_that_are_no_numbers_are_refused_with_the_file_and_the_tensor(tmp_path: Path) -> None:
    state = linear()
    state["weight"][0, 0] = float("nan")
    assert "weight holds NaN or infinity" in refusal(saved(tmp_path / "a.pth", state))


NETS = """
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x, scale=None):
        y = self.head(x)
        return {"scores": y if scale is None else y * scale, "features": (x, y), "classes": 2}

class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 2)

    def forward(self, lengths, ids):
        return self.table(ids) * lengths[:, None, None]
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a user's ./nets.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("nets.py").write_text(NETS)
    return tmp_path


def test_outputs_are_kept_by_name_and_the_call_gives_those_alone(nets: Path) -> None:
    path = saved(nets / "a.pth", {f"head.{name}": tensor for name, tensor in linear().items()})
    override = Override(model="./nets.py:Two", inputs=("x:float32[batch,3]",))
    assert "the model answers a int as 'classes'; outputs must be tensors; --keep scores" in refuse(str(path), override)
    loaded = checkpoint.load(path, replace(override, keep=("features_1", "scores")))
    assert [str(t) for t in loaded.card.signature.outputs] == [
        "scores:float32[batch,2]",
        "features_1:float32[batch,2]",
    ]
    scores, feature = loaded.adapted()(torch.ones(4, 3))
    assert torch.equal(scores, feature)


def test_ranges_of_values_are_found_given_and_held_to_the_inputs(nets: Path) -> None:
    path = saved(nets / "a.pth", {"table.weight": torch.ones(9, 2)})
    override = Override(model="./nets.py:Text", inputs=("ids:int64[batch,seq]", "lengths:int64[batch]"))
    assert checkpoint.load(path, override).card.signature.ranges == {"ids": Range(low=0, high=8)}
    given = replace(override, ranges={"lengths": Range(low=1, high="seq"), "ids": Range(low=2, high=3)})
    loaded = checkpoint.load(path, given)
    assert loaded.card.signature.ranges == {"ids": Range(low=2, high=3), "lengths": Range(low=1, high="seq")}
    assert loaded.call.keywords == ("ids", "lengths")
    for ranges, said in (
        ({"words": Range(low=0, high=1)}, "--range words: not an input of the model; those are ids, lengths"),
        ({"ids": Range(low=0, high="depth")}, "the range of 'ids' names 'depth', which is no dynamic dimension"),
        ({"ids": Range(low=0, high=9)}, "IndexError"),
    ):
        assert said in refuse(str(path), replace(override, ranges=ranges))


def test_declared_outputs_are_found_by_name_in_the_order_declared(nets: Path) -> None:
    signature = Signature(
        inputs=(Tensor(name="x", shape=("batch", 3)),),
        outputs=(Tensor(name="b", shape=("batch", 2)), Tensor(name="a", shape=("batch", 3))),
        dims={"batch": Dim(opt=2, max=4)},
    )
    Path("two.py").write_text(
        "from torch import nn\n\nclass Net(nn.Linear):\n    def forward(self, x):\n"
        "        return {'a': x, 'b': super().forward(x)}\n"
    )
    kwargs = {"in_features": 3, "out_features": 2}
    theirs = card(architecture={"target": "./two.py:Net", "kwargs": kwargs}, signature=signature)
    checkpoint.save(nets / "a.pth", theirs, linear())
    loaded = checkpoint.load(nets / "a.pth", Override(model="./two.py:Net"))
    assert loaded.card.signature == signature
    first, second = loaded.adapted()(torch.ones(1, 3))
    assert (tuple(first.shape), tuple(second.shape)) == ((1, 2), (1, 3))


LIGHTNING = """
import lightning
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=1):
        super().__init__()
        self.layer = nn.Linear(3, width)

    def forward(self, x):
        return self.layer(x)

class Lit(lightning.LightningModule):
    def __init__(self, width, rate=0.1, loss=None, unused=None):
        super().__init__()
        self.save_hyperparameters(ignore=["loss"])
        self.model = Net(width)
        self.loss = nn.CrossEntropyLoss(weight=torch.ones(width))

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = self.loss(self(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.rate)
"""


@pytest.fixture(scope="session")
def lightning_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with lit.py, and the last.ckpt that lightning's Trainer wrote after one step. Read only."""
    lightning = pytest.importorskip("lightning")
    folder = tmp_path_factory.mktemp("lightning")
    (folder / "lit.py").write_text(LIGHTNING)
    from penstock import architecture

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        module = architecture.find(f"{folder}/lit.py:Lit")(width=5, rate=0.5)
    rows = torch.utils.data.TensorDataset(torch.ones(4, 3), torch.tensor([0, 1, 2, 3]))
    trainer = lightning.Trainer(
        max_steps=1,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(folder, filename="best", save_last=True, monitor=None)],
    )
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=4))
    return folder


X3 = ("x:float32[batch,3]",)


@pytest.mark.filterwarnings("ignore")
def test_a_file_of_lightnings_trainer_makes_its_module_with_the_arguments_it_recorded(
    lightning_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lightning_run)
    loaded = checkpoint.load(Path("last.ckpt"), Override(model="./lit.py:Lit", inputs=X3))
    assert loaded.card.architecture.kwargs == {"width": 5, "rate": 0.5, "unused": None}
    assert (loaded.proof.loaded, loaded.proof.wrapper) == (3, "state_dict")
    assert [str(tensor) for tensor in loaded.card.signature.outputs] == ["output:float32[batch,5]"]
    message = refuse("last.ckpt", Override(model="./lit.py:Lit", model_args={"width": 4}, inputs=X3))
    assert "model.layer.weight [5, 3] for [4, 3]" in message


@pytest.mark.filterwarnings("ignore")
def test_the_network_inside_a_lightning_module_is_taken_by_its_prefix(
    lightning_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss has weights of its own, which are no part of it."""
    monkeypatch.chdir(lightning_run)
    inner = Override(model="./lit.py:Net", model_args={"width": 5}, inputs=X3)
    assert "--prefix model. takes those under it and leaves the others out" in refuse("last.ckpt", inner)
    loaded = checkpoint.load(Path("last.ckpt"), replace(inner, choice=Choice(prefix="model.")))
    assert (loaded.proof.loaded, loaded.proof.outside, loaded.proof.prefix) == (2, 1, "model.")
    assert loaded.card.architecture.kwargs == {"width": 5}


def test_recorded_arguments_go_to_a_lightning_module_alone(tmp_path: Path) -> None:
    content = {"state_dict": linear(), "hyper_parameters": {"in_features": 9, "out_features": 9}}
    assert checkpoint.load(saved(tmp_path / "a.ckpt", content), LINEAR).proof.loaded == 2


def test_recorded_arguments_that_the_module_does_not_take_are_left_out(
    lightning_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lightning_run)
    content = torch.load("last.ckpt", weights_only=True)
    content["hyper_parameters"] |= {"other": 3, "unused": torch.ones(1)}
    loaded = checkpoint.load(saved(tmp_path / "a.ckpt", content), Override(model="./lit.py:Lit", inputs=X3))
    assert loaded.card.architecture.kwargs == {"width": 5, "rate": 0.5}


@pytest.fixture(scope="session")
def mobilenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of weights of torchvision's smallest MobileNet, as training scripts write it. Read only."""
    torchvision = pytest.importorskip("torchvision")
    path = tmp_path_factory.mktemp("torchvision") / "mobilenet.pth"
    return saved(path, {"model": torchvision.models.mobilenet_v3_small().state_dict(), "epoch": 1})


MOBILENET = Override(model="torchvision:mobilenet_v3_small")


def test_of_a_torchvision_model_the_input_labels_and_preprocessing_are_known(mobilenet: Path) -> None:
    loaded = checkpoint.load(mobilenet, MOBILENET)
    assert [str(tensor) for tensor in loaded.card.signature.inputs] == ["image:float32[batch,3,224,224]"]
    assert [str(tensor) for tensor in loaded.card.signature.outputs] == ["output:float32[batch,1000]"]
    assert (len(loaded.card.labels or ()), loaded.card.task, loaded.kind) == (1000, "classification", "weights")
    assert loaded.card.preprocess is not None
    assert (loaded.card.preprocess.input, loaded.card.preprocess.height) == ("image", 224)
    assert loaded.card.name == "mobilenet"


def test_an_input_of_the_users_drops_what_no_longer_fits_and_keeps_the_rest(mobilenet: Path) -> None:
    smaller = checkpoint.load(mobilenet, replace(MOBILENET, inputs=("image:float32[batch,3,64,64]",))).card
    assert smaller.preprocess is None
    assert len(smaller.labels or ()) == 1000
    renamed = checkpoint.load(mobilenet, replace(MOBILENET, inputs=("x:float32[n,3,224,224]",))).card
    assert (renamed.preprocess, renamed.signature.batch) == (None, "n")


def test_a_segmentation_model_s_labels_are_of_the_axis_behind_the_batch(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    name = "lraspp_mobilenet_v3_large"
    path = saved(
        tmp_path / "a.pth", torchvision.models.get_model(name, weights=None, weights_backbone=None).state_dict()
    )
    held = checkpoint.load(path, Override(model=f"torchvision:{name}")).card
    assert [str(tensor) for tensor in held.signature.outputs] == ["out:float32[batch,21,520,520]"]
    assert (held.task, len(held.labels or ())) == ("segmentation", 21)
    smaller = Override(model=f"torchvision:{name}", inputs=("image:float32[batch,3,64,64]",))
    held = checkpoint.load(path, smaller).card
    assert (held.task, len(held.labels or ()), held.preprocess) == ("segmentation", 21, None)


def test_a_torchvision_model_of_other_classes_has_no_labels(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    state = torchvision.models.mobilenet_v3_small(num_classes=7).state_dict()
    path = saved(tmp_path / "a.pth", state)
    message = refuse(str(path), MOBILENET)
    assert message.endswith("its 'classifier.3' has 7 outputs: if these are classes, give --model-args num_classes=7")
    loaded = checkpoint.load(path, replace(MOBILENET, model_args={"num_classes": 7}))
    assert (loaded.card.labels, loaded.card.task) == (None, "classification")
    assert loaded.card.preprocess is not None
    assert loaded.card.architecture.kwargs == {"num_classes": 7}


def test_a_timm_checkpoint_is_taken_with_its_averaged_weights(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    plain, average = (timm.create_model("test_resnet").state_dict() for _ in range(2))
    path = saved(tmp_path / "a.pth.tar", {"arch": "test_resnet", "state_dict": plain, "state_dict_ema": average})
    loaded = checkpoint.load(path, Override(model="timm:test_resnet"))
    assert (loaded.proof.wrapper, loaded.card.name) == ("state_dict_ema", "a")
    assert torch.equal(loaded.module.state_dict()["conv1.0.weight"], average["conv1.0.weight"])
    assert loaded.card.preprocess is not None
    (image,) = loaded.card.signature.inputs
    assert image.shape[1:] == (3, loaded.card.preprocess.height, loaded.card.preprocess.width)


TINY = {
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 12,
}


@pytest.fixture(scope="session")
def transformers_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that save_pretrained wrote: a classifier, and a language model with tied weights. Read only."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("transformers")
    named = transformers.BertConfig(**TINY, id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
    transformers.BertForSequenceClassification(named).save_pretrained(folder / "tone")
    transformers.BertForMaskedLM(transformers.BertConfig(**TINY)).save_pretrained(folder / "words")
    return folder


def test_a_transformers_folder_says_all_of_itself(transformers_folders: Path) -> None:
    folder = transformers_folders / "tone"
    loaded = checkpoint.load(folder)
    assert loaded.card.architecture.target == f"transformers:{folder}"
    assert [str(tensor) for tensor in loaded.card.signature.inputs] == [
        "input_ids:int64[batch,seq]",
        "attention_mask:int64[batch,seq]",
        "token_type_ids:int64[batch,seq]",
    ]
    assert [str(tensor) for tensor in loaded.card.signature.outputs] == ["logits:float32[batch,2]"]
    assert loaded.card.signature.ranges["input_ids"] == Range(low=0, high=29)
    assert loaded.card.signature.dims["seq"].max == 12
    assert (loaded.card.labels, loaded.card.task, loaded.card.name) == (("bad", "good"), "classification", "tone")
    assert loaded.proof.loaded == loaded.proof.expected
    assert loaded.sha256 == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    ids = torch.ones(1, 5, dtype=torch.int64)
    with torch.inference_mode():
        expected = loaded.module(input_ids=ids, token_type_ids=ids * 0, attention_mask=ids).logits
        assert torch.equal(loaded.adapted()(ids, ids, ids * 0), expected)


def test_tied_weights_that_save_pretrained_left_out_are_filled(transformers_folders: Path) -> None:
    loaded = checkpoint.load(transformers_folders / "words", Override(dims={"seq": Dim(opt=4, max=8)}))
    assert loaded.proof.tied >= 1
    assert loaded.proof.loaded == loaded.proof.expected
    held = loaded.module.state_dict()
    assert torch.equal(held["cls.predictions.decoder.weight"], held["bert.embeddings.word_embeddings.weight"])
    assert loaded.card.signature.dims["seq"] == Dim(opt=4, max=8)


def test_a_transformers_folder_without_weights_says_so(transformers_folders: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((transformers_folders / "tone" / "config.json").read_bytes())
    assert "a transformers folder without one of model.safetensors, pytorch_model.bin" in refusal(tmp_path, Override())


def test_a_safetensors_file_is_one_of_weights(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    path = tmp_path / "a.safetensors"
    library.save_file(linear(), path)
    loaded = checkpoint.load(path, LINEAR)
    assert (loaded.kind, loaded.proof.loaded, loaded.card.name) == ("weights", 2, "a")
    assert all(torch.equal(tensor, linear()[name]) for name, tensor in loaded.module.state_dict().items())


WHOLE = "--model-args, --ema, --key, --prefix and --allow-partial: the file holds a "


@pytest.mark.filterwarnings("ignore")
def test_a_torchscript_file_is_the_model_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.jit.script(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.9))).save(path)
    assert "names no inputs" in refusal(path, Override())
    loaded = checkpoint.load(path, Override(inputs=("x:float32[batch,3]",)))
    assert (loaded.kind, loaded.card.architecture.target, loaded.proof.loaded) == ("torchscript", "torchscript", 2)
    assert [str(tensor) for tensor in loaded.card.signature.outputs] == ["output:float32[batch,2]"]
    assert "--model torch.nn:Linear: the file is a whole program; leave --model out" in refusal(path)
    for changes in ({"model_args": {"a": 1}}, {"choice": Choice(ema=True)}, {"choice": Choice(partial=("a",))}):
        assert f"{WHOLE}whole program" in refusal(path, Override(inputs=X3, **changes))


def test_an_exported_program_says_its_inputs_and_their_ranges(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"scores": self.layer(x) + y, "sums": x.sum(1)}

    batch = torch.export.Dim("rows", min=2, max=6)
    program = torch.export.export(
        Net().eval(), (torch.ones(3, 3),), {"y": torch.ones(3, 2)}, dynamic_shapes={"x": {0: batch}, "y": {0: batch}}
    )
    path = tmp_path / "a.pt2"
    torch.export.save(program, path)
    loaded = checkpoint.load(path)
    assert (loaded.kind, loaded.card.architecture.target, loaded.proof.loaded) == ("exported", "exported", 2)
    assert [str(tensor) for tensor in loaded.card.signature.inputs] == ["x:float32[batch,3]", "y:float32[batch,2]"]
    assert [str(tensor) for tensor in loaded.card.signature.outputs] == [
        "scores:float32[batch,2]",
        "sums:float32[batch]",
    ]
    assert loaded.card.signature.dims == {"batch": Dim(min=2, opt=6, max=6)}
    scores, sums = loaded.adapted()(torch.ones(5, 3), torch.ones(5, 2))
    assert (tuple(scores.shape), sums.tolist()) == ((5, 2), [3.0] * 5)
    assert f"{WHOLE}whole program" in refusal(path, Override(choice=Choice(key="a")))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_pickled_module_is_the_model_where_that_is_allowed(tmp_path: Path, wrapped: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.9)).half()
    path = saved(tmp_path / "a.pth", {"model": module, "epoch": 1} if wrapped else module)
    assert "needs pickled code (torch.nn.modules.container.Sequential" in refusal(path, Override(inputs=X3))
    allowed = Override(inputs=X3, allow_pickle=True)
    said: list[str] = []
    loaded = checkpoint.load(path, allowed, said.append)
    assert (loaded.card.architecture.target, loaded.kind) == (
        "torch.nn.modules.container:Sequential",
        "weights" if wrapped else "module",
    )
    assert (loaded.proof.loaded, loaded.proof.wrapper) == (2, "model" if wrapped else "")
    assert loaded.module[0].weight.dtype == torch.float32
    assert not loaded.module.training
    assert len(said) == 1
    assert f"{WHOLE}pickled module" in refusal(path, replace(allowed, choice=Choice(prefix="0.")))


def test_a_pickled_module_gives_its_weights_to_the_class_that_the_user_names(tmp_path: Path) -> None:
    torch.manual_seed(2)
    path = saved(tmp_path / "a.pth", {"ema": nn.Linear(3, 2), "model": nn.Linear(3, 2)})
    loaded = checkpoint.load(path, replace(LINEAR, allow_pickle=True))
    assert (loaded.card.architecture.target, loaded.proof.wrapper) == ("torch.nn:Linear", "ema")
    torch.manual_seed(2)
    assert torch.equal(loaded.module.weight, nn.Linear(3, 2).weight)


NET_FILE = "from torch import nn\n\nclass Net(nn.Linear):\n    def __init__(self):\n        super().__init__(3, 2)\n"


def test_the_weights_of_a_pickled_module_go_into_the_class_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET_FILE)
    whole = nn.Linear(3, 2)
    override = replace(LINEAR, model=f"{tmp_path}/net.py:Net", model_args={}, allow_pickle=True)
    found = checkpoint.load(saved(tmp_path / "whole.pth", whole), override)
    assert type(found.module).__name__ == "Net"
    assert torch.equal(found.module.get_parameter("weight"), whole.weight)
    assert found.proof.loaded == 2


def test_two_inputs_of_one_name_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", linear())
    with pytest.raises(PenstockError, match=r"--input: tensor names must differ, not x, x"):
        checkpoint.load(path, replace(LINEAR, inputs=("x:float32[batch,3]", "x:float32[batch,3]")))


def test_a_model_made_for_one_size_of_batch_is_met_with_that_size(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        NET_FILE + "        self.register_buffer('more', __import__('torch').ones(4, 2))\n"
        "    def forward(self, x):\n        return super().forward(x) + self.more\n"
    )
    path = saved(tmp_path / "a.pth", {**linear(), "more": torch.ones(4, 2)})
    override = replace(LINEAR, model=f"{tmp_path}/net.py:Net", model_args={}, batch=Dim(min=4, opt=4, max=4))
    signature = checkpoint.load(path, override).card.signature
    assert (signature.batch, signature.outputs[0].shape) == ("batch", ("batch", 2))


@pytest.mark.parametrize("kept", ["buffer", "attribute", "nothing"])
def test_a_model_that_is_built_with_random_numbers_no_checkpoint_holds_is_refused(tmp_path: Path, kept: str) -> None:
    lines = {
        "buffer": "self.register_buffer('phase', torch.randn(2), persistent=False)",
        "attribute": "self.phase = torch.randn(2)",
        "nothing": "self.register_buffer('phase', torch.arange(2.0), persistent=False)",
    }
    (tmp_path / "net.py").write_text(
        "import torch\n" + NET_FILE + f"        {lines[kept]}\n"
        "    def forward(self, x):\n        return super().forward(x) + self.phase\n"
    )
    override = replace(LINEAR, model=f"{tmp_path}/net.py:Net", model_args={})
    path = saved(tmp_path / "a.pth", linear())
    if kept == "nothing":
        assert checkpoint.load(path, override).proof.loaded == 2
        return
    with pytest.raises(
        PenstockError, match=r"phase of the model is drawn anew each time it is built.*persistent buffer"
    ):
        checkpoint.load(path, override)


def test_looking_at_a_model_leaves_it_as_it_was_loaded(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        NET_FILE + "    def forward(self, x):\n        self.weight.data.mul_(2)\n        return super().forward(x)\n"
    )
    held = linear()
    found = checkpoint.load(
        saved(tmp_path / "a.pth", held), replace(LINEAR, model=f"{tmp_path}/net.py:Net", model_args={})
    )
    assert torch.equal(found.module.get_parameter("weight"), held["weight"])


def test_a_script_that_writes_the_checkpoint_when_it_is_imported_is_caught(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", linear())
    (tmp_path / "net.py").write_text(
        NET_FILE + f"import torch\ntorch.save(dict(Net().state_dict(), more=torch.ones(9)), {str(path)!r})\n"
    )
    with pytest.raises(PenstockError, match=r"was changed while it was being read.*__main__"):
        checkpoint.load(path, replace(LINEAR, model=f"{tmp_path}/net.py:Net", model_args={}))


def test_a_model_without_inputs_is_told_what_its_forward_takes(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"names no inputs; .*; its forward takes input$"):
        checkpoint.load(saved(tmp_path / "a.pth", linear()), replace(LINEAR, inputs=()))
