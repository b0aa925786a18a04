"""Optimizers and schedules: which parameters are in which group, and the rate of every step by its formula."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from penstock.errors import PenstockError
from penstock.train import optim
from penstock.train.nets import ResidualNet
from penstock.train.recipe import Optim, Schedule


def net() -> ResidualNet:
    torch.manual_seed(0)
    return ResidualNet(1, (4, 8), classes=3)


def grouped(module: nn.Module, how: Optim) -> dict[str, dict[str, Any]]:
    """The groups by their names, with the names of their parameters in place of them."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    made = optim.optimizer(module, how)
    groups = {
        group["name"]: {**group, "params": [names[id(p)] for p in group["params"]]} for group in made.param_groups
    }
    assert len(groups) == len(made.param_groups)
    return groups


def test_decay_spares_norms_and_biases() -> None:
    groups = grouped(net(), Optim(lr=0.1, weight_decay=0.3))
    assert list(groups) == ["decayed", "spared"]
    assert groups["decayed"]["weight_decay"] == 0.3
    assert groups["spared"]["weight_decay"] == 0.0
    assert all(name.endswith(".weight") for name in groups["decayed"]["params"])
    assert not any("norm" in name for name in groups["decayed"]["params"])
    assert "head.weight" in groups["decayed"]["params"]
    assert "head.bias" in groups["spared"]["params"]
    everything = [name for name, _ in net().named_parameters()]
    assert sorted(groups["decayed"]["params"] + groups["spared"]["params"]) == sorted(everything)


def test_decay_spares_a_norm_s_matrix_and_what_the_network_names_but_not_embeddings() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Parameter(torch.zeros(1, 4, 2))
            self.words = nn.Embedding(5, 2)
            self.norm = nn.LayerNorm((3, 2))
            self.memory = nn.LSTM(2, 2)

        def no_weight_decay(self) -> set[str]:
            return {"places"}

    groups = grouped(Net(), Optim(lr=0.1, weight_decay=0.3))
    assert groups["decayed"]["params"] == ["words.weight", "memory.weight_ih_l0", "memory.weight_hh_l0"]


def test_all_parameters_decay_where_none_is_to_be_spared() -> None:
    groups = grouped(net(), Optim(lr=0.1, weight_decay=0.3, no_decay=False))
    assert list(groups) == ["decayed"]
    assert groups["decayed"]["params"] == [name for name, _ in net().named_parameters()]


def test_rates_fall_from_the_head_by_the_block() -> None:
    module = net()
    groups = grouped(module, Optim(lr=0.1, layer_decay=0.5))
    rates = {name: group["lr"] for group in groups.values() for name in group["params"]}
    assert rates["head.weight"] == rates["head.bias"] == 0.1
    assert rates["blocks.1.conv1.weight"] == rates["blocks.1.shortcut.1.bias"] == 0.05
    assert rates["blocks.0.conv1.weight"] == 0.025
    assert rates["stem.0.weight"] == rates["stem.1.weight"] == 0.0125
    assert len(rates) == len(list(module.parameters()))


@pytest.mark.parametrize(
    ("how", "kind", "settings_"),
    [
        ({"name": "sgd", "momentum": 0.8, "nesterov": True}, torch.optim.SGD, {"momentum": 0.8, "nesterov": True}),
        ({"name": "adam", "betas": (0.8, 0.99)}, torch.optim.Adam, {"betas": (0.8, 0.99)}),
        ({"name": "adamw", "betas": (0.8, 0.99)}, torch.optim.AdamW, {"betas": (0.8, 0.99)}),
    ],
)
def test_optimizers_are_torch_s_with_the_recipe_s_settings(how: Any, kind: type, settings_: dict[str, Any]) -> None:
    made = optim.optimizer(net(), Optim(lr=0.1, **how))
    assert type(made) is kind
    assert {name: made.param_groups[0][name] for name in settings_} == settings_


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"name": "sgd", "momentum": 0, "nesterov": True}, "Nesterov's step needs a momentum above 0"),
        ({"betas": (0.9, 1.0)}, r"optim.betas is \[0.9, 1.0\]; both are at least 0 and under 1"),
        ({"freeze": ("*",)}, "leaves no parameter to train"),
        ({"freeze": ("blocks.0.*", "hed.weight")}, "no parameter is called 'hed.weight'; the nearest are head.weight"),
        ({"freeze": ("xyz*",)}, r"no parameter is called 'xyz\*'; the nearest are stem.\*, blocks.\*, head.\*"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_sentence(how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PenstockError, match=sentence):
        optim.optimizer(net(), Optim(lr=0.1, **how))


def test_what_is_frozen_does_not_move_nor_do_its_statistics() -> None:
    module = net().train()
    patterns = ("stem.*", "blocks.0.norm?.*")
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    made = optim.optimizer(module, Optim(lr=0.1, weight_decay=0.3, freeze=patterns))
    for _ in range(3):
        module.train()
        optim.settle(module, patterns)
        module(torch.randn(4, 1, 8, 8)).square().sum().backward()
        made.step()
    still = {name for name, tensor in module.state_dict().items() if torch.equal(tensor, before[name])}
    wanted = {name for name in before if name.startswith(("stem.", "blocks.0.norm"))}
    # A shortcut that is Identity has no tensors; the head's bias and all else must have moved.
    assert still == wanted


def test_a_norm_of_which_a_part_is_trained_learns_its_statistics_and_one_without_parameters_is_named_by_them() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 1)).train()
    optim.settle(module, ("0.weight", "1.*"))
    assert [layer.training for layer in module] == [True, False, True]


