"""Fusion: BatchNorm folded into the convolution (or linear layer) before it, exact to rounding."""

from __future__ import annotations

import copy
from collections import Counter

import torch
from torch import nn
from torch.fx import GraphModule, Node, Tracer
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvTransposeNd

_LAYERS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Linear,
)


def fuse(module: nn.Module, examples: tuple[torch.Tensor, ...] | None = None) -> tuple[nn.Module, int, str | None]:
    """A copy of `module` with every BatchNorm folded away that follows a layer which nothing else reads.

    Args:
        module: in eval mode; left as it is.
        examples: inputs; without them the ranks of tensors are unknown, and linear layers are left alone.

    Returns:
        The copy, the number of pairs folded, and why none could be looked for, if so.
    """
    fused = module
    try:
        fused = copy.deepcopy(module)
        tracer = Tracer()
        tracer.proxy_buffer_attributes = True  # else a buffer that is read beside its norm goes unseen
        graph = tracer.trace(fused)
        if examples is not None:
            ShapeProp(GraphModule(fused, graph)).propagate(*examples)
    except Exception as error:  # tracing runs the module's own code, which may raise anything on a proxy
        return (
            fused,
            0,
            f"torch.fx cannot trace it ({type(error).__name__}: {str(error).splitlines()[0][:80]})",
        )
    modules = dict(fused.named_modules())
    # fx spells an attribute path as it was reached, so one module may be called under several names.
    calls = Counter(id(modules[str(node.target)]) for node in graph.nodes if node.op == "call_module")
    read = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    pairs = 0
    for node in graph.nodes:
        names = _pair(node, modules, calls)
        if names is None or any(name.startswith(f"{owner}.") for name in read for owner in names):
            continue
        layer, norm = (modules[name] for name in names)
        _fold(layer, norm)
        _replace(fused, names[1], nn.Identity())
        modules[names[1]] = fused.get_submodule(names[1])
        pairs += 1
    return fused, pairs, None


def _pair(node: Node, modules: dict[str, nn.Module], calls: Counter[int]) -> tuple[str, str] | None:
    """The names of a layer and the BatchNorm that `node` calls on it, where folding one into the other is exact."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    before = node.args[0]
    if not isinstance(before, Node) or before.op != "call_module" or len(before.users) != 1:
        return None
    layer, norm = modules[str(before.target)], modules[str(node.target)]
    if type(layer) not in _LAYERS or not isinstance(norm, _BatchNorm):
        return None
    if norm.running_mean is None or norm.training or calls[id(layer)] != 1 or calls[id(norm)] != 1:
        return None
    if "weight" not in layer._parameters or any(m._forward_pre_hooks or m._forward_hooks for m in (layer, norm)):
        return None  # a hook makes the weight anew at each call, as weight_norm does, or reads what passes
    # A linear layer over [n, length, features] is normalised along another axis than its features.
    if isinstance(layer, nn.Linear) and len(getattr(before.meta.get("tensor_meta"), "shape", ())) != 2:
        return None
    return str(before.target), str(node.target)


def _fold(layer: nn.Module, norm: nn.Module) -> None:
    """w' = w·γ/√(σ² + ε), b' = (b − μ)·γ/√(σ² + ε) + β, in float64 (Jacob et al. 2018, "Quantization and Training
    of Neural Networks", section 3.2)."""
    assert isinstance(norm, _BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    weight: torch.Tensor = layer.weight  # type: ignore[assignment]
    bias: torch.Tensor | None = layer.bias  # type: ignore[assignment]
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    gamma = norm.weight.double() if norm.weight is not None else torch.ones_like(mean)
    beta = norm.bias.double() if norm.bias is not None else torch.zeros_like(mean)
    scale = gamma / torch.sqrt(variance + norm.eps)
    shift = (bias.double() if bias is not None else torch.zeros_like(mean)) - mean
    with torch.no_grad():
        layer.weight = nn.Parameter(_scaled(layer, weight.double(), scale).to(weight.dtype))
        layer.bias = nn.Parameter((shift * scale + beta).to(weight.dtype))


def _scaled(layer: nn.Module, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Multiply each output channel of a weight by its scale.

    A transposed convolution keeps `[in, out / groups, …]`: output channel g·(out/groups) + j is entry j of the
    inputs of group g.
    """
    if not isinstance(layer, _ConvTransposeNd):
        return weight * scale.view(-1, *[1] * (weight.ndim - 1))
    groups = layer.groups
    grouped = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:])
    return (grouped * scale.view(groups, 1, -1, *[1] * (weight.ndim - 2))).view_as(weight)


def _replace(module: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, new)
