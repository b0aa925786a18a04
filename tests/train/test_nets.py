"""Networks: their shapes, and that a checkpoint may rebuild them by name and arguments alone."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from penstock import architecture, card
from penstock.architecture import Architecture
from penstock.train import nets
from penstock.train.nets import ResidualNet


@pytest.mark.parametrize("widths", [(4,), (4, 8), (4, 8, 8)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 13])
def test_logits_have_one_row_for_each_image_and_one_column_for_each_class(
    widths: tuple[int, ...], channels: int, size: int
) -> None:
    net = ResidualNet(channels, widths, classes=7).eval()
    assert net(torch.zeros(3, channels, size, size)).shape == (3, 7)


def test_every_stage_but_the_first_halves_the_image() -> None:
    net = ResidualNet(1, (2, 3, 4))
    assert net.blocks(net.stem(torch.zeros(1, 1, 16, 16))).shape == (1, 4, 4, 4)


def test_an_answer_does_not_depend_on_the_other_rows() -> None:
    torch.manual_seed(0)
    net, images = ResidualNet(1, (4, 8)).eval().double(), torch.randn(4, 1, 8, 8, dtype=torch.float64)
    alone = torch.cat([net(image[None]) for image in images])
    assert torch.allclose(net(images), alone, rtol=0, atol=1e-12)


def test_a_network_learns_from_every_parameter() -> None:
    torch.manual_seed(0)
    net = ResidualNet(1, (4, 8), classes=3)
    net(torch.randn(4, 1, 8, 8)).square().sum().backward()
    still = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not still


def test_arguments_from_json_build_the_same_network() -> None:
    kwargs = {"channels": 1, "widths": [4, 8], "classes": 3}
    built = architecture.build(Architecture(target=f"{card.TRUSTED}:ResidualNet", kwargs=kwargs))
    built.load_state_dict(ResidualNet(1, (4, 8), 3).state_dict())
    assert not built.training


def test_every_class_and_function_defined_here_is_a_network() -> None:
    defined = [value for value in vars(nets).values() if getattr(value, "__module__", None) == nets.__name__]
    assert ResidualNet in defined
    assert all(inspect.isclass(value) and issubclass(value, nn.Module) for value in defined)
