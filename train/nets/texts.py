"""Networks for texts: token numbers int64 `[batch, length]` -> logits `[batch, classes]`.

Token 0 is padding, which comes after a text's tokens; how much of it there is changes no answer, but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from penstock.train.nets.arguments import see_counts, see_lists, see_share
from penstock.train.nets.sequences import Recurrent, Windows


class TextCnn(nn.Module):
    """Convolutions over words (Kim, "Convolutional Neural Networks for Sentence Classification", 2014).

    Args:
        tokens: how many there are, padding counted.
        classes: how many answers.
        width: numbers that a token becomes.
        kernels: tokens in a window.
        filters: for each size of window.
        dropout: share of the filters' answers that training leaves out.
    """

    def __init__(
        self,
        tokens: int,
        classes: int = 2,
        width: int = 128,
        kernels: Sequence[int] = (3, 4, 5),
        filters: int = 100,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        see_counts(tokens=tokens, classes=classes, width=width, filters=filters)
        see_lists(kernels=kernels)
        see_share(dropout=dropout)
        self.embedding = nn.Embedding(tokens, width, padding_idx=0)
        self.windows = Windows(width, kernels, filters)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(self.windows.width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        features = self.windows(self.embedding(ids), ids != 0)
        logits: Tensor = self.head(self.dropout(features))
        return logits


class TextRnn(nn.Module):
    """LSTM or GRU layers over words, read at the text's ends.

    Args:
        tokens: how many there are, padding counted.
        classes: how many answers.
        cell: "lstm" or "gru".
        width: numbers that a token becomes, and of the state of each direction.
        layers: on top of each other.
        bidirectional: whether the text is read backwards too.
        dropout: share of the values between layers, and before the head, that training leaves out.
    """

    def __init__(
        self,
        tokens: int,
        classes: int = 2,
        cell: Literal["lstm", "gru"] = "lstm",
        width: int = 128,
        layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        see_counts(tokens=tokens, classes=classes, width=width, layers=layers)
        see_share(dropout=dropout)
        self.embedding = nn.Embedding(tokens, width, padding_idx=0)
        self.recurrent = Recurrent(cell, width, width, layers, bidirectional, dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(self.recurrent.width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        features = self.recurrent(self.embedding(ids), ids != 0)
        logits: Tensor = self.head(self.dropout(features))
        return logits
