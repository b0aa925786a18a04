"""Probing: the outputs that a module really gives for inputs that fit a signature."""

from __future__ import annotations

import re

import torch
from pydantic import ValidationError
from torch import nn

from penstock.errors import PenstockError
from penstock.signature import Signature, Tensor, first_message
from penstock.synthetic import synthesize


def complete(module: nn.Module, signature: Signature) -> Signature:
    """`signature` with the outputs that `module` gives, an axis being dynamic where it moves with one of the inputs.

    Raises:
        PenstockError: the module fails on such inputs, or answers other than a tensor, or a tuple or dict of them.
    """
    base = {name: 3 + index for index, name in enumerate(signature.dims)}
    first = _answer(module, signature, base)
    shapes: dict[str, list[int | str]] = {name: list(tensor.shape) for name, tensor in first.items()}
    for dim in signature.dims:
        moved = _answer(module, signature, {**base, dim: base[dim] + 8})
        for name, tensor in moved.items():
            for axis, size in enumerate(tensor.shape):
                before = first[name].shape[axis]
                if size != before:
                    # Only a size that is the dimension's own bears its name; another is computed from it.
                    own = before == base[dim] and size == base[dim] + 8
                    shapes[name][axis] = dim if own else _computed(name, axis)
    try:
        outputs = tuple(
            Tensor(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(shapes[name]))
            for name, tensor in first.items()
        )
        return Signature(inputs=signature.inputs, outputs=outputs, dims=signature.dims)
    except ValidationError as error:
        raise PenstockError(f"the model's outputs cannot be served: {first_message(error)}") from None


def _computed(name: str, axis: int) -> str:
    """A name for an axis of an output whose size is computed: a dimension's name holds letters, digits and _."""
    clean = re.sub(r"[^A-Za-z0-9]", "_", name)
    return f"{clean}_{axis}" if clean[0].isalpha() else f"output_{clean}_{axis}"


def _answer(module: nn.Module, signature: Signature, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    rows = synthesize(signature, sizes)
    try:
        with torch.inference_mode():
            answer = module(*(torch.from_numpy(rows.inputs[tensor.name]) for tensor in signature.inputs))
    except (Exception, SystemExit) as error:
        shown = ", ".join(map(str, signature.inputs))
        raise PenstockError(
            f"the model fails on inputs {shown} with {sizes}: {type(error).__name__}: {error}; correct --input"
        ) from None
    if isinstance(answer, torch.Tensor):
        return {"output": answer}
    if isinstance(answer, dict) and answer and all(isinstance(value, torch.Tensor) for value in answer.values()):
        return {str(name): value for name, value in answer.items()}
    if isinstance(answer, tuple | list) and answer and all(isinstance(value, torch.Tensor) for value in answer):
        return {f"output_{index}": value for index, value in enumerate(answer)}
    kind = type(answer).__name__
    raise PenstockError(f"the model answers a {kind}; it must be a tensor, or a tuple or dict of at least one")
