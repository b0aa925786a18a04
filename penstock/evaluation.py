"""Evaluation: how often a runner's top-1 answer is the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock import data, datasets
from penstock.arrays import join, take
from penstock.data.specs import DatasetSpec, Part
from penstock.datasets import Rows
from penstock.errors import PenstockError
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


def held_out(spec: DatasetSpec | None, preprocess: Preprocess | None, part: Part = "test") -> Rows:
    """A part of the data set that a checkpoint was trained on, ready for the model; `test` has served for nothing else.

    Raises:
        PenstockError: the checkpoint records no data set.
    """
    if spec is None or (preprocess is None and spec.name != "numpy"):  # whose arrays are what the model takes
        raise PenstockError(
            "accuracy is measured on labelled data, and no data set is recorded for this model: give it with --data "
            "FILE.npz, which holds `labels` too, a folder of pictures for each class, or FILE.csv with a column `label`"
        )
    return datasets.rows(data.load(spec)[part], preprocess)


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
    out = np.flatnonzero((rows.labels < 0) | (rows.labels >= logits.shape[1]))
    if out.size:
        raise PenstockError(
            f"labels are {rows.labels.min()} to {rows.labels.max()}, as sample {out[0]} has {rows.labels[out[0]]}; the "
            f"model's classes are 0 to {logits.shape[1] - 1}: number them so in the --data file"
        )
    return Score(int((logits.argmax(axis=1) == rows.labels).sum()), len(rows))


def evaluate(runner: Runner, rows: Rows, signature: Signature) -> Score:
    """The top-1 score of the runner's first output over labelled rows, in the largest batches it takes."""
    answer = outputs(runner, rows, signature.max_batch, signature.min_batch)
    return score(answer[runner.outputs[0].name], rows)
