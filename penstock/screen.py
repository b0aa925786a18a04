"""The screen: a console on which no text of another's moves the cursor, hides a word or names the window."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from penstock.errors import printable


class Screen(Console):
    """Prints texts as they are, markup included, but for what cannot be printed, in tables too.

    Args:
        wide: columns where stdout is no terminal.
    """

    def __init__(self, wide: int | None = None) -> None:
        super().__init__(width=None if sys.stdout.isatty() else wide, highlight=False, markup=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)
