"""The intake proof: every tensor of a checkpoint found its place in the module, and every place its tensor."""

from __future__ import annotations

import fnmatch
import inspect
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pydantic import BaseModel
from torch import nn
from torch.nn.parameter import is_lazy

from penstock.errors import PenstockError
from penstock.modules import fingerprints, tied
from penstock.state import Choice, Found, some

PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")
# What compiling, data-parallel and checkpointing wrappers put in the middle of a name.
_INNER = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
# What an averaging wrapper counts beside the weights.
_COUNTERS = {"n_averaged"}
# What modules call the number of their classes.
_CLASSES = ("num_classes", "classes", "n_classes", "num_labels", "nb_classes", "num_class")
State = dict[str, torch.Tensor]


class Proof(BaseModel):
    """That a checkpoint's tensors are the module's, all of them and no others.

    `initial`: names left at their initial value, as the user allowed. `tied`: names that share another's tensor and
    were filled by it. `own`: how many the module's own loading filled, as it does with older files. `outside`:
    tensors that `--prefix` left out. `dtypes`: other than float32, which they were turned into.
    """

    loaded: int
    expected: int
    prefix: str = ""
    wrapper: str = ""
    why: str = ""
    initial: tuple[str, ...] = ()
    tied: int = 0
    own: int = 0
    outside: int = 0
    dtypes: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [
            f", from {self.wrapper!r}{f' ({self.why})' if self.why else ''}" if self.wrapper else "",
            f", prefix {self.prefix!r} stripped" if self.prefix else "",
            f", {self.tied} of them tied to others" if self.tied else "",
            f", {self.own} filled by the model's own loading" if self.own else "",
            f", {self.outside} outside the prefix left out" if self.outside else "",
            f", {' and '.join(self.dtypes)} turned into float32" if self.dtypes else "",
            f", {len(self.initial)} LEFT AT THEIR INITIAL VALUE: {some(self.initial)}" if self.initial else "",
        ]
        return f"{self.loaded} of {self.expected} tensors loaded{''.join(parts)}"


def load(module: nn.Module, found: Found, choice: Choice | None = None) -> Proof:
    """Put the tensors of a checkpoint into `module`, every one of them.

    Raises:
        PenstockError: with the names that are missing, unexpected, mis-shaped, or not of the module's kind of number.
    """
    choice = choice or Choice()
    state = dict(found.value.state_dict() if isinstance(found.value, nn.Module) else found.value)
    unusual = [name for name, tensor in state.items() if _is_unusual(tensor)]
    if unusual:
        raise PenstockError(
            f"tensors must be dense and hold real numbers; these are sparse, nested, meta, quantised or complex: "
            f"{some(unusual)}"
        )
    expected = module.state_dict()
    total = len(state)
    state, prefix = named_as(_under(state, choice.prefix), set(expected))
    prefix = (choice.prefix or "") + prefix
    outside = total - len(state)
    initial = _left_initial(state, expected, choice.partial)
    state = {name: tensor for name, tensor in state.items() if name not in initial}
    filled = _fill_tied(state, tied(module))
    initial = [name for name in initial if name not in state]
    misfits, unlike = list(_misfits(state, expected)), list(_unlike(state, expected))
    missing = [name for name in expected if name not in state and name not in initial]
    unexpected = [name for name in state if name not in expected]
    if not misfits and not unlike:
        before = fingerprints(module)
        unmet, unexpected = _put(module, state, _versions(found.value, prefix))
        untouched = {name for name, mark in fingerprints(module).items() if before.get(name) == mark}
        _refuse_unput(module, state, untouched)
        # What a module's own loading fills it must fill with something: a counter of batches may stay at 0.
        left = [n for n in expected if n not in state and n in untouched and not n.endswith("num_batches_tracked")]
        missing = [name for name in dict.fromkeys([*unmet, *left]) if name not in initial]
    if missing or unexpected or misfits or unlike:
        listed = {"missing": missing, "unexpected": unexpected, "mis-shaped": misfits, "of another kind": unlike}
        raise PenstockError(
            f"the checkpoint's tensors are not those of {type(module).__name__}: {_listed(listed)}; "
            f"{_advice(module, found, state, expected, listed)}"
        )
    loaded = min(len(state), len(expected) - len(initial))  # a module may know older names of its tensors
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in _tensors(state) if tensor.is_floating_point()}
    return Proof(
        loaded=loaded,
        expected=len(expected),
        prefix=prefix,
        wrapper=found.wrapper,
        why=found.why,
        initial=tuple(initial),
        tied=filled,
        own=len(expected) - len(initial) - loaded,
        outside=outside if choice.prefix else 0,
        dtypes=tuple(sorted(kinds - {"float32"})),
    )


