"""Branches: merged by the methods that modules have for it (RepVGG and its kin), each proven on example inputs."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from penstock.errors import first_line

# What a module may call its own way of merging its branches. The first two change it in place (timm; the authors of
# RepVGG), timm's `fuse` may return another module in its stead.
_METHODS = ("reparameterize", "switch_to_deploy", "fuse")
_LIMIT = 1e-6
Examples = tuple[Tensor, ...]


class Proof:
    """What a module answers to examples, and how near to that a changed copy of it must stay."""

    def __init__(self, module: nn.Module, examples: Examples) -> None:
        try:
            self.start, self.limit = copy.deepcopy(module).double(), _LIMIT
            self.examples = tuple(x.double() if x.is_floating_point() else x for x in examples)
            self.answers = answers_to(copy.deepcopy(self.start), self.examples)
        except Exception:  # a module that names a dtype runs in its own only, and half of its digits must do
            self.start, self.examples = copy.deepcopy(module), examples
            self.answers = answers_to(copy.deepcopy(self.start), self.examples)
            widths = [torch.finfo(x.dtype).eps for x in module.parameters() if x.is_floating_point()]
            self.limit = max(_LIMIT, max(widths, default=0.0) ** 0.5)

    def holds(self, changed: nn.Module) -> bool:
        """Whether `changed` gives the same answers."""
        try:
            answers = answers_to(copy.deepcopy(changed), self.examples)
            return all(_near(*two, self.limit) for two in zip(self.answers, answers, strict=True))
        except Exception:  # then it gives none
            return False


def answers_to(module: nn.Module, examples: Examples) -> list[Tensor]:
    """The tensors in a module's answer, however nested; from one seed, and from inputs that it may overwrite."""
    torch.manual_seed(0)
    with default_dtype(module):
        found = [leaf for leaf in tree_leaves(module(*(x.clone() for x in examples))) if isinstance(leaf, Tensor)]
    if not found:
        raise ValueError("its answer holds no tensor")
    return found


def _near(expected: Tensor, got: Tensor, limit: float) -> bool:
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    if expected.is_complex():
        expected, got = torch.view_as_real(expected), torch.view_as_real(got)
    if not expected.is_floating_point() or not expected.numel():
        return torch.equal(expected, got)
    largest = float(expected.nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(got, expected, rtol=0, atol=limit * (largest or 1.0), equal_nan=True)


@contextlib.contextmanager
def default_dtype(module: nn.Module) -> Iterator[None]:
    """Let what a module makes without naming a dtype be of the module's own."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(next((x.dtype for x in module.parameters() if x.is_floating_point()), before))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass
class Merge:
    """A copy with its branches merged, the parts whose methods were `called`, and how many of these changed a thing."""

    whole: nn.Module
    called: list[str] = field(default_factory=list)
    count: int = 0
    notes: list[str] = field(default_factory=list)


def unmerged(module: nn.Module) -> Merge:
    waiting = any(map(own_method, module.modules()))
    return Merge(module, notes=["without example inputs its branches stay as they are"] if waiting else [])


def merge_all(proof: Proof, one_by_one: bool) -> Merge:
    """Call every part's own method from the top down, as timm's `reparameterize_model` does.

    All are called and proven at once; should that fail, one by one, to leave out those at fault.
    """
    merge, pending = Merge(copy.deepcopy(proof.start)), [""]
    while pending:
        name = pending.pop()
        method = own_method(merge.whole.get_submodule(name))
        if method is not None:
            try:
                trial, changed = merged(copy.deepcopy(merge.whole) if one_by_one else merge.whole, name)
                fault = "changes the answers" if one_by_one and not proof.holds(trial) else None
            except Exception as error:  # the method is the module's own code
                if not one_by_one:
                    return merge_all(proof, one_by_one=True)
                fault = f"fails ({first_line(error)})"
            if fault is None:
                merge.whole, merge.count = trial, merge.count + changed
                merge.called.append(name)
            else:
                merge.notes.append(f"{join(name, method)}() {fault} and was undone")
        children = [child for child, _ in merge.whole.get_submodule(name).named_children()]
        pending += [join(name, child) for child in reversed(children)]
    if merge.called and not one_by_one and not proof.holds(merge.whole):
        return merge_all(proof, one_by_one=True)
    return merge


def own_method(part: nn.Module) -> str | None:
    """The name of the part's own method that merges its branches."""
    for name in _METHODS:
        function = getattr(type(part), name, None)  # of the class: a submodule may bear the name too
        with contextlib.suppress(TypeError, ValueError):  # it takes more, as a VAE's reparameterize(mean, variance)
            if callable(function):
                inspect.signature(function).bind(part)
                return name
    return None


def merged(whole: nn.Module, name: str) -> tuple[nn.Module, bool]:
    """Call the method of one part, in place. Returns the whole, and whether the call changed it."""
    part = whole.get_submodule(name)
    method = str(own_method(part))
    known, before = set(whole.modules()), _layout(part)
    with default_dtype(part):
        answer = getattr(part, method)()
    new = answer if method == "fuse" and isinstance(answer, nn.Module) else part
    for inner in new.modules():
        inner.training = inner.training and inner in known  # a layer is made in training mode
    return exchanged(whole, part, new), new is not part or _layout(part) != before


def _layout(part: nn.Module) -> tuple[list[nn.Module], list[str]]:
    return list(part.modules()), [name for name, _ in (*part.named_parameters(), *part.named_buffers())]


def exchanged(whole: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """The whole, with `new` wherever `old` stood."""
    for parent in list(whole.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
    return new if whole is old else whole


def join(parent: str, child: str) -> str:
    return f"{parent}.{child}" if parent else child
