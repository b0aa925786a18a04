"""The files that --data names: which there are, of which kind, and the arrays in them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench.target import Target
from penstock.datasets import PICTURES
from penstock.errors import PenstockError

_ARRAYS = (".npz", ".npy")


def listed(path: Path) -> list[Path]:
    """The files of `--data PATH`, in order of their names.

    Raises:
        PenstockError: there are none.
    """
    if path.is_dir():
        known = (*PICTURES, *_ARRAYS, ".json", ".csv")
        files = sorted(file for file in path.rglob("[!.]*") if file.suffix.lower() in known and file.is_file())
        if not files:
            raise PenstockError(f"--data {path}: holds no {', '.join(known)} files")
        return files
    if not path.is_file():
        raise PenstockError(f"--data {path}: no such file or folder")
    return [path]


def kind(file: Path) -> str:
    """`pictures`, `arrays`, `tables` or `JSON`.

    Raises:
        PenstockError: it is of no kind that can be sent.
    """
    suffix = file.suffix.lower()
    if suffix in PICTURES:
        return "pictures"
    found = {**dict.fromkeys(_ARRAYS, "arrays"), ".json": "JSON", ".csv": "tables"}.get(suffix)
    if found is None:
        raise PenstockError(f"--data {file}: must be a picture ({', '.join(PICTURES)}), .npy, .npz, .csv or .json")
    return found


def read(target: Target, file: Path) -> dict[str, Any]:
    """The arrays of a file by the names of the model's inputs.

    Raises:
        PenstockError: it cannot be read, or its arrays are not those inputs.
    """
    names = [each.name for each in target.inputs]
    try:
        with file.open("rb") as opened:
            held = np.load(opened, allow_pickle=False)
            if isinstance(held, np.ndarray):
                if len(names) != 1:
                    raise PenstockError(
                        f"--data {file}: the inputs of {target.model} are {', '.join(names) or 'not told'}; give an "
                        f".npz "
                        "file with an array for each, by name"
                    )
                return {names[0]: held}
            arrays = {name: held[name] for name in held.files if name in names or name != "labels"}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise PenstockError(f"--data {file}: cannot be read: {error}") from None
    strangers = sorted(set(arrays) - set(names))
    if names and strangers:
        raise PenstockError(f"--data {file}: array {strangers[0]!r} is no input of {target.model}: {', '.join(names)}")
    if not arrays:
        raise PenstockError(f"--data {file}: holds no arrays")
    return arrays
