"""The document around a report: its policy, its style, a table of contents and its sections."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from xml.etree.ElementTree import Element

from penstock.pages.markup import add, element, html
from penstock.pages.parts import Section


def document(
    title: str, lead: Sequence[Element], sections: Sequence[Section], footer: str, *, skip: str, pictures: bool = False
) -> str:
    """A page as HTML.

    Args:
        title: of the page.
        lead: what stands before the contents.
        sections: in their order.
        footer: the last line.
        skip: what the link past the contents says.
        pictures: whether the page shows pictures, which it holds itself.
    """
    body = element(
        "body",
        element("a", skip, class_="skip", href="#main"),
        add(element("header"), element("h1", title), *lead, _contents(sections)),
        add(element("main", id="main", tabindex="-1"), *map(_section, sections)),
        element("footer", element("p", footer, class_="soft")),
    )
    return html(element("html", _head(title, pictures), body, lang="en"))


def _head(title: str, pictures: bool) -> Element:
    style = resources.files("penstock.pages").joinpath("page.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    held = "img-src data:; " if pictures else ""
    rules = f"default-src 'none'; style-src 'sha256-{digest}'; {held}base-uri 'none'; form-action 'none'"
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
