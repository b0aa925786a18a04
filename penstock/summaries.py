"""Summaries: figures of merit as a line, as tables, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.figures import Calibration, Classification, Counts, Figures, Multilabel
from penstock.tables import inert

Labels = Sequence[str] | None
Record = dict[str, Any]
_TITLES = {
    "top_5_accuracy": "top-5 accuracy",
    "exact_match": "rows without a mistake",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "r2": "R²",
    "unanswered": "samples without an answer",
}


def title(name: str) -> str:
    """A figure's name as people read it."""
    return _TITLES.get(name, name.replace("_", " ").replace("f1", "F1"))


def label(labels: Labels, number: int) -> str:
    """The name of a class, or its number where it has none."""
    return labels[number] if labels and number < len(labels) else str(number)


def headline(figures: Figures) -> str:
    """What counts most, in one line."""
    if isinstance(figures, Classification):
        return f"{figures.accuracy:.2%} correct ({figures.correct} of {figures.samples})"
    if isinstance(figures, Multilabel):
        whole = f"{figures.exact_match:.2%} without a mistake ({figures.exact} of {figures.samples})"
        return f"micro F1 {shown(figures.counts.micro_f1)}, {whole}"
    off = f"off by {shown(figures.mae)} on average"
    return f"{off} (RMSE {shown(figures.rmse)}, R² {shown(figures.r2)}, {figures.samples} samples)"


def shown(value: float | None) -> str:
    """A figure to four digits that count; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def cell(name: str, value: Any) -> str:
    """A value of a record as a table shows it: shares to four digits, so that they stand under each other."""
    if value is not None and name in ("precision", "recall", "f1"):
        return f"{value:.4f}"
    return str(value) if isinstance(value, str | int) else shown(value)


def overall(figures: Figures) -> dict[str, float | int | None]:
    """The figures of all classes or outputs together, by name; None where there is none."""
    found: dict[str, float | int | None]
    if isinstance(figures, Classification):
        counts = figures.counts
        found = {
            "accuracy": figures.accuracy,
            "top_5_accuracy": figures.top5,
            "macro_f1": counts.macro_f1,
            "weighted_f1": counts.weighted_f1,
            "calibration_error": figures.calibration.error,
            "samples": figures.samples,
            "unanswered": int(figures.unanswered.sum()),
        }
    elif isinstance(figures, Multilabel):
        found = {
            "micro_f1": figures.counts.micro_f1,
            "macro_f1": figures.counts.macro_f1,
            "weighted_f1": figures.counts.weighted_f1,
            "exact_match": figures.exact_match,
            "samples": figures.samples,
            "unanswered": figures.unanswered,
        }
    else:
        found = {"mae": figures.mae, "rmse": figures.rmse, "r2": figures.r2}
        found |= {"samples": figures.samples, "unanswered": figures.unanswered}
    return {name: _plain(value) for name, value in found.items()}


def per_class(figures: Figures, labels: Labels) -> list[Record]:
    """The figures of each class, label or output of a regression: one record each, in their order."""
    if isinstance(figures, Classification):
        answered = figures.confusion.sum(axis=0)
        return [
            {"class": name, **of_one, "answered": int(times)}
            for (name, of_one), times in zip(_counted(figures.counts, labels), answered, strict=True)
        ]
    if isinstance(figures, Multilabel):
        return [{"label": name, **of_one} for name, of_one in _counted(figures.counts, labels)]
    columns = zip(figures.maes, figures.rmses, figures.r2s, strict=True)
    return [
        {"output": label(labels, place), "mae": _plain(mae), "rmse": _plain(rmse), "r2": _plain(r2)}
        for place, (mae, rmse, r2) in enumerate(columns)
    ]


def _counted(counts: Counts, labels: Labels) -> list[tuple[str, Record]]:
    columns = zip(counts.precision, counts.recall, counts.f1, counts.support, strict=True)
    return [
        (
            label(labels, place),
            {"precision": _plain(precision), "recall": _plain(recall), "f1": _plain(f1), "support": int(support)},
        )
        for place, (precision, recall, f1, support) in enumerate(columns)
    ]


def confused(figures: Classification, labels: Labels, most: int) -> list[tuple[str, str, int]]:
    """What is most often taken for what: class, answer and how often; the most frequent first."""
    wrong = figures.confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    places = [divmod(int(flat), len(wrong)) for flat in order]
    return [
        (label(labels, row), label(labels, column), int(wrong[row, column]))
        for row, column in places
        if wrong[row, column]
    ]


def bins(calibration: Calibration) -> list[Record]:
    """The bins of a reliability diagram."""
    edges = calibration.edges
    columns = zip(edges, edges[1:], calibration.counts, calibration.confidence, calibration.accuracy, strict=False)
    return [
        {
            "from": float(low),
            "to": float(high),
            "rows": int(rows),
            "confidence": _plain(confidence),
            "accuracy": _plain(accuracy),
        }
        for low, high, rows, confidence, accuracy in columns
    ]


def plain(figures: Figures, labels: Labels) -> Record:
    """Everything, as JSON holds it; null where there is no figure."""
    found: Record = dict(overall(figures))
    if isinstance(figures, Classification):
        found["correct"] = figures.correct
        found["confusion"] = figures.confusion.tolist()
        found["calibration"] = {"error": _plain(figures.calibration.error), "bins": bins(figures.calibration)}
        found["classes"] = [
            {**record, "unanswered": int(lost)}
            for record, lost in zip(per_class(figures, labels), figures.unanswered, strict=True)
        ]
    elif isinstance(figures, Multilabel):
        found["labels"] = per_class(figures, labels)
    else:
        found["outputs"] = per_class(figures, labels)
        found["worst"] = [
            {
                "row": row,
                "predicted": [_plain(value) for value in figures.predicted[row]],
                "wanted": figures.wanted[row].tolist(),
            }
            for row in figures.worst()
        ]
    return found


def as_csv(records: Sequence[Record]) -> bytes:
    """Records of one form as CSV, empty where there is no figure."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: inert(value) for name, value in record.items()} for record in records)
    return out.getvalue().encode("utf-8", "surrogateescape")


def _plain(value: Any) -> Any:
    """A number that JSON has; None for one that it has not."""
    if value is None or isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None
