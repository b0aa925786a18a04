"""Markup: whatever a text holds, it is a text."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from penstock.pages.markup import add, element, html


class Heard(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.text = ""
        self.title: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.title = dict(attrs).get("title", self.title)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60))
def test_any_text_comes_back_as_it_was_and_adds_no_tag(text: str) -> None:
    said = text if not set(text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff") else "safe"
    heard = Heard()
    heard.feed(html(element("p", said, element("b", said), said, title=said)))
    heard.close()
    assert heard.tags == ["p", "b"]
    assert heard.text.strip("\n") == "".join(["\n", said, said, said, "\n"]).strip("\n")
    assert heard.title == said


@given(st.text(max_size=60))
def test_what_no_document_may_hold_is_replaced(text: str) -> None:
    made = html(element("p", text, title=text))
    made.encode("utf-8")
    assert not {chr(code) for code in range(32)} - set("\n\t\r") & set(made)


def test_texts_and_elements_keep_their_order() -> None:
    root = add(element("p", "a", element("b", "c"), "d"), "e", None, element("i"), "f")
    assert html(root) == "<!doctype html>\n<p>a<b>c</b>de<i></i>f</p>\n"


def test_names_of_attributes_and_short_numbers() -> None:
    made = element("rect", class_="bar", stroke_width=1.0, x=1 / 3, viewBox="0 0 1 1", id=None)
    assert made.attrib == {"class": "bar", "stroke-width": "1", "x": "0.33", "viewBox": "0 0 1 1"}
