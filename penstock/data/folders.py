"""Pictures in a folder for each class, read when they are asked for."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from penstock.data import found, pictures
from penstock.data.samples import Samples
from penstock.data.specs import ImageFolder, Part
from penstock.datasets import PICTURES
from penstock.errors import PenstockError, listed, printable

log = logging.getLogger(__name__)
PARTS: tuple[Part, ...] = ("train", "val", "test")
# What archives of macOS bring along: files beside files, that are named as they are.
_FOREIGN = "__MACOSX"


class Files(Sequence[bytes]):
    """The bytes of files, by their names in a folder, read on each access."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.names = folder, names

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Files: ...

    def __getitem__(self, index: int | slice) -> bytes | Files:
        if isinstance(index, slice):
            return Files(self.folder, self.names[index])
        path = self.folder / self.names[index]
        try:
            return path.read_bytes()
        except OSError as error:
            raise PenstockError(f"dataset.path {_shown(path)}: cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class _Class:
    """A class's name, its folder's in the data set's, and its pictures, by their names there."""

    name: str
    folder: str
    pictures: list[str]


def load(spec: ImageFolder) -> dict[Part, Samples]:
    """The parts: bytes of pictures, which are read on access. Classes are the names of train's folders, sorted
    (numbers by value).

    Every picture's head and end are looked at first (`pictures.faults`), or all of it where unreadable ones are to be
    left out: they are named, and refused or left out, as the spec says. Files of other names are left out, and counted;
    hidden ones are not there at all.

    Raises:
        PenstockError: there are no classes, one has no pictures, a part has one that train lacks, or a picture is
            unreadable.
    """
    parts, others = _listing(spec)
    where = _where(spec)
    _tell_left_out(where, others)
    parts = _readable(spec, parts)
    for part, classes in parts.items():
        empty = [_shown(each.folder) for each in classes if not each.pictures]
        if empty and part == "train":
            raise PenstockError(
                f"{where}: no pictures ({', '.join(PICTURES)}) in {listed(empty)}; add some, or remove the folder, "
                "which is a class by its name"
            )
        if len(empty) == len(classes):
            raise PenstockError(f"{where}: no pictures ({', '.join(PICTURES)}) in the folders of {part}; remove {part}")
    return found.samples(spec, {part: _found(spec, classes) for part, classes in parts.items()}, "image")


def _tell_left_out(where: str, others: Sequence[str]) -> None:
    strays = [_shown(name) for name in others if _is_picture(name)]
    if strays:
        log.warning(
            "%s: pictures in no class's folder: %d, which are left out: %s", where, len(strays), listed(strays, 3)
        )
    rest = [_shown(name) for name in others if not _is_picture(name)]
    if rest:
        told = ", ".join(PICTURES)
        log.warning("%s: files that are no %s: %d, which are left out: %s", where, told, len(rest), listed(rest, 3))


def files(spec: ImageFolder) -> dict[str, Path]:
    """All pictures, by their names in the data set's folder."""
    parts, _ = _listing(spec)
    return {name: Path(spec.path) / name for name in _names(parts)}


def _where(spec: ImageFolder) -> str:
    return f"dataset.path {_shown(spec.path)}"


def _shown(path: object) -> str:
    return printable(str(path))


def _names(parts: dict[Part, list[_Class]]) -> list[str]:
    return [name for classes in parts.values() for each in classes for name in each.pictures]


def _found(spec: ImageFolder, classes: Sequence[_Class]) -> found.Found:
    names = [name for each in classes for name in each.pictures]
    labels = [each.name for each in classes for _ in each.pictures]
    home = Path(spec.path) / classes[0].folder.rpartition("/")[0]
    return found.Found(f"dataset.path {_shown(home)}", Files(Path(spec.path), names), labels, names)


def _readable(spec: ImageFolder, parts: dict[Part, list[_Class]]) -> dict[Part, list[_Class]]:
    """The parts without pictures that cannot be read, if they are to be left out."""
    names = _names(parts)
    # Where some are known to be bad, none is to end a run hours after this.
    faults = pictures.faults({name: Path(spec.path) / name for name in names}, decoded=spec.unreadable == "skip")
    if not faults:
        return parts
    told = listed([f"{_shown(name)} ({reason})" for name, reason in faults.items()])
    if spec.unreadable == "fail":
        raise PenstockError(
            f"{_where(spec)}: {len(faults)} of {len(names)} pictures cannot be read: {told}; repair or remove them, or "
            'leave them out with dataset.unreadable = "skip"'
        )
    log.warning(
        "%s: %d of %d pictures cannot be read, and are left out: %s", _where(spec), len(faults), len(names), told
    )
    return {
        part: [
            _Class(each.name, each.folder, [name for name in each.pictures if name not in faults]) for each in classes
        ]
        for part, classes in parts.items()
    }


def _listing(spec: ImageFolder) -> tuple[dict[Part, list[_Class]], list[str]]:
    """The classes of each part that has a folder, in the order of their names; and all files beside their pictures."""
    root = Path(spec.path)
    if not root.is_dir():
        raise PenstockError(f"{_where(spec)}: {'is no folder' if root.exists() else 'no such folder'}")
    try:
        homes = _homes(spec, root)
        folders = {part: _folders(root, home) for part, home in homes.items()}
        closed = {_identity(root / home) for home in ("", *homes.values())}
        closed |= {_identity(root / folder) for each in folders.values() for folder in each}
        others: list[str] = []
        parts: dict[Part, list[_Class]] = {}
        for part, home in homes.items():
            if not folders[part]:
                raise PenstockError(
                    f"dataset.path {_shown(root / home)}: holds no folders; each class needs one, of its name, with "
                    "its pictures"
                )
            others += [entry for entry, is_folder in _entries(root, home) if not is_folder]
            parts[part] = [_class(root, folder, closed, others) for folder in folders[part]]
    except OSError as error:
        raise PenstockError(f"dataset.path {_shown(error.filename)}: cannot be read: {error.strerror}") from None
    return parts, others


def _homes(spec: ImageFolder, root: Path) -> dict[Part, str]:
    """The folder of each part in the data set's; "" for train where there are only classes.

    A folder `train` is a part, not a class, if there are folders in it and no pictures.
    """
    names = _folders(root, "")
    inside = list(_entries(root, "train")) if "train" in names else []
    if any(is_folder for _, is_folder in inside) and not any(_is_picture(name) for name, _ in inside):
        strange = [_shown(name) for name in names if name not in PARTS]
        if strange:
            raise PenstockError(
                f"{_where(spec)}: holds parts, as train, and beside them {listed(strange)}; parts are "
                f"{', '.join(PARTS)}"
            )
        return {part: part for part in PARTS if part in names}
    if names and set(names) <= set(PARTS):
        raise PenstockError(f"{_where(spec)}: holds {' and '.join(names)}, but no train with a folder for each class")
    return {"train": ""}


def _class(root: Path, folder: str, closed: set[tuple[int, int]], others: list[str]) -> _Class:
    """A class, with the pictures of all folders in its own.

    Each folder is read once, however many links lead there; `closed` are those that links are not followed to: the
    classes' own and those above them. What is no picture is added to `others`.
    """
    name = folder.rpartition("/")[2]
    if not name.isprintable():
        raise PenstockError(f"dataset.path {_shown(root / folder)}: the folder's name is a class's, and must be text")
    held: list[str] = []
    waiting, seen = [folder], set(closed)
    while waiting:
        for entry, is_folder in _entries(root, waiting.pop()):
            if is_folder:
                identity = _identity(root / entry)
                if identity not in seen:
                    seen.add(identity)
                    waiting.append(entry)
            else:
                (held if _is_picture(entry) else others).append(entry)
    return _Class(name, folder, sorted(held))


def _is_picture(name: str) -> bool:
    return name.lower().endswith(PICTURES)


def _folders(root: Path, folder: str) -> list[str]:
    return sorted(entry for entry, is_folder in _entries(root, folder) if is_folder)


def _entries(root: Path, folder: str) -> Iterator[tuple[str, bool]]:
    """What is in a folder of the root's and not hidden, by its name in the root, and whether it is a folder."""
    with os.scandir(root / folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name != _FOREIGN:
                yield f"{folder}/{entry.name}" if folder else entry.name, _is_folder(entry)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _identity(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_dev, state.st_ino
