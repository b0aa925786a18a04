"""Networks for pictures: float32 `[batch, channels, height, width]` -> logits `[batch, classes]`.

The first stage keeps the picture's size, each later one halves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.train.nets.arguments import see_counts, see_lists


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
            self.shortcut = _normed(channels_in, channels_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResidualNet(nn.Module):
    """A small residual classifier; each width is a block."""

    def __init__(self, channels: int = 1, widths: Sequence[int] = (24, 48, 96), classes: int = 10) -> None:
        super().__init__()
        see_counts(channels=channels, classes=classes)
        see_lists(widths=widths)
        self.stem = nn.Sequential(*_normed(channels, widths[0], 3, 1), nn.ReLU())
        pairs = pairwise((widths[0], *widths))
        self.blocks = nn.Sequential(*[_Residual(a, b, 1 if i == 0 else 2) for i, (a, b) in enumerate(pairs)])
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, image: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(image))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


class _RepVgg(nn.Module):
    """3x3, 1x1 and, where the shape stays, identity, a BatchNorm each, summed: one 3x3 convolution to whoever runs it.

    After Ding et al., "RepVGG: Making VGG-style ConvNets Great Again" (2021), section 3.3.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.wide = _normed(channels_in, channels_out, 3, stride)
        self.narrow = _normed(channels_in, channels_out, 1, stride)
        same = stride == 1 and channels_in == channels_out
        self.identity = nn.BatchNorm2d(channels_out) if same else None
        self.single: nn.Conv2d | None = None
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        if self.single is not None:
            return torch.relu(self.single(x))
        y = self.wide(x) + self.narrow(x)
        return torch.relu(y if self.identity is None else y + self.identity(x))

    @torch.no_grad()
    def reparameterize(self) -> None:
        """Put one convolution in the place of the branches; `penstock export` calls this."""
        if self.single is not None:
            return
        convolution, narrow = self.wide[0], self.narrow[0]
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(narrow, nn.Conv2d)
        weight = convolution.weight
        branches = [(weight, self.wide[1]), (functional.pad(narrow.weight, (1, 1, 1, 1)), self.narrow[1])]
        if self.identity is not None:
            eye = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
            branches.append((functional.pad(eye[:, :, None, None], (1, 1, 1, 1)), self.identity))
        folded = [_folded(kernel, norm) for kernel, norm in branches]
        single = nn.Conv2d(weight.shape[1], weight.shape[0], 3, self.stride, padding=1).to(weight)
        assert single.bias is not None
        single.weight.copy_(torch.stack([kernel for kernel, _ in folded]).sum(0))
        single.bias.copy_(torch.stack([bias for _, bias in folded]).sum(0))
        self.single = single.train(self.training)
        del self.wide, self.narrow, self.identity


class RepVggNet(nn.Module):
    """A plain stack of 3x3 convolutions, each trained as the sum of three branches.

    Args:
        channels: of the picture.
        widths: channels of each stage.
        depths: blocks of each stage.
        classes: how many answers.
    """

    def __init__(
        self,
        channels: int = 1,
        widths: Sequence[int] = (32, 64, 128),
        depths: Sequence[int] = (1, 2, 2),
        classes: int = 10,
    ) -> None:
        super().__init__()
        see_counts(channels=channels, classes=classes)
        see_lists(widths=widths)
        see_lists(0, depths=depths)
        if len(widths) != len(depths):
            raise ValueError(f"widths has {len(widths)} stages and depths has {len(depths)}; they must have as many")
        blocks: list[nn.Module] = []
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            for place in range(depth):
                blocks.append(_RepVgg(channels, width, 2 if stage and not place else 1))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        features: Tensor = self.blocks(image)
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


def _normed(channels_in: int, channels_out: int, size: int, stride: int) -> nn.Sequential:
    """A convolution that keeps the picture's size, but for its stride, and its BatchNorm."""
    convolution = nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out))


def _folded(kernel: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The kernel and the bias of a convolution without bias and of the BatchNorm after it."""
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return kernel * scale.view(-1, 1, 1, 1), norm.bias - norm.running_mean * scale
