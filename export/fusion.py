"""Fusion: BatchNorm folded into the layer before it, proven on example inputs."""

from __future__ import annotations

import copy
import functools
import inspect
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node, Tracer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvTransposeNd

from penstock.errors import first_line
from penstock.export import branches
from penstock.export.quiet import quiet

_LAYERS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Linear,
)
Pair = tuple[str, str]


@dataclass(frozen=True)
class Fused:
    """A module made ready for export.

    Attributes:
        module: a copy that gives the same answers, to rounding, with fewer layers.
        pairs: how many BatchNorms were folded into the layer before them.
        reparameterised: how many submodules merged their branches by a method of their own.
        note: why some part was not looked at or was left as it is, in one line; None if there is nothing to say.
    """

    module: nn.Module
    pairs: int = 0
    reparameterised: int = 0
    note: str | None = None


def fuse(module: nn.Module, examples: branches.Examples | None = None) -> Fused:
    """A copy of `module` with its branches merged, and every BatchNorm folded away that follows a layer which nothing
    else reads.

    Branches are merged by the submodules' own methods, as RepVGG has them (Ding et al. 2021, "RepVGG: Making VGG-style
    ConvNets Great Again", section 3.3). With examples, all that is done is proven first, in float64 where the module
    runs so: what moves an output by more than 1e-6 of its largest value is undone.

    Args:
        module: in eval mode; left as it is.
        examples: positional inputs. Without them the ranks of tensors are unknown and nothing can be proven: linear
            layers and branches are left alone, and so is all of a module that torch.fx cannot trace as a whole.
    """
    with quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            fused = copy.deepcopy(module)
        except Exception as error:  # a module may hold anything: a lock, a file, a tensor inside autograd's graph
            return Fused(module, note=f"it cannot be copied ({first_line(error)})")
        if not any(isinstance(part, _BatchNorm) or branches.own_method(part) for part in module.modules()):
            return Fused(fused)
        try:
            proof = None if examples is None else branches.Proof(module, examples)
        except Exception as error:  # the module's own code may raise anything
            return Fused(fused, note=f"it does not run on the example inputs ({first_line(error)})")
        try:
            merge = branches.unmerged(fused) if proof is None else branches.merge_all(proof, one_by_one=False)
            for name in merge.called:
                fused, _ = branches.merged(fused, name)
        except Exception as error:  # what ran in float64 may not run in the module's own dtype
            fused = copy.deepcopy(module)
            merge = branches.Merge(fused if proof is None else proof.start)
            merge.notes.append(f"merging fails ({first_line(error)})")
        search = _Search(merge.whole, proof)
        note = _told([*merge.notes, *search.notes])
        return Fused(_folded(fused, search.pairs), len(search.pairs), merge.count, note)


def _told(notes: list[str]) -> str | None:
    more = [f"and {len(notes) - 4} more of this kind"] if len(notes) > 4 else []
    return "; ".join([*notes[:4], *more]) or None


