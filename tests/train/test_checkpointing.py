"""Activation checkpointing: less is kept, and nothing else is another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from penstock.errors import PenstockError
from penstock.train.checkpointing import checkpointed
from penstock.train.nets import Bert, Mlp, RepVggNet, ResidualNet, TextCnn, TextRnn

CONFIG = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


def images() -> tuple[Tensor, ...]:
    return (torch.randn(16, 1, 8, 8),)


def ids() -> tuple[Tensor, ...]:
    return (torch.randint(1, 30, (16, 9)),)


def ids_and_mask() -> tuple[Tensor, ...]:
    return (*ids(), torch.ones(16, 9, dtype=torch.int64))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "residual": (lambda: ResidualNet(widths=(8, 8, 8, 8, 8)), images),
    "repvgg": (lambda: RepVggNet(widths=(8, 8), depths=(3, 3)), images),
    "mlp": (lambda: Mlp(20, (64, 64, 64), dropout=0.5), lambda: (torch.randn(16, 20),)),
    "text-cnn": (lambda: TextCnn(30, width=16, filters=8), ids),
    "text-rnn": (lambda: TextRnn(30, width=16, layers=3), ids),
    "bert": (lambda: Bert(CONFIG), ids_and_mask),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if request.param == "bert":
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    make, inputs = CASES[request.param]
    return make(), inputs()


def steps(net: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    """Train for two steps; the bytes that the last forward pass kept for the way back, weights not counted."""
    torch.manual_seed(1)
    weights = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        kept: dict[int, int] = {}

        def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = net(*inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return sum(kept.values())


def test_training_ends_in_the_same_weights_and_statistics(case: tuple[nn.Module, Any]) -> None:
    net, inputs = case
    other = checkpointed(copy.deepcopy(net))
    steps(net.train(), inputs)
    steps(other.train(), inputs)
    expected, got = net.state_dict(), other.state_dict()
    assert list(got) == list(expected)
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-6, atol=1e-7, msg=name)


def test_less_is_kept_for_the_way_back(case: tuple[nn.Module, Any]) -> None:
    net, inputs = case
    whole = steps(copy.deepcopy(net).train(), inputs)
    assert steps(checkpointed(net).train(), inputs) < 0.8 * whole


def test_evaluation_is_the_same(case: tuple[nn.Module, Any]) -> None:
    net, inputs = case
    other = checkpointed(copy.deepcopy(net)).eval()
    assert torch.equal(other(*inputs), net.eval()(*inputs))
    with torch.inference_mode():
        assert torch.equal(other(*inputs), net(*inputs))


def test_a_copy_computes_with_its_own_weights(case: tuple[nn.Module, Any]) -> None:
    """As averaged weights do, and the copies that tests of a network are run on."""
    net, inputs = case
    made = checkpointed(net)
    other = copy.deepcopy(made)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    torch.manual_seed(0)
    other.train()(*inputs).square().sum().backward()
    assert all(parameter.grad is None for parameter in made.parameters())
    assert all(parameter.grad is not None for parameter in other.parameters())


def test_cumulative_statistics_count_a_batch_once() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)), nn.Linear(4, 1))
    other, inputs = checkpointed(copy.deepcopy(net)), (torch.randn(8, 4),)
    steps(net, inputs)
    steps(other, inputs)
    norm = other[0][1]  # type: ignore[index]
    assert (int(norm.num_batches_tracked), norm.momentum) == (2, None)
    torch.testing.assert_close(norm.running_var, net[0][1].running_var)  # type: ignore[index]


def test_a_network_of_torchvisions_has_its_blocks_found() -> None:
    models = pytest.importorskip("torchvision").models
    torch.manual_seed(0)
    net, inputs = models.resnet18(num_classes=3), (torch.randn(2, 3, 32, 32),)
    other = checkpointed(copy.deepcopy(net))
    steps(net.train(), inputs)
    steps(other.train(), inputs)
    assert all(
        "forward" in vars(block) for name, block in other.named_modules() if name.count(".") == 1 and "layer" in name
    )
    for name, value in net.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_a_network_without_parts_is_refused() -> None:
    with pytest.raises(PenstockError, match=r"machine.checkpointing is true; Linear has no blocks to compute anew"):
        checkpointed(nn.Linear(3, 3))
