"""Marks of charts: what tells series and parts apart beside their colour: shapes, dashes, strokes."""

from __future__ import annotations

import math
from xml.etree.ElementTree import Element

from penstock.pages.markup import add, element

COLOURS = 8
# On parts of a bar: how far apart, and how far they lean; the last is one stroke along it.
_STROKES = ((0, 0), (6, 4), (4, 0), (9, -4), (0, 1))
_DASHES = (None, "7 3", "2 3", "8 3 2 3")
_MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.6L4.4 3.4h-8.8z",
    "M0-5L5 0 0 5-5 0z",
    "M0 4.6L4.4-3.4h-8.8z",
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "M-4.4-2.2L-2.2-4.4 0-2.2 2.2-4.4 4.4-2.2 2.2 0 4.4 2.2 2.2 4.4 0 2.2-2.2 4.4-4.4 2.2-2.2 0z",
)


def colour(style: int) -> str:
    """The class that the page gives a colour to."""
    return f"s{style % COLOURS}"


def dash(style: int) -> str | None:
    """How a line of the style is dashed."""
    return _DASHES[style % len(_DASHES)]


def mark(style: int, hollow: bool = False, across: float = 0, up: float = 0, says: str = "") -> Element:
    """The mark of a style, at a place."""
    return element(
        "path",
        element("title", says) if says else None,
        d=_MARKS[style % len(_MARKS)],
        class_="hollow" if hollow else "mark",
        transform=f"translate({across:.1f} {up:.1f})",
    )


def swatch(style: int, line: bool = True) -> Element:
    """A piece of a line with its mark, as a legend has it; what it means stands beside it."""
    return element(
        "svg",
        element("path", d="M1 7H29", class_="line", stroke_dasharray=dash(style)) if line else None,
        mark(style, across=15, up=7),
        viewBox="0 0 30 14",
        class_=f"swatch {colour(style)}",
        aria_hidden="true",
    )


def part(style: int, left: float, top: float, width: float, height: float) -> Element:
    """A part of a bar: its colour, and on it the strokes of its style: none, leaning, upright, or one along it."""
    group = element("g", class_=colour(style))
    add(group, element("rect", x=left, y=top, width=max(width, 0), height=height, class_="bar"))
    step, lean = _STROKES[style % len(_STROKES)]
    strokes = []
    if step:
        for number in range(1, math.ceil((width - 1) / step)):
            at = left + number * step
            strokes.append(f"M{at:.1f} {top + height}L{min(max(left, at + lean), left + width):.1f} {top}")
    elif style % len(_STROKES) and width > 0:
        strokes.append(f"M{left:.1f} {top + height / 2}h{width:.1f}")
    if strokes:
        add(group, element("path", d="".join(strokes), class_="pattern"))
    return group


def block(style: int) -> Element:
    """A piece of a bar, as a legend has it."""
    return element(
        "svg", part(style, 1, 1, 28, 12), viewBox="0 0 30 14", class_=f"swatch {colour(style)}", aria_hidden="true"
    )
