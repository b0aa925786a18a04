"""Confusion matrices as SVG: numbers in the cells of a few classes, shades alone in those of many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from penstock.pages.markup import add, element

# With more classes a number has no room in its cell, nor each class its name.
FEW = 20
_CELL, _SMALL = 26.0, 6.0
_LETTER, _MOST_LETTERS = 6.6, 14
# Over the darkest cell numbers are still read, by light and in the dark.
_DARKEST = 0.45


def matrix(key: str, title: str, description: str, counts: NDArray[np.int64], names: Sequence[str]) -> Element:
    """Classes from top to bottom, answers from left to right; a cell is the darker, the more of its class it holds.

    Right answers, on the diagonal, are of another colour than wrong ones, whose shades are drawn out so that a few
    among many are seen.

    Args:
        key: begins the ids of the chart's parts, once in the page.
        title: what is shown.
        description: the same in words.
        counts: int64 `[c, c]`, a row for each class and a column for each answer.
        names: of the classes.
    """
    many = len(names) > FEW
    cell = _SMALL if many else _CELL
    gutter = 14 + _LETTER * max(len(shortened(name)) for name in names)
    side = cell * len(names)
    svg = element(
        "svg",
        viewBox=f"0 0 {gutter + side + 8:.0f} {24 + side + gutter:.0f}",
        role="img",
        aria_labelledby=f"{key}-t {key}-d",
        class_="wide" if many else None,
    )
    add(svg, element("title", title, id=f"{key}-t"), element("desc", description, id=f"{key}-d"))
    add(svg, _frame(gutter, cell, len(names)), _names(gutter, cell, names, many))
    of_class = np.maximum(counts.sum(axis=1), 1)
    for row, column in zip(*(place.tolist() for place in np.nonzero(counts)), strict=True):
        share = counts[row, column] / of_class[row]
        says = f"{names[row]} answered as {names[column]}: {counts[row, column]:,} ({share:.1%} of its class)"
        add(svg, _cell(gutter + column * cell, 24 + row * cell, cell, share, row == column, says, many))
        if not many:
            add(svg, _number(gutter + (column + 0.5) * cell, 24 + (row + 0.5) * cell, int(counts[row, column])))
    return svg


def shortened(name: str, most: int = _MOST_LETTERS) -> str:
    """A name whose middle is left out where it is long: classes are often told apart by how they end."""
    ends = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - ends]}…{name[-ends:]}"


def _frame(gutter: float, cell: float, classes: int) -> Element:
    """Lines between the cells of a few classes, and between tens of many."""
    step, side = (1 if classes <= FEW else 10), cell * classes
    lines = []
    for place in [*range(0, classes, step), classes]:
        at = place * cell
        lines.append(f"M{gutter + at:.1f} 24v{side:.1f}M{gutter:.1f} {24 + at:.1f}h{side:.1f}")
    return element("g", element("path", d="".join(lines)), class_="grid")


def _names(gutter: float, cell: float, names: Sequence[str], many: bool) -> Element:
    """The classes' names at the left and below; of many, only those that have room."""
    words = element("g", element("text", "class ↓  answer →", x=2, y=14, class_="axis"), class_="words")
    for place in range(0, len(names), math.ceil(13 / cell) if not many else 5):
        at, below = (place + 0.5) * cell, 24 + len(names) * cell + 6
        across = gutter + at + 4
        add(words, element("text", shortened(names[place]), x=gutter - 5, y=24 + at + 4, text_anchor="end"))
        turned = element("text", shortened(names[place]), text_anchor="end")
        turned.set("transform", f"translate({across:.1f} {below:.1f}) rotate(-90)")
        add(words, turned)
    return words


def _cell(left: float, top: float, side: float, share: float, right: bool, says: str, many: bool) -> Element:
    shade = share if right else math.sqrt(share)
    opacity = f"{(1.0 if many else _DARKEST) * max(shade, 0.12):.2f}"
    box = element("rect", element("title", says), x=left, y=top, width=side, height=side, class_="bar")
    box.set("fill-opacity", opacity)
    return element("g", box, class_="s0" if right else "s1")


def _number(across: float, down: float, count: int) -> Element:
    text = f"{count}" if count < 10_000 else f"{count / 1000:.0f}k"
    return element("text", text, x=across, y=down + 4, text_anchor="middle", class_="label plain")
