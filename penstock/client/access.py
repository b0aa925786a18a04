"""Getting in to a server: the API key that goes with requests, and the certificates that are trusted."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from penstock.errors import PenstockError

VARIABLE = "PENSTOCK_API_KEY"
_LONGEST = 512


@dataclass(frozen=True)
class Access:
    """An API key, if any, and a file of certificates to trust, in PEM; None trusts those that the system does.

    `more` are headers that go with every request besides, by their names in lower case.
    """

    key: str | None = field(default=None, repr=False)
    ca: Path | None = None
    more: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def headers(self) -> Mapping[str, str]:
        """What goes with every request."""
        return {**({} if self.key is None else {"authorization": f"Bearer {self.key}"}), **dict(self.more)}

    @cached_property
    def context(self) -> ssl.SSLContext:
        """For connections over TLS.

        Raises:
            PenstockError: `ca` cannot be read.
        """
        try:
            return ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError:
            raise PenstockError(f"--ca {self.ca}: holds no certificates in PEM") from None
        except OSError as error:
            raise PenstockError(f"--ca {self.ca}: {error.strerror}") from None

    @property
    def roots(self) -> bytes | None:
        """The trusted certificates themselves, for gRPC, which has some of its own where this is None."""
        found = self.ca or ssl.get_default_verify_paths().cafile
        assert self.context is not None  # which complains of a file that holds none
        return None if found is None else Path(found).read_bytes()


def access(key_file: Path | None, ca: Path | None) -> Access:
    """The key in a file, or else in the environment's PENSTOCK_API_KEY: words of a command line are for all to see.

    Raises:
        PenstockError: the file cannot be read, or holds no key.
    """
    if key_file is None:
        text, source = os.environ.get(VARIABLE, ""), VARIABLE
        if not text:
            return Access(None, ca)
    else:
        source = f"--key-file {key_file}"
        try:
            with key_file.open("rb") as file:
                text = file.read(2 * _LONGEST).decode("latin-1")
        except OSError as error:
            raise PenstockError(f"{source}: {error.strerror}") from None
    key = text.strip()
    if not key or len(key) > _LONGEST or not all("!" <= letter <= "~" for letter in key):
        raise PenstockError(f"{source}: must be one API key, up to {_LONGEST} letters without a space")
    return Access(key, ca)


def header(text: str) -> tuple[str, str]:
    """`NAME: VALUE` as a header's name, in lower case, and its value.

    Raises:
        PenstockError: it is not of that form.
    """
    name, colon, value = text.partition(":")
    sendable = value.strip().isprintable() and value.isascii()
    if not colon or not re.fullmatch(r"[\w-]+", name.strip(), re.ASCII) or not sendable:
        raise PenstockError(f"--header {text[:80]!r}: must be NAME: VALUE in ASCII, as in 'authorization: Bearer …'")
    return name.strip().lower(), value.strip()
