"""Cases on a page: pictures side by side, texts and rows in a table."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from penstock.pages import parts
from penstock.pages.markup import element
from penstock.pages.parts import Table
from penstock.train.cases import Case

# Pictures smaller than that are enlarged by whole pixels, not blurred.
_SMALL = 64


def shown(title: str, key: str, cases: Sequence[Case], total: int) -> list[Element]:
    """Cases under their title, with how many there are in all."""
    of_all = f"all {total:,}" if len(cases) == total else f"{len(cases)} of {total:,}"
    heading = element("h3", f"{title}: {of_all}", id=f"{key}-h", class_="apart")
    pictures = [case for case in cases if case.picture is not None]
    content: list[Element] = [heading]
    if pictures:
        content.append(element("ul", *map(_picture, pictures), class_="gallery", aria_labelledby=f"{key}-h"))
    told = [case for case in cases if case.picture is None]
    if told:
        columns = ["from", "is", "answer", "score", "sample"]
        rows = [[case.place, case.wanted, case.answer, _score(case), case.text or ""] for case in told]
        made = parts.told(Table(title, columns, rows, frozenset({"is", "answer", "sample"})))
        content.append(parts.table(f"{key}-cases", made))
    return content


def _score(case: Case) -> str:
    return "–" if case.score is None else f"{case.score:.3f}"


def _picture(case: Case) -> Element:
    from PIL import Image

    assert case.picture is not None
    buffer = io.BytesIO()
    Image.fromarray(case.picture).save(buffer, "PNG")
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    small = max(case.picture.shape[:2]) < _SMALL
    score = "" if case.score is None else f" ({case.score:.3f})"
    return element(
        "li",
        element(
            "img", src=source, alt=f"{case.place}: {case.wanted}", class_="pixels" if small else None, loading="lazy"
        ),
        element("span", "is ", element("strong", case.wanted)),
        element("span", "said ", element("strong", case.answer), score),
        element("span", case.place, class_="soft"),
    )
