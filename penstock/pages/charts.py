"""Charts as SVG: points and lines over two axes, intervals beside names, parts of a whole.

Colours are the page's, by class, so that they follow light and dark; marks and dashes tell apart what colours do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from penstock.pages.marks import colour, dash, mark, part
from penstock.pages.markup import add, element
from penstock.pages.scales import Scale

_WIDTH, _HEIGHT = 360, 256
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 26, 40
_ROW, _BAR, _HEAD = 42, 12, 4
_LETTERS = 52  # of the usual width, that fit beside each other
_LETTER = 7.5  # how wide one of a label is at most

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Point:
    """A place in a chart, with the ends of an interval along y or x, and what it says when it is pointed at."""

    x: float
    y: float
    says: str = ""
    label: str = ""
    y_ends: tuple[float, float] | None = None
    x_ends: tuple[float, float] | None = None
    hollow: bool = False
    marked: bool = True


@dataclass(frozen=True)
class Series:
    """Points under one name; `style` picks colour, mark and dash."""

    name: str
    style: int
    points: tuple[Point, ...]
    line: bool = True
    steps: bool = False


@dataclass(frozen=True)
class Bar:
    """A value beside a name, from `start` on; `ends` is its interval, `style` its colour and pattern."""

    name: str
    value: float
    says: str
    style: int = 0
    ends: tuple[float, float] | None = None


def plot(
    key: str, title: str, description: str, series: Sequence[Series], x: Scale, y: Scale, limit: float | None = None
) -> Element:
    """Points and lines over two axes.

    Args:
        key: begins the ids of the chart's parts, once in the page.
        title: what is shown.
        description: the same in words, for those who do not see it.
        series: in the order of drawing.
        x: the horizontal axis.
        y: the vertical one.
        limit: a value of y that is not to be passed, drawn across.
    """
    svg = _svg(key, title, description, _HEIGHT)
    add(svg, *_frame(x, y))
    if limit is not None and y.low <= limit <= y.high:
        up = _up(y, limit)
        add(svg, element("path", d=f"M{_LEFT} {up:.1f}H{_WIDTH - _RIGHT}", class_="limit"))
    for one in series:
        add(svg, _drawn(one, x, y))
    return add(svg, *_labels(series, x, y))


def _svg(key: str, title: str, description: str, height: float) -> Element:
    svg = element("svg", viewBox=f"0 0 {_WIDTH} {height:.0f}", role="img", aria_labelledby=f"{key}-t {key}-d")
    return add(svg, element("title", title, id=f"{key}-t"), element("desc", description, id=f"{key}-d"))


def _across(x: Scale, value: float) -> float:
    return _LEFT + x.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _up(y: Scale, value: float) -> float:
    return _HEIGHT - _BOTTOM - y.place(value) * (_HEIGHT - _TOP - _BOTTOM)


def _frame(x: Scale, y: Scale) -> list[Element]:
    grid, words = element("g", class_="grid"), element("g", class_="words")
    for value, label in y.ticks:
        up = _up(y, value)
        add(grid, element("path", d=f"M{_LEFT} {up:.1f}H{_WIDTH - _RIGHT}"))
        add(words, element("text", label, x=_LEFT - 5, y=up + 4, text_anchor="end"))
    for value, label in x.ticks:
        across = _across(x, value)
        add(grid, element("path", d=f"M{across:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"))
        add(words, element("text", label, x=across, y=_HEIGHT - _BOTTOM + 15, text_anchor="middle"))
    add(words, element("text", y.name, x=2, y=13, class_="axis"))
    add(words, element("text", x.name, x=_WIDTH - _RIGHT, y=_HEIGHT - 6, text_anchor="end", class_="axis"))
    return [grid, words]


def _drawn(one: Series, x: Scale, y: Scale) -> Element:
    group = element("g", class_=colour(one.style))
    places = [(_across(x, point.x), _up(y, point.y)) for point in one.points]
    if one.line and len(places) > 1:
        joined = [f"{'M' if i == 0 else 'L'}{across:.1f} {up:.1f}" for i, (across, up) in enumerate(places)]
        if one.steps:
            joined[1:] = [f"V{up:.1f}H{across:.1f}" for across, up in places[1:]]
        add(group, element("path", d="".join(joined), class_="line", stroke_dasharray=dash(one.style)))
    for point, (across, up) in zip(one.points, places, strict=True):
        add(group, *_whiskers(point, across, up, x, y))
        if point.marked:
            add(group, mark(one.style, point.hollow, across, up, point.says))
    return group


def _labels(series: Sequence[Series], x: Scale, y: Scale) -> list[Element]:
    """The points' labels, each where none stands yet, nor a mark; one for which there is no such place is left out."""
    made: list[Element] = []
    places = [(one, point, _across(x, point.x), _up(y, point.y)) for one in series for point in one.points]
    taken = [(across - 4, up - 4, across + 4, up + 4) for _, point, across, up in places if point.marked]
    for one, point, across, up in places:
        wide = len(point.label) * _LETTER
        for right, down in itertools.product((across <= _WIDTH - 90, across > _WIDTH - 90), (False, True)):
            left = across + 6 if right else across - 6 - wide
            box = (left, up + 4, left + wide, up + 14) if down else (left, up - 15, left + wide, up - 5)
            if not point.label or any(_overlap(box, other) for other in taken):
                continue
            taken.append(box)
            text = element("text", point.label, x=round(box[0], 1), y=round(box[3], 1), class_="label")
            made.append(add(element("g", class_=colour(one.style)), text))
            break
    return made


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _whiskers(point: Point, across: float, up: float, x: Scale, y: Scale) -> list[Element]:
    found = []
    if point.y_ends:
        low, high = (_up(y, end) for end in point.y_ends)
        found.append(
            element(
                "path", d=f"M{across - 3:.1f} {low:.1f}h6M{across:.1f} {low:.1f}V{high:.1f}m-3 0h6", class_="whisker"
            )
        )
    if point.x_ends:
        low, high = (_across(x, end) for end in point.x_ends)
        found.append(
            element("path", d=f"M{low:.1f} {up - 3:.1f}v6M{low:.1f} {up:.1f}H{high:.1f}m0-3v6", class_="whisker")
        )
    return found


