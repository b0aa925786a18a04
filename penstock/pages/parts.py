"""Parts of the page: sections, charts with the tables behind them, tables, lists of facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from xml.etree.ElementTree import Element

from penstock.pages import marks
from penstock.pages.charts import Series
from penstock.pages.markup import element


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading of its own; `key` is its anchor."""

    key: str
    title: str
    content: Sequence[Element]


@dataclass(frozen=True)
class Table:
    """Names of columns, and rows of cells as they are shown; the first column names the row."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: frozenset[str] = frozenset()  # columns of words, not of numbers


def told(made: Table) -> Table:
    """The table without the columns that say nothing in any row."""
    kept = [place for place in range(len(made.columns)) if not place or any(row[place] != "–" for row in made.rows)]
    return replace(
        made,
        columns=[made.columns[place] for place in kept],
        rows=[[row[place] for place in kept] for row in made.rows],
    )


def table(key: str, made: Table) -> Element:
    """A table that scrolls by itself where it is too wide, by keyboard too."""
    wordy = [name in made.texts for name in made.columns]
    head = [
        element("th", name, scope="col", class_="text" if words else None)
        for name, words in zip(made.columns, wordy, strict=True)
    ]
    body = []
    for row in made.rows:
        cells = [element("th", row[0], scope="row")]
        for value, words in zip(row[1:], wordy[1:], strict=True):
            cells.append(element("td", value, class_="text" if words else None))
        body.append(element("tr", *cells))
    inner = element(
        "table",
        element("caption", made.caption, id=f"{key}-c"),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_labelledby=f"{key}-c")


def figure(
    key: str,
    title: str,
    chart: Element,
    says: str,
    behind: Table,
    legend: Sequence[Series] = (),
    blocks: bool = False,
) -> Element:
    """A chart with its title, what its marks (or `blocks`) mean, how to read it, and a table behind it."""
    named = [
        element(
            "li", marks.block(one.style) if blocks else marks.swatch(one.style, one.line), element("span", one.name)
        )
        for one in legend
    ]
    return element(
        "figure",
        element("h3", title),
        element("ul", *named, class_="legend") if named else None,
        chart,
        element("figcaption", says),
        element("details", element("summary", "The figures of this chart"), table(f"{key}-table", behind)),
    )


def beside(figures: Sequence[Element]) -> Element:
    """Charts side by side where there is room."""
    return element("div", *figures, class_="grid-of")


def listed(found: Mapping[str, str]) -> Element:
    """Names and what they are."""
    items = []
    for name, value in found.items():
        items += [element("dt", name), element("dd", value)]
    return element("dl", *items)


def joined(series: Sequence[Series]) -> str:
    """What a chart shows, in words: each series with what its points say."""
    told = []
    for one in series:
        ends = [one.points[0], one.points[-1]] if len(one.points) > 2 else list(one.points)
        said = " to ".join(point.says for point in ends if point.says)
        told.append(f"{one.name}: {said or 'no figures'}")
    return "; ".join(told) + "."
