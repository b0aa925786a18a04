"""Silence for libraries that print, log and warn while they work."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Collect what the block prints instead of showing it; exceptions pass through."""
    held = io.StringIO()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(held), contextlib.redirect_stderr(held), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield held
    finally:
        logging.disable(before)
