"""Confusion matrices as SVG: a cell for what there is, in its place, with what it says."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penstock.pages.matrix import matrix


def cells(svg: ElementTree.Element) -> list[tuple[str, ElementTree.Element]]:
    """Each cell with the class of its colour."""
    return [(group.get("class", ""), box) for group in svg.iter("g") for box in group.findall("rect")]


@given(st.data())
def test_each_count_that_is_not_zero_has_one_cell_that_tells_it(data: st.DataObject) -> None:
    classes = data.draw(st.integers(1, 30))
    counts = data.draw(arrays(np.int64, (classes, classes), elements=st.integers(0, 3)))
    svg = matrix("m", "title", "words", counts, [f"c{n}" for n in range(classes)])
    found = cells(svg)
    assert len(found) == np.count_nonzero(counts)
    for (row, column), (colour, box) in zip(np.argwhere(counts), found, strict=True):
        said = box.findtext("title") or ""
        assert said.startswith(f"c{row} answered as c{column}: {counts[row, column]} ")
        assert colour == ("s0" if row == column else "s1")
        assert 0 < float(box.get("fill-opacity", "")) <= 1
    places = {(box.get("x"), box.get("y")) for _, box in found}
    assert len(places) == len(found)


def test_all_lies_within_the_view() -> None:
    for classes in (1, 2, 20, 21, 100):
        svg = matrix("m", "t", "d", np.eye(classes, dtype=np.int64), ["a long name of a class"] * classes)
        _, _, width, height = map(float, svg.get("viewBox", "").split())
        for _, box in cells(svg):
            assert float(box.get("x", "")) + float(box.get("width", "")) <= width
            assert float(box.get("y", "")) + float(box.get("height", "")) <= height


@pytest.mark.parametrize(("classes", "numbers"), [(20, True), (21, False)])
def test_numbers_stand_in_the_cells_of_a_few_classes_alone(classes: int, numbers: bool) -> None:
    svg = matrix("m", "t", "d", np.eye(classes, dtype=np.int64) * 7, [f"c{n}" for n in range(classes)])
    assert ([text.text for text in svg.iter("text")].count("7") == classes) == numbers
