"""Optimizers: which parameters move, how much each decays, at which rate and when; penalties on their size."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from penstock.errors import PenstockError
from penstock.train.depths import depths
from penstock.train.recipe import Optim, Schedule

# Figures that are to be small, by the ends of their names; all others are to be large.
FALLING = ("loss", "error", "mae", "mse", "rmse")
_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_SHOWN = 6


def optimizer(net: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """The optimizer of a network's parameters, in groups by decay and by rate; what `optim.freeze` names is frozen.

    With `no_decay`, decay spares what has one dimension (norms and biases), every member of a norm, and what the
    network's own `no_weight_decay()` names, as timm's do with positions and class tokens. Embeddings decay, as in
    transformers' Trainer. With `layer_decay` a parameter's rate is lr × layer_decay ** its depth; see `depths`.
    Each group has a `name` of its own.

    Raises:
        PenstockError: a pattern of `freeze` names nothing, or nothing is left to train, or a setting is not the
            optimizer's.
    """
    freeze(net, optim.freeze)
    groups = _groups(net, optim)
    if not groups:
        if not optim.freeze:
            raise PenstockError(f"the network, {type(net).__name__}, has no parameter to train")
        raise PenstockError(f"optim.freeze is {list(optim.freeze)}; it leaves no parameter to train")
    if optim.name == "sgd":
        if optim.nesterov and not optim.momentum:
            raise PenstockError("optim.nesterov is true and optim.momentum 0; Nesterov's step needs a momentum above 0")
        return torch.optim.SGD(groups, lr=optim.lr, momentum=optim.momentum, nesterov=optim.nesterov)
    if not all(0 <= beta < 1 for beta in optim.betas):
        raise PenstockError(f"optim.betas is {list(optim.betas)}; both are at least 0 and under 1")
    kind = torch.optim.Adam if optim.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=optim.lr, betas=optim.betas)


def _groups(net: nn.Module, optim: Optim) -> list[dict[str, Any]]:
    """Groups of trainable parameters; those that decay before those that do not, the head's before those below it."""
    spared = _spared(net) if optim.no_decay else set()
    below = depths(net) if optim.layer_decay < 1 else {}
    groups: dict[tuple[bool, int], dict[str, Any]] = {}
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:
            continue
        key = name in spared, below.get(name, 0)
        if key not in groups:
            group = "spared" if key[0] else "decayed"
            groups[key] = {
                "params": [],
                "lr": optim.lr * optim.layer_decay ** key[1],
                "weight_decay": 0.0 if key[0] else optim.weight_decay,
                "name": f"{group}-{key[1]}" if below else group,
            }
        groups[key]["params"].append(parameter)
    return [groups[key] for key in sorted(groups)]


def _spared(net: nn.Module) -> set[str]:
    """The names of the parameters that gain nothing from decay."""
    said = getattr(net, "no_weight_decay", None)
    own = set(said()) if callable(said) else set()
    norms = {
        f"{name}.{member}" if name else member
        for name, module in net.named_modules()
        if isinstance(module, _NORMS)
        for member, _ in module.named_parameters(recurse=False)
    }
    return own | norms | {name for name, parameter in net.named_parameters() if parameter.ndim <= 1}


