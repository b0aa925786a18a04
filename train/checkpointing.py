"""Activation checkpointing: parts of a network that keep their inputs alone, and compute anew on the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from penstock.errors import PenstockError


def checkpointed(net: nn.Module) -> nn.Module:
    """The network itself, whose blocks compute anew in the backward pass (Chen et al., "Training Deep Nets with
    Sublinear Memory Cost", 2016).

    Gradients, running statistics, names of tensors and evaluation stay as they are. Blocks are what stands in a row, in
    a Sequential or a ModuleList, and is made of parts itself; where there are none, the network's own parts.

    Raises:
        PenstockError: the network has no parts to compute anew.
    """
    blocks = list(_blocks(net)) or [part for part in net.children() if _composite(part)]
    if not blocks:
        raise PenstockError(
            f"machine.checkpointing is true; {type(net).__name__} has no blocks to compute anew: leave it out"
        )
    for block in blocks:
        block.forward = partial(_forward, block, block.forward)  # type: ignore[method-assign]
    return net


def _blocks(part: nn.Module) -> Iterator[nn.Module]:
    """The outermost blocks under a part."""
    row = isinstance(part, nn.Sequential | nn.ModuleList)
    for child in part.children():
        if row and _composite(child):
            yield child
        else:
            yield from _blocks(child)


def _composite(part: nn.Module) -> bool:
    return any(True for _ in part.children()) and any(True for _ in part.parameters())


def _forward(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not block.training or not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    norms = [part for part in block.modules() if isinstance(part, _NormBase)]
    # Only what needs it: torch.compile takes no contexts of one's own.
    more: dict[str, Any] = {"context_fn": partial(_contexts, norms)} if norms else {}
    return checkpoint(forward, *args, use_reentrant=False, **more, **kwargs)


def _contexts(norms: list[_NormBase]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _counted_once(norms)


@contextmanager
def _counted_once(norms: list[_NormBase]) -> Iterator[None]:
    """Keep running statistics from counting a batch again when it is computed anew."""
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, _, counter in before:
        norm.momentum = 0.0
        norm.num_batches_tracked = None if counter is None else counter.clone()
    try:
        yield
    finally:
        for norm, momentum, counter in before:
            norm.momentum, norm.num_batches_tracked = momentum, counter
