"""Averaged weights: their formula, what is averaged and what copied, and that a network gets its own back."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor, nn

from penstock.train.ema import Averaged
from penstock.train.nets import ResidualNet


class Net(nn.Module):
    """A network with each kind of state: parameters, statistics, integers, a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.head = nn.Linear(3, 3)
        self.head.weight = self.body[0].weight
        self.register_buffer("places", torch.arange(40))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def moved(net: nn.Module) -> None:
    """A step: every parameter and statistic changes."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter))
    net.train()
    net(torch.randn(5, 3))


@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_the_average_is_its_formula(decay: float) -> None:
    net = Net()
    averaged = Averaged(net, decay)
    wanted = {name: tensor.double() for name, tensor in net.state_dict().items()}
    for n in range(1, 30):
        moved(net)
        averaged.update(net)
        kept = min(decay, (1 + n) / (10 + n))
        for name, tensor in net.state_dict().items():
            wanted[name] = kept * wanted[name] + (1 - kept) * tensor.double()
    with averaged.applied(net):
        for name, tensor in net.state_dict().items():
            if tensor.is_floating_point():
                assert torch.allclose(tensor.double(), wanted[name], rtol=1e-5, atol=1e-6), name


def test_integers_are_copied_not_averaged() -> None:
    """A mean of integers is cut off: that of two equal ones, with a decay of 0.9999, is one less for every fifth."""
    net = Net()
    averaged = Averaged(net, 0.999)
    for _ in range(7):
        moved(net)
        averaged.update(net)
    with averaged.applied(net):
        assert torch.equal(net.places, torch.arange(40))
        assert int(net.body[1].num_batches_tracked) == 7


def test_a_network_gets_its_own_weights_back_to_the_bit_also_after_an_error() -> None:
    net = Net()
    averaged = Averaged(net, 0.5)
    moved(net)
    averaged.update(net)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}

    def within() -> None:
        with averaged.applied(net):
            assert not torch.equal(net.head.weight, before["head.weight"])
            assert net.head.weight is net.body[0].weight
            raise RuntimeError("validation failed")

    with pytest.raises(RuntimeError, match="validation failed"):
        within()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_what_is_averaged_is_not_updated_while_it_is_in_the_network() -> None:
    net = Net()
    averaged = Averaged(net, 0.5)
    with averaged.applied(net), pytest.raises(RuntimeError, match="it has no others to average"):
        averaged.update(net)
    averaged.update(net)


def test_a_run_goes_on_from_a_state_that_is_weights_and_plain_data() -> None:
    net = Net()
    whole = Averaged(net, 0.9)
    for _ in range(3):
        moved(net)
        whole.update(net)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    resumed = Averaged(Net(), 0.9)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(3):
        moved(net)
        whole.update(net)
        resumed.update(net)
    assert resumed.count == whole.count == 6
    assert all(torch.equal(tensor, whole.average[name]) for name, tensor in resumed.average.items())


def test_the_state_of_another_network_is_refused_by_name() -> None:
    state = Averaged(ResidualNet(1, (4, 8), 3), 0.9).state_dict()
    with pytest.raises(ValueError, match=r"averaged weights of another network: head.bias, head.weight"):
        Averaged(ResidualNet(1, (4, 8), 4), 0.9).load_state_dict(state)


def test_half_precision_is_averaged_in_float32() -> None:
    """A step of 1 − 0.999 of a difference of 0.01 is under bfloat16's last bit."""
    net = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    nn.init.constant_(net.weight, 1.0)
    averaged = Averaged(net, 0.999)
    averaged.count = 10_000
    nn.init.constant_(net.weight, 1.0078125)
    for _ in range(1000):
        averaged.update(net)
    assert float(averaged.average["weight"]) == pytest.approx(1 + 0.0078125 * (1 - 0.999**1000), abs=1e-5)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.1, float("nan")])
def test_a_decay_that_averages_nothing_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="it must be between 0 and 1"):
        Averaged(nn.Linear(1, 1), decay)
