"""Files of weights: opened as data, never as code, and refused with the reason when they are neither."""

from __future__ import annotations

import itertools
import pickle
import pickletools
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from penstock.errors import PenstockError


def read(path: Path) -> dict[str, Any]:
    """The dictionary inside a checkpoint file, loaded with `weights_only=True`."""
    if path.is_dir():
        raise PenstockError(f"{path}: is a folder; give a checkpoint file, as in runs/digits/best.pth")
    if not path.is_file():
        raise PenstockError(f"{path}: no such file")
    if path.suffix in (".onnx", ".plan", ".engine"):
        raise PenstockError(f"{path}: is exported already, not a checkpoint; penstock serve takes an .onnx file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
        damaged = _damaged_entry(path)
    except pickle.UnpicklingError as error:
        raise PenstockError(f"{path}: {_unpickling(path, str(error))}") from None
    except OSError as error:
        raise PenstockError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged file surfaces as EOFError, RuntimeError, KeyError, ValueError and others
        raise PenstockError(f"{path}: truncated, damaged, or not a PyTorch checkpoint ({first_line(error)})") from None
    if damaged is not None:
        raise PenstockError(f"{path}: damaged: the checksum of its entry {damaged!r} is wrong")
    if not isinstance(content, dict):
        raise PenstockError(f"{path}: holds a {type(content).__name__}; a checkpoint holds a dictionary")
    return content


def _damaged_entry(path: Path) -> str | None:
    """The first entry of a zip file whose checksum is wrong; torch itself does not look."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()


def _unpickling(path: Path, message: str) -> str:
    found = re.search(r"(?:GLOBAL|global|Unsupported class|type) `?([\w.]*\w)", message)
    name = found[1] if found else _first_global(path)
    if name is None:
        return "truncated, damaged, or not a PyTorch checkpoint"
    return (
        f"needs pickled code ({name}), which may run anything when loaded; penstock loads weights only: "
        "save model.state_dict() and give the class with --model"
    )


def _first_global(path: Path) -> str | None:
    """The first name that a bare pickle would import, read from its opcodes; nothing is run."""
    strings: list[str] = []
    try:
        with path.open("rb") as file:
            for opcode, argument, _ in itertools.islice(pickletools.genops(file), 100_000):
                if opcode.name == "GLOBAL":
                    return str(argument).replace(" ", ".")
                if opcode.name == "STACK_GLOBAL" and len(strings) >= 2:
                    return ".".join(strings[-2:])
                if isinstance(argument, str):
                    strings.append(argument)
    except Exception:  # not a pickle: then it imports nothing
        return None
    return None


def first_line(error: Exception) -> str:
    """An exception's class and the first line of what it says."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__
