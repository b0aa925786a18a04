"""Networks for pictures: their shapes, and RepVGG's branches merged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from penstock import architecture, card, checkpoint
from penstock.architecture import Architecture
from penstock.errors import PenstockError
from penstock.export import fusion, pipeline
from penstock.export.pipeline import Request
from penstock.train.nets import RepVggNet, ResidualNet

BLOCKS = 5


@pytest.mark.parametrize("widths", [(4,), (4, 8), (4, 8, 8)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 13])
def test_logits_have_one_row_for_each_image_and_one_column_for_each_class(
    widths: tuple[int, ...], channels: int, size: int
) -> None:
    for net in (ResidualNet(channels, widths, classes=7), RepVggNet(channels, widths, (1,) * len(widths), classes=7)):
        assert net.eval()(torch.zeros(3, channels, size, size)).shape == (3, 7)


def test_every_stage_but_the_first_halves_the_image() -> None:
    net = ResidualNet(1, (2, 3, 4))
    assert net.blocks(net.stem(torch.zeros(1, 1, 16, 16))).shape == (1, 4, 4, 4)
    assert RepVggNet(1, (2, 3, 4), (2, 1, 2)).blocks(torch.zeros(1, 1, 16, 16)).shape == (1, 4, 4, 4)


@pytest.mark.parametrize("make", [ResidualNet, RepVggNet])
def test_an_answer_does_not_depend_on_the_other_rows(make: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    net, images = make().eval().double(), torch.randn(4, 1, 8, 8, dtype=torch.float64)
    alone = torch.cat([net(image[None]) for image in images])
    assert torch.allclose(net(images), alone, rtol=0, atol=1e-12)


def test_arguments_from_json_build_the_same_network() -> None:
    kwargs = {"channels": 1, "widths": [4, 8], "classes": 3}
    built = architecture.build(Architecture(target=f"{card.TRUSTED}:ResidualNet", kwargs=kwargs))
    built.load_state_dict(ResidualNet(1, (4, 8), 3).state_dict())
    assert not built.training


def test_checkpoints_of_earlier_versions_know_the_same_names() -> None:
    names = ["stem.0.weight", *(f"stem.1.{part}" for part in NORM)]
    for block in (0, 1):
        for place in (1, 2):
            names += [f"blocks.{block}.conv{place}.weight", *(f"blocks.{block}.norm{place}.{part}" for part in NORM)]
    names += ["blocks.1.shortcut.0.weight", *(f"blocks.1.shortcut.1.{part}" for part in NORM)]
    assert list(ResidualNet(1, (4, 8)).state_dict()) == [*names, "head.weight", "head.bias"]


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


# --- RepVGG ----------------------------------------------------------------------------------------------------------


def test_stages_and_their_depths_go_together() -> None:
    made = Architecture(target=f"{card.TRUSTED}:RepVggNet", kwargs={"widths": [4, 8], "depths": [1]})
    with pytest.raises(PenstockError, match="widths has 2 stages and depths has 1"):
        architecture.build(made)


@pytest.fixture(scope="module")
def repvgg(learn: Callable[..., Any]) -> Any:
    return learn(f"{card.TRUSTED}:RepVggNet", {"widths": [8, 16], "depths": [3, 2]}, "images", steps=10)


def test_merged_branches_answer_the_same_and_merging_twice_is_merging_once(repvgg: Any) -> None:
    images = repvgg.held_out.tensors()[0].double()
    net = checkpoint.load(repvgg.checkpoint).module.double()
    with torch.inference_mode():
        expected = net(images)
        for _ in range(2):
            for block in net.blocks:
                block.reparameterize()
            torch.testing.assert_close(net(images), expected, rtol=0, atol=1e-12)
    kinds = [type(part) for part in net.modules() if not list(part.children())]
    assert kinds == [*[nn.Conv2d] * BLOCKS, nn.Linear]


def test_export_merges_every_block(repvgg: Any) -> None:
    fused = fusion.fuse(repvgg.net, tuple(repvgg.held_out.tensors()))
    assert (fused.reparameterised, fused.note) == (BLOCKS, None)


def test_an_exported_network_is_one_convolution_for_each_block(repvgg: Any, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    (found,) = pipeline.export(Request(repvgg.checkpoint, output=tmp_path), lambda line: None)
    kinds = [node.op_type for node in onnx.load(found.model_path).graph.node]
    assert kinds.count("Conv") == kinds.count("Relu") == BLOCKS
    assert not {"Add", "BatchNormalization"} & set(kinds)
    with found.load() as runner:
        (got,) = runner.run(repvgg.held_out.inputs).values()
    with torch.inference_mode():
        expected = repvgg.net(*repvgg.held_out.tensors())
    torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-4, atol=1e-4)
