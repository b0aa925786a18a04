"""Fully connected networks: their layers, and that their norms vanish in export."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from penstock import architecture, card
from penstock.architecture import Architecture
from penstock.errors import PenstockError
from penstock.export import fusion
from penstock.train.nets import Mlp


@pytest.mark.parametrize("widths", [(), (4,), (8, 4)])
def test_every_width_is_a_hidden_layer(widths: tuple[int, ...]) -> None:
    net = Mlp(6, widths, classes=3).eval()
    sizes = [(layer.in_features, layer.out_features) for layer in net.modules() if isinstance(layer, nn.Linear)]
    assert sizes == list(zip((6, *widths), (*widths, 3), strict=True))
    assert net(torch.zeros(2, 6)).shape == (2, 3)


@pytest.mark.parametrize(("norm", "kind"), [("batch", nn.BatchNorm1d), ("layer", nn.LayerNorm), ("none", nn.Identity)])
def test_a_norm_stands_in_every_hidden_layer(norm: str, kind: type[nn.Module]) -> None:
    net = Mlp(6, (8, 4), norm=norm)  # type: ignore[arg-type]
    assert [type(block[1]) for block in net.blocks] == [kind, kind]  # type: ignore[index]


def test_export_folds_every_batch_norm_into_its_layer() -> None:
    torch.manual_seed(0)
    net, rows = Mlp(6, (8, 4)), torch.randn(32, 6)
    net(rows)  # statistics of its own
    fused = fusion.fuse(net.eval(), (rows,))
    assert fused.pairs == 2
    torch.testing.assert_close(fused.module(rows), net(rows))


def test_a_norm_that_there_is_not_is_refused() -> None:
    with pytest.raises(PenstockError, match="norm is 'group'; it must be one of batch, layer, none"):
        architecture.build(Architecture(target=f"{card.TRUSTED}:Mlp", kwargs={"features": 3, "norm": "group"}))
