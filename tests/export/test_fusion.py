"""Fusion: exact for every layer it folds, and untouched where folding would change an answer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.export import fusion
from penstock.train.nets import ResidualNet

SIZES = {1: (9,), 2: (7, 6), 3: (5, 4, 6)}
NORMS: dict[int, Any] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """Parameters and running statistics that an identity or a missing term would be seen against."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            if part.running_mean is not None and part.running_var is not None:
                part.running_mean.copy_(torch.randn(part.num_features, generator=generator))
                part.running_var.copy_(torch.rand(part.num_features, generator=generator) * 4 + 0.05)
            if part.affine:
                with torch.no_grad():
                    part.weight.copy_(torch.randn(part.num_features, generator=generator))
                    part.bias.copy_(torch.randn(part.num_features, generator=generator))
    return module.eval()


def assert_same(module: nn.Module, *shape: int, pairs: int) -> nn.Module:
    """Fuse in float64 and in float32; the answers must be those of the module itself."""
    fused: nn.Module = nn.Identity()
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        typed = copy.deepcopy(module).to(dtype)
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        fused, found, reason = fusion.fuse(typed, (x,))
        assert (found, reason) == (pairs, None)
        with torch.inference_mode():
            expected, got = typed(x), fused(x)
        assert got.shape == expected.shape
        # float32 rounds each of some hundred products and sums: 1e-5 of the largest is about a hundred roundings.
        assert float((got - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max()))
    return fused


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_every_convolution_takes_its_norm_in_exactly(transposed: bool, dims: int, groups: int, bias: bool) -> None:
    layer: Any = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    module = nn.Sequential(layer(4, 12, 3, stride=2, padding=1, groups=groups, bias=bias), NORMS[dims](12))
    fused = assert_same(randomised(module), 2, 4, *SIZES[dims], pairs=1)
    assert not [part for part in fused.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_takes_its_norm_in_exactly(bias: bool) -> None:
    assert_same(randomised(nn.Sequential(nn.Linear(5, 7, bias=bias), nn.BatchNorm1d(7))), 6, 5, pairs=1)


def test_a_norm_without_weights_of_its_own_is_taken_in() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False, eps=0.1))
    assert_same(randomised(module), 2, 3, 7, 7, pairs=1)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_padding_of_any_kind_changes_nothing(mode: str) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, dilation=1, padding_mode=mode), nn.BatchNorm2d(4))
    assert_same(randomised(module), 2, 3, 7, 7, pairs=1)


def test_a_real_network_takes_all_its_norms_in() -> None:
    torch.manual_seed(0)
    fused = assert_same(randomised(ResidualNet(1, (4, 8, 8), 5)), 3, 1, 8, 8, pairs=9)
    assert not [part for part in fused.modules() if isinstance(part, nn.BatchNorm2d)]


def test_only_the_first_of_two_norms_is_taken_in() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4))
    assert_same(randomised(module), 2, 3, 7, 7, pairs=1)


def test_the_module_given_is_left_as_it_was() -> None:
    module = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    fusion.fuse(module)
    assert module.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


