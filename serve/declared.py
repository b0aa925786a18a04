"""Which models lie under the paths that a server was given, and under what names."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock import artifact
from penstock.artifact import MODEL_NAME, name_of
from penstock.errors import PenstockError
from penstock.serve.model import Model

log = logging.getLogger(__name__)
_MOST_SKIPPED = 1000
_skipped: set[Path] = set()


def path_of(paths: list[Path], name: str) -> Path | None:
    """Where the model of that name lies; None if there is none."""
    return next((path for path in found(paths) if name_of(path) == name), None)


def found(paths: list[Path], *, none_yet: bool = False) -> Iterator[Path]:
    """The models under `paths`, as `artifact.find` has them, but for those that no client could name.

    A folder in a repository whose name is no model's name is logged once, and left out. One that was given by its own
    path is left out only if its name is no text.

    Raises:
        PenstockError: as there.
    """
    for path in artifact.find(paths, none_yet=none_yet):
        name = name_of(path)
        if MODEL_NAME.fullmatch(name) or (path in paths and _is_text(name)):
            yield path
        elif path not in _skipped:
            if len(_skipped) >= _MOST_SKIPPED:
                _skipped.clear()
            _skipped.add(path)
            log.error("%r is not served: a model's name has up to 128 letters, digits, _, - and .", os.fsencode(path))


def with_engine(paths: list[Path]) -> bool:
    """Whether one of TensorRT's engines is among the models under `paths`; whatever cannot be read is none."""
    try:
        return any(map(_is_engine, artifact.find(paths, none_yet=True)))
    except (PenstockError, OSError):
        return False


def _is_engine(path: Path) -> bool:
    try:
        return path.is_dir() and artifact.read(path).receipt.runtime == "tensorrt"
    except PenstockError:
        return False


def _is_text(name: str) -> bool:
    """Whether a file's name is in UTF-8."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def by_name(paths: list[Path], *, none_yet: bool = False) -> dict[str, Path]:
    """Where each model lies.

    Raises:
        PenstockError: a path is missing or holds no model, which it may with `none_yet`, or two have one name.
    """
    named: dict[str, Path] = {}
    for path in found(paths, none_yet=none_yet):
        name = name_of(path)
        if name in named:
            raise PenstockError(f"{path}: a model named {name!r} is already declared; names must differ")
        named[name] = path
    return named


def opened(open: Callable[[Path], Model], path: Path, name: str) -> Model:
    """The model at a path, loaded; its receipt must name it so.

    Raises:
        PenstockError: it does not, or the model cannot be loaded.
    """
    model = open(path)
    if model.name != name:
        raise PenstockError(f"{path}: its receipt names it {model.name!r}; the folder's name must be that")
    return model
