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
from penstock.checkpoint import Card, Override
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess
from penstock.signature import Dim, Signature, Tensor

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
    assert "--model ./net.py:Net" in message
    assert "--input" in message


def test_a_checkpoint_that_names_no_inputs_asks_for_them(tmp_path: Path) -> None:
    override = Override(model="torch.nn:Linear", model_args=LINEAR.model_args)
    message = refusal(saved(tmp_path / "a.pth", linear()), override)
    assert "names no inputs" in message
    assert "--input image:float32[batch,3,224,224]" in message


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


@pytest.mark.parametrize("name", ["torch", "Tensor", "nn", "annotations"])
def test_only_networks_are_made_of_what_the_trusted_module_holds(tmp_path: Path, name: str) -> None:
    architecture = {"target": f"penstock.train.nets:{name}"}
    checkpoint.save(tmp_path / "a.pth", card(architecture=architecture), weights())
    with pytest.raises(PenstockError, match=r"not a torch\.nn\.Module"):
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
        ({"input": "picture"}, "its preprocessing makes 'picture' of [1, 8, 8]"),
        ({"height": 9}, "its preprocessing makes 'image' of [1, 9, 8]"),
        ({"width": 4}, "its preprocessing makes 'image' of [1, 8, 4]"),
        ({"mode": "RGB", "mean": (0.5,) * 3, "std": (0.5,) * 3}, "its preprocessing makes 'image' of [3, 8, 8]"),
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
