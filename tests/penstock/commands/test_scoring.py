"""What eval shows and writes of figures of each task."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import scores
from penstock.commands import scoring
from penstock.errors import PenstockError

CLASSES = scores.classification(np.eye(7)[[0, 1, 1, 2]] * 9, np.array([0, 0, 1, 2]))
LABELS = scores.multilabel(np.array([[1, -1], [1, np.nan]]), np.array([[1, 0], [0, 1]]))
NUMBERS = scores.regression(np.array([[1.0, 0], [2, 0]]), np.array([[1.0, 1], [4, 1]]))


def shown(capsys: Any, figures: Any, labels: tuple[str, ...] | None, per_class: bool = False) -> list[list[str]]:
    scoring.show(figures, labels, per_class)
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_classifier_is_told_by_shares_and_by_what_is_confused(capsys: Any) -> None:
    lines = shown(capsys, CLASSES, ("cat", "dog\x1b[31m"))
    assert ["accuracy", "75.00%"] in lines
    assert ["top-5", "accuracy", "100.00%"] in lines
    assert ["macro", "F1", "0.7778"] in lines
    assert ["most", "often", "taken", "cat", "for", "dog\\x1b[31m", "(1)"] in lines
    assert not any("answer" in line for line in lines)


def test_each_class_is_a_row_of_the_table(capsys: Any) -> None:
    lines = shown(capsys, CLASSES, ("cat",), per_class=True)
    head = lines.index(["class", "precision", "recall", "f1", "support", "answered"])
    assert lines[head + 1] == ["cat", "1.0000", "0.5000", "0.6667", "2", "1"]
    assert lines[head + 4] == ["3", "–", "–", "–", "0", "0"]
    assert len(lines) == head + 8


def test_labels_are_told_with_the_rows_that_have_no_answer(capsys: Any) -> None:
    lines = shown(capsys, LABELS, ("sun", "rain"), per_class=True)
    assert ["micro", "F1", "0.5"] in lines
    assert ["rows", "without", "a", "mistake", "50.00%"] in lines
    assert ["without", "an", "answer", "1", "of", "2:", "the", "outputs", "are", "no", "numbers"] in lines
    assert ["rain", "–", "0.0000", "0.0000", "1"] in lines


def test_a_regression_is_told_by_its_errors_and_by_output(capsys: Any) -> None:
    lines = shown(capsys, NUMBERS, None, per_class=True)
    assert ["mean", "absolute", "error", "1"] in lines
    assert ["R²", "0.1111"] in lines
    assert ["0", "1", "1.414", "0.1111"] in lines
    assert ["1", "1", "1", "–"] in lines


@pytest.mark.parametrize("figures", [CLASSES, LABELS, NUMBERS], ids=["classes", "labels", "numbers"])
def test_files_hold_everything_and_can_be_read_back(figures: Any, tmp_path: Path) -> None:
    scoring.write(figures, ("a", "b"), tmp_path / "all.json", tmp_path / "each.csv")
    held = json.loads((tmp_path / "all.json").read_text())
    assert held["samples"] == figures.samples
    with (tmp_path / "each.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (listed,) = (held[name] for name in ("classes", "labels", "outputs") if name in held)
    assert [next(iter(row.values())) for row in rows] == [next(iter(one.values())) for one in listed]
    key = "f1" if "f1" in rows[0] else "rmse"
    assert [row[key] for row in rows] == ["" if one[key] is None else str(one[key]) for one in listed]


def test_files_that_cannot_be_written_are_refused_before_anything_is_computed(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"--json .*nothing was begun"):
        scoring.see(tmp_path / "gone" / "a.json", None)
    with pytest.raises(PenstockError, match="would replace it"):
        scoring.see(tmp_path / "a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
