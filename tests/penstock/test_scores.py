"""Figures of merit: scikit-learn's on real predictions and by hypothesis; and what nothing, one class and NaN mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from penstock import scores

metrics = pytest.importorskip("sklearn.metrics")


@pytest.fixture(scope="module")
def real(scans: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a nearest-centroid classifier for the held-out digits: most of them right."""
    images, digits = scans
    flat = np.asarray(images, np.float64).reshape(len(digits), -1)
    centres = np.stack([flat[digits == digit][:5].mean(axis=0) for digit in range(10)])
    return -np.linalg.norm(flat[:, None] - centres, axis=2) / 100, np.asarray(digits)


def test_figures_of_real_predictions_are_scikit_learns(real: Any) -> None:
    logits, labels = real
    found, answers = scores.classification(logits, labels), logits.argmax(axis=1)
    assert 0.7 < found.accuracy < 1
    assert found.accuracy == metrics.accuracy_score(labels, answers)
    assert found.top5 == metrics.top_k_accuracy_score(labels, logits, k=5)
    assert np.array_equal(found.confusion, metrics.confusion_matrix(labels, answers))
    precision, recall, f1, support = metrics.precision_recall_fscore_support(labels, answers)
    counts = found.counts
    np.testing.assert_allclose(counts.precision, precision)
    np.testing.assert_allclose(counts.recall, recall)
    np.testing.assert_allclose(counts.f1, f1)
    assert np.array_equal(counts.support, support)
    assert counts.macro_f1 == pytest.approx(metrics.f1_score(labels, answers, average="macro"))
    assert counts.weighted_f1 == pytest.approx(metrics.f1_score(labels, answers, average="weighted"))


@given(st.data())
def test_figures_of_classes_are_scikit_learns_with_empty_classes_too(data: st.DataObject) -> None:
    classes, rows = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 40))
    logits = data.draw(arrays(np.float32, (rows, classes), elements=st.floats(-9, 9, width=32), unique=True))
    labels = data.draw(arrays(np.int64, rows, elements=st.integers(0, classes - 1)))
    found, answers = scores.classification(logits, labels), logits.argmax(axis=1)
    every = list(range(classes))
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        labels, answers, labels=every, zero_division=np.nan
    )
    np.testing.assert_allclose(found.counts.precision, precision)
    np.testing.assert_allclose(found.counts.recall, recall)
    np.testing.assert_allclose(found.counts.f1, f1)
    # scikit-learn's classes are those that are there or were answered, as ours are.
    assert found.counts.macro_f1 == pytest.approx(metrics.f1_score(labels, answers, average="macro"))
    assert found.counts.weighted_f1 == pytest.approx(metrics.f1_score(labels, answers, average="weighted"))
    if classes > scores.TOP:
        assert found.top5 == pytest.approx(metrics.top_k_accuracy_score(labels, logits, k=5, labels=every))
    else:
        assert found.top5 is None


@given(
    confidences=st.lists(st.floats(0.2, 0.999), min_size=1, max_size=50),
    right=st.lists(st.booleans(), min_size=50, max_size=50),
)
def test_the_calibration_error_is_the_formula_written_out(confidences: list[float], right: list[bool]) -> None:
    """Two classes beside the answer share the rest, so that it is the surest of three where it is over a half."""
    confidences = [max(one, 0.51) for one in confidences]
    labels = np.array([0 if so else 1 for so in right[: len(confidences)]])
    logits = np.log([[one, (1 - one) / 2, (1 - one) / 2] for one in confidences])
    found = scores.classification(logits, labels).calibration
    expected = 0.0
    for number in range(15):
        low, high = number / 15, (number + 1) / 15
        held = [i for i, one in enumerate(confidences) if low < one <= high and abs(one * 15 - round(one * 15)) > 1e-9]
        held += [i for i, one in enumerate(confidences) if abs(one * 15 - (number + 1)) <= 1e-9]
        if held:
            gap = np.mean([right[i] for i in held]) - np.mean([confidences[i] for i in held])
            expected += len(held) / len(confidences) * abs(gap)
    edge = any(abs(one * 15 - round(one * 15)) < 1e-9 for one in confidences)
    assert edge or found.error == pytest.approx(expected, abs=1e-9)
    assert found.counts.sum() == len(confidences)


def test_a_confidence_on_the_edge_is_in_the_lower_bin() -> None:
    found = scores.classification(np.zeros((4, 5)), np.zeros(4, np.int64)).calibration
    assert found.counts.tolist() == [0, 0, 4] + [0] * 12  # 1/5 is 3/15, the third bin's upper end
    assert found.error == pytest.approx(0.8)


def test_more_rows_than_are_worked_on_at_a_time_are_all_counted() -> None:
    generator = np.random.default_rng(0)
    logits, labels = generator.standard_normal((9001, 7)).astype(np.float32), generator.integers(0, 7, 9001)
    found = scores.classification(logits, labels)
    assert found.correct == int((logits.argmax(axis=1) == labels).sum())
    assert found.top5 == pytest.approx(metrics.top_k_accuracy_score(labels, logits, k=5))
    assert found.calibration.counts.sum() == 9001


def test_of_equal_scores_the_first_five_are_the_top_as_the_server_orders_them() -> None:
    labels = np.arange(7)
    assert scores.classification(np.zeros((7, 7)), labels).in_top == 5


def test_rows_without_an_answer_are_wrong_and_counted_by_their_class() -> None:
    nan, inf = np.nan, np.inf
    logits = np.array([[0, 1, nan], [2, 1, 0], [inf, 0, 0], [-inf] * 3, [-inf, 3, 0]])
    found = scores.classification(logits, np.array([2, 0, 0, 1, 1]))
    assert found.unanswered.tolist() == [1, 1, 1]
    assert (found.correct, found.samples, found.accuracy) == (2, 5, 0.4)
    assert found.confusion.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert found.counts.recall.tolist() == [0.5, 0.5, 0]
    assert found.calibration.counts.sum() == 2


