"""Probing: what a module really answers for inputs that fit a signature, and how it is called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from penstock import adapter
from penstock.adapter import Call, Path
from penstock.errors import PenstockError
from penstock.signature import Dim, Range, Signature, Tensor, first_message
from penstock.synthetic import synthesize

# Batches to probe with: neither is 1, which a model may treat as no batch at all.
_SMALL, _LARGE = 3, 11


def complete(module: nn.Module, signature: Signature, keep: Sequence[str] = ()) -> tuple[Signature, Call]:
    """`signature` with the outputs that `module` gives, an axis being dynamic where it moves with one of the inputs.

    Ranges of integer inputs that go into a table (`nn.Embedding`) are those of the table.

    Args:
        module: in eval mode.
        signature: the inputs; outputs it may have are passed over.
        keep: names of the outputs to keep; all of them if empty.

    Raises:
        PenstockError: the module fails on such inputs, or answers with other things than tensors.
    """
    keywords = adapter.keywords(module, [tensor.name for tensor in signature.inputs])
    call = Call(keywords, ())
    base, other = _sizes(signature)
    try:
        first, tables = _first(module, signature, call, base)
    except PenstockError:
        single = {name: dim.min for name, dim in signature.dims.items() if dim.min == dim.max}
        if not single:
            raise
        base |= single  # a model may be made for that size alone
        first, tables = _first(module, signature, call, base)
    known = {name: Range(low=0, high=most) for name, most in tables.items()}
    signature = signature.model_copy(update={"ranges": {**known, **signature.ranges}})
    paths = _kept(first, keep)
    call = Call(keywords, tuple(paths.values()))
    shapes = {name: list[int | str](first[path].shape) for name, path in paths.items()}
    for dim, extent in signature.dims.items():
        sizes = base[dim], other[dim]
        try:
            moved = _answer(module, signature, call, _feeds(signature, {**base, dim: other[dim]}))
        except PenstockError:
            if extent.min < extent.max:
                raise
            _mark_leading(shapes, dim, base[dim])
            continue
        if not set(paths.values()) <= moved.keys():
            raise PenstockError(f"the model answers with other outputs when the size of {dim!r} changes")
        for name, path in paths.items():
            _mark(shapes[name], name, dim, sizes, tuple(moved[path].shape), tuple(first[path].shape))
    try:
        outputs = tuple(
            Tensor(name=name, dtype=str(first[path].dtype).removeprefix("torch."), shape=tuple(shapes[name]))
            for name, path in paths.items()
        )
        held = {**signature.__dict__, "outputs": outputs}
        return Signature(**held), call
    except ValidationError as error:
        raise PenstockError(f"the model's outputs cannot be served: {first_message(error)}") from None


def _first(
    module: nn.Module, signature: Signature, call: Call, sizes: dict[str, int]
) -> tuple[dict[Path, Any], dict[str, int]]:
    """The module's answer for inputs of these sizes, and the largest index of each table that they went into."""
    feeds = _feeds(signature, sizes)
    with _watched(module, feeds) as tables:
        return _answer(module, signature, call, feeds), tables


def _sizes(signature: Signature) -> tuple[dict[str, int], dict[str, int]]:
    """Two sizes of each dimension to tell its axes by, inside its range where that has two."""
    leading = {tensor.shape[0] for tensor in signature.inputs if tensor.shape}
    base, other = {}, {}
    for name, dim in signature.dims.items():
        base[name], other[name] = _batches(dim) if name in leading else _others(dim)
    return base, other


def _batches(dim: Dim) -> tuple[int, int]:
    if dim.max == dim.min:
        small = max(_SMALL, dim.min)
        return small, small + _LARGE - _SMALL
    small, large = (min(max(size, dim.min), dim.max) for size in (_SMALL, _LARGE))
    if small == large:
        large = dim.max if dim.max != small else small - 1
    return small, large


def _others(dim: Dim) -> tuple[int, int]:
    ends = [size for size in (dim.max, dim.min) if size != dim.opt]
    return dim.opt, ends[0] if ends else dim.opt + 8