def test_penalties_are_their_sums_over_what_decays_and_is_trained() -> None:
    module = net()
    optim.freeze(module, ("stem.*",))
    weights = [p for n, p in module.named_parameters() if p.ndim > 1 and not n.startswith("stem.")]
    wanted = sum(0.3 * float(w.detach().abs().sum()) + 0.7 * float((w.detach() ** 2).sum()) for w in weights)
    found = optim.penalty(module, 0.3, 0.7)
    assert found.item() == pytest.approx(wanted, rel=1e-5)
    found.backward()
    head = module.head.weight
    assert torch.allclose(head.grad, 0.3 * head.sign() + 1.4 * head)
    assert module.head.bias.grad is None
    assert float(optim.penalty(module, 0, 0)) == 0


def rates(schedule: Schedule, steps: int, per_epoch: int, how: Optim | None = None) -> list[list[float]]:
    """The rates of the two groups in each step of a run."""
    how = how or Optim(name="sgd", lr=0.5)
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": [weight], "lr": lr} for weight, lr in zip(weights, (0.5, 0.05), strict=True)]
    kind = torch.optim.SGD(groups, momentum=how.momentum) if how.name == "sgd" else torch.optim.AdamW(groups)
    made = optim.scheduler(kind, schedule, how, steps, per_epoch)
    assert made["interval"] == "step"
    found = []
    for _ in range(steps):
        found.append([group["lr"] for group in kind.param_groups])
        kind.step()
        made["scheduler"].step()
    return found


def warm(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / (steps + 1))


FORMULAS = {
    "constant": lambda s, t, e: 1.0,
    "step": lambda s, t, e: 0.3 ** (e // 2),
    "multistep": lambda s, t, e: 0.3 ** ((e >= 1) + (e >= 4)),
    "exponential": lambda s, t, e: 0.3**e,
    "cosine": lambda s, t, e: 0.1 + 0.9 * (1 + math.cos(math.pi * t)) / 2,
    "linear": lambda s, t, e: 1 - 0.9 * t,
}


@pytest.mark.parametrize("warmup", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_rate_of_every_step_is_the_formula_s(name: Any, warmup: float) -> None:
    steps, per_epoch = 60, 10
    schedule = Schedule(name=name, warmup=warmup, every=2, milestones=(4, 1), gamma=0.3, least=0.1)
    rising = int(warmup * steps)
    for step, (first, second) in enumerate(rates(schedule, steps, per_epoch)):
        done = max(step - rising, 0) / (steps - rising)
        wanted = warm(step, rising) * FORMULAS[name](step, done, step // per_epoch)
        assert first == pytest.approx(0.5 * wanted, rel=1e-12)
        assert second == pytest.approx(0.05 * wanted, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(FORMULAS)),
    warmup=st.floats(0, 0.99),
    least=st.floats(0, 0.99),
    steps=st.integers(1, 200),
    per_epoch=st.integers(1, 50),
)
def test_shares_rise_to_the_peak_and_then_only_fall(
    name: Any, warmup: float, least: float, steps: int, per_epoch: int
) -> None:
    schedule = Schedule(name=name, warmup=warmup, least=least, milestones=(1, 2))
    shares = [optim.share(schedule, step, steps, per_epoch) for step in range(steps + 1)]
    rising = round(warmup * steps)
    assert all(0 <= share <= 1 for share in shares)
    assert all(a >= b - 1e-12 for a, b in pairwise(shares[rising:]))
    if name in ("cosine", "linear", "constant"):
        assert all(a < b for a, b in pairwise(shares[: rising + 1]))
        if rising < steps:
            assert shares[rising] == 1
            assert name == "constant" or shares[steps] == pytest.approx(least, abs=1e-12)


@pytest.mark.parametrize(("warmup", "rise"), [(0.0, 0.3), (0.5, 0.5)])
@pytest.mark.parametrize(("least", "end"), [(0.0, 1 / 250_000), (0.02, 0.02)])
def test_one_cycle_rises_and_falls_by_cosines(warmup: float, rise: float, least: float, end: float) -> None:
    steps = 50
    top = rise * steps - 1

    def between(start: float, stop: float, done: float) -> float:
        return stop + (start - stop) * (1 + math.cos(math.pi * done)) / 2

    for step, (first, second) in enumerate(rates(Schedule(name="onecycle", warmup=warmup, least=least), steps, 10)):
        up = step <= top
        wanted = between(1 / 25, 1, step / top) if up else between(1, end, (step - top) / (steps - 1 - top))
        assert first == pytest.approx(0.5 * wanted, rel=1e-9)
        assert second == pytest.approx(0.05 * wanted, rel=1e-9)


def test_one_cycle_is_torch_s_own_for_a_recipe_that_says_nothing_more() -> None:
    steps = 37
    weight = nn.Parameter(torch.zeros(1))
    adam = torch.optim.AdamW([weight], lr=0.01)
    theirs = torch.optim.lr_scheduler.OneCycleLR(adam, 0.01, total_steps=steps)
    ours = torch.optim.AdamW([weight], lr=0.01)
    made = optim.scheduler(ours, Schedule(), Optim(lr=0.01), steps, 10)["scheduler"]
    for _ in range(steps):
        assert ours.param_groups[0]["lr"] == adam.param_groups[0]["lr"]
        assert ours.param_groups[0]["betas"] == adam.param_groups[0]["betas"]
        for each, rate in ((ours, made), (adam, theirs)):
            each.step()
            rate.step()


def test_one_cycle_leaves_sgd_without_momentum_if_so_asked() -> None:
    for momentum, wanted in ((0.0, 0.0), (0.9, 0.95)):
        made = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=momentum)
        optim.scheduler(made, Schedule(), Optim(name="sgd", lr=0.1, momentum=momentum), 10, 5)
        assert made.param_groups[0]["momentum"] == pytest.approx(wanted)


@settings(max_examples=100, deadline=None)
@given(steps=st.integers(1, 60), warmup=st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.125, 0.2, 0.25, 0.5, 0.9, 0.99]))
@example(steps=10, warmup=0.1)
@example(steps=4, warmup=0.25)
def test_one_cycle_has_a_rate_for_every_step_however_few_there_are(steps: int, warmup: float) -> None:
    """torch divides by zero where the rise is one step long, as 0.1 of 10 steps is."""
    found = rates(Schedule(name="onecycle", warmup=warmup), steps, 1)
    assert len(found) == steps
    assert all(0 < first <= 0.5 * (1 + 1e-12) for first, _ in found)


