"""Adapters: any module as one that takes a signature's tensors in order and answers with a tuple of tensors.

A model may want keywords, and answer with a dictionary, a dataclass or tuples in tuples. Every format and the gate see
it through an adapter, so that a name always goes with the same tensor.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from penstock.errors import PenstockError

# Where a tensor lies in an answer: keys, indices and field names, from the outside in.
Path = tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """How a module is called with a signature's inputs, and where in its answer each output lies.

    `keywords` has an entry for each input: the parameter it is given as, or None where it goes by position.
    """

    keywords: tuple[str | None, ...]
    outputs: tuple[Path, ...]

    def on(self, module: nn.Module) -> nn.Module:
        """`module` behind this call: tensors in the order of the signature, a tensor or a tuple of them out."""
        if self.outputs == ((),) and not any(self.keywords):
            return module
        adapted = Adapted(module, self)
        adapted.training = module.training  # alone: a program of torch.export's refuses train()
        return adapted


class Adapted(nn.Module):
    """A module behind a `Call`."""

    def __init__(self, inner: nn.Module, call: Call) -> None:
        super().__init__()
        self.inner = inner
        self.call = call

    def forward(self, *inputs: torch.Tensor) -> Any:
        named = list(zip(self.call.keywords, inputs, strict=True))
        answer = self.inner(
            *(value for name, value in named if name is None),
            **{name: value for name, value in named if name is not None},
        )
        picked = tuple(_pick(answer, path) for path in self.call.outputs)
        return picked if len(picked) > 1 else picked[0]


def keywords(module: nn.Module, names: Sequence[str]) -> tuple[str | None, ...]:
    """For each input the parameter of `module.forward` that it is given as, or None where it goes by position.

    Keyword-only parameters are given by keyword. Inputs that are all named after parameters go by keyword where their
    order is another; inputs with names of their own go by position.

    Raises:
        PenstockError: some names are parameters and others, perhaps misspelt, are not; or a parameter without a
            default gets no input.
    """
    parameters = _parameters(module)
    if parameters is None:
        return (None,) * len(names)
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    only = {name for name, kind in kinds.items() if kind is _ONLY_BY_NAME}
    by_place = [name for name, kind in kinds.items() if kind in (_ONLY_BY_PLACE, _EITHER)]
    either = {name for name, kind in kinds.items() if kind is _EITHER}
    any_keyword = inspect.Parameter.VAR_KEYWORD in kinds.values()
    _check_required(parameters, names, sorted(only))
    rest = [name for name in names if name not in only]
    if rest == by_place[: len(rest)]:
        return tuple(name if name in only else None for name in names)
    strangers = [name for name in rest if name not in by_place]
    if rest and all(name in either or (any_keyword and name in strangers) for name in rest):
        if not strangers:
            _check_required(parameters, names, by_place)
        if not strangers or set(_required(parameters, by_place)) <= set(rest):
            return tuple(names)
    misplaced = [name for place, name in enumerate(rest) if name in by_place and by_place.index(name) != place]
    if misplaced:
        fault = f"{misplaced[0]!r}: out of place in"
        if strangers:
            fault = f"{strangers[0]!r}: not a parameter, as {misplaced[0]!r} is, of"
        raise PenstockError(
            f"--input {fault} forward({', '.join(parameters)}); name every input after its parameter, or give them all "
            "in the order of the parameters"
        )
    if len(rest) > len(by_place) and inspect.Parameter.VAR_POSITIONAL not in kinds.values():
        raise PenstockError(
            f"--input: {len(names)} inputs are given ({', '.join(names)}); the model's forward takes "
            f"({', '.join(parameters)})"
        )
    return tuple(name if name in only else None for name in names)


_EITHER, _ONLY_BY_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY
_ONLY_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a module's forward, or None where they cannot be told."""
    if isinstance(module, torch.jit.ScriptModule):
        schema: Any = module.forward.schema  # type: ignore[attr-defined]
        named = [argument for argument in schema.arguments if argument.name != "self"]
        return {
            argument.name: inspect.Parameter(
                argument.name, _EITHER, default=None if argument.has_default_value() else inspect.Parameter.empty
            )
            for argument in named
        }
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return None
    only = _captured_by_keyword(module)
    return {name: held.replace(kind=_ONLY_BY_NAME) if name in only else held for name, held in parameters.items()}


def _captured_by_keyword(module: nn.Module) -> set[str]:
    """The parameters of a program of torch.export's that it takes by keyword alone, since it was captured so."""
    spec: Any = getattr(module, "_in_spec", None)
    if not isinstance(module, torch.fx.GraphModule) or spec is None:
        return set()
    _, by_keyword = spec.children() if hasattr(spec, "children") else spec.children_specs
    return set(by_keyword.context)


def _required(parameters: Mapping[str, inspect.Parameter], among: Iterable[str]) -> list[str]:
    return [name for name in among if parameters[name].default is inspect.Parameter.empty]


def _check_required(parameters: Mapping[str, inspect.Parameter], names: Sequence[str], among: Iterable[str]) -> None:
    lacking = [name for name in _required(parameters, among) if name not in names]
    if lacking:
        raise PenstockError(
            f"--input: the model's forward needs {lacking[0]!r} by that name, as in "
            f"--input {lacking[0]}:float32[batch,3,224,224]; the inputs given are {', '.join(names)}"
        )


def leaves(answer: Any) -> dict[Path, Any]:
    """Everything in a model's answer that is neither a container nor None, by where it lies."""
    return dict(_leaves(answer, ()))


def _leaves(answer: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if answer is None:
        return
    parts: list[tuple[Any, Any]] | None = None
    if isinstance(answer, Mapping):
        parts = list(answer.items())
    elif _has_fields(answer):
        parts = [(name, getattr(answer, name)) for name in _fields(answer)]
    elif isinstance(answer, tuple | list):
        parts = list(enumerate(answer))
    if parts is None:
        yield path, answer
        return
    for key, value in parts:
        yield from _leaves(value, (*path, key))


def _has_fields(answer: Any) -> bool:
    return hasattr(answer, "_fields") or (dataclasses.is_dataclass(answer) and not isinstance(answer, type))


def _fields(answer: Any) -> list[str]:
    if hasattr(answer, "_fields"):
        return list(answer._fields)
    return [field.name for field in dataclasses.fields(answer)]


def _pick(answer: Any, path: Path) -> Any:
    for key in path:
        by_name = not isinstance(answer, Mapping) and _has_fields(answer)
        answer = getattr(answer, key) if by_name else answer[key]
    return answer


def name(path: Path) -> str:
    """The name of an output: its keys, `out` or `aux.scores`; places in tuples are counted, `output_1`, `aux_0`."""
    if not path:
        return "output"
    text = "" if isinstance(path[0], str) else "output"
    for key in path:
        clean = re.sub(r"[^\w\-/:]", "_", str(key), flags=re.ASCII)
        text += f"{'.' if text else ''}{clean}" if isinstance(key, str) else f"_{clean}"
    return text