def _mark(
    shape: list[int | str],
    name: str,
    dim: str,
    sizes: tuple[int, int],
    moved: tuple[int, ...],
    first: tuple[int, ...],
) -> None:
    """Name the axes of an output that moved with `dim`; only a size that is the dimension's own bears its name."""
    if len(moved) != len(first):
        raise PenstockError(f"the rank of the model's output {name!r} changes with the size of {dim!r}")
    for axis, (before, after) in enumerate(zip(first, moved, strict=True)):
        if before != after:
            shape[axis] = dim if (before, after) == sizes else _computed(name, axis)


def _mark_leading(shapes: dict[str, list[int | str]], dim: str, size: int) -> None:
    """Name the first axes of that size: in a model made for one size nothing can be moved."""
    for shape in shapes.values():
        if shape[:1] == [size]:
            shape[0] = dim


def _computed(name: str, axis: int) -> str:
    """A name for an axis of an output whose size is computed: a dimension's name holds letters, digits and _."""
    clean = re.sub(r"[^A-Za-z0-9]", "_", name)
    return f"{clean}_{axis}" if clean[0].isalpha() else f"output_{clean}_{axis}"


def _kept(answer: dict[Path, Any], keep: Sequence[str]) -> dict[str, Path]:
    """The outputs to keep, by name, each a tensor."""
    named: dict[str, Path] = {}
    for path in answer:
        name = adapter.name(path)
        if name in named:
            raise PenstockError(f"two of the model's outputs would be named {name!r}: {named[name]} and {path}")
        named[name] = path
    strangers = [name for name in keep if name not in named]
    if strangers:
        raise PenstockError(f"--keep {strangers[0]!r}: the model's outputs are {', '.join(named) or 'none'}")
    kept = {name: path for name, path in named.items() if not keep or name in keep}
    for name, path in kept.items():
        if not isinstance(answer[path], torch.Tensor):
            tensors = [other for other, where in named.items() if isinstance(answer[where], torch.Tensor)]
            advice = f"; --keep {tensors[0]} leaves it out" if tensors else ""
            kind = type(answer[path]).__name__
            raise PenstockError(f"the model answers a {kind} as {name!r}; outputs must be tensors{advice}")
    if not kept:
        raise PenstockError("the model answers nothing; it must answer one tensor at least")
    return kept


@contextmanager
def _watched(module: nn.Module, feeds: dict[str, torch.Tensor]) -> Iterator[dict[str, int]]:
    """While the block runs, the largest index of each table that a feed goes into, by the feed's name."""
    found: dict[str, int] = {}

    def see(table: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(table, nn.Embedding)
        for name, feed in feeds.items():
            if arguments and isinstance(arguments[0], torch.Tensor) and arguments[0].data_ptr() == feed.data_ptr():
                found[name] = min(found.get(name, table.num_embeddings - 1), table.num_embeddings - 1)

    program = isinstance(module, torch.jit.ScriptModule)  # which runs no hooks of Python's
    tables = [] if program else [item for item in module.modules() if isinstance(item, nn.Embedding)]
    hooks = [table.register_forward_pre_hook(see) for table in tables]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _feeds(signature: Signature, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in synthesize(signature, sizes).inputs.items()}


def _answer(module: nn.Module, signature: Signature, call: Call, feeds: dict[str, torch.Tensor]) -> dict[Path, Any]:
    named = list(zip(call.keywords, feeds.values(), strict=True))
    try:
        with torch.inference_mode():
            answer = module(
                *(feed for name, feed in named if name is None), **{name: feed for name, feed in named if name}
            )
    except (Exception, SystemExit) as error:
        shown = ", ".join(map(str, signature.inputs))
        sizes = ", ".join(f"{name} {list(feed.shape)}" for name, feed in feeds.items())
        raise PenstockError(
            f"the model fails on inputs {shown} (tried {sizes}): {type(error).__name__}: {error}; correct --input, "
            "--dim or --range"
        ) from None
    return adapter.leaves(answer)
