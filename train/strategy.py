"""How a sweep draws values and ends trials early, by Optuna."""

from __future__ import annotations

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from penstock.train.space import Parameter, Sweep


def distribution(parameter: Parameter) -> BaseDistribution:
    """What Optuna draws a field's value from; of choices, their labels."""
    if parameter.choices is not None:
        return CategoricalDistribution(parameter.labels)
    low, high = parameter.low, parameter.last
    assert low is not None
    if parameter.whole:
        return IntDistribution(int(low), int(high), log=parameter.log, step=int(parameter.step or 1))
    return FloatDistribution(low, high, log=parameter.log, step=parameter.step)


def sampler(sweep: Sweep, index: int) -> optuna.samplers.BaseSampler:
    """What draws the trial that has so many before it. A grid's points are not drawn but given."""
    seed = int(np.random.SeedSequence((sweep.seed, index)).generate_state(1)[0])
    if sweep.sampler == "tpe":
        # A constant liar: what others try at the same time counts as bad, so that they do not all try the same.
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return optuna.samplers.RandomSampler(seed=seed)


def pruner(sweep: Sweep, epochs: int) -> optuna.pruners.BasePruner:
    """What ends trials early. Halving and hyperband keep a third at epochs 1, 3, 9 and so on, as in their papers."""
    if sweep.pruner == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    if sweep.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=epochs, reduction_factor=3)
    if sweep.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2)
    return optuna.pruners.NopPruner()