class Wired(nn.Module):
    """A convolution, a second one and a norm, wired by a function."""

    def __init__(self, wire: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.norm, self.same = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.alias = self.conv
        self.wire = wire

    def forward(self, x: Tensor) -> Tensor:
        return self.wire(self, x)


def two_readers(m: Any, x: Tensor) -> Tensor:
    y = m.conv(x)
    return m.norm(y) + y


UNFUSABLE = {
    "the convolution has two readers": two_readers,
    "the convolution is called twice": lambda m, x: m.norm(m.conv(x)) + m.conv(x * 2),
    "the convolution is called under another name too": lambda m, x: m.norm(m.conv(x)) + m.alias(x * 2),
    "the norm is called twice": lambda m, x: m.norm(m.conv(x)) + m.norm(m.other(x)),
    "something comes between": lambda m, x: m.norm(m.conv(x).relu()),
    "the norm comes first": lambda m, x: m.conv(m.norm(x)),
    "the weight is read elsewhere": lambda m, x: m.norm(m.conv(x)) + functional.conv2d(x, m.conv.weight, padding=1),
    "the weight is read by its other name": lambda m, x: m.norm(m.conv(x)) + m.alias.weight.mean(),
    "the bias is read elsewhere": lambda m, x: m.norm(m.other(x)) + m.other.bias.sum(),
    "the norm's weight is read elsewhere": lambda m, x: m.norm(m.other(x)) + m.norm.weight.sum(),
    "the norm's mean is read elsewhere": lambda m, x: m.norm(m.other(x)) + m.norm.running_mean.sum(),
}


@pytest.mark.parametrize("why", sorted(UNFUSABLE))
def test_nothing_is_folded_where(why: str) -> None:
    torch.manual_seed(0)
    assert_same(randomised(Wired(UNFUSABLE[why])), 2, 3, 6, 6, pairs=0)


def test_pairs_beside_an_unfusable_one_are_folded() -> None:
    module = Wired(lambda m, x: two_readers(m, m.same(m.other(x))))
    assert_same(randomised(module), 2, 3, 6, 6, pairs=1)


def test_a_norm_without_running_statistics_is_left() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    assert_same(randomised(module), 2, 3, 7, 7, pairs=0)


def test_a_norm_in_training_mode_is_left() -> None:
    module = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    module[1].train()  # type: ignore[index]
    assert fusion.fuse(module)[1] == 0


@pytest.mark.parametrize(("features", "channels"), [(7, 3), (3, 3)])
def test_a_norm_over_another_axis_than_the_linear_layers_features_is_left(features: int, channels: int) -> None:
    """[n, channels, features]: BatchNorm1d normalises the channels, the linear layer makes the features."""
    module = nn.Sequential(nn.Linear(5, features), nn.BatchNorm1d(channels))
    typed = randomised(module).double()
    x = torch.randn(4, channels, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for examples in (None, (x,)):
        fused, pairs, reason = fusion.fuse(typed, examples)
        assert (pairs, reason) == (0, None)
        assert torch.allclose(fused(x), typed(x), rtol=0, atol=1e-10)


def test_a_linear_layer_is_left_where_no_examples_tell_its_rank() -> None:
    module = randomised(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)))
    assert fusion.fuse(module)[1:] == (0, None)


def test_a_convolution_needs_no_examples() -> None:
    module = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    fused, pairs, reason = fusion.fuse(module)
    assert (pairs, reason) == (1, None)
    x = torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.allclose(fused(x), module(x), rtol=1e-5, atol=1e-5)


def test_examples_that_the_module_refuses_are_told_as_the_reason() -> None:
    module = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    fused, pairs, reason = fusion.fuse(module, (torch.randn(2, 5, 7, 7),))
    assert pairs == 0
    assert reason is not None
    assert "\n" not in reason
    x = torch.randn(2, 3, 7, 7)
    assert torch.equal(fused(x), module(x))


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_a_layer_whose_weight_is_computed_gives_the_same_answer(old: bool) -> None:
    weight_norm: Any = nn.utils.weight_norm if old else nn.utils.parametrizations.weight_norm
    module = randomised(nn.Sequential(weight_norm(nn.Conv1d(3, 4, 3)), nn.BatchNorm1d(4)))
    x = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = module(x)
        fused, pairs, _ = fusion.fuse(module)
        assert pairs == 0
        assert torch.allclose(fused(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", [0, 1], ids=["convolution", "norm"])
@pytest.mark.parametrize("pre", [True, False])
def test_a_pair_with_a_hook_gives_the_same_answer(part: int, pre: bool) -> None:
    module = randomised(nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)))
    if pre:
        module[part].register_forward_pre_hook(lambda part, inputs: (inputs[0] * 2,))  # type: ignore[index]
    else:
        module[part].register_forward_hook(lambda part, inputs, answer: answer * 2)  # type: ignore[index]
    x = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        fused, _, _ = fusion.fuse(module)
        assert torch.allclose(fused(x), module(x), rtol=1e-5, atol=1e-5)


def test_a_module_that_cannot_be_traced_is_left_with_the_reason() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(self.conv(x))
            return y if y.sum() > 0 else -y

    module = randomised(Branching())
    fused, pairs, reason = fusion.fuse(module)
    assert pairs == 0
    assert reason is not None
    assert "torch.fx cannot trace it (TraceError" in reason
    x = torch.randn(2, 3, 7, 7)
    assert torch.equal(fused(x), module(x))
