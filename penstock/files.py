"""Files: written whole or not at all, digested, and refused in one sentence."""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import itertools
import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from penstock.errors import PenstockError, nearest

_UNWRITABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EBUSY),
    *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG),
    *(errno.ELOOP, errno.ENXIO),
)
_MOST_BESIDE = 1000
# What tempfile makes of the prefix that `write_whole` gives it.
_UNFINISHED = re.compile(r"\.(.+)\.[a-z0-9_]{8}")
# What the entries of a zip file may unpack to beyond its own size.
COMPRESSED = 1 << 28


@contextmanager
def writing(option: str, path: Path, outcome: str) -> Iterator[None]:
    """Turn the system's refusal to write into one sentence: a full disk, a folder that may not be written to.

    Args:
        option: what the user gave the path with, `--output`.
        path: where the block writes.
        outcome: what is there now, `nothing was published`.

    Raises:
        PenstockError: the block was refused a write.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise PenstockError(f"{option} {path}: cannot be written: {error.strerror}; {outcome}") from None


def see_writable(option: str, path: Path) -> None:
    """See that `write_whole` can put a file there, before what it is to hold is made; leaves nothing behind.

    Args:
        option: what the user gave the path with, `--json`.
        path: the file's.

    Raises:
        PenstockError: it cannot be, since the name is `-`, or of something that is no file, or the system refuses it.
    """
    if str(path) == "-":
        raise PenstockError(f"{option} -: must be the name of a file; standard output has the table")
    with writing(option, path, "nothing was begun"):
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "no file that can be replaced"
            raise PenstockError(f"{option} {path}: is {what}; give the name of a file; nothing was begun")
        tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.").close()


def nearby(path: Path) -> str:
    """What to add to "there is no such file": the nearest beside it, or that its folder is not there, or nothing."""
    try:
        return nearest(path.name, [each.name for each in itertools.islice(path.parent.iterdir(), _MOST_BESIDE)])
    except OSError:
        return f"; there is no folder {path.parent}"


def see_folder(option: str, path: Path) -> None:
    """See that files can be written into a folder, or that it can be made; leaves nothing behind.

    Raises:
        PenstockError: it cannot be.
    """
    with writing(option, path, "nothing was begun"):
        there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
        tempfile.NamedTemporaryFile(dir=there).close()


def write_whole(path: Path, data: bytes | memoryview, mode: int = 0o644) -> None:
    """Write a file by renaming a finished one into its place; its folder must be there.

    A link stays, and the file that it leads to is replaced. A device or a pipe stays too, and is written to.
    """
    if _is_special(path):
        with path.open("wb") as file:
            file.write(data)
        return
    path = path.resolve()  # of a link: renaming onto it would replace the link
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def remove_unfinished(folder: Path, names: Sequence[str]) -> None:
    """Remove what `write_whole` leaves in a folder when its process is killed amid writing.

    Whoever calls it holds what keeps others from writing there: a file that is being written looks the same.

    Args:
        folder: is there.
        names: of the files that were to be written, as patterns: `epoch-*.pth`.
    """
    for path in folder.iterdir():
        finished = _UNFINISHED.fullmatch(path.name)
        if finished and any(fnmatch.fnmatchcase(finished[1], name) for name in names) and path.is_file():
            path.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    """Whether there is something that is neither a file nor a folder: a device, a pipe, a socket."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(kind) and not stat.S_ISDIR(kind)


def see_unpacked(path: Path) -> None:
    """Refuse a zip file whose entries come to far more than the file: those that torch writes are stored as they are.

    Raises:
        PenstockError: they do.
        OSError, zipfile.BadZipFile: it cannot be read.
    """
    with path.open("rb") as file:
        if (unpacked := unpacked_bytes(file)) > path.stat().st_size + COMPRESSED:
            raise PenstockError(f"{path}: damaged: it unpacks to {unpacked} bytes")


def unpacked_bytes(file: BinaryIO) -> int:
    """What the entries of a zip file come to, as its directory says, to which its readers keep."""
    with zipfile.ZipFile(file) as archive:
        return sum(entry.file_size for entry in archive.infolist())


def sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
