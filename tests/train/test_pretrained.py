"""Starting weights: all of a file's trunk or nothing, and a head of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from penstock import architecture
from penstock.errors import PenstockError
from penstock.train import pretrained
from penstock.train.nets import Mlp, Rescaled, ResidualNet

SMALL = {
    "vocab_size": 48,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}


@pytest.fixture
def source() -> ResidualNet:
    torch.manual_seed(1)
    return ResidualNet(1, (4, 8), classes=5)


@pytest.fixture
def file(source: ResidualNet, tmp_path: Path) -> Path:
    path = tmp_path / "file.pth"
    torch.save({"state_dict": source.state_dict()}, path)
    return path


def trunk(net: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in net.state_dict().items() if not name.startswith("head")}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_file_of_the_same_network_is_loaded_whole(source: ResidualNet, file: Path) -> None:
    net = ResidualNet(1, (4, 8), classes=5)
    start = pretrained.start(net, file)
    assert same(net.state_dict(), source.state_dict())
    assert (start.left_out, start.proof.initial) == ((), ())
    count = len(net.state_dict())
    assert str(start) == f"{count} of {count} tensors loaded, from 'state_dict'"


def test_a_head_for_other_classes_is_left_new_whole_and_named(source: ResidualNet, file: Path) -> None:
    net = ResidualNet(1, (4, 8), classes=3)
    before = net.head.weight.clone()
    start = pretrained.start(net, file)
    assert same(trunk(net), trunk(source))
    assert torch.equal(net.head.weight, before)
    assert start.proof.initial == start.left_out == ("head.weight", "head.bias")
    assert str(start).endswith("; a new head: head.weight, head.bias; left out of the file: head.weight, head.bias")


def test_a_file_without_a_head_or_with_one_of_another_name_gives_its_trunk(source: ResidualNet, tmp_path: Path) -> None:
    path = tmp_path / "file.pth"
    for more in ({}, {"projector.0.weight": torch.ones(2, 2), "projector.0.bias": torch.ones(2)}):
        torch.save({**{f"module.{name}": value for name, value in {**trunk(source), **more}.items()}}, path)
        net = ResidualNet(1, (4, 8), classes=5)
        start = pretrained.start(net, path)
        assert same(trunk(net), trunk(source))
        assert start.proof.initial == ("head.weight", "head.bias")
        assert start.left_out == tuple(more)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda held: held.pop("blocks.0.conv1.weight"), r"1 missing \(blocks.0.conv1.weight\); only a head"),
        (
            lambda held: held.update({"stem.0.weight": torch.ones(3, 1, 3, 3)}),
            r"stem.0.weight \[3, 1, 3, 3\] for \[4, 1",
        ),
        (lambda held: held.update({"blocks.2.conv1.weight": torch.ones(1)}), "1 of its tensors have no place"),
        (lambda held: held.update({"blocks.0.conv1.bias": torch.ones(4)}), "1 of its tensors have no place"),
        (lambda held: held.update({"blocks.0.shortcut.0.weight": torch.ones(1)}), "1 of its tensors have no place"),
        (lambda held: [held.pop(name) for name in list(held) if not name.startswith("stem")], "are not those of"),
    ],
)
def test_a_file_of_another_trunk_is_refused_and_the_network_left_as_it_was(
    source: ResidualNet, file: Path, change: Any, said: str
) -> None:
    held = source.state_dict()
    change(held)
    torch.save({"state_dict": held}, file)
    net = ResidualNet(1, (4, 8), classes=5)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(PenstockError, match=said) as caught:
        pretrained.start(net, file)
    assert str(caught.value).startswith(f"weights {file}: ")
    assert same(net.state_dict(), before)


def test_networks_with_and_without_a_unit_start_from_each_other(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inner = {"target": "penstock.train.nets:Mlp", "kwargs": {"features": 4, "widths": [8], "classes": 1}}
    one, other = Rescaled(inner, 5.0, 2.0), Mlp(4, (8,), classes=1)
    path = tmp_path / "file.pth"
    torch.save(one.state_dict(), path)
    pretrained.start(other, path)
    assert same(other.state_dict(), one.net.state_dict())
    torch.save(Mlp(4, (8,), classes=1).state_dict(), path)
    pretrained.start(one, path)
    assert same(one.net.state_dict(), torch.load(path, weights_only=True))


def test_a_network_of_torchvisions_gets_a_new_head(tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision").models
    path = tmp_path / "file.pth"
    torch.save(models.resnet18(num_classes=4).state_dict(), path)
    start = pretrained.start(models.resnet18(num_classes=3), path)
    assert start.proof.initial == start.left_out == ("fc.weight", "fc.bias")
    with pytest.raises(PenstockError, match="are not those of ResNet"):
        pretrained.start(models.resnet50(num_classes=4), path)
    with pytest.raises(PenstockError, match="are not those of ResNet"):
        pretrained.start(models.resnet34(num_classes=4), path)
    torch.save(models.resnet34(num_classes=4).state_dict(), path)
    with pytest.raises(PenstockError, match="of its tensors have no place in ResNet"):
        pretrained.start(models.resnet18(num_classes=4), path)


def test_what_would_run_code_or_holds_no_weights_is_refused(tmp_path: Path) -> None:
    net, path = Mlp(4, (8,)), tmp_path / "file.pth"
    torch.save(net, path)
    with pytest.raises(PenstockError, match=r"file\.pth"):
        pretrained.start(net, path)
    torch.jit.script(nn.Linear(2, 2)).save(path)
    with pytest.raises(PenstockError, match=r"file.pth: holds a whole program; give a file of weights alone"):
        pretrained.start(net, path)
    with pytest.raises(PenstockError, match="no such file"):
        pretrained.start(net, tmp_path / "none.pth")


# --- A local transformers folder -------------------------------------------------------------------------------------


@pytest.fixture
def theirs(tmp_path: Path) -> tuple[Path, Any]:
    """A folder as save_pretrained writes it, and the model that it is of, with two classes."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL)).eval()
    model.save_pretrained(tmp_path)
    return tmp_path, model