@pytest.mark.parametrize(
    ("monitor", "figures", "falls"),
    [("val_loss", (3.0, 2.0, 2.0, 2.0, 1.0), [3]), ("val_accuracy", (0.1, 0.2, 0.2, 0.2, 0.3), [3])],
)
def test_plateau_falls_after_patience_and_not_under_least(
    monitor: str, figures: tuple[float, ...], falls: list[int]
) -> None:
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = Schedule(name="plateau", patience=1, gamma=0.1, least=0.05)
    made = optim.scheduler(sgd, schedule, Optim(lr=1.0), 50, 10, monitor)
    assert (made["interval"], made["monitor"]) == ("epoch", monitor)
    seen, before = [], 1.0
    for epoch, figure in enumerate(figures):
        made["scheduler"].step(figure)
        if sgd.param_groups[0]["lr"] < before:
            seen.append(epoch)
        before = sgd.param_groups[0]["lr"]
    assert seen == falls
    assert before == pytest.approx(0.1)
    for _ in range(6):
        made["scheduler"].step(figures[0] if monitor == "val_loss" else 0.0)
    assert sgd.param_groups[0]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({"name": "plateau", "warmup": 0.1}, "schedule.warmup is 0.1 and schedule.name plateau"),
        ({"name": "plateau", "gamma": 1.0}, "schedule.gamma is 1; plateau multiplies the rate by it"),
        ({"name": "multistep"}, "schedule.milestones is empty; multistep needs the epochs"),
    ],
)
def test_schedules_that_cannot_be_are_refused_in_a_sentence(schedule: dict[str, Any], sentence: str) -> None:
    made = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(PenstockError, match=sentence):
        optim.scheduler(made, Schedule(**schedule), Optim(lr=0.1), 10, 5)


@pytest.mark.parametrize("name", ["cosine", "onecycle"])
def test_a_schedule_goes_on_from_its_state(name: Any) -> None:
    def made() -> tuple[torch.optim.Optimizer, Any]:
        adam = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.1)
        return adam, optim.scheduler(adam, Schedule(name=name, warmup=0.2), Optim(lr=0.1), 30, 5)["scheduler"]

    (first, whole), (again, resumed) = made(), made()
    for _ in range(12):
        first.step()
        whole.step()
    again.load_state_dict(first.state_dict())
    resumed.load_state_dict(whole.state_dict())
    for _ in range(18):
        assert again.param_groups[0]["lr"] == first.param_groups[0]["lr"]
        for each in (first, whole, again, resumed):
            each.step()
