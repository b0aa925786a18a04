"""Depths: which block of each family of networks a parameter lies in, counted from the head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from penstock.train.depths import depths
from penstock.train.nets import ResidualNet


def test_a_residual_net_of_penstock_s_has_its_stem_below_its_blocks() -> None:
    found = depths(ResidualNet(1, (4, 8, 8), classes=3))
    assert {name: found[name] for name in ("head.weight", "head.bias")} == {"head.weight": 0, "head.bias": 0}
    assert [found[f"blocks.{i}.conv2.weight"] for i in range(3)] == [3, 2, 1]
    assert found["blocks.1.shortcut.0.weight"] == 2
    assert found["stem.0.weight"] == found["stem.1.bias"] == 4


def test_every_parameter_has_a_depth() -> None:
    net = ResidualNet(1, (4, 8), classes=3)
    assert list(depths(net)) == [name for name, _ in net.named_parameters()]


@pytest.mark.parametrize(("name", "blocks"), [("resnet18", [2, 2, 2, 2]), ("resnet50", [3, 4, 6, 3])])
def test_a_resnet_of_torchvision_s_has_the_blocks_of_its_stages(name: str, blocks: list[int]) -> None:
    models = pytest.importorskip("torchvision.models")
    found = depths(models.get_model(name, num_classes=5))
    most = sum(blocks) + 1
    assert found["fc.weight"] == 0
    assert found["conv1.weight"] == found["bn1.weight"] == most
    order = [(stage, block) for stage, count in enumerate(blocks, 1) for block in range(count)]
    for number, (stage, block) in enumerate(order, 1):
        assert found[f"layer{stage}.{block}.conv1.weight"] == most - number
    assert found["layer2.0.downsample.0.weight"] == found["layer2.0.conv1.weight"]


def test_a_vision_transformer_of_torchvision_s_has_its_tokens_below_and_its_last_norm_in_the_head() -> None:
    torchvision = pytest.importorskip("torchvision")
    net = torchvision.models.VisionTransformer(32, 16, 2, 2, 8, 16, num_classes=3)
    found = depths(net)
    assert found["heads.head.weight"] == found["encoder.ln.weight"] == 0
    assert found["encoder.layers.encoder_layer_1.mlp.0.weight"] == 1
    assert found["encoder.layers.encoder_layer_0.self_attention.in_proj_weight"] == 2
    assert found["class_token"] == found["conv_proj.weight"] == found["encoder.pos_embedding"] == 3


def test_stages_within_stages_are_taken_apart() -> None:
    models = pytest.importorskip("torchvision.models")
    found = depths(models.get_model("convnext_tiny", num_classes=3))
    assert found["classifier.2.weight"] == 0
    assert found["features.7.2.block.0.weight"] == 1
    assert found["features.7.0.block.0.weight"] == 3
    assert found["features.6.1.weight"] == 4  # what halves the picture between two stages
    assert found["features.0.0.weight"] == 22  # 18 blocks, 3 between stages, and the stem, itself a block


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "convnext_atto"])
def test_a_network_of_timm_s_says_itself(name: str) -> None:
    timm = pytest.importorskip("timm")
    from timm.optim._param_groups import param_groups_layer_decay

    net = timm.create_model(name, num_classes=3)
    found = depths(net)
    theirs = {
        id(parameter): group["lr_scale"]
        for group in param_groups_layer_decay(net, layer_decay=0.5)
        for parameter in group["params"]
    }
    for parameter_name, parameter in net.named_parameters():
        assert 0.5 ** found[parameter_name] == theirs[id(parameter)], parameter_name


def test_a_bert_has_its_embeddings_below_its_layers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16
    )

    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertModel(config)
            self.head = nn.ModuleList([nn.Conv1d(8, 4, size) for size in (2, 3)])
            self.classifier = nn.Linear(8, 2)

    found = depths(Headed())
    assert found["classifier.weight"] == found["head.1.weight"] == found["bert.pooler.dense.weight"] == 0
    for layer in range(3):
        assert found[f"bert.encoder.layer.{layer}.attention.self.query.weight"] == 3 - layer
        assert found[f"bert.encoder.layer.{layer}.output.LayerNorm.bias"] == 3 - layer
    assert found["bert.embeddings.word_embeddings.weight"] == found["bert.embeddings.LayerNorm.weight"] == 4


def test_a_network_without_blocks_counts_its_layers() -> None:
    mlp = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    assert depths(mlp) == {
        "0.weight": 2, "0.bias": 2, "1.weight": 2, "1.bias": 2, "3.weight": 1, "3.bias": 1, "5.weight": 0, "5.bias": 0,
    }  # fmt: skip


def test_an_mlp_whose_layers_are_wrapped_with_their_norms_counts_the_wrappings() -> None:
    def layer(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU())

    headed = nn.Sequential(nn.Sequential(layer(4, 8), layer(8, 8)), nn.Linear(8, 2))
    assert depths(headed)["0.0.0.weight"] == depths(headed)["0.0.1.bias"] == 2
    assert depths(headed)["0.1.0.weight"] == 1
    assert depths(headed)["1.weight"] == 0
    headless = nn.Sequential(layer(4, 8), layer(8, 2))
    assert depths(headless)["1.0.weight"] == 0
    assert depths(headless)["0.0.weight"] == 1


def test_parallel_convolutions_are_one_layer_and_a_recurrent_one_is_too() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.embedding = nn.Embedding(9, 4)
            self.convolutions = nn.ModuleList([nn.Conv1d(4, 4, size) for size in (3, 4, 5)])
            self.memory = nn.LSTM(4, 4, num_layers=2)
            self.head = nn.Linear(4, 2)

    found = depths(Words())
    assert found["embedding.weight"] == found["scale"] == 3
    assert {found[f"convolutions.{i}.{kind}"] for i in range(3) for kind in ("weight", "bias")} == {2}
    assert found["memory.weight_ih_l0"] == found["memory.bias_hh_l1"] == 1
    assert found["head.weight"] == 0


def test_a_weight_kept_in_parts_is_no_block() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    found = depths(net)
    assert found["0.weight"] == 2
    assert found["2.weight"] == 0
    assert found["1.parametrizations.weight.original1"] == 1


def test_a_network_without_parameters_has_no_depths() -> None:
    assert depths(nn.Sequential(nn.ReLU())) == {}
