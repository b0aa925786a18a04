"""Networks on bytes of text, for the study of precision: a transformer encoder and an LSTM tagger."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Encoder(nn.Module):
    """ids int64 `[b, n]` -> logits `[b, 12]`."""

    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(256, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 12)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.body(self.table(ids)).mean(1))


class Tagger(nn.Module):
    """ids int64 `[b, n]` -> logits `[b, n, 12]`."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(256, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 12)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.lstm(self.table(ids))[0])