def _versions(value: Any, prefix: str) -> dict[str, Any]:
    """The versions of the modules that a state was saved from, under the names that its tensors are put under."""
    held = value.state_dict() if isinstance(value, nn.Module) else value
    versions = getattr(held, "_metadata", None)
    if not isinstance(versions, Mapping):
        return {}
    found: dict[str, Any] = {}
    for name, version in versions.items():
        if f"{name}.".startswith(prefix) and isinstance(version, dict):
            stripped = f"{name}.".removeprefix(prefix).removesuffix(".")
            found[stripped] = version
            found.setdefault(".".join(part for part in stripped.split(".") if part not in _INNER), version)
    return found


def _put(module: nn.Module, state: State, versions: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Load tensors that fit; the names that are missing and unexpected, since modules may know older names of theirs.

    Raises:
        PenstockError: a module's own hook refuses what it finds.
    """
    versioned = OrderedDict(state)
    if versions:
        versioned._metadata = versions  # type: ignore[attr-defined]  # where torch's modules look for them
    try:
        unmet = module.load_state_dict(versioned, strict=False)
    except Exception as error:  # the module's own code runs here
        raise PenstockError(f"the model refuses the checkpoint's tensors: {' '.join(str(error).split())}") from None
    # A module's own load_state_dict may answer nothing.
    return list(getattr(unmet, "missing_keys", [])), list(getattr(unmet, "unexpected_keys", []))


def _refuse_unput(module: nn.Module, state: State, untouched: set[str]) -> None:
    """See that loading has put every tensor where it belongs, as a module's own loading may not."""
    held = module.state_dict()
    wrong = [name for name in sorted(untouched & state.keys()) if not _same(held[name], state[name])]
    if wrong:
        raise PenstockError(
            f"the model's own loading leaves {len(wrong)} of the checkpoint's tensors aside ({some(wrong)}): see its "
            "load_state_dict and _load_from_state_dict"
        )


def _same(held: torch.Tensor, given: torch.Tensor) -> bool:
    return torch.allclose(held, given.to(held.dtype), rtol=0, atol=0, equal_nan=True)


def _tensors(state: State) -> list[torch.Tensor]:
    """The tensors of a state, without what modules keep as their extra state."""
    return [tensor for tensor in state.values() if isinstance(tensor, torch.Tensor)]


def _is_unusual(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and (
        tensor.is_meta
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.is_complex()
        or tensor.layout != torch.strided
    )


def _under(state: State, prefix: str | None) -> State:
    """The tensors under a prefix, without it."""
    if prefix is None:
        return state
    under = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    if not under:
        raise PenstockError(f"--prefix {prefix!r}: no name begins with it; they are {some(state)}")
    return under


def named_as(state: State, expected: set[str]) -> tuple[State, str]:
    """The state with the wrappers' parts of its names taken away, as far as that makes them the expected ones."""
    best: tuple[State, str] = (state, "")
    for candidate, prefix in _renamed(state, expected):
        if candidate.keys() == expected:
            return candidate, prefix
        if len(expected & candidate.keys()) > len(expected & best[0].keys()):
            best = candidate, prefix
    return best


def _renamed(state: State, expected: set[str]) -> Iterator[tuple[State, str]]:
    """The state under every name that it may stand for: prefixes stripped, and then the parts in the middle too."""
    levels = list(_stripped(state, expected))
    yield from levels
    for level, prefix in levels:
        inner = {".".join(part for part in name.split(".") if part not in _INNER): held for name, held in level.items()}
        if len(inner) == len(level) and inner.keys() != level.keys():
            yield inner, prefix


def _stripped(state: State, expected: set[str]) -> Iterator[tuple[State, str]]:
    stripped = ""
    while True:
        state = {name: tensor for name, tensor in state.items() if name not in _COUNTERS or name in expected}
        yield state, stripped
        prefix = next((item for item in PREFIXES if state and all(name.startswith(item) for name in state)), None)
        if prefix is None:
            return
        state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
        stripped += prefix


def _left_initial(state: State, expected: Mapping[str, torch.Tensor], partial: tuple[str, ...]) -> list[str]:
    """The names that may and must stay at their initial value: allowed by the user, missing or of another shape."""
    initial = []
    for pattern in partial:
        allowed = [name for name in expected if fnmatch.fnmatchcase(name, pattern)]
        if not allowed:
            raise PenstockError(f"--allow-partial {pattern!r}: matches no tensor of the model: {some(expected)}")
        initial += [name for name in allowed if name not in state or _misfit(state[name], expected[name])]
    return list(dict.fromkeys(initial))


def _fill_tied(state: State, groups: list[list[str]]) -> int:
    """Give every name that shares a tensor the one that the file has for another of them; how many were given one.

    Raises:
        PenstockError: the file has different values for names that are one tensor in the module.
    """
    filled = 0
    for group in groups:
        present = [name for name in group if name in state]
        for name in present[1:]:
            if not torch.equal(state[name], state[present[0]]):
                raise PenstockError(
                    f"{present[0]!r} and {name!r} are one tensor in the model, and have different values in the file; "
                    "build the model without tying them (--model-args)"
                )
        lacking = [name for name in group if name not in state] if present else []
        state.update((name, state[present[0]]) for name in lacking)
        filled += len(lacking)
    return filled


def _misfits(state: State, expected: Mapping[str, torch.Tensor]) -> Iterator[str]:
    for name, tensor in expected.items():
        if name in state and _misfit(state[name], tensor):
            yield f"{name} {list(state[name].shape)} for {list(tensor.shape)}"


def _misfit(held: Any, place: Any) -> bool:
    if not isinstance(held, torch.Tensor) or not isinstance(place, torch.Tensor):
        return False  # an extra state may be anything
    return not is_lazy(place) and held.shape != place.shape


def _unlike(state: State, expected: Mapping[str, torch.Tensor]) -> Iterator[str]:
    for name, tensor in expected.items():
        if not isinstance(state.get(name), torch.Tensor) or not isinstance(tensor, torch.Tensor):
            continue
        if state[name].is_floating_point() != tensor.is_floating_point():
            yield f"{name} {state[name].dtype} for {tensor.dtype}".replace("torch.", "")
        elif not tensor.is_floating_point() and not _holds(tensor.dtype, state[name]):
            yield f"{name} {state[name].dtype} for {tensor.dtype}, which does not hold its values".replace("torch.", "")


def _holds(dtype: torch.dtype, tensor: torch.Tensor) -> bool:
    """Whether a dtype of integers has room for a tensor's values."""
    return dtype == tensor.dtype or torch.equal(tensor.to(dtype).to(tensor.dtype), tensor)


def _listed(problems: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{len(names)} {what} ({some(names)})" for what, names in problems.items() if names)


def _parameter_of_classes(module: nn.Module) -> str:
    """What a module's class calls the number of its classes, as far as that can be told."""
    named = inspect.signature(type(module).__init__).parameters
    return next((name for name in _CLASSES if name in named), _CLASSES[0])


def _advice(
    module: nn.Module,
    found: Found,
    state: State,
    expected: Mapping[str, torch.Tensor],
    problems: Mapping[str, list[str]],
) -> str:
    """What would make these tensors fit, where that can be told."""
    outputs = {state[text.split()[0]].shape[:1] for text in problems["mis-shaped"]}
    only_shapes = problems["mis-shaped"] and not any(names for what, names in problems.items() if what != "mis-shaped")
    if only_shapes and len(outputs) == 1 and (sizes := outputs.pop()):
        (size,) = sizes
        owners = {text.split()[0].rpartition(".")[0] for text in problems["mis-shaped"]}
        if len(owners) == 1:
            return (
                f"its {owners.pop()!r} has {size} outputs: if these are classes, give --model-args "
                f"{_parameter_of_classes(module)}={size}"
            )
    names = found.value.state_dict() if isinstance(found.value, nn.Module) else found.value
    for prefix in dict.fromkeys(f"{name.split('.')[0]}." for name in names):
        if {name.removeprefix(prefix) for name in names if name.startswith(prefix)} == expected.keys():
            return f"--prefix {prefix} takes those under it and leaves the others out"
    if problems["missing"] and not problems["unexpected"] and not problems["mis-shaped"]:
        return (
            "give the architecture that it was trained with (--model, --model-args), or say which may stay at their "
            f"initial values: --allow-partial {problems['missing'][0]}"
        )
    return "give the architecture that it was trained with (--model, --model-args)"
