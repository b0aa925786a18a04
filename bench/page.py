"""`--html`: one page that holds everything, asks nobody for anything, and needs no script to be read."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from xml.etree.ElementTree import Element

from penstock.bench import engine_page, facts, server_page
from penstock.bench.markup import add, element, html
from penstock.bench.parts import Section, listed
from penstock.bench.recorded import Engines, Result
from penstock.files import write_whole, writing

# As many warnings as stand in front of the figures; the others are folded.
_WARNINGS = 4


def write(result: Result, path: Path) -> None:
    """Write the page to a file, whole or not at all.

    Raises:
        PenstockError: the file cannot be written.
    """
    with writing("--html", path, "the page is not kept"):
        write_whole(path, text(result).encode("utf-8", "replace"))


def text(result: Result) -> str:
    """The page of a result, as HTML."""
    if isinstance(result, Engines):
        title, lead, sections = engine_page.title(result), engine_page.lead(result), engine_page.sections(result)
    else:
        title, lead, sections = server_page.title(result), server_page.lead(result), server_page.sections(result)
    before = _doubts(result)
    body = element(
        "body",
        element("a", "Skip to the figures", class_="skip", href="#main"),
        add(element("header"), element("h1", title), *lead, _contents([*before, *sections, _environment(result)])),
        add(element("main", id="main", tabindex="-1"), *map(_section, [*before, *sections, _environment(result)])),
        element("footer", element("p", f"Made by penstock bench. {_made(result)}", class_="soft")),
    )
    return html(element("html", _head(title), body, lang="en"))


def _made(result: Result) -> str:
    version = facts.of(result.environment).get("penstock")
    return f"Measured by penstock {version}." if version else ""


def _head(title: str) -> Element:
    style = resources.files("penstock.bench").joinpath("page.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    rules = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    policy = element("meta", content=rules)
    policy.set("http-equiv", "Content-Security-Policy")
    return element(
        "head",
        element("meta", charset="utf-8"),
        policy,
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", style),
    )


def _contents(sections: Sequence[Section]) -> Element:
    items = [element("li", element("a", one.title, href=f"#{one.key}")) for one in sections]
    return element("nav", element("ul", *items), aria_label="Sections")


def _section(one: Section) -> Element:
    heading = element("h2", one.title, id=f"{one.key}-h")
    return element("section", heading, *one.content, id=one.key, aria_labelledby=f"{one.key}-h")


def _doubts(result: Result) -> list[Section]:
    """What makes the figures doubtful, before the figures."""
    told = []
    if result.interrupted:
        until = "the rounds that were finished" if isinstance(result, Engines) else "what came before"
        told.append(element("p", f"Interrupted: the figures are of {until}.", class_="warning"))
    for warned in result.warnings:
        remedy = element("span", f"Remedy: {warned.remedy}", class_="remedy") if warned.remedy else None
        told.append(element("p", element("strong", "Warning: "), warned.text, remedy, class_="warning"))
    if len(told) > _WARNINGS:
        rest = told[_WARNINGS:]
        told[_WARNINGS:] = [element("details", element("summary", f"{len(rest)} more"), *rest)]
    told += [element("p", note) for note in result.notes]
    return [Section("warnings", "Warnings and notes", told)] if told else []


def _environment(result: Result) -> Section:
    content = [listed(facts.of(result.environment))] if result.environment else []
    if result.clock.rounds_s:
        content.append(engine_page.clock(result.clock))
    return Section("environment", "Environment", content or [element("p", "Nothing was recorded.")])
