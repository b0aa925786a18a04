"""A network that answers in the unit of what it is to tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from penstock import architecture
from penstock.architecture import Architecture


class Rescaled(nn.Module):
    """The answers of `net`, which are standardised, times `std` plus `mean`.

    The moments are of the arguments and in no state_dict, so that weights can be put into a network for another unit.

    Args:
        net: the architecture inside, `{"target": ..., "kwargs": ...}`. A checkpoint may name one by itself if it is of
            penstock's own, see `penstock.card.targets`.
        mean: of the targets that it was trained on: one for all columns of the answers, or one for each.
        std: likewise; over 0.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, net: Mapping[str, Any], mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0
    ) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("std", std)):
            numbers = [value] if isinstance(value, int | float) else value
            if not all(math.isfinite(number) and (name == "mean" or number > 0) for number in numbers):
                raise ValueError(f"{name} is {value}; it must be finite{'' if name == 'mean' else ' and over 0'}")
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32), persistent=False)
        inner = Architecture.model_validate(net)
        # Not by `build`, whose seed is its own.
        self.net: nn.Module = architecture.find(inner.target)(**inner.kwargs)

    def forward(self, *inputs: Tensor) -> Tensor:
        answer: Tensor = self.net(*inputs) * self.std + self.mean
        return answer
