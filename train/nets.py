"""Networks that recipes name. A checkpoint rebuilds its own from here, so a class keeps its name and arguments.

Only module classes may be public names of this file: penstock imports what a checkpoint names from here unasked.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _Residual(nn.Module):
    """Two 3x3 Conv-BatchNorm with a shortcut, after He et al., "Deep Residual Learning" (2015), figure 5."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResidualNet(nn.Module):
    """A small residual classifier: float32 `[batch, channels, height, width]` -> logits `[batch, classes]`."""

    def __init__(self, channels: int = 1, widths: tuple[int, ...] = (24, 48, 96), classes: int = 10) -> None:
        super().__init__()
        widths = tuple(widths)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        pairs = zip((widths[0], *widths), widths, strict=False)
        self.blocks = nn.Sequential(*[_Residual(a, b, 1 if i == 0 else 2) for i, (a, b) in enumerate(pairs)])
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, image: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(image))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits
