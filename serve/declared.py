"""Which models lie under the paths that a server was given, and under what names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock import artifact
from penstock.errors import PenstockError
from penstock.serve.model import Model


def name_of(path: Path) -> str:
    """The model's name: its file's, or that of its folder, or of the folder above a version folder."""
    if path.is_file():
        return path.stem
    resolved = path.resolve()
    return resolved.parent.name if (path / artifact.RECEIPT).is_file() and path.name.isdigit() else resolved.name


def path_of(paths: list[Path], name: str) -> Path | None:
    """Where the model of that name lies; None if there is none."""
    return next((path for path in artifact.find(paths) if name_of(path) == name), None)


def by_name(paths: list[Path], *, none_yet: bool = False) -> dict[str, Path]:
    """Where each model lies.

    Raises:
        PenstockError: a path is missing or holds no model, which it may with `none_yet`, or two have one name.
    """
    found: dict[str, Path] = {}
    for path in artifact.find(paths, none_yet=none_yet):
        name = name_of(path)
        if name in found:
            raise PenstockError(f"{path}: a model named {name!r} is already declared; names must differ")
        found[name] = path
    return found


def opened(open: Callable[[Path], Model], path: Path, name: str) -> Model:
    """The model at a path, loaded; its receipt must name it so.

    Raises:
        PenstockError: it does not, or the model cannot be loaded.
    """
    model = open(path)
    if model.name != name:
        raise PenstockError(f"{path}: its receipt names it {model.name!r}; the folder's name must be that")
    return model
