"""The terminal: what a command says while it works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import printable


def say(line: str) -> None:
    print(printable(line), flush=True)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr while the block runs, where a person may be looking."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …"):
        yield
