"""Figures of merit as a line, records, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json

import numpy as np

from penstock import scores, summaries

ANSWERS = [0, 0, 1, 1, 1, 2]
LABELS = np.array([0, 1, 1, 1, 0, 2])
FOUND = scores.classification(np.eye(4)[ANSWERS] * 5, LABELS)
NAMES = ("cat", "dog", "=cmd()")


def test_the_line_of_each_task() -> None:
    assert summaries.headline(FOUND) == "66.67% correct (4 of 6)"
    labels = scores.multilabel(np.array([[1, -1], [1, 1]]), np.array([[1, 0], [0, 1]]))
    assert summaries.headline(labels) == "micro F1 0.8, 50.00% without a mistake (1 of 2)"
    numbers = scores.regression(np.array([1.0, 2, 4]), np.array([1.0, 2, 3]))
    assert summaries.headline(numbers) == "off by 0.3333 on average (RMSE 0.5774, R² 0.5, 3 samples)"


def test_each_class_has_its_record_and_one_without_figures_has_none() -> None:
    cat, dog, command, nobody = summaries.per_class(FOUND, NAMES)
    assert cat == {"class": "cat", "precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2, "answered": 2}
    assert dog["class"] == "dog"
    assert (dog["support"], dog["answered"]) == (3, 3)
    assert command["f1"] == 1
    assert nobody == {"class": "3", "precision": None, "recall": None, "f1": None, "support": 0, "answered": 0}


def test_each_output_of_a_regression_has_its_record() -> None:
    found = scores.regression(np.array([[1.0, 5], [2, 5]]), np.array([[1.0, 5], [4, 5]]))
    first, second = summaries.per_class(found, ("width", "height"))
    assert first["output"] == "width"
    assert first["mae"] == 1
    assert second == {"output": "height", "mae": 0.0, "rmse": 0.0, "r2": None}


def test_what_is_most_often_confused_comes_first() -> None:
    assert summaries.confused(FOUND, NAMES, 9) == [("cat", "dog", 1), ("dog", "cat", 1)]
    assert summaries.confused(FOUND, NAMES, 1) == [("cat", "dog", 1)]


def test_json_holds_everything_and_no_nan() -> None:
    held = json.loads(json.dumps(summaries.plain(FOUND, NAMES), allow_nan=False))
    assert held["accuracy"] == 4 / 6
    assert held["top_5_accuracy"] is None
    assert held["confusion"] == FOUND.confusion.tolist()
    assert len(held["calibration"]["bins"]) == 15
    assert sum(one["rows"] for one in held["calibration"]["bins"]) == 6
    assert held["calibration"]["bins"][0]["accuracy"] is None
    assert [one["class"] for one in held["classes"]] == ["cat", "dog", "=cmd()", "3"]
    nothing = scores.regression(np.full(2, np.nan), np.ones(2))
    held = json.loads(json.dumps(summaries.plain(nothing, None), allow_nan=False))
    assert held["mae"] is None
    assert held["worst"][0] == {"row": 0, "predicted": [None], "wanted": [1.0]}


def test_csv_is_read_back_and_holds_no_formula() -> None:
    text = summaries.as_csv(summaries.per_class(FOUND, NAMES)).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["class"] for row in rows] == ["cat", "dog", "'=cmd()", "3"]
    assert float(rows[0]["f1"]) == 0.5
    assert rows[3]["f1"] == ""


def test_figures_are_shown_to_four_digits_and_none_as_a_dash() -> None:
    assert [summaries.shown(value) for value in (0.98611, 12345.6, None, float("nan"), 0.0)] == [
        "0.9861",
        "1.235e+04",
        "–",
        "–",
        "0",
    ]
