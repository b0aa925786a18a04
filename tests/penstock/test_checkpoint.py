"""Checkpoints: loaded as weights only, each tensor accounted for, and bad files refused by name."""

from __future__ import annotations

import hashlib
import os
import pickle
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


@pytest.mark.parametrize("name", ["torch", "Tensor", "nn", "__builtins__", "annotations"])
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
