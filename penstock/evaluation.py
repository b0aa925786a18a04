"""Evaluation: a runner's answers to many rows, and what they are worth beside the rows' labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import data, datasets, scores
from penstock.arrays import join, take
from penstock.data.specs import DatasetSpec, Part
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.figures import Figures
from penstock.preprocessing import Preprocess
from penstock.runtimes import Runner
from penstock.signature import Signature


@dataclass(frozen=True)
class Score:
    """Correct answers among `samples` rows; `accuracy` is their share, 0 to 1."""

    correct: int
    samples: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.samples


def held_out(
    spec: DatasetSpec | None, preprocess: Preprocess | None, part: Part = "test", task: str | None = None
) -> Rows:
    """A part of the data set that a checkpoint was trained on, ready for the model; `test` has served for nothing else.

    Raises:
        PenstockError: the checkpoint records no data set.
    """
    if spec is None or (preprocess is None and spec.name != "numpy"):  # whose arrays are what the model takes
        raise PenstockError(
            "accuracy is measured on labelled data, and no data set is recorded for this model: give it with --data "
            "FILE.npz, which holds `labels` too, a folder of pictures for each class, or FILE.csv with a column `label`"
        )
    return datasets.rows(data.load(spec, task)[part], preprocess)


def outputs(runner: Runner, rows: Rows, batch: int, least: int = 1) -> dict[str, Any]:
    """Run all rows, `batch` at a time, and join the outputs.

    Args:
        runner: what to run.
        rows: the inputs.
        batch: rows at a time.
        least: the fewest rows that the runner takes; a last part of fewer is filled with rows that are then dropped.
    """
    parts = []
    for start in range(0, len(rows), batch):
        index = np.arange(start, min(start + batch, len(rows)))
        filled = np.resize(index, max(len(index), least))
        answer = runner.run(take(rows.inputs, filled))
        for name, array in answer.items():
            if array.ndim == 0 or len(array) != len(filled):
                raise ValueError(f"output {name!r} has shape {list(array.shape)} for {len(filled)} rows")
        parts.append(take(answer, slice(len(index))))
    return join(parts)


def score(logits: Any, rows: Rows) -> Score:
    """Compare scores `[n, classes]` with the rows' labels.

    Raises:
        PenstockError: the rows have no labels, or the scores are not one row of classes each.
    """
    labels = _class_numbers(logits, rows)
    return Score(int((logits.argmax(axis=1) == labels).sum()), len(rows))


def figures(first: Any, rows: Rows, task: str | None) -> Figures:
    """All figures of merit of the first output over labelled rows.

    Args:
        first: the output, `[n, …]`.
        rows: what it answers, with labels.
        task: "multilabel" and "regression" are compared as such, everything else as scores of classes.

    Raises:
        PenstockError: the rows have no labels, or the output is of another form than the task's.
    """
    if task not in ("multilabel", "regression"):
        return scores.classification(first, _class_numbers(first, rows))
    if rows.labels is None:
        what = (
            "0 or 1 for each label, [n, labels]" if task == "multilabel" else "the right numbers, [n] or [n, outputs]"
        )
        raise PenstockError(f"a {task} model is scored beside what is right: an .npz file holds `labels`, {what}")
    try:
        return scores.multilabel(first, rows.labels) if task == "multilabel" else scores.regression(first, rows.labels)
    except ValueError as error:
        raise PenstockError(f"the model's first output and the `labels` of the data do not fit: {error}") from None


def _class_numbers(logits: Any, rows: Rows) -> NDArray[np.int64]:
    """The rows' labels, which are classes of these scores."""
    if rows.labels is None:
        raise PenstockError(
            "accuracy needs labels: an array `labels` of class numbers in the --data file, or a folder of pictures for "
            "each class, which bears its number or the label that the model has for it, or a column `label` in a CSV "
            "file"
        )
    if rows.labels.dtype.kind == "f":
        raise PenstockError("accuracy needs class numbers; the labels of this data are numbers to come near to")
    if logits.ndim != 2:
        raise PenstockError(f"accuracy needs scores of shape [n, classes]; the first output is {list(logits.shape)}")
    if rows.labels.ndim != 1:
        raise PenstockError(f"accuracy needs one class number for each row; the labels are {list(rows.labels.shape)}")
    out = np.flatnonzero((rows.labels < 0) | (rows.labels >= logits.shape[1]))
    if out.size:
        raise PenstockError(
            f"labels are {rows.labels.min()} to {rows.labels.max()}, as sample {out[0]} has {rows.labels[out[0]]}; the "
            f"model's classes are 0 to {logits.shape[1] - 1}: number them so in the --data file"
        )
    return rows.labels


def evaluate(runner: Runner, rows: Rows, signature: Signature) -> Score:
    """The top-1 score of the runner's first output over labelled rows, in the largest batches it takes."""
    return score(first_output(runner, rows, signature), rows)


def first_output(runner: Runner, rows: Rows, signature: Signature) -> Any:
    """The runner's first output over all rows, in the largest batches it takes."""
    answer = outputs(runner, rows, signature.max_batch, signature.min_batch)
    return answer[runner.outputs[0].name]
