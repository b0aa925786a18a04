"""Inspection: what a file is, what it needs, what it promises, and the command to go on with; nothing in it is run.

torch and onnx are imported where a file of theirs is read: a serving machine without them can look at its artifacts.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from penstock import artifact
from penstock.datasets import PICTURES
from penstock.errors import PenstockError, printable, require
from penstock.files import nearby, see_unpacked
from penstock.inspection.artifacts import ENGINES, of_artifact, of_engine, of_repository, of_samples
from penstock.inspection.checkpoints import of_foreign, of_ours, of_pickled
from penstock.inspection.findings import Inspection, command, read_json, sized
from penstock.inspection.folders import FOLDER_WEIGHTS, of_safetensors, of_transformers
from penstock.inspection.onnx import of_onnx
from penstock.inspection.programs import of_exported, of_torchscript

_LOOKED_AT = 100


def inspect(path: Path) -> Inspection:
    """Look at a checkpoint, a program, an ONNX model, an engine, an artifact, a repository or samples.

    Raises:
        PenstockError: it is missing, empty, damaged, or none of what penstock knows.
    """
    try:
        return _folder(path) if path.is_dir() else _file(path)
    except OSError as error:
        raise PenstockError(f"{path}: cannot be read: {error.strerror or error}") from None


def show(found: Inspection, *, as_json: bool = False) -> None:
    """Print an inspection: for people a name and a text in each line, or as JSON."""
    if as_json:
        print(json.dumps(_data(found.model_dump()), indent=2))
        return
    rows = [(name, line) for name, text in found.facts.items() for line in text.splitlines()]
    for name in ("needs", "promises", "next"):
        rows += [(name, " ".join(text.split())) for text in getattr(found, name)]
    width = max((len(name) for name, _ in rows), default=0)
    print(f"{printable(str(found.path))}: {found.kind}, {sized(found.bytes)}")
    for name, line in rows:
        print(f"  {name:<{width}}  {line}")


def _data(value: Any) -> Any:
    """A value as JSON has it, which knows no NaN."""
    if isinstance(value, Mapping):
        return {str(key): _data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_data(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _folder(path: Path) -> Inspection:
    config = path / "config.json"
    if config.is_file() and not (path / artifact.RECEIPT).is_file():
        content = read_json(config)
        timms = "architecture" in content and not {"architectures", "model_type"} & content.keys()
        held = [path / name for name in FOLDER_WEIGHTS if (path / name).is_file()]
        return _file(held[0]) if timms and held else of_transformers(path, content)
    models = artifact.find([path], none_yet=_pictures(path))
    if not models:
        raise PenstockError(
            f"{path}: a folder of pictures, which models are given: penstock predict MODEL {path}, "
            f"and --data {path} of export, eval and bench"
        )
    return of_artifact(path) if models == [path] else of_repository(path, models)


def _pictures(path: Path) -> bool:
    """Whether a folder holds pictures, or folders of them as classes are kept; a few files of each are looked at."""
    folders = [path, *islice((child for child in path.iterdir() if child.is_dir()), _LOOKED_AT)]
    return any(each.suffix.lower() in PICTURES for folder in folders for each in islice(folder.iterdir(), _LOOKED_AT))


def _file(path: Path) -> Inspection:
    if not path.is_file():
        raise PenstockError(
            f"{path}: {'not a regular file' if path.exists() else f'no such file or folder{nearby(path)}'}"
        )
    if path.name == artifact.RECEIPT:
        return of_artifact(path.parent)
    with path.open("rb") as file:
        start = file.read(64)
    if not start:
        raise PenstockError(f"{path}: is empty, 0 bytes; copy or download it again")
    if start.startswith(b"version https://git-lfs"):
        raise PenstockError(f"{path}: is Git LFS's note of where the file is, not the file: git lfs pull fetches it")
    if start.lstrip()[:1] == b"<":
        raise PenstockError(f"{path}: is a web page or other markup: its download went wrong")
    found = _by_content(path, start)
    if not (path.parent / artifact.RECEIPT).is_file() or path.name not in artifact.read(path.parent).receipt.files:
        return found
    vouched = (f"what the receipt of the artifact in {path.parent} says of it",)
    return found.model_copy(update={"needs": (), "promises": vouched, "next": (command("inspect", path.parent),)})


def _by_content(path: Path, start: bytes) -> Inspection:
    """Tell by the first bytes, and by the name where those say nothing."""
    if start[:4] in ENGINES or path.suffix in (".plan", ".engine", ".trt"):
        return of_engine(path, start)
    if path.suffix == ".safetensors" or (start[8:10] == b'{"' and int.from_bytes(start[:8], "little") < 1 << 27):
        return of_safetensors(path)
    if start.startswith(b"PK"):
        return _zip(path)
    if path.suffix == ".onnx" or start[:1] == b"\x08":
        return of_onnx(path)
    if start[:1] == b"\x80" or path.suffix in (".pth", ".pt", ".ckpt", ".bin", ".tar", ".pt2"):
        return _pytorch(path)
    raise PenstockError(
        f"{path}: is none of what penstock knows: a checkpoint (.pth, .pt, .ckpt, .bin, .safetensors), a program "
        "(TorchScript, .pt2), an .onnx model, a TensorRT engine, samples (.npz), an artifact, a model repository or a "
        "transformers folder"
    )


def _zip(path: Path) -> Inspection:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        why = "its end is missing" if "not a zip file" in str(error) else error
        raise PenstockError(f"{path}: truncated or damaged ({why}); copy or download it again") from None
    if names and all(name.endswith(".npy") for name in names):
        return of_samples(path)
    if not any(name.endswith((".pkl", ".json")) for name in names):
        raise PenstockError(f"{path}: a zip file that holds neither a checkpoint, nor a program, nor .npy arrays")
    see_unpacked(path)
    return _pytorch(path)


def _pytorch(path: Path) -> Inspection:
    require("torch", "export", f"inspecting {path.name}")
    from penstock import card, programs, weights

    kind = programs.kind(path)
    if kind is not None:
        return of_torchscript(path) if kind == "torchscript" else of_exported(path)
    try:
        with _mapped(path):
            content = weights.read(path).value
    except PenstockError as error:
        if "--allow-pickle" not in str(error):
            raise
        return of_pickled(path)
    ours = card.read(path, content)
    return of_foreign(path, content) if ours is None else of_ours(path, content, ours)


@contextmanager
def _mapped(path: Path) -> Iterator[None]:
    """While the block runs, torch maps a file's tensors instead of reading them: no more memory than is looked at."""
    try:
        from torch.utils.serialization import config
    except ImportError:  # a torch before 2.7
        config = None  # type: ignore[assignment]
    if config is None or not zipfile.is_zipfile(path):
        yield
        return
    with config.patch({"load.mmap": True}):  # type: ignore[attr-defined]
        yield
