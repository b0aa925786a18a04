"""What reads sequences whose rows end at different places, and answers a vector for each: padding changes nothing.

`features` are float `[batch, length, width]`; `mask`, `[batch, length]`, is 1 or True where they are a token's, and a
row's tokens come before its padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Windows(nn.Module):
    """Convolutions over windows of several sizes, and of each filter its largest answer in the row.

    After Kim, "Convolutional Neural Networks for Sentence Classification" (2014), section 2. A window counts where it
    begins at a token; a row is followed by zeros, so that a text shorter than the window has answers too.

    Args:
        width: of the features.
        kernels: tokens in each size of window.
        filters: for each size; the answer is float `[batch, len(kernels) * filters]`.
    """

    def __init__(self, width: int, kernels: Sequence[int], filters: int) -> None:
        super().__init__()
        self.kernels = tuple(kernels)
        self.convolutions = nn.ModuleList([nn.Conv1d(width, filters, size) for size in self.kernels])
        self.width = len(self.kernels) * filters

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        counts = mask.to(features.dtype).unsqueeze(1)
        steps = features.transpose(1, 2) * counts
        # After a ReLU nothing is under the 0 that a window of padding counts.
        found = [
            (torch.relu(layer(functional.pad(steps, (0, size - 1)))) * counts).amax(2)
            for size, layer in zip(self.kernels, self.convolutions, strict=True)
        ]
        return torch.cat(found, 1)


class _Layer(nn.Module):
    """One recurrent layer, of one direction or two."""

    def __init__(self, cell: str, inside: int, width: int, bidirectional: bool) -> None:
        super().__init__()
        self.onward = CELLS[cell](inside, width, batch_first=True)
        self.back = CELLS[cell](inside, width, batch_first=True) if bidirectional else None

    def forward(self, features: Tensor, turned: Tensor) -> Tensor:
        states: Tensor = self.onward(features)[0]
        if self.back is None:
            return states
        back = self.back(_at(features, turned))[0]
        return torch.cat((states, _at(back, turned)), 2)


class Recurrent(nn.Module):
    """LSTM or GRU layers, read where they have seen the whole row: at its last token, the way back at its first.

    The same as torch's own layers on packed sequences, which do not export: the way back reads each row turned round
    by itself.

    Args:
        cell: "lstm" or "gru".
        inside: width of the features.
        width: of the state of each direction; the answer is float `[batch, width]`, or twice as wide for two.
        layers: on top of each other.
        bidirectional: whether there is a way back.
        dropout: share of the values between layers that training leaves out.
    """

    def __init__(self, cell: str, inside: int, width: int, layers: int, bidirectional: bool, dropout: float) -> None:
        super().__init__()
        if cell not in CELLS:
            raise ValueError(f"cell is {cell!r}; it must be one of {', '.join(CELLS)}")
        self.state, self.width = width, 2 * width if bidirectional else width
        insides = [inside, *[self.width] * (layers - 1)]
        self.layers = nn.ModuleList([_Layer(cell, inside, width, bidirectional) for inside in insides])
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        steps = torch.arange(features.shape[1], device=features.device)
        # Of a row without tokens the first step is read; its features are those of padding.
        lengths = torch.where(mask != 0, steps + 1, 1).amax(1, keepdim=True)
        turned = torch.where(steps < lengths, lengths - 1 - steps, steps)
        states = features
        for place, layer in enumerate(self.layers):
            states = layer(self.dropout(states) if place else states, turned)
        last = _at(states[:, :, : self.state], lengths - 1).squeeze(1)
        return torch.cat((last, states[:, 0, self.state :]), 1) if self.width > self.state else last


def _at(features: Tensor, places: Tensor) -> Tensor:
    """The features `[batch, n, width]` at int64 `[batch, n]` places of each row."""
    return features.gather(1, places.unsqueeze(2).expand(-1, -1, features.shape[2]))
