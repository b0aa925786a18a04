"""Fusion: exact for every layer it folds, and untouched where folding would change an answer."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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


def assert_same(module: nn.Module, *shape: int, pairs: int, merged: int = 0, note: str | None = None) -> nn.Module:
    """Fuse in float64 and in float32; the answers must be those of the module itself."""
    fused: nn.Module = nn.Identity()
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        typed = copy.deepcopy(module).to(dtype)
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        result = fusion.fuse(typed, (x,))
        assert (result.pairs, result.reparameterised, result.note) == (pairs, merged, note)
        fused = result.module
        assert not [name for name, part in fused.named_modules() if part.training]
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
    module = randomised(Wired(UNFUSABLE[why]))
    assert_same(module, 2, 3, 6, 6, pairs=0)
    assert fusion.fuse(module).pairs == 0


def test_pairs_beside_an_unfusable_one_are_folded() -> None:
    module = Wired(lambda m, x: two_readers(m, m.same(m.other(x))))
    assert_same(randomised(module), 2, 3, 6, 6, pairs=1)


def test_a_norm_without_running_statistics_is_left() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    assert_same(randomised(module), 2, 3, 7, 7, pairs=0)


def test_a_norm_in_training_mode_is_left() -> None:
    module = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    module[1].train()  # type: ignore[index]
    assert fusion.fuse(module).pairs == 0


@pytest.mark.parametrize(("features", "channels"), [(7, 3), (3, 3)])
def test_a_norm_over_another_axis_than_the_linear_layers_features_is_left(features: int, channels: int) -> None:
    """[n, channels, features]: BatchNorm1d normalises the channels, the linear layer makes the features."""
    module = nn.Sequential(nn.Linear(5, features), nn.BatchNorm1d(channels))
    typed = randomised(module).double()
    x = torch.randn(4, channels, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for examples in (None, (x,)):
        fused = fusion.fuse(typed, examples)
        assert (fused.pairs, fused.note) == (0, None)
        assert torch.allclose(fused.module(x), typed(x), rtol=0, atol=1e-10)


def test_a_linear_layer_is_left_where_no_examples_tell_its_rank() -> None:
    module = randomised(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)))
    fused = fusion.fuse(module)
    assert (fused.pairs, fused.note) == (0, None)


def test_a_convolution_needs_no_examples() -> None:
    module = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    fused = fusion.fuse(module)
    assert (fused.pairs, fused.note) == (1, None)
    x = torch.randn(2, 3, 7, 7, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.allclose(fused.module(x), module(x), rtol=1e-5, atol=1e-5)


def test_examples_that_the_module_refuses_are_told_as_the_reason() -> None:
    module = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    fused = fusion.fuse(module, (torch.randn(2, 5, 7, 7),))
    assert fused.pairs == 0
    assert fused.note is not None
    assert fused.note.startswith("it does not run on the example inputs (RuntimeError")
    assert "\n" not in fused.note
    x = torch.randn(2, 3, 7, 7)
    assert torch.equal(fused.module(x), module(x))


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_a_layer_whose_weight_is_computed_gives_the_same_answer(old: bool) -> None:
    weight_norm: Any = nn.utils.weight_norm if old else nn.utils.parametrizations.weight_norm
    module = randomised(nn.Sequential(weight_norm(nn.Conv1d(3, 4, 3)), nn.BatchNorm1d(4)))
    x = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = module(x)
        fused = fusion.fuse(module)
        assert fused.pairs == 0
        assert torch.allclose(fused.module(x), expected, rtol=1e-5, atol=1e-5)


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
        fused = fusion.fuse(module)
        assert fused.pairs == 0
        assert torch.allclose(fused.module(x), module(x), rtol=1e-5, atol=1e-5)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """A convolution of any kind with its norm, and the shape of an input for it."""
    dims, transposed, groups = draw(st.integers(1, 3)), draw(st.booleans()), draw(st.integers(1, 3))
    kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kind: Any = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    channels = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    layer = kind(
        *channels, kernel, stride, draw(st.integers(0, 1)), groups=groups, dilation=dilation, bias=draw(st.booleans())
    )
    norm_kind: Any = nn.SyncBatchNorm if draw(st.booleans()) and dims == 2 else NORMS[dims]
    norm = norm_kind(channels[1], affine=draw(st.booleans()), eps=draw(st.sampled_from([1e-5, 1e-3])))
    sizes = draw(st.lists(st.integers(5, 8), min_size=dims, max_size=dims))
    torch.manual_seed(draw(st.integers(0, 99)))
    layer.reset_parameters()
    return randomised(nn.Sequential(layer, norm)), (draw(st.integers(2, 3)), channels[0], *sizes)


@settings(deadline=None, max_examples=60)
@given(convolutions())
def test_any_convolution_takes_its_norm_in_exactly(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    module, shape = drawn
    fused = assert_same(module, *shape, pairs=1)
    assert [type(part) for part in fused.children()][1:] == [nn.Identity]


def test_a_norm_of_another_name_too_is_taken_in_under_both() -> None:
    module = Wired(lambda m, x: m.norm(m.conv(x)))
    module.second_name = module.norm
    fused = assert_same(randomised(module), 2, 3, 6, 6, pairs=1)
    assert isinstance(fused.norm, nn.Identity)
    assert isinstance(fused.second_name, nn.Identity)


def test_a_weight_that_is_another_layers_too_and_read_under_its_name_is_left() -> None:
    module = Wired(lambda m, x: m.norm(m.other(x)) + m.conv.weight.mean() + m.other.weight.mean())
    module.other.weight = module.conv.weight
    assert_same(randomised(module), 2, 3, 6, 6, pairs=0)


class Doubling(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class Renamed(nn.BatchNorm2d):
    pass


class OwnConv(nn.Conv2d):
    __module__ = "torch.nn.own"  # where torch.fx does not look inside

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).abs()


def test_a_norm_with_a_forward_of_its_own_is_left() -> None:
    assert_same(randomised(nn.Sequential(nn.Conv2d(3, 4, 3), Doubling(4))), 2, 3, 7, 7, pairs=0)
    assert_same(randomised(nn.Sequential(nn.Conv2d(3, 4, 3), Renamed(4))), 2, 3, 7, 7, pairs=1)


@pytest.mark.parametrize("part", [0, 1], ids=["convolution", "norm"])
def test_a_part_whose_forward_was_changed_by_hand_is_left(part: int) -> None:
    module = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    plain = module[part].forward  # type: ignore[index]
    module[part].forward = lambda x: plain(x).abs()  # type: ignore[index]
    assert fusion.fuse(module).pairs == 0


def test_a_convolution_with_a_forward_of_its_own_is_left() -> None:
    assert_same(randomised(nn.Sequential(OwnConv(3, 4, 3), nn.BatchNorm2d(4))), 2, 3, 7, 7, pairs=0)


def test_a_convolution_whose_weight_is_made_in_the_forward_is_left() -> None:
    def wire(m: Any, x: Tensor) -> Tensor:
        m.other.weight = m.conv.weight * 2
        y: Tensor = m.norm(m.other(x))
        return y

    module = Wired(wire)
    del module.other.weight
    module.other.weight = module.conv.weight.detach()  # type: ignore[assignment]
    module = randomised(module)
    fused, x = fusion.fuse(module), torch.randn(2, 3, 6, 6)
    assert fused.pairs == 0
    assert torch.equal(fused.module(x), module(x))


def test_a_norm_over_other_channels_than_the_convolutions_is_left_without_examples_too() -> None:
    module = randomised(nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(5)))
    assert module(torch.ones(3, 7)).shape == (4, 5)
    assert (fusion.fuse(module).pairs, fusion.fuse(module, (torch.ones(3, 7),)).pairs) == (0, 0)


def test_a_convolution_of_one_picture_whose_norm_runs_over_another_axis_is_left() -> None:
    """[channels, length] without a batch: BatchNorm1d takes the channels for rows."""
    module = nn.Sequential(nn.Conv1d(3, 4, 4), nn.BatchNorm1d(4))
    assert_same(randomised(module), 3, 7, pairs=0)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.PReLU, nn.SiLU])
def test_a_norm_of_timm_leaves_its_activation_behind(activation: Any) -> None:
    layers = pytest.importorskip("timm.layers")
    module = nn.Sequential(nn.Conv2d(3, 4, 3), layers.BatchNormAct2d(4, act_layer=activation), nn.Conv2d(4, 2, 1))
    fused = assert_same(randomised(module), 2, 3, 7, 7, pairs=1)
    assert any(isinstance(part, activation) for part in fused.modules())


def test_a_norm_of_timm_whose_activation_is_called_from_outside_is_left() -> None:
    layers = pytest.importorskip("timm.layers")
    module = Wired(lambda m, x: m.norm(m.conv(x)) + m.norm.act(x))
    module.norm = layers.BatchNormAct2d(3, inplace=False)
    assert_same(randomised(module), 2, 3, 6, 6, pairs=0)


@pytest.mark.parametrize("home", ["elsewhere", "timm.layers.elsewhere"])
def test_a_norm_that_only_derives_from_timms_is_left(home: str) -> None:
    layers = pytest.importorskip("timm.layers")

    class DerivedAct(layers.BatchNormAct2d):  # type: ignore[misc, name-defined]
        __module__ = home

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = super().forward(x) * 2
            return y

    assert_same(randomised(nn.Sequential(nn.Conv2d(3, 4, 3), DerivedAct(4))), 2, 3, 7, 7, pairs=0)


def test_an_optional_argument_is_taken_as_the_call_leaves_it() -> None:
    """On a proxy `scale is None` is false, and the second reader of the convolution would go unseen."""

    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)

        def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
            y = self.conv(x)
            return self.norm(y) + y if scale is None else self.norm(y) * scale

    module = randomised(Optional())
    assert_same(module, 2, 3, 6, 6, pairs=0)
    assert fusion.fuse(module).pairs == 0
    scale = torch.tensor(2.0)
    fused = fusion.fuse(module, (torch.randn(2, 3, 6, 6), scale))
    assert fused.pairs == 1
    x = torch.randn(2, 3, 6, 6)
    assert torch.allclose(fused.module(x, scale), module(x, scale), atol=1e-5)


def test_a_path_that_only_a_proxy_takes_is_undone() -> None:
    """torch.fx sees the answer's branch for no tensor, where the convolution has one reader."""

    def wire(m: Any, x: Tensor) -> Tensor:
        y = m.conv(x)
        return m.norm(y) + (y if isinstance(x, Tensor) else 0)

    assert_same(randomised(Wired(wire)), 2, 3, 6, 6, pairs=0, note="folding in it changes the answers and was undone")


