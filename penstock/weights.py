"""Files of weights: opened as data, never as code unasked, and refused with the reason when they are neither."""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path, PosixPath
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from penstock import architecture, pickles, programs
from penstock.errors import PenstockError, Say, first_line, require
from penstock.files import nearby, see_unpacked

FOLDER_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_SHOWN = 40
# What torch says of the opcode that begins every pickle of protocol 4 and later.
_FRAME = "Unsupported operand 149"


@dataclass(frozen=True)
class Contents:
    """What a file of weights holds.

    `kind`: `weights` for a dictionary with tensors somewhere in it, `module` for a pickled module, `torchscript` and
    `exported` for programs.
    """

    kind: Literal["weights", "module", "torchscript", "exported"]
    value: Any


def locate(path: Path) -> Path:
    """The file of weights itself, given it or the folder of a transformers model.

    Raises:
        PenstockError: there is no such file, or it is one that was exported already.
    """
    if path.is_dir():
        found = [path / name for name in FOLDER_WEIGHTS if (path / name).is_file()]
        if not (path / "config.json").is_file():
            raise PenstockError(f"{path}: is a folder; give a checkpoint file, as in runs/digits/best.pth")
        if not found:
            raise PenstockError(f"{path}: a transformers folder without one of {', '.join(FOLDER_WEIGHTS)}")
        return found[0]
    if not path.is_file():
        raise PenstockError(f"{path}: no such file{nearby(path) or '; penstock train digits leaves one'}")
    if path.suffix in (".onnx", ".plan", ".engine"):
        raise PenstockError(f"{path}: is exported already, not a checkpoint; penstock serve takes an .onnx file")
    return path


def read(path: Path, *, allow_pickle: bool = False, model: str | None = None, say: Say = lambda _: None) -> Contents:
    """Open a checkpoint: `.pth`, `.pt`, `.ckpt`, `.pth.tar`, `.bin`, `.safetensors`, `.pt2`, a TorchScript archive.

    Args:
        path: the file.
        allow_pickle: unpickle code where the file needs it, after saying which names it imports.
        model: a `./file.py:Class` target, in which the names of a script's `__main__` are looked up.
        say: told the names.

    Raises:
        PenstockError: it is damaged, none of these, or needs code that was not allowed.
    """
    if path.suffix == ".safetensors":
        return _safetensors(path)
    try:
        damage = _damage(path)
        program = programs.kind(path)
    except PenstockError:
        raise
    except OSError as error:
        raise PenstockError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # zipfile and zlib have errors of many kinds
        raise PenstockError(f"{path}: damaged: {first_line(error)}") from None
    if damage is not None:
        raise PenstockError(f"{path}: damaged: {damage}")
    if program == "torchscript":
        return Contents("torchscript", programs.open_torchscript(path))
    if program == "exported":
        return Contents("exported", programs.open_exported(path, trusted=allow_pickle, say=say))
    value = _unpickled(path, allow_pickle, model, say)
    if isinstance(value, nn.Module):
        return Contents("module", value)
    if not isinstance(value, dict):
        raise PenstockError(f"{path}: holds a {type(value).__name__}; a checkpoint holds a dictionary")
    return Contents("weights", value)


def _safetensors(path: Path) -> Contents:
    safetensors = require("safetensors", "export", f"reading {path.name}")
    try:
        with safetensors.safe_open(str(path), framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
            return Contents("weights", tensors)
    except Exception as error:  # SafetensorError, OSError, and whatever a damaged header makes of itself
        raise PenstockError(f"{path}: not a safetensors file, or a damaged one: {first_line(error)}") from None


def _unpickled(path: Path, allow_pickle: bool, model: str | None, say: Say) -> Any:
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_harmless()):
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        needed = [name for name in pickles.names(path) if name not in _harmless_names()]
        if not needed and _FRAME not in str(error):
            raise PenstockError(f"{path}: truncated, damaged, or not a PyTorch checkpoint ({_reason(error)})") from None
        if not allow_pickle:
            code = f"needs pickled code ({_some(needed)}), which may run anything when loaded"
            newer = "is pickled with protocol 4 or later, which torch loads as code alone"
            raise PenstockError(
                f"{path}: {code if needed else newer}; penstock loads weights only: save model.state_dict() and give "
                "the class with --model, or, if you trust the file, --allow-pickle loads it"
            ) from None
    except OSError as error:
        raise PenstockError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged file surfaces as EOFError, RuntimeError, KeyError, ValueError and others
        raise PenstockError(f"{path}: truncated, damaged, or not a PyTorch checkpoint ({_seen(path, error)})") from None
    say(f"{path}: --allow-pickle imports {len(needed)} names: {_some(needed) or 'none'}")
    try:
        return pickles.load(path, [*needed, *_harmless_names()], _of_main(needed, model))
    except PenstockError:
        raise
    except Exception as error:  # the file's own code runs here
        raise PenstockError(f"{path}: its pickled code fails: {first_line(error)}") from None


def _of_main(needed: list[str], model: str | None) -> dict[str, Any]:
    """The classes that a training script pickled as its own, from the file that --model names."""
    mine = [name.removeprefix("__main__.") for name in needed if name.startswith("__main__.")]
    if not mine or model is None:
        return {}
    return {f"__main__.{name}": architecture.find(f"{model.rpartition(':')[0]}:{name}") for name in mine}


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """What numpy pickles bytes with; other codecs are no business of a checkpoint's."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r} in a checkpoint")
    return text.encode("latin1")


def _harmless() -> list[Any]:
    """What checkpoints hold beside tensors and runs nothing: numpy's scalars and arrays, argparse's options, paths."""
    core = getattr(np, "_core", None) or np.core
    pairs = [
        (core.multiarray.scalar, "multiarray.scalar"),
        (core.multiarray._reconstruct, "multiarray._reconstruct"),
    ]
    named: list[Any] = [(item, f"numpy.{home}.{name}") for item, name in pairs for home in ("core", "_core")]
    kinds = [
        type(np.dtype(kind))
        for kind in ("?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d", "S", "U")
    ]
    return [
        *named,
        np.dtype,
        np.ndarray,
        *kinds,
        (_latin1, "_codecs.encode"),
        argparse.Namespace,
        (PosixPath, "pathlib.PosixPath"),
        (PosixPath, "pathlib._local.PosixPath"),
    ]


def _harmless_names() -> set[str]:
    return {item[1] if isinstance(item, tuple) else f"{item.__module__}.{item.__qualname__}" for item in _harmless()}


def _damage(path: Path) -> str | None:
    """What is wrong with a zip file that torch itself does not look for: it stores each entry once, as it is.

    Raises:
        PenstockError: it unpacks to far more than it is.
    """
    if not zipfile.is_zipfile(path):
        return None
    see_unpacked(path)
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len({entry.filename for entry in entries}) < len(entries):
            return "it holds two entries of one name"
        wrong = archive.testzip()
        return None if wrong is None else f"the checksum of its entry {wrong!r} is wrong"


def _seen(path: Path, error: Exception) -> str:
    """What a file's first bytes tell, or else torch: the key that its unpickler lacked tells nobody anything."""
    with path.open("rb") as file:
        start = file.read(64)
    if all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in start):
        return f"it begins like text: {start[:20].decode()!r}"
    return "its bytes are no pickle's" if isinstance(error, KeyError | IndexError) else first_line(error)


def _reason(error: Exception) -> str:
    """What the weights-only unpickler met, without torch's advice around it."""
    met = re.search(r"WeightsUnpickler error:\s*(.*)", str(error))
    return f"{type(error).__name__}: {met[1][:120]}" if met else first_line(error)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