def bars(key: str, title: str, description: str, rows: Sequence[Bar], x: Scale, origin: float, filled: bool) -> Element:
    """Values beside names, one under another: bars from `origin`, or points with their intervals."""
    svg = _svg(key, title, description, _rows_height(len(rows)))
    add(svg, *_rows_frame(x, len(rows)))
    base = _along(x, origin)
    below = [f"M{base:.1f} {_HEAD + index * _ROW + 18}v{_ROW - 18}" for index in range(len(rows))]  # the words
    add(svg, element("path", d="".join(below), class_="limit"))
    for index, row in enumerate(rows):
        middle = _HEAD + index * _ROW + 28
        end = _along(x, row.value)
        group = element("g", class_=colour(row.style))
        if filled:
            left, width = min(base, end), abs(end - base)
            add(
                group,
                element(
                    "rect", element("title", row.says), x=left, y=middle - 6, width=width, height=_BAR, class_="bar"
                ),
            )
        if row.ends:
            low, high = (_along(x, value) for value in row.ends)
            add(
                group,
                element("path", d=f"M{low:.1f} {middle - 3}v6M{low:.1f} {middle}H{high:.1f}m0-3v6", class_="whisker"),
            )
        if not filled:
            add(group, mark(row.style, False, end, middle, row.says))
        add(svg, group, *_row_words(row.name, row.says, index))
    return svg


def stacks(
    key: str, title: str, description: str, rows: Sequence[tuple[str, str, Sequence[float]]], x: Scale
) -> Element:
    """Parts of a whole, one row under another; part i has style i, and a pattern besides its colour.

    Args:
        key: begins the ids of the chart's parts, once in the page.
        title: what is shown.
        description: the same in words.
        rows: a name, what it says at its right, and the parts.
        x: the axis, from 0.
    """
    svg = _svg(key, title, description, _rows_height(len(rows)))
    add(svg, *_rows_frame(x, len(rows)))
    for index, (name, says, parts) in enumerate(rows):
        top = _HEAD + index * _ROW + 22
        sums = list(itertools.accumulate(parts, initial=0.0))
        for style, (start, end) in enumerate(itertools.pairwise(sums)):
            left, right = _along(x, start), _along(x, end)
            add(svg, part(style, left, top, right - left, _BAR))
        add(svg, *_row_words(name, says, index))
    return svg


def _rows_height(rows: int) -> float:
    return _HEAD + rows * _ROW + _BOTTOM


def _along(x: Scale, value: float) -> float:
    return 6 + x.place(value) * (_WIDTH - 24)


def _rows_frame(x: Scale, rows: int) -> list[Element]:
    grid, words = element("g", class_="grid"), element("g", class_="words")
    bottom = _HEAD + rows * _ROW
    for index in range(1, rows):  # between two rows, so that a mark is seen to be of the name above it
        add(grid, element("path", d=f"M6 {_HEAD + index * _ROW}H{_WIDTH - _RIGHT}"))
    for value, label in x.ticks:
        across = _along(x, value)
        add(grid, element("path", d=f"M{across:.1f} {_HEAD}V{bottom}"))
        anchor = "start" if across < 20 else "middle"
        add(
            words, element("text", label, x=across - (4 if anchor == "start" else 0), y=bottom + 15, text_anchor=anchor)
        )
    add(words, element("text", x.name, x=_WIDTH - _RIGHT, y=bottom + 33, text_anchor="end", class_="axis"))
    return [grid, words]


def _row_words(name: str, says: str, index: int) -> list[Element]:
    up = _HEAD + index * _ROW + 13
    room = _LETTERS - len(says)
    shown = name if len(name) <= room else f"{name[: room - 1]}…"
    return [
        element("text", shown, x=6, y=up, class_="label plain"),
        element("text", says, x=_WIDTH - _RIGHT, y=up, text_anchor="end", class_="label plain"),
    ]