def test_a_module_that_runs_in_float32_only_is_proven_in_it() -> None:
    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(self.conv(x.float()))
            return y

    module, x = randomised(Casting()), torch.randn(2, 3, 7, 7)
    with torch.no_grad():  # what cancels in the norm leaves five digits of float32
        module.conv.bias += 1000  # type: ignore[union-attr, operator]
        module.norm.running_mean += 1000  # type: ignore[union-attr, operator]
    fused = fusion.fuse(module, (x,))
    assert (fused.pairs, fused.note) == (1, None)
    with torch.inference_mode():
        error = (fused.module(x) - module(x)).abs().max() / module(x).abs().max()
    assert 1e-6 < float(error) < 1e-3


def test_nothing_global_is_changed_by_fusing() -> None:
    module = randomised(nn.Sequential(nn.Threshold(2.0, 2.0, inplace=True), RepBlock(4))).double()
    before, x = torch.get_rng_state(), torch.ones(2, 4, 6, 6, dtype=torch.float64)
    assert fusion.fuse(module, (x,)).reparameterised == 1
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(x, torch.ones_like(x))


def test_a_module_that_keeps_what_passes_keeps_none_of_the_tracing() -> None:
    def wire(m: Any, x: Tensor) -> Tensor:
        m.last = m.norm(m.conv(x))
        return m.last * 2  # type: ignore[no-any-return]

    module = randomised(Wired(wire))
    for examples in (None, (torch.randn(2, 3, 6, 6),)):
        fused = fusion.fuse(module, examples)
        assert fused.pairs == 1
        assert not hasattr(fused.module, "last")


