"""Charts: what stands where."""

from __future__ import annotations

import re

from penstock.pages import charts, scales
from penstock.pages.charts import Bar, Point, Series


def drawn(*points: Point) -> list[tuple[str, float, float]]:
    """The labels of a chart with their places."""
    x = scales.linear("x", [0, 100])
    svg = charts.plot("k", "t", "d", [Series(str(i), i, (point,)) for i, point in enumerate(points)], x, x)
    return [
        (text.text or "", float(text.get("x", "")), float(text.get("y", "")))
        for text in svg.iter("text")
        if text.get("class") == "label"
    ]


def test_labels_of_near_points_stand_apart() -> None:
    placed = drawn(Point(50, 50, label="32"), Point(51, 51, label="32"), Point(52, 50, label="32"))
    assert len(placed) == 3
    for index, (_, x, y) in enumerate(placed):
        for _, other, up in placed[:index]:
            assert abs(x - other) >= 15 or abs(y - up) >= 10


def test_a_label_without_a_place_is_left_out() -> None:
    assert 0 < len(drawn(*[Point(50, 50, label="128")] * 9)) < 9


def test_the_line_of_no_difference_does_not_cross_the_words() -> None:
    rows = [Bar(name, 1.0, "1.00 (0.99 to 1.01)", ends=(0.99, 1.01)) for name in "ab"]
    svg = charts.bars("k", "t", "d", rows, scales.linear("x", [0, 2]), 1.0, filled=False)
    (line,) = [path.get("d", "") for path in svg.iter("path") if path.get("class") == "limit"]
    begins = [float(up) for up in re.findall(r"M[\d.]+ ([\d.]+)v", line)]
    words = sorted({float(text.get("y", "")) for text in svg.iter("text") if text.get("class") == "label plain"})
    assert all(begin > up for begin, up in zip(begins, words, strict=True))
    assert begins[0] + float(line.rsplit("v", 1)[1]) < words[1]
