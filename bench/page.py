"""`--html`: one page that holds everything, asks nobody for anything, and needs no script to be read."""

from __future__ import annotations

from pathlib import Path

from penstock.bench import engine_page, facts, server_page
from penstock.bench.recorded import Engines, Result
from penstock.files import write_whole, writing
from penstock.pages.document import document
from penstock.pages.markup import element
from penstock.pages.parts import Section, listed

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
    whole = [*_doubts(result), *sections, _environment(result)]
    footer = f"Made by penstock bench. {_made(result)}"
    return document(title, lead, whole, footer, skip="Skip to the figures")


def _made(result: Result) -> str:
    version = facts.of(result.environment).get("penstock")
    return f"Measured by penstock {version}." if version else ""


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
    content = [listed(facts.labelled(facts.of(result.environment)))] if result.environment else []
    if result.clock.rounds_s:
        content.append(engine_page.clock(result.clock))
    return Section("environment", "Environment", content or [element("p", "Nothing was recorded.")])