def test_a_folder_of_a_classifier_is_rebuilt_with_its_head(theirs: tuple[Path, Any]) -> None:
    folder, model = theirs
    net = architecture.build(pretrained.from_folder(folder))
    start = pretrained.start(net, folder)
    assert (start.left_out, start.proof.initial) == ((), ())
    ids, mask = torch.randint(0, 48, (4, 9)), torch.ones(4, 9, dtype=torch.int64)
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=mask).logits
        torch.testing.assert_close(net(ids, mask), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("head", ["cnn", "lstm", "gru"])
def test_another_head_stays_new_and_the_pooler_is_left_out(theirs: tuple[Path, Any], head: str) -> None:
    folder, model = theirs
    net = architecture.build(pretrained.from_folder(folder, head, classes=3))
    start = pretrained.start(net, folder)
    encoder = {name: value for name, value in model.state_dict().items() if "bert." in name and "pooler" not in name}
    assert same({name: net.state_dict()[name] for name in encoder}, encoder)
    assert set(start.left_out) == {name for name in model.state_dict() if name not in encoder}
    assert all(name.startswith(("head.", "classifier.")) for name in start.proof.initial)


def test_an_encoder_alone_under_its_old_names_is_understood(theirs: tuple[Path, Any]) -> None:
    folder, model = theirs
    old = {"weight": "gamma", "bias": "beta"}
    held = {"embeddings.position_ids": torch.arange(32)[None], "cls.predictions.bias": torch.zeros(48)}
    for name, value in model.bert.state_dict().items():
        first, _, last = name.rpartition(".")
        held[f"{first}.{old[last]}" if first.endswith("LayerNorm") else name] = value
    (folder / "model.safetensors").unlink()
    torch.save(held, folder / "pytorch_model.bin")
    net = architecture.build(pretrained.from_folder(folder, classes=3))
    start = pretrained.start(net, folder)
    assert start.proof.initial == ("classifier.weight", "classifier.bias")
    assert start.left_out == ("bert.cls.predictions.bias",)
    got = {name.removeprefix("bert."): value for name, value in net.state_dict().items() if name.startswith("bert.")}
    assert same(got, model.bert.state_dict())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta'; it must be 'bert'"),
        ([], "model_type is None"),
        ({"model_type": "bert", "position_embedding_type": "relative_key"}, "its positions are 'relative_key'"),
        ({"model_type": "bert", "is_decoder": True}, "must be an encoder"),
    ],
)
def test_a_folder_of_another_kind_is_refused(tmp_path: Path, content: Any, said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(PenstockError, match=said):
        pretrained.from_folder(tmp_path)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"config.json: cannot be read \(No such file or directory\)"):
        pretrained.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PenstockError, match=r"config.json: is no JSON"):
        pretrained.from_folder(tmp_path)


def test_weights_that_are_not_there_are_told_by_their_field(source: ResidualNet, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=rf"^weights {tmp_path}/no.pth: no such file; give the weights to begin"):
        pretrained.start(source, tmp_path / "no.pth")
