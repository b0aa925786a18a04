"""Averaged weights: the moving average of what training went through, which often scores better than its end.

torch.optim.swa_utils.AveragedModel is not used: of buffers it copies all, so that BatchNorm has the statistics of other
weights, or averages all, which cuts integers off: with a decay of 0.9999 every fifth of a table of positions is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Averaged:
    """The average of a network's weights over its steps: after each, average += (1 − decay) × (weights − average).

    The decay of step n is min(decay, (1 + n) / (10 + n)), so that the first steps, which are far off, are soon
    forgotten. Parameters and buffers of floats, BatchNorm's statistics among them, are averaged; other buffers are
    copied. Half-precision weights are averaged in float32, in which a step of 1 − decay is not lost.

    Args:
        net: the network, where it is to stay; its weights of now are the first average.
        decay: between 0 and 1.
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay is {decay}; it must be between 0 and 1")
        self.decay = decay
        self.count = 0
        self.average = {name: _held(tensor) for name, tensor in _state(net)}
        self._applied = False

    @torch.no_grad()
    def update(self, net: nn.Module) -> None:
        """Take in the weights that a step left."""
        if self._applied:
            raise RuntimeError("the averaged weights are in the network; it has no others to average")
        self.count += 1
        share = 1 - min(self.decay, (1 + self.count) / (10 + self.count))
        averages, currents = [], []
        for name, tensor in _state(net):
            average = self.average[name]
            if average.is_floating_point():
                averages.append(average)
                currents.append(tensor.detach().to(average))
            else:
                average.copy_(tensor)
        torch._foreach_lerp_(averages, currents, share)

    @contextmanager
    def applied(self, net: nn.Module) -> Iterator[None]:
        """Put the averaged weights into the network, and its own back at the end, to the bit."""
        own = {name: tensor.detach().clone() for name, tensor in _state(net)}
        self._applied = True
        try:
            _fill(net, self.average)
            yield
        finally:
            _fill(net, own)
            self._applied = False

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on from: `count` and `average`, the tensors themselves by name, as torch's are."""
        return {"count": self.count, "average": dict(self.average)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same network's.

        Raises:
            ValueError: it is of another network.
        """
        found = {name: tuple(tensor.shape) for name, tensor in state["average"].items()}
        wanted = {name: tuple(tensor.shape) for name, tensor in self.average.items()}
        if found != wanted:
            odd = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
            raise ValueError(f"averaged weights of another network: {', '.join(odd[:3])}")
        for name, tensor in state["average"].items():
            self.average[name].copy_(tensor)
        self.count = int(state["count"])


def _state(net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each parameter and buffer once, also where two layers share it."""
    yield from net.named_parameters()
    yield from net.named_buffers()


def _held(tensor: Tensor) -> Tensor:
    """A copy to average in."""
    halves = (torch.float16, torch.bfloat16)
    return tensor.detach().to(torch.float32 if tensor.dtype in halves else tensor.dtype, copy=True)


@torch.no_grad()
def _fill(net: nn.Module, state: dict[str, Tensor]) -> None:
    for name, tensor in _state(net):
        tensor.copy_(state[name])