def test_without_any_answer_accuracy_is_0_and_what_cannot_be_told_is_nan() -> None:
    found = scores.classification(np.full((3, 6), np.nan), np.array([0, 1, 1]))
    assert (found.accuracy, found.top5, found.counts.macro_f1) == (0, 0, 0)
    assert math.isnan(found.calibration.error)
    assert np.isnan(found.counts.precision).all()


def test_one_class_is_always_right_and_sure() -> None:
    found = scores.classification(np.array([[3.0], [-1.0]]), np.zeros(2, np.int64))
    assert (found.accuracy, found.counts.macro_f1, found.calibration.error) == (1, 1, 0)


def test_a_class_that_neither_is_nor_was_answered_is_left_out_of_the_mean() -> None:
    found = scores.classification(np.eye(4)[[0, 1, 1]], np.array([0, 1, 0]))
    assert np.isnan(found.counts.f1[2:]).all()
    assert found.counts.macro_f1 == pytest.approx((2 / 3 + 2 / 3) / 2)


@given(st.data())
def test_figures_of_labels_are_scikit_learns(data: st.DataObject) -> None:
    shape = data.draw(st.integers(1, 20)), data.draw(st.integers(2, 5))
    logits = data.draw(arrays(np.float32, shape, elements=st.floats(-5, 5, width=32)))
    labels = data.draw(arrays(np.int64, shape, elements=st.integers(0, 1)))
    found, said = scores.multilabel(logits, labels), (logits > 0).astype(int)
    f1 = metrics.f1_score(labels, said, average=None, zero_division=np.nan)
    np.testing.assert_allclose(found.counts.f1, f1)
    if not np.isnan(f1).all():
        assert found.counts.micro_f1 == pytest.approx(metrics.f1_score(labels, said, average="micro"))
        assert found.counts.macro_f1 == pytest.approx(np.nanmean(f1))
    assert found.exact_match == metrics.accuracy_score(labels, said)


def test_a_label_of_nan_is_not_said_and_its_row_is_no_match() -> None:
    found = scores.multilabel(np.array([[np.nan, 1.0], [1.0, -1.0]]), np.array([[0, 1], [1, 0]]))
    assert (found.exact, found.unanswered, found.samples) == (1, 1, 2)
    assert found.counts.f1.tolist() == [1, 1]


@given(st.data())
def test_figures_of_numbers_are_scikit_learns(data: st.DataObject) -> None:
    shape = data.draw(st.integers(2, 30)), data.draw(st.integers(1, 3))
    numbers = st.floats(-1000, 1000, width=32)
    predicted, wanted = (data.draw(arrays(np.float32, shape, elements=numbers)) for _ in range(2))
    found = scores.regression(predicted, wanted)
    exact, right = predicted.astype(np.float64), wanted.astype(np.float64)
    assert found.mae == pytest.approx(metrics.mean_absolute_error(right, exact))
    assert found.rmse == pytest.approx(metrics.root_mean_squared_error(right, exact))
    varies = np.ptp(right, axis=0) > 0
    assert np.isnan(found.r2s[~varies]).all()
    for column in np.flatnonzero(varies):
        spread = ((right[:, column] - right[:, column].mean()) ** 2).sum()
        if spread > 1e-6:
            expected = metrics.r2_score(right[:, column], exact[:, column])
            assert found.r2s[column] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_numbers_without_an_answer_are_left_out_of_errors_and_are_the_worst() -> None:
    found = scores.regression(np.array([1.0, np.nan, 7.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert (found.samples, found.unanswered, found.mae) == (4, 1, pytest.approx(5 / 3))
    assert found.worst(2) == [1, 2]
    nothing = scores.regression(np.full(3, np.inf), np.arange(3.0))
    assert math.isnan(nothing.mae)
    assert math.isnan(nothing.rmse)
    assert math.isnan(nothing.r2)


def test_a_column_of_one_is_a_row_of_numbers() -> None:
    found = scores.regression(np.array([[1.0], [2.0]]), np.array([1.0, 3.0]))
    assert found.mae == 0.5


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (scores.classification, [(3,), (3,)]),
        (scores.classification, [(3, 2), (2,)]),
        (scores.classification, [(0, 2), (0,)]),
        (scores.multilabel, [(3, 2), (3,)]),
        (scores.multilabel, [(0, 2), (0, 2)]),
        (scores.regression, [(3, 2), (3,)]),
        (scores.regression, [(3,), (4,)]),
        (scores.regression, [(0,), (0,)]),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_name(call: Any, shapes: Any) -> None:
    first, second = shapes
    with pytest.raises(ValueError, match="must be"):
        call(np.zeros(first), np.zeros(second, np.int64))


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_out_of_the_classes_are_refused(label: int) -> None:
    with pytest.raises(ValueError, match="the classes are 0 to 2"):
        scores.classification(np.zeros((2, 3)), np.array([0, label]))


def test_a_number_that_is_wanted_and_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        scores.regression(np.zeros(2), np.array([0, np.nan]))


@given(arrays(np.float64, 5, elements=st.floats(-800, 800)))
def test_a_sigmoid_neither_overflows_nor_leaves_0_to_1(logits: np.ndarray) -> None:
    with np.errstate(all="raise", under="ignore"):
        found = scores.sigmoid(logits)
    np.testing.assert_allclose(found, [1 / (1 + math.exp(-x)) if x > -700 else 0 for x in logits], atol=1e-12)