class _Search:
    """The search for pairs: in the whole module and, where torch.fx cannot trace that, in each child that it can.

    All pairs are proven at once; should that fail, part by part, to leave out those at fault.

    Attributes:
        pairs: the names of each layer and of the norm that folds into it.
    """

    def __init__(self, whole: nn.Module, proof: branches.Proof | None) -> None:
        self.pairs: list[Pair] = []
        self.notes: list[str] = []
        self._whole, self._proof = whole, proof
        self._why, self._missed = "", set[nn.Module]()
        if not _norms(whole):
            return
        self._watch = None if proof is None else _Watch(whole, proof.examples)
        self._places = Counter(part for _, part in whole.named_modules(remove_duplicate=False))
        self._look(whole, "", part_by_part=False)
        if self.pairs and not self._proven([]):
            self.pairs = []
            self._look(whole, "", part_by_part=True)
        why = self._why or ("" if self.notes else "it is called with more than tensors, numbers and flags")
        if self._missed and why:
            self.notes.append(f"torch.fx cannot trace it ({why}); BatchNorms not looked at: {len(self._missed)}")

    def _look(self, part: nn.Module, name: str, part_by_part: bool) -> None:
        norms = _norms(part)
        found = self._found(part, name) if norms else []
        if part_by_part and found and not self._proven(found):
            self.notes.append(f"folding in {name or 'it'} changes the answers and was undone")
            found = None
        if found is not None:
            self.pairs += found
        elif self._watch is None or part in norms:
            self._missed |= norms
        else:
            for child, inner in part.named_children():
                self._look(inner, branches.join(name, child), part_by_part)

    def _proven(self, pairs: list[Pair]) -> bool:
        return self._proof is None or self._proof.holds(_folded(copy.deepcopy(self._whole), [*self.pairs, *pairs]))

    def _found(self, part: nn.Module, name: str) -> list[Pair] | None:
        """The pairs of a part; None where it cannot be traced, or where others may reach past it into its layers."""
        fixed = _fixed(part, (), {}) if self._watch is None else self._watch.fixed.get(part)
        if fixed is None or (name and self._places[part] > 1) or isinstance(part, _BatchNorm):
            return None
        try:
            pairs = _pairs(part, fixed)
        except Exception as error:  # tracing runs the module's own code, which may raise anything on a proxy
            self._why = self._why or first_line(error)
            return None
        pairs = [(branches.join(name, layer), branches.join(name, norm)) for layer, norm in pairs]
        return [pair for pair in pairs if self._agrees(part, *map(self._whole.get_submodule, pair))]

    def _agrees(self, part: nn.Module, layer: nn.Module, norm: nn.Module) -> bool:
        """Whether the run on the examples shows what the graph does: each called as often as the part, and in batches.

        A linear layer over `[n, length, features]` is normalised along another axis than its features.
        """
        if self._watch is None:
            return not isinstance(layer, nn.Linear)
        alone = part is self._whole or self._places[layer] == self._places[norm] == 1
        calls, ranks = self._watch.calls, self._watch.ranks[layer]
        return alone and calls[layer] == calls[norm] == calls[part] and ranks == {layer.get_parameter("weight").ndim}


class _Watch:
    """What one run on examples shows of every part of a module.

    Attributes:
        calls: how often it is called.
        ranks: the ranks of what it answers.
        fixed: what its calls fix of its arguments, see `_fixed`; None where they differ in that.
    """

    def __init__(self, whole: nn.Module, examples: branches.Examples) -> None:
        self.calls = Counter[nn.Module]()
        self.ranks = defaultdict[nn.Module, set[int]](set)
        self.fixed: dict[nn.Module, dict[str, Any] | None] = {}
        watched = copy.deepcopy(whole)
        for part, twin in zip(whole.modules(), watched.modules(), strict=True):
            if not isinstance(twin, torch.jit.ScriptModule):
                twin.register_forward_hook(functools.partial(self._see, part), with_kwargs=True)
        branches.answers_to(watched, examples)

    def _see(self, part: nn.Module, _: nn.Module, args: Any, kwargs: Any, answer: Any) -> None:
        fixed = _fixed(part, args, kwargs)
        self.calls[part] += 1
        self.ranks[part].add(answer.ndim if isinstance(answer, Tensor) else -1)
        self.fixed[part] = fixed if self.fixed.setdefault(part, fixed) == fixed else None