def freeze(net: nn.Module, patterns: Sequence[str]) -> None:
    """Let the parameters that a pattern names stay as they are, and BatchNorm's statistics with its parameters.

    To be called before the network is wrapped for several processes, which look at what is to be trained then; doing
    it twice does no harm.

    Args:
        net: the network.
        patterns: of the shell's kind: `*`, `?` and `[…]`, over whole names as `named_parameters` gives them.

    Raises:
        PenstockError: a pattern names no parameter.
    """
    names = [name for name, _ in net.named_parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise PenstockError(f"optim.freeze: no parameter is called {pattern!r}; {_near(pattern, names)}")
    for name, parameter in net.named_parameters():
        if _matches(name, patterns):
            parameter.requires_grad_(False)
    settle(net, patterns)


def settle(net: nn.Module, patterns: Sequence[str]) -> None:
    """Keep norms that are frozen from learning statistics; to be called again after each `net.train()`.

    A norm is frozen if a pattern names its parameters, or its statistics where it has no parameters.
    """
    for name, module in net.named_modules():
        if not isinstance(module, _NormBase) or module.running_mean is None:
            continue
        members = [member for member, _ in module.named_parameters(recurse=False)] or ["running_mean"]
        if all(_matches(f"{name}.{member}" if name else member, patterns) for member in members):
            module.eval()


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _near(pattern: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(pattern, names, n=3)
    places = [f"{first}.*" if rest else first for first, _, rest in (name.partition(".") for name in names)]
    return f"the nearest are {', '.join(near or list(dict.fromkeys(places))[:_SHOWN])}"


def penalty(net: nn.Module, l1: float, l2: float) -> Tensor:
    """l1 × Σ|w| + l2 × Σw², a scalar, over the trainable weights; what decay spares is spared."""
    spared = _spared(net)
    total = torch.zeros(())
    for name, parameter in net.named_parameters():
        if name in spared or not parameter.requires_grad:
            continue
        if l1:
            total = total + l1 * parameter.abs().sum()
        if l2:
            total = total + l2 * parameter.square().sum()
    return total


def scheduler(
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    optim: Optim,
    steps: int,
    steps_per_epoch: int,
    monitor: str = "val_loss",
) -> dict[str, Any]:
    """What Lightning takes as `lr_scheduler`: the schedule, and when it goes on.

    One-cycle is torch's (Smith & Topin, "Super-Convergence", 2018): the rate rises from 1/25 of the peak over `warmup`
    of the steps, 0.3 of them where it is 0, and ends at `least` of it or, where that is 0, at 1/250,000; the momentum,
    or the first beta, falls from 0.95 to 0.85 and rises again, whatever the recipe says, unless SGD is to have none.
    The others' rates are `share` of their peaks.

    Args:
        optimizer: its groups' rates are the peaks.
        schedule: what a recipe says of it.
        optim: what it says of the optimizer.
        steps: of the optimizer, in all.
        steps_per_epoch: of the optimizer, in an epoch.
        monitor: the figure that plateau follows.

    Raises:
        PenstockError: a setting is not the schedule's.
    """
    if schedule.name == "plateau":
        return {"scheduler": plateau(optimizer, schedule, monitor), "interval": "epoch", "monitor": monitor}
    if schedule.name == "multistep" and not schedule.milestones:
        raise PenstockError("schedule.milestones is empty; multistep needs the epochs at which the rate falls")
    if schedule.name == "onecycle":
        return {"scheduler": _onecycle(optimizer, schedule, optim, steps), "interval": "step"}

    def factor(step: int) -> float:
        return share(schedule, step, steps, steps_per_epoch)

    return {"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, factor), "interval": "step"}


def share(schedule: Schedule, step: int, steps: int, steps_per_epoch: int) -> float:
    """The share of its peak that the rate has in a step, counted from 0; not of one-cycle or plateau.

    Of w steps of warm-up the first has 1 / (w + 1), the last w / (w + 1). Cosine and linear begin at their end, and
    would reach `least` in the step after the last. The others count epochs from the beginning, warm-up included.
    """
    warm = round(schedule.warmup * steps)
    rising = min(1.0, (step + 1) / (warm + 1))
    done = max(step - warm, 0) / max(steps - warm, 1)
    epoch = step // max(steps_per_epoch, 1)
    if schedule.name == "cosine":
        return rising * (schedule.least + (1 - schedule.least) * (1 + math.cos(math.pi * min(done, 1.0))) / 2)
    if schedule.name == "linear":
        return rising * (1 - (1 - schedule.least) * min(done, 1.0))
    falls = {
        "constant": 0,
        "step": epoch // schedule.every,
        "multistep": sum(milestone <= epoch for milestone in schedule.milestones),
        "exponential": epoch,
    }
    return rising * schedule.gamma ** falls[schedule.name]


def _onecycle(
    optimizer: torch.optim.Optimizer, schedule: Schedule, optim: Optim, steps: int
) -> torch.optim.lr_scheduler.OneCycleLR:
    rise = schedule.warmup or 0.3
    if rise * steps == 1:  # torch divides by the length of the rise, less a step
        rise = math.nextafter(rise, 1)
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        [group["lr"] for group in optimizer.param_groups],
        total_steps=steps,
        pct_start=rise,
        cycle_momentum=optim.name != "sgd" or optim.momentum > 0,
        final_div_factor=1 / (25 * schedule.least) if schedule.least else 1e4,
    )


def plateau(
    optimizer: torch.optim.Optimizer, schedule: Schedule, monitor: str
) -> torch.optim.lr_scheduler.ReduceLROnPlateau:
    """Torch's schedule that lowers the rate, never under `least` of its peak, when a figure gets no better.

    The figure is to be small if its name ends like one of `FALLING`, otherwise large.

    Raises:
        PenstockError: there is to be a warm-up, or nothing to fall by.
    """
    if schedule.warmup:
        raise PenstockError(
            f"schedule.warmup is {schedule.warmup:g} and schedule.name plateau, which follows the figures of whole "
            "epochs, not steps: leave warmup out, or take another schedule"
        )
    if schedule.gamma == 1:
        raise PenstockError("schedule.gamma is 1; plateau multiplies the rate by it, which must be under 1")
    return torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        "min" if monitor.endswith(FALLING) else "max",
        factor=schedule.gamma,
        patience=schedule.patience,
        min_lr=[schedule.least * group["lr"] for group in optimizer.param_groups],
    )