@pytest.mark.parametrize("last", [torch.log, lambda y: functional.dropout(y, training=True)], ids=["NaN", "random"])
def test_an_answer_that_holds_nan_or_chance_can_be_proven(last: Any) -> None:
    module = randomised(Wired(lambda m, x: last(m.norm(m.conv(x)))))
    fused = fusion.fuse(module, (torch.randn(2, 3, 6, 6),))
    assert (fused.pairs, fused.note) == (1, None)


def test_a_module_that_cannot_be_copied_is_given_back_with_the_reason() -> None:
    module = randomised(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    module.lock = threading.Lock()  # type: ignore[assignment]
    fused = fusion.fuse(module)
    assert fused.module is module
    assert fused.note is not None
    assert fused.note.startswith("it cannot be copied (TypeError")


# Modules that torch.fx cannot trace as a whole.


class Branching(nn.Module):
    """A head that depends on the data, over parts that do not; `wire` says how it reaches its parts."""

    def __init__(self, wire: Callable[[Any, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.body = nn.Sequential(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        )
        self.wire = wire or (lambda m, x: m.body(m.stem(x)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.wire(self, x)
        return y if y.sum() > 0 else -y


def notes(missed: int) -> str:
    return (
        "torch.fx cannot trace it (TraceError: symbolically traced variables cannot be used as inputs to control flow)"
        f"; BatchNorms not looked at: {missed}"
    )


def test_a_backbone_under_a_head_that_depends_on_the_data_is_fused() -> None:
    fused = assert_same(randomised(Branching()), 2, 3, 6, 6, pairs=3)
    assert not [part for part in fused.modules() if isinstance(part, nn.BatchNorm2d)]


def test_a_module_that_cannot_be_traced_is_left_with_the_reason() -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(self.conv(x))
            return y if y.sum() > 0 else -y

    assert_same(randomised(Direct()), 2, 3, 6, 6, pairs=0, note=notes(1))


def test_without_examples_nothing_inside_an_untraceable_module_is_folded() -> None:
    module = randomised(Branching())
    fused = fusion.fuse(module)
    assert (fused.pairs, fused.note) == (0, notes(3))
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(fused.module(x), module(x))


def packed(m: Any, x: Tensor) -> Tensor:
    rows = m.stem(x).flatten(2).transpose(1, 2)
    lengths = torch.full((len(x),), rows.shape[1] - 2)
    sequence = nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True)
    y: Tensor = m.lstm(sequence)[1][0]
    return y


def test_the_front_of_an_lstm_over_packed_sequences_is_fused() -> None:
    torch.manual_seed(0)
    module = Branching(packed)
    module.lstm = nn.LSTM(4, 5, batch_first=True)
    del module.body
    assert_same(randomised(module), 2, 3, 6, 6, pairs=1)


def called_for_each(m: Any, x: Tensor) -> Tensor:
    return m.body(m.stem(x)) + m.body(m.stem(x.flip(0)))


def test_a_child_that_is_called_twice_as_a_whole_is_fused() -> None:
    assert_same(randomised(Branching(called_for_each)), 2, 3, 6, 6, pairs=3)


REACHED = {
    "its convolution is called from outside": (lambda m, x: m.body(m.stem(x)) + m.stem[0](x * 2), 2, 0),
    "its norm is called from outside": (lambda m, x: m.body(m.stem(x)) + m.stem[1](m.stem(x)), 2, 0),
    "its layers are called one by one": (lambda m, x: m.body(m.stem[2](m.stem[1](m.stem[0](x)))), 2, 1),
    "it is called by its forward": (lambda m, x: m.body(m.stem.forward(x)), 2, 1),
}


@pytest.mark.parametrize("why", sorted(REACHED))
def test_a_child_is_left_and_its_neighbour_fused_where(why: str) -> None:
    torch.manual_seed(0)
    wire, pairs, missed = REACHED[why]
    assert_same(randomised(Branching(wire)), 2, 3, 6, 6, pairs=pairs, note=notes(missed) if missed else None)


@pytest.mark.parametrize("read", ["m.stem[0].weight", "m.stem[0].bias", "m.stem[1].running_mean", "m.stem[1].weight"])
def test_a_child_whose_weights_are_read_from_outside_is_left(read: str) -> None:
    owner, _, name = read.rpartition(".")
    index = int(owner[-2])
    wire: Any = lambda m, x: m.body(m.stem(x)) + getattr(m.stem[index], name).sum()  # noqa: E731
    told = f"folding in stem changes the answers and was undone; {notes(1)}"
    assert_same(randomised(Branching(wire)), 2, 3, 6, 6, pairs=2, note=told)


def test_a_child_that_stands_in_two_places_is_left() -> None:
    module = Branching(lambda m, x: m.body(m.stem(x)) + m.second[0](x))
    module.second = nn.Sequential(module.stem)
    assert_same(randomised(module), 2, 3, 6, 6, pairs=2, note=notes(1))


def test_a_convolution_that_two_children_share_is_left() -> None:
    module = Branching(lambda m, x: m.stem(x) + m.second(x))
    module.second = nn.Sequential(module.stem[0], nn.BatchNorm2d(4))
    del module.body
    assert_same(randomised(module), 2, 3, 6, 6, pairs=0)


class Flagged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor, keep: bool, inputs: list[Tensor] | None = None) -> Tensor:
        y = self.conv(x if inputs is None else inputs[0])
        return self.norm(y) + y if keep else self.norm(y)


FLAGS = {
    "a flag that picks one reader": (lambda m, x: m.stem(x, False), 1, 0),
    "a flag that picks two readers": (lambda m, x: m.stem(x, keep=True), 0, 0),
    "one flag and then another": (lambda m, x: m.stem(x, True) + m.stem(x, False), 0, 1),
    "a list of tensors": (lambda m, x: m.stem(x, False, [x]), 0, 1),
}


@pytest.mark.parametrize("how", sorted(FLAGS))
def test_a_child_is_traced_as_it_is_called(how: str) -> None:
    wire, pairs, missed = FLAGS[how]
    module = Branching(wire)
    module.stem = Flagged()
    del module.body
    assert_same(randomised(module), 2, 3, 6, 6, pairs=pairs, note=notes(missed) if missed else None)


class Adapter(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.inner(x=inputs[0])  # type: ignore[no-any-return]


def test_a_module_behind_an_adapter_is_fused_as_it_would_be_by_itself() -> None:
    assert_same(randomised(Adapter(Wired(lambda m, x: m.same(m.norm(m.other(x)))))), 2, 3, 6, 6, pairs=1)
    assert_same(randomised(Adapter(Branching())), 2, 3, 6, 6, pairs=3)


def test_the_note_names_what_stopped_the_module_and_not_its_adapter() -> None:
    module = Adapter(Branching(REACHED["it is called by its forward"][0]))
    assert_same(randomised(module), 2, 3, 6, 6, pairs=2, note=notes(1))


def test_a_module_that_takes_any_number_of_tensors_is_left_with_the_reason() -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, *inputs: Tensor) -> Tensor:
            return self.norm(self.conv(inputs[0]))  # type: ignore[no-any-return]

    told = (
        "torch.fx cannot trace it (it is called with more than tensors, numbers and flags); BatchNorms not looked at: 1"
    )
    assert_same(randomised(Direct()), 2, 3, 6, 6, pairs=0, note=told)


@pytest.mark.parametrize("shared", [0, 1], ids=["convolution", "norm"])
def test_a_layer_that_another_child_holds_is_left_even_if_that_one_does_not_run(shared: int) -> None:
    module = Branching(lambda m, x: m.stem(x) if x.sum() < 1e9 else m.second(x))
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)]
    layers[shared] = module.stem[shared]
    module.second = nn.Sequential(*layers)
    del module.body
    assert_same(randomised(module), 2, 3, 6, 6, pairs=0, note=notes(1))


@pytest.mark.parametrize(("rows", "pairs"), [((), 1), ((5,), 0)], ids=["features", "a sequence of features"])
def test_the_ranks_of_a_linear_layer_in_a_child_are_those_of_the_run(rows: tuple[int, ...], pairs: int) -> None:
    module = Branching(lambda m, x: m.stem(x))
    module.stem = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
    del module.body
    assert_same(randomised(module), 4, *rows, 5, pairs=pairs)


# Modules that merge their branches themselves.


class ConvNorm(nn.Sequential):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.add_module("conv", nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=2, bias=False))
        self.add_module("bn", nn.BatchNorm2d(channels))


class RepBlock(nn.Module):
    """After the authors' block (Ding et al. 2021, github.com/DingXiaoH/RepVGG, repvgg.py)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.rbr_identity = nn.BatchNorm2d(channels)
        self.rbr_dense, self.rbr_1x1 = ConvNorm(channels, 3), ConvNorm(channels, 1)
        self.nonlinearity, self.channels = nn.ReLU(), channels

    def forward(self, inputs: Tensor) -> Tensor:
        if hasattr(self, "rbr_reparam"):
            return self.nonlinearity(self.rbr_reparam(inputs))  # type: ignore[no-any-return]
        return self.nonlinearity(  # type: ignore[no-any-return]
            self.rbr_dense(inputs) + self.rbr_1x1(inputs) + self.rbr_identity(inputs)
        )

    def _kernel_bias(self, branch: Any) -> tuple[Tensor, Tensor]:
        if isinstance(branch, nn.BatchNorm2d):
            kernel, norm = torch.zeros(self.channels, self.channels // 2, 3, 3), branch
            for i in range(self.channels):
                kernel[i, i % (self.channels // 2), 1, 1] = 1
        else:
            kernel, norm = branch.conv.weight, branch.bn
        std: Tensor = (norm.running_var + norm.eps).sqrt()  # type: ignore[operator]
        scaled = kernel * (norm.weight / std).reshape(-1, 1, 1, 1)
        return scaled, norm.bias - norm.running_mean * norm.weight / std

    def switch_to_deploy(self) -> None:
        if hasattr(self, "rbr_reparam"):
            return
        (k3, b3), (k1, b1), (k0, b0) = map(self._kernel_bias, (self.rbr_dense, self.rbr_1x1, self.rbr_identity))
        self.rbr_reparam = nn.Conv2d(self.channels, self.channels, 3, padding=1, groups=2)
        self.rbr_reparam.weight.data = k3 + functional.pad(k1, [1, 1, 1, 1]) + k0
        self.rbr_reparam.bias.data = b3 + b1 + b0  # type: ignore[union-attr]
        for branch in ("rbr_dense", "rbr_1x1", "rbr_identity"):
            delattr(self, branch)


class Lying(RepBlock):
    def switch_to_deploy(self) -> None:
        super().switch_to_deploy()
        self.rbr_reparam.weight.data *= 1.0001


class Failing(RepBlock):
    def switch_to_deploy(self) -> None:
        del self.rbr_dense
        raise ValueError("no")


def test_the_branches_of_repvggs_authors_are_merged() -> None:
    fused = assert_same(randomised(nn.Sequential(RepBlock(4), RepBlock(4))), 2, 4, 6, 6, pairs=0, merged=2)
    assert [type(part) for part in fused.modules() if not list(part.children())] == [nn.ReLU, nn.Conv2d] * 2


def test_a_module_that_is_one_block_is_merged() -> None:
    assert_same(randomised(RepBlock(4)), 2, 4, 6, 6, pairs=0, merged=1)


def test_a_block_that_is_merged_already_does_not_count() -> None:
    block = randomised(RepBlock(4))
    block.switch_to_deploy()  # type: ignore[operator]
    assert_same(block.eval(), 2, 4, 6, 6, pairs=0, merged=0)


def test_a_part_that_is_in_training_mode_stays_so() -> None:
    block = randomised(RepBlock(4))
    block.nonlinearity.train()  # type: ignore[union-attr, operator]
    fused = fusion.fuse(block, (torch.randn(2, 4, 6, 6),))
    assert fused.reparameterised == 1
    assert [name for name, part in fused.module.named_modules() if part.training] == ["nonlinearity"]


def test_a_merging_that_changes_the_answer_is_undone_and_its_neighbours_kept() -> None:
    module = nn.Sequential(RepBlock(4), Lying(4), RepBlock(4))
    told = "1.switch_to_deploy() changes the answers and was undone"
    fused = assert_same(randomised(module), 2, 4, 6, 6, pairs=2, merged=2, note=told)
    assert hasattr(fused[1], "rbr_dense")  # type: ignore[index]


def test_only_the_first_notes_are_told() -> None:
    module = randomised(nn.Sequential(*(Lying(4) for _ in range(6))))
    note = fusion.fuse(module, (torch.randn(2, 4, 6, 6),)).note
    assert note is not None
    assert note.endswith("; 3.switch_to_deploy() changes the answers and was undone; and 2 more of this kind")


def test_a_merging_that_fails_is_undone_and_its_neighbours_kept() -> None:
    module = nn.Sequential(Failing(4), RepBlock(4))
    told = "0.switch_to_deploy() fails (ValueError: no) and was undone"
    assert_same(randomised(module), 2, 4, 6, 6, pairs=2, merged=1, note=told)


def test_a_merging_that_works_in_float64_only_is_not_done() -> None:
    class Wide(RepBlock):
        def switch_to_deploy(self) -> None:
            if self.rbr_1x1[0].weight.dtype != torch.float64:
                raise TypeError("no")
            super().switch_to_deploy()

    module, x = randomised(nn.Sequential(RepBlock(4), Wide(4))), torch.randn(2, 4, 6, 6)
    fused = fusion.fuse(module, (x,))
    assert (fused.reparameterised, fused.pairs) == (0, 4)
    assert fused.note == "merging fails (TypeError: no)"
    assert torch.allclose(fused.module(x), module(x), atol=1e-5)


def test_a_whole_whose_own_method_lies_has_its_parts_merged() -> None:
    class Whole(nn.Sequential):
        def reparameterize(self) -> None:
            self.append(nn.Tanh())

    told = "reparameterize() changes the answers and was undone"
    assert_same(randomised(Whole(RepBlock(4))), 2, 4, 6, 6, pairs=0, merged=1, note=told)


def test_without_examples_branches_stay_and_the_note_says_so() -> None:
    module = randomised(nn.Sequential(RepBlock(4)))
    fused = fusion.fuse(module)
    assert (fused.pairs, fused.reparameterised) == (2, 0)
    assert fused.note == "without example inputs its branches stay as they are"


class WithFuse(nn.Sequential):
    """timm's convention: the answer of `fuse` takes the module's place. Like there, it is made without a dtype."""

    def fuse(self) -> nn.Module:
        conv, norm = nn.Conv2d(3, 3, 1), self[1]
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()  # type: ignore[operator]
        conv.weight.data.copy_(self[0].weight * scale.view(-1, 1, 1, 1))  # type: ignore[operator, union-attr]
        conv.bias.data.copy_((self[0].bias - norm.running_mean) * scale + norm.bias)  # type: ignore[operator, union-attr]
        return conv


def test_the_answer_of_fuse_takes_the_modules_place_wherever_it_stands() -> None:
    part = WithFuse(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    fused = assert_same(randomised(nn.Sequential(part, nn.Sequential(part))), 2, 3, 6, 6, pairs=0, merged=1)
    assert isinstance(fused[0], nn.Conv2d)  # type: ignore[index]
    assert fused[0] is fused[1][0]  # type: ignore[index]


def test_methods_that_take_arguments_and_submodules_of_such_a_name_are_not_called() -> None:
    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.fuse = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)

        def reparameterize(self, mean: Tensor, variance: Tensor) -> Tensor:
            raise AssertionError("called")

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.fuse(self.norm(self.conv(x)))
            return y

    assert_same(randomised(Autoencoder()), 2, 3, 6, 6, pairs=1, merged=0)


@pytest.mark.parametrize(("name", "blocks"), [("repvgg_a0", 22), ("mobileone_s0", 43), ("fastvit_t8", 20)])
def test_the_branches_of_timms_networks_are_merged(name: str, blocks: int) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    module, x = tempered(timm.create_model(name, num_classes=5)), torch.randn(2, 3, 64, 64)
    fused = fusion.fuse(module, (x,))
    assert (fused.reparameterised, fused.note) == (blocks, None)
    assert not [part for part in fused.module.modules() if isinstance(part, nn.BatchNorm2d)]
    with torch.inference_mode():
        expected, got = module(x), fused.module(x)
    assert float((got - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def tempered(module: nn.Module) -> nn.Module:
    """Statistics that are none of an identity, and that neither blow up nor die over dozens of layers."""
    generator = torch.Generator().manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor, low, high in (
                (part.running_mean, -0.3, 0.3),
                (part.running_var, 0.5, 1.5),
                (part.weight, 0.4, 1.0),
                (part.bias, -0.3, 0.3),
            ):
                assert tensor is not None
                tensor.data.uniform_(low, high, generator=generator)
    return module.eval()
