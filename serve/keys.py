"""Files of API keys: what each key may do, and its SHA-256 in place of itself.

A key is 256 random bits. Nobody finds those by trying, however fast a hash is; a slow one, as for passwords that people
choose, would cost each request milliseconds and protect nothing more.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any

from penstock import locks
from penstock.errors import PenstockError
from penstock.files import write_whole, writing
from penstock.serve import rights

# By this a key is known for one where it must not be: scanners of repositories and logs look for such.
PREFIX = "penstock_"
LONGEST = 512
_MOST_BYTES, _MOST_KEYS = 4 * 2**20, 10_000
_MOST_RATE = 1e6
_NAME = re.compile(rf"(?!{PREFIX})[A-Za-z0-9][A-Za-z0-9._-]{{0,63}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Key:
    """What stands in the file of a key.

    `rate` is in requests a second, None for as many as it likes; `burst` so many at once; `expires` the moment from
    which it is no longer taken.
    """

    name: str
    sha256: str = field(repr=False)
    rights: tuple[str, ...] = (rights.INFER,)
    rate: float | None = None
    burst: float | None = None
    expires: datetime | None = None
    created: datetime | None = None

    @property
    def most_at_once(self) -> float:
        """The burst that is meant: a second's requests where none is said."""
        return self.burst if self.burst is not None else max(1.0, self.rate or 1.0)

    @property
    def valid(self) -> str:
        """Until when, as a user says it: a day, to whose end in UTC the key is taken, or a time; "" for always."""
        if self.expires is None:
            return ""
        last = self.expires.astimezone(timezone.utc) - timedelta(days=1)
        return f"through {last:%Y-%m-%d} (UTC)" if last.time() == time() else f"until {self.expires.isoformat(' ')}"


def digest(key: bytes) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key).hexdigest()


def make(name: str, asked: Sequence[str], rate: float | None, burst: float | None, expires: str | None) -> Key:
    """A key's entry as the command line describes it, without the key.

    Raises:
        PenstockError: what is asked for breaks a rule, or the key would have expired already.
    """
    now = datetime.now(timezone.utc).replace(microsecond=0)
    said = {"name": name, "sha256": "0" * 64, "rights": list(asked), "rate": rate, "burst": burst, "expires": expires}
    made = _entry({name: value for name, value in said.items() if value is not None}, _option)
    if made.expires is not None and made.expires <= now:
        raise PenstockError(f"--expires is {str(expires)[:40]!r}; it must lie ahead")
    return replace(made, created=now)


def add(path: Path, entry: Key) -> str:
    """Make a random key for an entry, keep the entry in the file, and return the key, which is nowhere else.

    Raises:
        PenstockError: the file is damaged, has a key of that name, or cannot be written.
    """
    with _locked(path):
        held = read(path) if path.exists() else ()
        if any(key.name == entry.name for key in held):
            raise PenstockError(
                f"{path}: has a key {entry.name!r} already; choose another name, or take it away first: "
                f"penstock keys remove {path} {entry.name}"
            )
        key = PREFIX + secrets.token_urlsafe(32)
        _write(path, [*held, replace(entry, sha256=digest(key.encode()))])
    return key


def remove(path: Path, name: str) -> None:
    """Take a key out of the file.

    Raises:
        PenstockError: the file is missing, damaged, has no such key, or cannot be written.
    """
    with _locked(path):
        held = read(path)
        kept = [key for key in held if key.name != name]
        if len(kept) == len(held):
            raise PenstockError(f"{path}: has no key {name[:80]!r}; it has {', '.join(k.name for k in held) or 'none'}")
        _write(path, kept)


def read(path: Path) -> tuple[Key, ...]:
    """The keys of a file.

    Raises:
        PenstockError: it cannot be read, or breaks a rule.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        hint = f"; make it with: penstock keys add {path} NAME" if isinstance(error, FileNotFoundError) else ""
        raise PenstockError(f"{path}: {error.strerror}{hint}") from None
    if len(data) > _MOST_BYTES:
        raise PenstockError(f"{path}: is over the limit of {_MOST_BYTES} bytes for a file of keys")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:  # neither quotes what stands there
        raise PenstockError(f"{path}: is no file of keys, which are JSON: {error or 'too deep'}") from None
    try:
        return _read(content)
    except PenstockError as error:
        raise PenstockError(f"{path}: {error}") from None


def open_to_others(path: Path) -> str | None:
    """What is wrong with a file's permissions, if anything: hashes are no keys, but who can write adds his own."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        return None
    what = "written" if mode & (stat.S_IWOTH | stat.S_IWGRP) else "read"
    return f"{path} can be {what} by others (mode {mode:04o}): chmod 600 {path}"


