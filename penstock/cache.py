"""The cache: results of long measurements, in files that can be deleted at any time.

They lie under `$PENSTOCK_CACHE`, or `penstock` in `$XDG_CACHE_HOME` or `~/.cache`; each is named by the digest of
all that it depends on, so that none is ever stale.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

from penstock.files import write_whole

# Each file begins with the digest of the rest of it.
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Where cached results lie."""
    chosen, home = os.environ.get("PENSTOCK_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(_expanded(chosen))
    return Path(home or _expanded("~/.cache")) / "penstock"


def _expanded(path: str) -> str:
    """The path with its ~ resolved, where that can be: pathlib raises for a user without a home."""
    return os.path.expanduser(path)  # noqa: PTH111


def key(*parts: str | bytes) -> str:
    """The digest of all parts, in hexadecimal; each is told from the next."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(raw)}:".encode() + raw)
    return digest.hexdigest()


def read(kind: str, name: str) -> bytes | None:
    """What is cached under a key, or None.

    A file that cannot be read, has been changed, or is another user's is as good as none.
    """
    # Of a pipe that somebody put there the end would be waited for.
    with suppress(OSError), os.fdopen(os.open(folder() / kind / name, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        held = os.fstat(file.fileno())
        if held.st_uid not in (os.geteuid(), 0) or not stat.S_ISREG(held.st_mode):
            return None
        raw = file.read()
        digest, data = raw[:_DIGEST], raw[_DIGEST:]
        return data if digest == hashlib.sha256(data).digest() else None
    return None


def write(kind: str, name: str, data: bytes) -> str:
    """Keep a result, whole or not at all; where the cache cannot be written, it is not kept.

    Returns:
        What to add to what is told of the result: nothing, or that it is not kept, and why.
    """
    try:
        (folder() / kind).mkdir(parents=True, exist_ok=True)
        write_whole(folder() / kind / name, hashlib.sha256(data).digest() + data)
    except OSError as error:
        return f"; not kept, so each start measures it anew: {folder()}: {error.strerror}; PENSTOCK_CACHE names another"
    return ""
