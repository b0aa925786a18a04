"""Answers in the target's unit, by a network that a checkpoint rebuilds unasked only where all of it is penstock's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from penstock import architecture, card, checkpoint
from penstock.architecture import Architecture
from penstock.checkpoint import Override
from penstock.errors import PenstockError
from penstock.signature import Dim, Signature, Tensor
from penstock.train.nets import Rescaled

MLP = {"target": f"{card.TRUSTED}:Mlp", "kwargs": {"features": 4, "widths": [8], "classes": 2}}
SCALE = {"mean": [100.0, -3.0], "std": [7.0, 0.5]}
OTHERS = "from torch import nn\n\ndef net(features=4):\n    return nn.Linear(features, 2)\n"


def wrapped(net: dict[str, Any], **kwargs: Any) -> Architecture:
    return Architecture(target=f"{card.TRUSTED}:Rescaled", kwargs={"net": net, **SCALE, **kwargs})


def saved(path: Path, made: Architecture) -> nn.Module:
    net = architecture.build(made)
    inputs, outputs = (Tensor.parse("row:float32[batch,4]"),), (Tensor.parse("value:float32[batch,2]"),)
    signature = Signature(inputs=inputs, outputs=outputs, dims={"batch": Dim(opt=8, max=64)})
    described = card.Card(name="net", architecture=made, signature=signature, task="regression")
    checkpoint.save(path, described, net.state_dict())
    return net


def test_every_column_has_its_unit_back() -> None:
    net = architecture.build(wrapped(MLP))
    assert isinstance(net, Rescaled)
    rows = torch.randn(5, 4)
    torch.testing.assert_close(net(rows), net.net(rows) * torch.tensor([7.0, 0.5]) + torch.tensor([100.0, -3.0]))


def test_one_number_is_for_all_columns() -> None:
    net, rows = Rescaled(MLP, mean=2, std=3.0).eval(), torch.randn(5, 4)
    torch.testing.assert_close(net(rows), net.net(rows) * 3 + 2)


def test_weights_are_for_any_unit() -> None:
    state = architecture.build(wrapped(MLP)).state_dict()
    assert all(name.startswith("net.") for name in state)
    other = architecture.build(wrapped(MLP, mean=0.0, std=1.0))
    other.load_state_dict(state)
    rows = torch.randn(5, 4)
    torch.testing.assert_close(other(rows), other.net(rows))


def test_what_the_network_inside_draws_is_of_the_seed() -> None:
    """As for every other architecture: a checkpoint is searched for what it does not hold by building it twice."""
    one, same, other = (architecture.build(wrapped(MLP), seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(one["net.head.weight"], same["net.head.weight"])
    assert not torch.equal(one["net.head.weight"], other["net.head.weight"])


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"std": [1.0, 0.0]}, r"std is \[1.0, 0.0\]; it must be finite and over 0"),
        ({"std": -1.0}, "std is -1.0; it must be finite and over 0"),
        ({"mean": [float("nan"), 0.0]}, r"mean is \[nan, 0.0\]; it must be finite"),
        ({"net": {"kwargs": {}}}, "target"),
    ],
)
def test_moments_and_networks_that_are_none_are_refused(kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        architecture.build(wrapped(**{"net": MLP, **kwargs}))


# --- Whose code a checkpoint has imported ----------------------------------------------------------------------------


def test_a_checkpoint_of_penstocks_own_networks_is_rebuilt_unasked(tmp_path: Path) -> None:
    path, rows = tmp_path / "net.pth", torch.randn(5, 4)
    net = saved(path, wrapped(MLP))
    assert torch.equal(checkpoint.load(path).module(rows), net(rows))


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of a network of somebody else's, rescaled."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(OTHERS)
    saved(tmp_path / "net.pth", wrapped({"target": "./net.py:net", "kwargs": {"features": 4}}))
    return tmp_path / "net.pth"


def test_a_network_of_somebody_elses_inside_is_refused_before_its_code_runs(theirs: Path) -> None:
    Path("net.py").write_text("raise SystemExit('it ran')")
    said = r"names the architecture './net.py:net', whose import would run its code; .* --model ./net.py:net$"
    with pytest.raises(PenstockError, match=said):
        checkpoint.load(theirs)


def test_to_trust_the_wrapper_is_not_to_trust_what_is_inside(theirs: Path) -> None:
    with pytest.raises(PenstockError, match=r"names the architecture './net.py:net'"):
        checkpoint.load(theirs, Override(model=f"{card.TRUSTED}:Rescaled"))


def test_somebody_elses_network_that_the_user_names_is_rebuilt_with_its_unit(theirs: Path) -> None:
    held = checkpoint.load(theirs, Override(model="./net.py:net"))
    assert isinstance(held.module, Rescaled)
    assert held.module.mean.tolist() == SCALE["mean"]
    assert held.proof.loaded == held.proof.expected == 2


def test_another_network_that_the_user_names_is_not_given_the_wrappers_arguments(theirs: Path) -> None:
    Path("other.py").write_text(OTHERS)
    with pytest.raises(PenstockError, match="2 missing"):
        checkpoint.load(theirs, Override(model="./other.py:net"))


def test_however_deep_and_however_odd_all_that_is_named_is_looked_at() -> None:
    deep = wrapped({"target": f"{card.TRUSTED}:Rescaled", "kwargs": {"net": {"target": "os:system"}}})
    assert card.targets(deep) == [deep.target, deep.target, "os:system"]
    listed = wrapped({"target": f"{card.TRUSTED}:Mlp", "kwargs": {"parts": [{"x": ({"target": 3},)}]}})
    assert card.targets(listed) == [listed.target, f"{card.TRUSTED}:Mlp", "3"]


def test_what_the_arguments_of_somebody_elses_class_mean_is_its_own_affair() -> None:
    assert card.targets(Architecture(target="./net.py:Net", kwargs={"loss": {"target": "x"}})) == ["./net.py:Net"]
