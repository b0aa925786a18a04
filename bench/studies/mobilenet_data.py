"""Trains MobileNet-like networks on Fashion-MNIST for studies of precision: `python mobilenet_data.py OUTPUT [NAME …]`.

Needs torchvision and Debian's dataset-fashion-mnist. Writes NAME.pth (a state dict), calibration.npz (512 pictures of
the training part, with labels), budget.npz (5,000 others of it, with labels) and test.npz (the whole test part).
"""

from __future__ import annotations

import gzip
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import nn

HOME = Path("/usr/share/datasets/fashion-mnist")
NAMES = ("Separable", "mobilenet_v3_small")
EPOCHS, BATCH, SEED = 4, 128, 0


def images(part: str) -> tuple[Any, Any]:
    """Pictures float32 `[n, 3, 32, 32]` of mean 0 and deviation 1, and class numbers int64 `[n]`."""
    raw = gzip.decompress((HOME / f"{part}-images-idx3-ubyte.gz").read_bytes())
    pixels = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 28, 28).astype(np.float32)
    labels = np.frombuffer(gzip.decompress((HOME / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    scaled = np.pad((pixels / 255 - 0.2860) / 0.3530, ((0, 0), (2, 2), (2, 2)), constant_values=-0.2860 / 0.3530)
    return np.repeat(scaled[:, None], 3, axis=1), labels.astype(np.int64)


def mobilenet_v3_small() -> Any:
    return small("mobilenet_v3_small")


class Separable(nn.Module):
    """A MobileNet of twelve depthwise-separable blocks: image float32 `[b, 3, 32, 32]` -> logits `[b, 10]`.

    Its BatchNorm gains start log-uniform over two and a half decades. Training leaves channels as unequal as in
    published MobileNets (Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction"),
    so that one scale for all channels of an activation fits few of them.
    """

    def __init__(self) -> None:
        super().__init__()
        first = ((32, 64, 1), (64, 64, 1), (64, 64, 1), (64, 128, 2))
        last = ((128, 256, 2), (256, 256, 1), (256, 256, 1), (256, 256, 1))
        widths = (*first, *((128, 128, 1),) * 4, *last)
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.blocks = nn.Sequential(*(self._block(*width) for width in widths))
        self.head = nn.Linear(256, 10)
        generator = torch.Generator().manual_seed(1)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                exponent = 2.5 * torch.rand(module.weight.shape, generator=generator) - 2.5 + 0.5
                with torch.no_grad():
                    module.weight.copy_(10**exponent)

    @staticmethod
    def _block(inside: int, outside: int, stride: int) -> nn.Sequential:
        depthwise = nn.Conv2d(inside, inside, 3, stride=stride, padding=1, groups=inside, bias=False)
        pointwise = nn.Conv2d(inside, outside, 1, bias=False)
        return nn.Sequential(
            *(depthwise, nn.BatchNorm2d(inside), nn.ReLU(), pointwise, nn.BatchNorm2d(outside), nn.ReLU())
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def small(name: str) -> Any:
    """A network of torchvision's for ten classes and pictures of 32 pixels: its first layer keeps the resolution."""
    net = getattr(torchvision.models, name)(num_classes=10)
    first = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    first.stride = (1, 1)
    return net


def train(name: str, x: Any, y: Any, test: tuple[Any, Any]) -> Any:
    torch.manual_seed(SEED)
    net = globals()[name]()
    net.to(memory_format=torch.channels_last)
    steps = EPOCHS * (len(x) // BATCH)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=steps)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    for epoch in range(EPOCHS):
        started = time.perf_counter()
        order: Any = torch.randperm(len(x))
        net.train()
        for rows in order[: len(x) // BATCH * BATCH].split(BATCH):
            loss: Any = nn.functional.cross_entropy(
                net(inputs[rows].to(memory_format=torch.channels_last)), targets[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        net.eval()
        with torch.inference_mode():
            parts: Any = np.array_split(test[0], 20)
            found = torch.cat([net(torch.from_numpy(part)) for part in parts]).argmax(1).numpy()
        taken = time.perf_counter() - started
        print(f"{name} epoch {epoch}: {(found == test[1]).mean():.2%} of test, {taken:.0f} s", flush=True)
    return net


def main(output: Path, names: tuple[str, ...]) -> None:
    output.mkdir(parents=True, exist_ok=True)
    (x, y), test = images("train"), images("t10k")
    order = np.random.default_rng(SEED).permutation(len(x))
    parts = {"calibration": order[:512], "budget": order[512:5512]}
    for part, rows in parts.items():
        np.savez(output / f"{part}.npz", x=x[rows], labels=y[rows])
    np.savez(output / "test.npz", x=test[0], labels=test[1])
    rest = order[5512:]
    for name in names:
        torch.save(train(name, x[rest], y[rest], test).state_dict(), output / f"{name}.pth")


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:]) or NAMES)
