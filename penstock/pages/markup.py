"""Elements of HTML and SVG, whose texts and attributes are escaped because they are never written as markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Content = Element | str | None
# What neither HTML nor XML has a place for: controls, halves of surrogate pairs, and non-characters.
_IMPOSSIBLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Marks that turn the direction of the text after them, by which a name can look like another.
_TURNING = re.compile(r"[\u202a-\u202e\u2066-\u2069]")


def element(tag: str, *content: Content, **attributes: str | float | None) -> Element:
    """An element of HTML or SVG.

    Args:
        tag: its name.
        content: texts and elements in order; None is left out.
        attributes: `class_` is `class`, and `_` stands for `-`; None is left out, numbers are kept to hundredths.
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(
                name.rstrip("_").replace("_", "-"), _number(value) if isinstance(value, int | float) else _clean(value)
            )
    return add(made, *content)


def add(to: Element, *content: Content) -> Element:
    """Append texts and elements to an element, which is given back."""
    for part in content:
        if isinstance(part, str):
            if len(to):
                to[-1].tail = (to[-1].tail or "") + _clean(part)
            else:
                to.text = (to.text or "") + _clean(part)
        elif part is not None:
            to.append(part)
    return to


def html(root: Element) -> str:
    """The document, with its doctype."""
    return "<!doctype html>\n" + ElementTree.tostring(root, encoding="unicode", method="html") + "\n"


def _clean(text: str) -> str:
    return _TURNING.sub("\ufffd", _IMPOSSIBLE.sub("\ufffd", text))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
