"""Looking at the repository's folders again and again, and serving what they hold then (`--mode poll`).

A model is loaded anew when what lies under its name has changed: a new version folder, an artifact's files, a bare
.onnx file. Artifacts come by one rename and are taken as soon as they are seen whole; whatever is copied there file by
file is taken once two looks saw it alike. What failed to load is not tried again until it changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
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


def look(paths: Iterable[Path]) -> tuple[dict[str, Seen], list[Path]]:
    """What models lie under `paths`, by name, the first of each; and which of the paths are not there at all."""
    found: dict[str, Seen] = {}
    missing = []
    for path in paths:
        if not path.exists():
            missing.append(path)
            continue
        for model in declared.found([path], none_yet=True):
            with suppress(OSError):  # it went away meanwhile
                found.setdefault(declared.name_of(model), Seen(model, _stamp(model)))
    return found, missing


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
        self._tried = look(paths)[0]
        self._last = dict(self._tried)
        self._missing: list[Path] = []

    async def start(self, repository: Repository, every_s: float) -> Callable[[float], Awaitable[None]]:
        """Look every so many seconds from now on; what stops it, as the application wants it."""
        task = asyncio.ensure_future(self._run(repository, every_s))

        async def stop(within_s: float) -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        return stop

    async def _run(self, repository: Repository, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.once(repository)
            except Exception:  # a folder that cannot be read today may be tomorrow
                log.exception("the repository could not be looked at")

    async def once(self, repository: Repository) -> None:
        """Look, and load, exchange and take out what has changed."""
        now, missing = await asyncio.to_thread(look, self._paths)
        for path in missing:
            if path not in self._missing:
                log.error("%s is not there any more; models that were loaded from within it go on", path)
        self._missing = missing
        for name in [name for name, seen in self._tried.items() if name not in now and not _hidden(seen.path, missing)]:
            del self._tried[name]
            if repository.knows(name):
                await repository.remove(name)
        for name, seen in now.items():
            tried = self._tried.get(name)
            if (tried is None or tried.stamp != seen.stamp) and await self._still(name, seen):
                self._tried[name] = seen
                with suppress(RequestError):  # which the repository keeps, and has logged
                    await repository.renew(name, seen.path)
        self._last = now

    async def _still(self, name: str, seen: Seen) -> bool:
        """Whether nothing more is to be expected: it is whole, or was the same at the last look."""
        last = self._last.get(name)
        return (last is not None and last.stamp == seen.stamp) or await asyncio.to_thread(whole, seen.path)


def _hidden(path: Path, missing: list[Path]) -> bool:
    """Whether a model cannot be seen because the repository that it lies in cannot: a disk that is away takes none."""
    return any(path != gone and path.is_relative_to(gone) for gone in missing)
