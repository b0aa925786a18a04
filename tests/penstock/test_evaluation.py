"""Evaluation: running rows in batches, and counting right answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import data, evaluation
from penstock.data.specs import Digits
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.evaluation import Score
from penstock.figures import Classification, Multilabel, Regression
from penstock.preprocess import ImagePreprocess
from penstock.runtimes import BaseRunner
from penstock.runtimes.fake import FakeRunner
from penstock.signature import Arrays, Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 3)),),
    outputs=(Tensor(name="scores", shape=("batch", 4)), Tensor(name="extra", shape=("batch",))),
    dims={"batch": Dim(opt=4, max=16)},
)


class Shares(BaseRunner):
    """Scores that are the inputs themselves; remembers the batches that it was given."""

    def __init__(self) -> None:
        super().__init__(SIGNATURE)
        self.batches: list[int] = []

    def run(self, feeds: Arrays) -> dict[str, Any]:
        self.batches.append(len(feeds["x"]))
        return {"scores": np.array(feeds["x"]), "extra": np.zeros(len(feeds["x"]))}


@given(rows=st.integers(1, 40), batch=st.integers(1, 45))
def test_outputs_do_not_depend_on_how_rows_are_batched(rows: int, batch: int) -> None:
    inputs = np.random.default_rng(rows).random((rows, 3), np.float32)
    runner = FakeRunner(SIGNATURE)
    found = evaluation.outputs(runner, Rows({"x": inputs}, None), batch)
    whole = runner.run({"x": inputs})
    assert list(found) == ["scores", "extra"]
    assert all(np.array_equal(found[name], whole[name]) for name in whole)


def test_batches_are_full_but_for_the_last() -> None:
    runner = Shares()
    evaluation.outputs(runner, Rows({"x": np.zeros((10, 3))}, None), 4)
    assert runner.batches == [4, 4, 2]


def test_the_score_counts_rows_whose_largest_is_their_label() -> None:
    logits = np.array([[1, 0, 0], [0, 2, 1], [0, 0, 3], [9, 8, 7]], np.float32)
    rows = Rows({"x": logits}, np.array([0, 1, 0, 0]))
    assert evaluation.score(logits, rows) == Score(correct=3, samples=4)
    assert evaluation.score(logits, rows).accuracy == 0.75


@given(rows=st.integers(1, 20), batch=st.integers(4, 9), least=st.integers(1, 4))
def test_a_last_part_under_the_least_is_filled_and_what_fills_it_is_dropped(rows: int, batch: int, least: int) -> None:
    inputs = np.random.default_rng(rows).random((rows, 3), np.float32)
    runner = Shares()
    found = evaluation.outputs(runner, Rows({"x": inputs}, None), batch, least)
    assert np.array_equal(found["scores"], inputs)
    assert found["extra"].shape == (rows,)
    assert all(least <= size <= batch for size in runner.batches)
    assert sum(runner.batches) == rows + max(0, least - (rows % batch or batch))


@pytest.mark.parametrize(
    ("extra", "shape"),
    [(np.zeros(5), "[5]"), (np.zeros(3), "[3]"), (np.zeros((0, 4)), "[0, 4]"), (np.float32(1), "[]")],
    ids=["more", "fewer", "none", "scalar"],
)
def test_an_output_of_another_number_of_rows_is_refused_by_name(extra: Any, shape: str) -> None:
    class Off(Shares):
        def run(self, feeds: Arrays) -> dict[str, Any]:
            return {**super().run(feeds), "extra": extra}

    with pytest.raises(ValueError, match=r"output 'extra' has shape .* for 4 rows") as caught:
        evaluation.outputs(Off(), Rows({"x": np.zeros((2, 3))}, None), 4, least=4)
    assert shape in str(caught.value)


def test_evaluate_takes_the_first_output() -> None:
    inputs = np.eye(3, dtype=np.float32)
    rows = Rows({"x": inputs}, np.array([0, 1, 1]))
    assert evaluation.evaluate(Shares(), rows, SIGNATURE) == Score(2, 3)


def test_evaluate_runs_no_batch_outside_the_signatures_range() -> None:
    signature = SIGNATURE.with_batch(Dim(min=3, opt=4, max=4))
    runner, labels = Shares(), np.array([0, 1, 2, 0, 2])
    rows = Rows({"x": np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]]}, labels)
    assert evaluation.evaluate(runner, rows, signature) == Score(4, 5)
    assert runner.batches == [4, 3]


def test_a_model_that_cannot_batch_is_evaluated_row_by_row() -> None:
    fixed = Signature(inputs=(Tensor(name="x", shape=(1, 3)),), outputs=(Tensor(name="scores", shape=(1, 3)),), dims={})
    runner = Shares()
    rows = Rows({"x": np.eye(3, dtype=np.float32)}, np.array([0, 1, 1]))
    assert evaluation.evaluate(runner, rows, fixed) == Score(2, 3)
    assert runner.batches == [1, 1, 1]


def test_rows_without_labels_have_no_score() -> None:
    with pytest.raises(PenstockError, match="accuracy needs labels"):
        evaluation.score(np.zeros((2, 3)), Rows({"x": np.zeros((2, 3))}, None))


def test_scores_of_another_rank_are_refused_with_their_shape() -> None:
    with pytest.raises(PenstockError, match=r"shape \[n, classes\]; the first output is \[2, 3, 4\]"):
        evaluation.score(np.zeros((2, 3, 4)), Rows({"x": np.zeros((2, 3))}, np.zeros(2, np.int64)))


def test_held_out_rows_are_the_test_part_ready_for_the_model() -> None:
    spec = Digits()
    preprocess = ImagePreprocess(input="image", mode="L", height=8, width=8, mean=(0.3,), std=(0.37,))
    rows = evaluation.held_out(spec, preprocess)
    part = data.load(spec)["test"]
    assert np.array_equal(rows.inputs["image"], preprocess.normalize(part.items))
    assert np.array_equal(rows.labels, part.labels)


def test_a_model_without_a_data_set_is_told_how_to_give_one() -> None:
    with pytest.raises(PenstockError, match=r"--data FILE\.npz"):
        evaluation.held_out(None, None)


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_that_are_no_class_of_the_model_are_refused(label: int) -> None:
    rows = Rows({"x": np.zeros((2, 1), np.float32)}, np.array([0, label]))
    with pytest.raises(PenstockError, match="the model's classes are 0 to 2"):
        evaluation.score(np.zeros((2, 3), np.float32), rows)


def test_figures_are_of_the_task() -> None:
    rows = Rows({"x": np.zeros((3, 1))}, np.array([0, 1, 1]))
    first = np.array([[2, 0], [0, 2], [2, 0]], np.float32)
    for task in ("classification", None):
        found = evaluation.figures(first, rows, task)
        assert isinstance(found, Classification)
        assert (found.correct, found.samples) == (2, 3)
    numbers = evaluation.figures(np.array([[0.0], [1.0], [4.0]]), rows, "regression")
    assert isinstance(numbers, Regression)
    assert numbers.mae == 1
    several = evaluation.figures(first, Rows(rows.inputs, np.array([[1, 0], [0, 1], [1, 1]])), "multilabel")
    assert isinstance(several, Multilabel)
    assert several.exact == 2


@given(logits=st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=1, max_size=20))
def test_the_accuracy_of_all_figures_is_that_of_the_score(logits: list[list[float]]) -> None:
    first = np.array(logits, np.float32)
    rows = Rows({"x": first}, np.arange(len(first)) % 3)
    assert evaluation.figures(first, rows, None).accuracy == evaluation.score(first, rows).accuracy


@pytest.mark.parametrize(
    ("task", "labels", "said"),
    [
        ("regression", None, r"an \.npz file holds `labels`, the right numbers, \[n\]"),
        ("multilabel", None, "0 or 1 for each label"),
        ("classification", None, "accuracy needs labels"),
        ("regression", np.zeros((2, 5)), "do not fit"),
        ("multilabel", np.zeros(2, np.int64), "do not fit"),
        ("classification", np.zeros(2, np.float32), "accuracy needs class numbers"),
        ("classification", np.zeros((2, 3), np.int64), r"one class number for each row; the labels are \[2, 3\]"),
    ],
)
def test_labels_that_are_none_of_the_task_are_refused_with_what_it_takes(task: str, labels: Any, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        evaluation.figures(np.zeros((2, 3)), Rows({"x": np.zeros((2, 1))}, labels), task)
