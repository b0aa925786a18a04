"""Networks for rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from penstock.train.nets.arguments import see_counts, see_lists, see_share

_NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "none": nn.Identity}


class Mlp(nn.Module):
    """Fully connected layers: float32 `[batch, features]` -> float32 `[batch, classes]`.

    Args:
        features: numbers in a row.
        widths: of the hidden layers; none makes a linear model.
        classes: how many answers: classes, or numbers.
        dropout: share of each hidden layer's values that training leaves out.
        norm: what stands between a hidden layer and its ReLU. "batch" needs two rows at least to train on.
    """

    def __init__(
        self,
        features: int,
        widths: Sequence[int] = (128, 64),
        classes: int = 2,
        dropout: float = 0.0,
        norm: Literal["batch", "layer", "none"] = "batch",
    ) -> None:
        super().__init__()
        if norm not in _NORMS:
            raise ValueError(f"norm is {norm!r}; it must be one of {', '.join(_NORMS)}")
        see_counts(features=features, classes=classes)
        see_lists(widths=widths, empty=True)
        see_share(dropout=dropout)
        sizes = (features, *widths)
        self.blocks = nn.Sequential(
            *[
                nn.Sequential(nn.Linear(a, b), _NORMS[norm](b), nn.ReLU(), nn.Dropout(dropout))
                for a, b in pairwise(sizes)
            ]
        )
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, row: Tensor) -> Tensor:
        answer: Tensor = self.head(self.blocks(row))
        return answer