def _fixed(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The flags that a call gives, and the defaults that it leaves: `is None` would lie of a proxy for them.

    None where the call gives other things than flags, numbers and tensors.
    """
    try:
        bound = inspect.signature(part.forward).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return None
    given = dict(bound.arguments)
    bound.apply_defaults()
    flags = {name: value for name, value in given.items() if value is None or isinstance(value, bool | str)}
    if any(not isinstance(value, Tensor | int | float) for name, value in given.items() if name not in flags):
        return None
    return {**{name: value for name, value in bound.arguments.items() if name not in given}, **flags}


class _Tracer(Tracer):
    """A tracer that sees each BatchNorm as one call, and a buffer that is read beside its norm."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, _BatchNorm) or super().is_leaf_module(m, module_qualified_name)


def _pairs(part: nn.Module, fixed: dict[str, Any]) -> list[Pair]:
    """The names of each layer and of the BatchNorm called on it, where folding one into the other is exact."""
    traced = copy.deepcopy(part)  # its code may keep a proxy
    graph = _Tracer().trace(traced, fixed)
    modules = dict(traced.named_modules(remove_duplicate=False))
    calls = Counter(modules[str(node.target)] for node in graph.nodes if node.op == "call_module")
    paths = [str(node.target).split(".") for node in graph.nodes if node.op == "get_attr"]
    read = {id(functools.reduce(getattr, path, traced)) for path in paths}
    pairs = []
    for node in graph.nodes:
        before = _only_source(node)
        if before is None:
            continue
        layer, norm = modules[str(before.target)], modules[str(node.target)]
        tensors = {id(x) for owner in (layer, norm) for x in (*owner.parameters(), *owner.buffers())}
        once = calls[layer] == 1 and sum(calls[inner] for inner in norm.modules()) == 1
        if once and not tensors & read and _folds(layer, norm):
            pairs.append((str(before.target), str(node.target)))
    return pairs


def _only_source(node: Node) -> Node | None:
    """The call of a module whose answer `node`, itself such a call, reads alone and reads nothing else."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    before = node.args[0]
    alone = isinstance(before, Node) and before.op == "call_module" and len(before.users) == 1
    return before if isinstance(before, Node) and alone else None


def _folds(layer: nn.Module, norm: nn.Module) -> bool:
    """Whether both are of kinds whose code is known, compute with their own weights and fit each other."""
    if type(layer) not in _LAYERS or not isinstance(norm, _BatchNorm) or _left_of(norm) is None:
        return False
    if norm.running_mean is None or norm.running_var is None or norm.training:
        return False
    if "weight" not in layer._parameters or any(m._forward_pre_hooks or m._forward_hooks for m in (layer, norm)):
        return False  # a hook makes the weight anew at each call, as weight_norm does, or reads what passes
    channels = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    return "forward" not in vars(layer) and bool(channels == norm.num_features)


def _left_of(norm: _BatchNorm) -> nn.Module | None:
    """What a norm does after normalising, to stand in its place; None where its code is not known."""
    kind = type(norm)
    if "forward" in vars(norm):
        return None
    if kind.forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
        return nn.Identity().eval()
    if kind.__module__.startswith("timm.") and kind.__name__ in ("BatchNormAct2d", "SyncBatchNormAct"):
        return nn.Sequential(*(part for name, part in norm.named_children() if name in ("drop", "act"))).eval()
    return None


def _folded(whole: nn.Module, pairs: list[Pair]) -> nn.Module:
    """Fold each pair of a module, in place."""
    for pair in pairs:
        layer, norm = map(whole.get_submodule, pair)
        assert isinstance(norm, _BatchNorm)
        left = _left_of(norm)
        assert left is not None
        _fold(layer, norm)
        whole = branches.exchanged(whole, norm, left)
    return whole


def _fold(layer: nn.Module, norm: _BatchNorm) -> None:
    """w' = w·γ/√(σ² + ε), b' = (b − μ)·γ/√(σ² + ε) + β, in float64 (Jacob et al. 2018, "Quantization and Training
    of Neural Networks", section 3.2)."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    weight: Tensor = layer.weight  # type: ignore[assignment]
    bias: Tensor | None = layer.bias  # type: ignore[assignment]
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    gamma = norm.weight.double() if norm.weight is not None else torch.ones_like(mean)
    beta = norm.bias.double() if norm.bias is not None else torch.zeros_like(mean)
    scale = gamma / torch.sqrt(variance + norm.eps)
    shift = (bias.double() if bias is not None else torch.zeros_like(mean)) - mean
    with torch.no_grad():
        layer.weight = nn.Parameter(_scaled(layer, weight.double(), scale).to(weight.dtype))
        layer.bias = nn.Parameter((shift * scale + beta).to(weight.dtype))


def _scaled(layer: nn.Module, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply each output channel of a weight by its scale.

    A transposed convolution keeps `[in, out / groups, …]`: output channel g·(out/groups) + j is entry j of the
    inputs of group g.
    """
    if not isinstance(layer, _ConvTransposeNd):
        return weight * scale.view(-1, *[1] * (weight.ndim - 1))
    groups = layer.groups
    grouped = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:])
    return (grouped * scale.view(groups, 1, -1, *[1] * (weight.ndim - 2))).view_as(weight)


def _norms(part: nn.Module) -> set[nn.Module]:
    return {inner for inner in part.modules() if isinstance(inner, _BatchNorm)}
