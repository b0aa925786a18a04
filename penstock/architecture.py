"""Architectures: from a name such as `torchvision:resnet18` or `./net.py:Net` to a module with loaded weights."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from penstock.errors import PenstockError, require

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "module")
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.")
_LISTED = 8


class Architecture(BaseModel):
    """An importable `torch.nn.Module` class (or torchvision model name) and its keyword arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    target: str
    kwargs: dict[str, Any] = {}


class Proof(BaseModel):
    """That a checkpoint's tensors are the module's, all of them and no others."""

    loaded: int
    expected: int
    prefix: str = ""
    wrapper: str = ""

    def __str__(self) -> str:
        stripped = f", prefix {self.prefix!r} stripped" if self.prefix else ""
        wrapped = f", from {self.wrapper!r}" if self.wrapper else ""
        return f"{self.loaded} of {self.expected} tensors loaded{wrapped}{stripped}"


def parse_arguments(pairs: list[str]) -> dict[str, Any]:
    """`["num_classes=10", "act=relu"]` -> `{"num_classes": 10, "act": "relu"}`; values are Python literals or text."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise PenstockError(f"--model-args {pair!r} must read NAME=VALUE, as in num_classes=10")
        try:
            arguments[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            arguments[key] = value
    return arguments


def build(architecture: Architecture) -> nn.Module:
    """The module that `architecture` names, with its initial weights, in eval mode.

    Importing a module runs its code: only pass a target that the user, or penstock itself, has named.

    Raises:
        PenstockError: it cannot be imported, is no module class, or refuses its arguments.
    """
    kind, _, name = architecture.target.rpartition(":")
    if not kind or not name:
        raise PenstockError(
            f"--model {architecture.target!r} must read torchvision:NAME, package.module:Class or ./file.py:Class"
        )
    make = _torchvision(name) if kind == "torchvision" else _class(kind, name)
    try:
        module = make(**architecture.kwargs)
    except (Exception, SystemExit) as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in architecture.kwargs.items())
        raise PenstockError(
            f"--model {architecture.target}({shown}) cannot be made: {type(error).__name__}: {error}; "
            "give its arguments as --model-args NAME=VALUE"
        ) from None
    if not isinstance(module, nn.Module):
        raise PenstockError(f"--model {architecture.target} made a {type(module).__name__}, not a torch.nn.Module")
    return module.eval()


def _torchvision(name: str) -> Any:
    models = require("torchvision", "train", f"--model torchvision:{name}").models
    if name not in models.list_models():
        raise PenstockError(f"--model torchvision:{name} is not one of torchvision.models.list_models()")
    return lambda **kwargs: models.get_model(name, **{"weights": None, **kwargs})


def _class(kind: str, name: str) -> Any:
    module = _import_file(kind) if kind.endswith(".py") else _import_module(kind)
    found = getattr(module, name, None)
    if found is None:
        raise PenstockError(f"--model {kind}:{name}: {kind} has no {name!r}")
    made_to_make = isinstance(found, FunctionType) or (isinstance(found, type) and issubclass(found, nn.Module))
    if not made_to_make:
        raise PenstockError(
            f"--model {kind}:{name} is a {type(found).__name__}, not a torch.nn.Module class or a function that "
            "makes one"
        )
    return found


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        beside = f"; for a file in this folder, write --model ./{name}.py:CLASS" if Path(f"{name}.py").is_file() else ""
        raise PenstockError(f"--model {name}: cannot be imported: {type(error).__name__}: {error}{beside}") from None


def _import_file(name: str) -> Any:
    """Import a user's file under a private name, so that their train.py or export.py shadows nothing."""
    path = Path(name)
    if not path.is_file():
        raise PenstockError(f"--model {name}: no such file")
    stem = re.sub(r"[^A-Za-z0-9]", "_", path.stem)  # TorchScript writes the module's name down
    private = f"_penstock_{stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(private, path)
    if spec is None or spec.loader is None:
        raise PenstockError(f"--model {name}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[private] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that the files beside it shadow no package
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[private]
        raise PenstockError(f"--model {name}: cannot be imported: {type(error).__name__}: {error}") from None
    return module


def load_weights(module: nn.Module, content: Mapping[str, Any]) -> Proof:
    """Put the tensors of a checkpoint into `module`, every one of them, or raise with the names that do not fit."""
    state, wrapper = _unwrap(content)
    unusual = [name for name, tensor in state.items() if _is_unusual(tensor)]
    if unusual:
        raise PenstockError(
            f"tensors must be dense and hold real numbers; these are sparse, nested, meta, quantised or complex: "
            f"{_some(unusual)}"
        )
    expected = module.state_dict()
    state, prefix = _strip(state, set(expected))
    missing = [name for name in expected if name not in state]
    unexpected = [name for name in state if name not in expected]
    misshaped = [
        f"{name} {list(state[name].shape)} for {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in state and state[name].shape != tensor.shape
    ]
    problems = [
        f"{len(names)} {what} ({_some(names)})"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("mis-shaped", misshaped))
        if names
    ]
    if problems:
        raise PenstockError(
            f"the checkpoint's tensors are not those of {type(module).__name__}: {'; '.join(problems)}; "
            "give the architecture that it was trained with (--model, --model-args)"
        )
    module.load_state_dict(state, strict=True)
    return Proof(loaded=len(state), expected=len(expected), prefix=prefix, wrapper=wrapper)


def _is_unusual(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_meta
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.is_complex()
        or tensor.layout != torch.strided
    )


def _unwrap(content: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], str]:
    for wrapper in WRAPPERS:
        inner = content.get(wrapper)
        if isinstance(inner, Mapping) and _is_state(inner):
            return dict(inner), wrapper
    if _is_state(content):
        return dict(content), ""
    raise PenstockError(
        f"the file holds no state_dict: its keys are {_some([str(key) for key in content])}; "
        f"one of {', '.join(WRAPPERS)} must map names to tensors"
    )


def _is_state(content: Mapping[str, Any]) -> bool:
    return bool(content) and all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()
    )


def _strip(state: dict[str, torch.Tensor], expected: set[str]) -> tuple[dict[str, torch.Tensor], str]:
    """Take off the prefixes that wrappers put before every name, as far as that is what makes the names match."""
    stripped = ""
    while not expected & set(state):
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in state)), None)
        if prefix is None:
            break
        state = {name[len(prefix) :]: tensor for name, tensor in state.items()}
        stripped += prefix
    return state, stripped


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
