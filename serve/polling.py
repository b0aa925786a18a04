"""Looking at the repository's folders again and again, and serving what they hold then (`--mode poll`).

A model is loaded anew when what lies under its name has changed: a new version folder, an artifact's files, a bare
.onnx file. Artifacts come by one rename and are taken as soon as they are seen whole; whatever is copied there file by
file is taken once two looks saw it alike. What failed to load is not tried again until it changes.

Folders change while they are looked at. What is seen half gone is looked at again, and is an error only if the next
look finds it so too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from penstock import artifact
from penstock.errors import PenstockError
from penstock.serve import declared
from penstock.serve.errors import RequestError
from penstock.serve.repository import Repository

log = logging.getLogger(__name__)
Stamp = tuple[Any, ...]


@dataclass(frozen=True)
class Seen:
    """A model's place, and the names, sizes, times and numbers of the files that it would be loaded from."""

    path: Path
    stamp: Stamp


@dataclass
class Sight:
    """What one look saw: models by name, the paths that are not there at all, and by name why a model is not clear."""

    found: dict[str, Seen] = field(default_factory=dict)
    missing: list[Path] = field(default_factory=list)
    unclear: dict[str, str] = field(default_factory=dict)


def look(paths: Iterable[Path]) -> Sight:
    """What models lie under `paths`, the first of each name."""
    sight = Sight()
    for path in paths:
        try:
            models = list(declared.found([path], none_yet=True))
        except (PenstockError, FileNotFoundError):
            sight.missing.append(path)
            continue
        for model in models:
            name = artifact.name_of(model)
            try:
                sight.found.setdefault(name, Seen(model, _stamp(model)))
            except OSError as error:
                if model.exists():  # else it went away meanwhile
                    sight.unclear[name] = str(error)
    return sight


def _stamp(path: Path) -> Stamp:
    if path.is_file():  # its weights may lie in files beside it, named after it
        return tuple(_fact(file) for file in sorted(path.parent.glob(f"{_plain(path.stem)}.*")))
    folder = _newest(path)
    return folder.name, tuple(_fact(file) for file in sorted(folder.iterdir()) if file.is_file())


def _fact(file: Path) -> tuple[str, int, int, int]:
    known = file.stat()
    return file.name, known.st_size, known.st_mtime_ns, known.st_ino


def _plain(stem: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in stem)


def _newest(path: Path) -> Path:
    """The version folder that a model's folder is served from."""
    if (path / artifact.RECEIPT).is_file():
        return path
    numbers = artifact.versions(path)
    return path / str(numbers[-1]) if numbers else path


def whole(path: Path) -> bool:
    """Whether an artifact has all the files that its receipt lists, in their sizes; a bare file says nothing of it."""
    if path.is_file():
        return False
    try:
        found = artifact.read(path)
        return all((found.folder / name).stat().st_size == file.bytes for name, file in found.receipt.files.items())
    except (PenstockError, OSError):
        return False


class Poll:
    """Keeps a repository to what its folders hold.

    Args:
        paths: what is served. They are looked at once now, so that what changes while they are loaded is not missed.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._tried = look(paths).found
        self._last = dict(self._tried)
        # What is amiss, and for how many looks it has been; models whose last load failed while their files changed.
        self._amiss: dict[str, int] = {}
        self._excused: set[str] = set()

    async def start(self, repository: Repository, every_s: float) -> Callable[[float], Awaitable[None]]:
        """Look every so many seconds from now on; what stops it, as the application wants it."""
        task = asyncio.ensure_future(self._run(repository, every_s))

        async def stop(within_s: float) -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        return stop

    async def _run(self, repository: Repository, every_s: float) -> None:
        in_vain = 0
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.once(repository)
            except Exception:  # a folder that cannot be read today may be tomorrow
                in_vain += 1
                if in_vain == 2:
                    log.exception("the repository could not be looked at")
            else:
                in_vain = 0

    async def once(self, repository: Repository) -> None:
        """Look, and load, exchange and take out what has changed."""
        sight = await asyncio.to_thread(look, self._paths)
        self._tell(sight)
        for name in self._gone(sight):
            del self._tried[name]
            self._excused.discard(name)
            if repository.knows(name):
                await repository.remove(name)
        for name, seen in sight.found.items():
            tried = self._tried.get(name)
            if (tried is None or tried.stamp != seen.stamp) and await self._still(name, seen):
                self._tried[name] = seen
                with suppress(RequestError):  # which the repository keeps, and has logged
                    await repository.renew(name, seen.path, partial(self._excuses, name, seen))
                    self._excused.discard(name)
        self._last = sight.found

    def _tell(self, sight: Sight) -> None:
        """Log what has been amiss for two looks now."""
        amiss = [
            f"{path} is not there any more; models that were loaded from within it go on" for path in sight.missing
        ]
        amiss += [
            f"model {name!r} cannot be looked at; it stays as it is: {why}" for name, why in sight.unclear.items()
        ]
        self._amiss = {fault: self._amiss.get(fault, 0) + 1 for fault in amiss}
        for fault, looks in self._amiss.items():
            if looks == 2:
                log.error(fault)

    def _gone(self, sight: Sight) -> list[str]:
        """The models that were there, and are no longer."""
        there = {*sight.found, *sight.unclear}
        return [
            name for name, seen in self._tried.items() if name not in there and not _hidden(seen.path, sight.missing)
        ]

    def _excuses(self, name: str, seen: Seen) -> bool:
        """Whether a load that failed tells nothing of a model, since its files changed meanwhile; once in a row."""
        try:
            changed = _stamp(seen.path) != seen.stamp
        except OSError:
            changed = True
        excused = changed and name not in self._excused
        (self._excused.add if excused else self._excused.discard)(name)
        return excused

    async def _still(self, name: str, seen: Seen) -> bool:
        """Whether nothing more is to be expected: it is whole, or was the same at the last look."""
        last = self._last.get(name)
        return (last is not None and last.stamp == seen.stamp) or await asyncio.to_thread(whole, seen.path)


def _hidden(path: Path, missing: list[Path]) -> bool:
    """Whether a model cannot be seen because the repository that it lies in cannot: a disk that is away takes none."""
    return any(path != gone and path.is_relative_to(gone) for gone in missing)
