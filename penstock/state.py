"""States: the tensors in a checkpoint, found under whatever it wraps them in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from penstock.errors import PenstockError

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "module")
EMA = ("state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "model_ema_state_dict", "params_ema", "ema")
_LISTED = 8


@dataclass(frozen=True)
class Choice:
    """Which of a file's tensors the user wants.

    `ema`: averaged weights, plain ones, or (None) averaged ones where the file has both. `key`: where in the file, as
    in `generator` or `checkpoint.model`. `prefix`: only the names under it. `partial`: patterns of names that may stay
    at their initial value.
    """

    ema: bool | None = None
    key: str | None = None
    prefix: str | None = None
    partial: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """A state or a pickled module inside a checkpoint: what, under which key, and why that one."""

    value: Any
    wrapper: str = ""
    why: str = ""


def find(content: Mapping[str, Any], choice: Choice = Choice()) -> Found:
    """The state_dict (or pickled module) in a checkpoint's content.

    Raises:
        PenstockError: there is none, there are several and no way to tell, or not the one that was asked for.
    """
    if choice.key is not None:
        if choice.ema is not None:
            raise PenstockError(f"--key {choice.key} and --{'ema' if choice.ema else 'no-ema'}: give one or the other")
        return _at(content, choice.key)
    held = dict(_candidates(content))
    averaged = [name for name in held if any(part in EMA for part in name.split("."))]
    plain = [name for name in held if name not in averaged]
    if choice.ema and not averaged:
        raise PenstockError(
            f"--ema: the file holds no averaged weights; its keys are {some(map(str, content))} (known names are "
            f"{', '.join(EMA)}; --key takes others)"
        )
    if len(averaged) > 1 and choice.ema is not False:
        raise _several(averaged)
    if averaged and choice.ema is not False:
        plainly = "; --no-ema takes the plain ones" if plain else ""
        why = "--ema" if choice.ema else f"averaged weights are what is evaluated{plainly}"
        return Found(held[averaged[0]], averaged[0], why)
    known = [name for name in plain if name in WRAPPERS]
    if len(known) == 1:
        return Found(held[known[0]], known[0])
    if is_state(content):
        return Found(content)
    if len(plain) == 1:
        return Found(held[plain[0]], plain[0], "the only state_dict in the file")
    if plain:
        raise _several(plain)
    raise PenstockError(
        f"the file holds no state_dict: its keys are {some(map(str, content))}; one of {', '.join(WRAPPERS)} must map "
        "names to tensors (--key NAME takes another)"
    )


def _several(names: list[str]) -> PenstockError:
    return PenstockError(f"the file holds several states, {some(names)}; choose one, as in --key {names[0]}")


def _at(content: Mapping[str, Any], key: str) -> Found:
    value: Any = content
    for part in [key] if key in content else key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            keys = some(map(str, value)) if isinstance(value, Mapping) else f"a {type(value).__name__}"
            raise PenstockError(f"--key {key}: there is no {part!r}; what is there: {keys}")
        value = value[part]
    if not is_state(value) and not isinstance(value, nn.Module):
        raise PenstockError(f"--key {key}: is a {type(value).__name__}, no mapping from names to tensors")
    return Found(value, key)


def _candidates(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every state_dict and pickled module in a checkpoint, one level down, or two below a known wrapper."""
    for name, value in content.items():
        if not isinstance(name, str) or "optim" in name:
            continue
        if is_state(value) or isinstance(value, nn.Module):
            yield name, value
        elif isinstance(value, Mapping) and name in ("checkpoint", *WRAPPERS, *EMA):
            for inner, held in value.items():
                if isinstance(inner, str) and inner in (*WRAPPERS, *EMA) and is_state(held):
                    yield f"{name}.{inner}", held


def is_state(content: Any) -> bool:
    """Whether this maps names to tensors, and to nothing else but what modules keep as their extra state."""
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        return False
    held = {name: value for name, value in content.items() if not name.endswith("_extra_state")}
    return bool(held) and all(isinstance(value, torch.Tensor) for value in held.values())


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(islice(listed, _LISTED)) + more