def _read(content: Any) -> tuple[Key, ...]:
    if not isinstance(content, dict) or not isinstance(content.get("keys"), list):
        raise PenstockError('must be {"version": 1, "keys": [...]}')
    for name in content:
        if name not in ("version", "keys"):
            raise PenstockError(f"field {name[:40]!r} is unknown; it must be version or keys")
    if content.get("version") != 1:
        raise PenstockError(f"version is {str(content.get('version'))[:40]}; it must be 1")
    if len(content["keys"]) > _MOST_KEYS:
        raise PenstockError(f"has {len(content['keys'])} keys; there may be {_MOST_KEYS}")
    found = tuple(_entry(entry, f"keys[{place}].{{}}".format) for place, entry in enumerate(content["keys"]))
    names: dict[str, str] = {}
    for key in found:
        if key.name in names or key.sha256 in names.values():
            raise PenstockError(f"key {key.name!r} is there twice; each name and each sha256 must be its own")
        names[key.name] = key.sha256
    return found


def _option(name: str) -> str:
    return "NAME" if name == "name" else f"--{name}"


def _entry(content: Any, called: Callable[[str], str]) -> Key:
    """A key's entry, each field by its rule; what may be a key that somebody put in a wrong place is not told.

    `called` says how a field is called in the sentence on what is wrong with it.
    """
    if not isinstance(content, dict):
        raise PenstockError(f"{called('name').removesuffix('.name')} must be an object")
    for name in content:
        if name not in _FIELDS:
            raise PenstockError(f"{called(name[:40])} is unknown; a key has {', '.join(_FIELDS)}")
    for name in ("name", "sha256", "rights"):
        if name not in content:
            raise PenstockError(f"{called(name)} is missing")
    read = {}
    for name, value in content.items():
        take, rule = _FIELDS[name]
        try:
            read[name] = take(value)
        except (ValueError, TypeError, OverflowError):
            secret = name == "sha256" or PREFIX in str(value)
            shown = "not one" if secret else f"{value!r:.60}"
            raise PenstockError(f"{called(name)} is {shown}; it must be {rule}") from None
    if "burst" in read and "rate" not in read:
        raise PenstockError(f"{called('burst')} is {read['burst']:g}, but there is no rate; give both, or a rate alone")
    return Key(**read)


def _matching(pattern: re.Pattern[str]) -> Callable[[Any], str]:
    def take(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError
        return value

    return take


def _rights(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(name in rights.EVERY for name in value):
        raise ValueError
    return tuple(name for name in rights.EVERY if name in value)


def _number(least: float) -> Callable[[Any], float]:
    def take(value: Any) -> float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not fits or not least <= value <= _MOST_RATE:
            raise ValueError
        return float(value)

    return take


def _moment(value: Any) -> datetime:
    """A day stands for its end; a time without a zone is in UTC."""
    if not isinstance(value, str):
        raise ValueError
    with suppress(ValueError):
        return datetime.combine(date.fromisoformat(value), time(), timezone.utc) + timedelta(days=1)
    found = datetime.fromisoformat(value.replace("Z", "+00:00"))
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


_WHEN = "a date as in 2030-12-31, to its end in UTC, or a time as in 2030-12-31T12:00:00+00:00"
_FIELDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "name": (
        _matching(_NAME),
        "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit, and no key",
    ),
    "sha256": (_matching(_DIGEST), "64 hexadecimal digits, the SHA-256 of the key"),
    "rights": (_rights, f"a list of {', '.join(rights.EVERY)}, one at least"),
    "rate": (_number(0.001), f"requests a second, a number from 0.001 to {_MOST_RATE:.0f}"),
    "burst": (_number(1), f"requests at once, a number from 1 to {_MOST_RATE:.0f}"),
    "expires": (_moment, _WHEN),
    "created": (_moment, _WHEN),
}


def _write(path: Path, keys: Sequence[Key]) -> None:
    listed = [
        {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name in _FIELDS
            if (value := getattr(key, name)) is not None
        }
        for key in keys
    ]
    data = json.dumps({"version": 1, "keys": listed}, indent=2).encode() + b"\n"
    if len(keys) > _MOST_KEYS or len(data) > _MOST_BYTES:
        raise PenstockError(f"{path}: is full; take keys away first: penstock keys remove {path} NAME")
    target = path.resolve()  # a link stays one
    before = target.stat() if target.exists() else None
    with writing("FILE", path, "its keys are as they were"):
        write_whole(target, data, 0o600)
    if before is not None:
        with suppress(PermissionError):  # the server, which may be another user, goes on reading it
            os.chown(target, before.st_uid, before.st_gid)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time: what two add at once is both kept."""
    with ExitStack() as stack:
        with writing("FILE", path, "its keys are as they were"):
            stack.enter_context(locks.held(path.resolve().parent))
        yield
