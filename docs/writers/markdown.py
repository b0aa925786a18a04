"""Markdown: tables, and texts that are shown as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WRITTEN = "<!-- Written by make reference; what is changed here is lost. -->\n"


def code(text: object) -> str:
    """A text as it is typed."""
    shown = str(text)
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a column in which nothing stands is left out."""
    filled = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    kept = [place for place in range(len(head)) if any(row[place] for row in filled)]
    lines = [[head[place] for place in kept], ["---"] * len(kept), *([row[place] for place in kept] for row in filled)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
