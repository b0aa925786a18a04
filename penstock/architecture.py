"""Architectures: from a name such as `torchvision:resnet18` or `./net.py:Net` to a module."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from penstock import zoo
from penstock.errors import PenstockError
from penstock.files import nearby

LIBRARIES = ("torchvision", "timm", "transformers")


class Architecture(BaseModel):
    """An importable `torch.nn.Module` class (or a model library's name for one) and its keyword arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    target: str
    kwargs: dict[str, Any] = {}


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


def build(architecture: Architecture, seed: int = 0) -> nn.Module:
    """The module that `architecture` names, with its initial weights, in eval mode.

    Importing a module runs its code: only pass a target that the user, or penstock itself, has named. What it draws at
    random is drawn by `seed`.

    Raises:
        PenstockError: it cannot be imported, is no module class, or refuses its arguments.
    """
    make = find(architecture.target)
    try:
        with torch.random.fork_rng(devices=[]):
            # Whatever stays at its initial value is the same in every export.
            torch.manual_seed(seed)
            module = make(**architecture.kwargs)
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in architecture.kwargs.items())
        raise PenstockError(
            f"--model {architecture.target}({shown}) cannot be made: {type(error).__name__}: {error}; "
            "give its arguments as --model-args NAME=VALUE"
        ) from None
    if not isinstance(module, nn.Module):
        raise PenstockError(f"--model {architecture.target} made a {type(module).__name__}, not a torch.nn.Module")
    return module.eval()


def find(target: str) -> Any:
    """The class or function that a target names, imported.

    Raises:
        PenstockError: there is none, or its import fails.
    """
    kind, _, name = target.rpartition(":")
    if not kind or not name:
        raise PenstockError(
            f"--model {target!r} must read torchvision:NAME, timm:NAME, transformers:FOLDER, package.module:Class or "
            "./file.py:Class"
        )
    see_there(target)
    library, _, rest = target.partition(":")
    return zoo.make(library, rest) if library in LIBRARIES else _class(kind, name)


def code(target: str) -> Path | None:
    """The user's own file that a target names, or None."""
    kind = target.rpartition(":")[0]
    return Path(kind) if kind.endswith(".py") else None


def see_there(target: str | None) -> None:
    """See that the user's own file that a target names, if it names one, is there.

    Raises:
        PenstockError: it is not.
    """
    path = None if target is None else code(target)
    if path is not None and not path.is_file():
        raise PenstockError(f"--model {str(target).rpartition(':')[0]}: no such file{nearby(path)}")


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
