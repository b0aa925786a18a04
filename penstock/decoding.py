"""Decoding: uint8 pictures made a model's numbers in its own graph, as the recorded preprocessing makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from penstock.preprocess import ImagePreprocess
from penstock.preprocessing import Preprocess
from penstock.signature import Signature


class Decoding(nn.Module):
    """A module behind the casting, layout, scaling and normalising of its pictures.

    Takes uint8 `[batch, height, width, channels]` in place of float32 `[batch, channels, height, width]`. In float32
    it computes as `ImagePreprocess.normalize` does, bit for bit; its buffers say in which dtype.
    """

    levels: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, inner: nn.Module, place: int, image: ImagePreprocess) -> None:
        super().__init__()
        self.inner, self.place = inner, place
        for name, values in (("levels", (1 / image.scale,)), ("mean", image.mean), ("std", image.std)):
            self.register_buffer(name, torch.tensor(values).reshape(1, -1, 1, 1), persistent=False)

    def forward(self, *inputs: torch.Tensor) -> Any:
        pixels = inputs[self.place].to(self.levels.dtype)
        # Laid out as the module's own input is: by the strides that a permutation leaves, of one channel too,
        # convolutions choose other kernels, and views fail.
        grey = self.mean.numel() == 1
        planes = pixels.squeeze(3).unsqueeze(1) if grey else pixels.permute(0, 3, 1, 2).contiguous()
        numbers = (planes / self.levels - self.mean) / self.std
        return self.inner(*inputs[: self.place], numbers, *inputs[self.place + 1 :])


def before(module: nn.Module, signature: Signature, image: Preprocess | None) -> nn.Module:
    """`module`, which takes a signature's tensors by position, with its pictures as uint8 where `image` says so."""
    if not isinstance(image, ImagePreprocess) or image.dtype != "uint8":
        return module
    names: Sequence[str] = [tensor.name for tensor in signature.inputs]
    decoding = Decoding(module, names.index(image.input), image)
    decoding.training = module.training  # alone: a program of torch.export's refuses train()
    return decoding
