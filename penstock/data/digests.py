"""Digests of data sets, by what their files hold; and keys by how files lie on the disk, for what is kept of them."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from penstock import cache
from penstock.data import threads
from penstock.data.specs import Arrays, CsvTable, CsvText, DatasetSpec, Digits, FashionMnist, ImageFolder
from penstock.errors import PenstockError, printable, require
from penstock.files import sha256

_KIND = "digests"
# A file that was changed so lately can be changed again without its time telling.
_SETTLED_S = 2


def digest(spec: DatasetSpec) -> str:
    """The sha256, in hexadecimal, over the names, sizes and contents of the files that a data set is read from.

    A file that a spec names goes by what it is there for (`train`), one in a folder by its path there: the digest stays
    the same when all are moved. Digits are digested as scikit-learn gives them. The result is kept in the cache for as
    long as the files' times and sizes stay.

    Raises:
        PenstockError: a file cannot be read.
    """
    if isinstance(spec, Digits):
        return _digits(spec)
    found = files(spec)
    key = stamp(found)
    if key is not None and (kept := cache.read(_KIND, key)) is not None:
        return kept.decode()
    names = sorted(found)
    read = _picture if isinstance(spec, ImageFolder) else _held
    held = threads.each("digesting data", lambda name: read(found[name]), names)
    whole = cache.key(*(part for name, each in zip(names, held, strict=True) for part in (os.fsencode(name), each)))
    if key is not None:
        cache.write(_KIND, key, whole.encode())
    return whole


def files(spec: DatasetSpec) -> dict[str, Path]:
    """The files that a data set is read from, by what they are there for, or their path in its folder.

    Raises:
        PenstockError: there are none.
    """
    if isinstance(spec, FashionMnist):
        from penstock.data import idx

        return idx.files(spec)
    if isinstance(spec, ImageFolder):
        from penstock.data import folders

        return folders.files(spec)
    if isinstance(spec, Digits):
        return {}
    if isinstance(spec, CsvText | CsvTable):
        named = {"train": spec.train, "dev": spec.dev, "test": spec.test_file}
    elif isinstance(spec, Arrays):
        named = {"train": spec.path}
    else:
        named = {"train": spec.path, "test": spec.test_file}
    return {name: Path(path) for name, path in named.items() if path is not None}


def stamp(found: Mapping[str, Path]) -> str | None:
    """A key of these files as they lie there: by names, places, sizes and times. None if one was changed just now."""
    digest, newest = hashlib.sha256(), 0
    for name, path in found.items():
        figures: tuple[int, ...] = ()
        with suppress(OSError):  # it is not there
            state = path.stat()
            newest = max(newest, state.st_mtime_ns, state.st_ctime_ns)
            figures = state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino
        for part in (os.fsencode(name), os.fsencode(path.absolute()), repr(figures).encode()):
            digest.update(b"%d:%s" % (len(part), part))
    return None if newest > time.time_ns() - _SETTLED_S * 10**9 else digest.hexdigest()


def _held(path: Path) -> str:
    """The size and the sha256 of a file."""
    try:
        return _read(path)
    except OSError as error:
        raise PenstockError(f"dataset file {printable(str(path))}: cannot be read: {error.strerror}") from None


def _picture(path: Path) -> str:
    """The same of a picture; one that cannot be read is for the data set's reader to leave out, or to refuse."""
    try:
        return _read(path)
    except OSError:
        return "unreadable"


def _read(path: Path) -> str:
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):  # a pipe would be waited for
        raise OSError(errno.EINVAL, "is no file")
    return f"{state.st_size} {sha256(path)}"


def _digits(spec: Digits) -> str:
    require("sklearn", "bench", f"data set {spec.name!r}")
    from sklearn.datasets import load_digits

    scans = load_digits()
    return cache.key(scans.images.astype("<f8").tobytes(), scans.target.astype("<i8").tobytes())
