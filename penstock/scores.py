"""Scores: the figures of merit of outputs, by the kind of answer that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.figures import Calibration, Classification, Counts, Floats, Ints, Multilabel, Regression, ratio

BINS, TOP = 15, 5
# Rows whose scores are worked on at a time, in float64.
_CHUNK = 4096


def softmax(logits: NDArray[Any]) -> Floats:
    """exp(x − max x) ÷ Σ exp(x − max x), row by row, in float64."""
    shifted = logits.astype(np.float64)
    exponents = np.exp(shifted - shifted.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))


def sigmoid(logits: NDArray[Any]) -> Floats:
    """1 ÷ (1 + exp(−x)), each by itself, in float64."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits.astype(np.float64))))


def answers(logits: NDArray[Any]) -> tuple[Ints, Floats]:
    """The answered class of each row of `[n, c]`, and its softmax score; −1 and NaN for a row without an answer.

    That is one with a NaN or a positive infinity, or with nothing else than negative ones.
    """
    classes, scores = np.full(len(logits), -1, np.int64), np.full(len(logits), np.nan)
    for part, rows in _chunks(logits):
        held = np.isfinite(rows.max(axis=1))
        classes[part][held] = rows[held].argmax(axis=1)
        scores[part][held] = softmax(rows[held]).max(axis=1)
    return classes, scores


def classification(logits: NDArray[Any], labels: NDArray[np.integer[Any]]) -> Classification:
    """Figures of scores `[n, c]` beside class numbers `[n]` from 0 to c − 1.

    Raises:
        ValueError: there is no row, or they do not fit.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not logits.size:
        raise ValueError(f"scores {list(logits.shape)} and labels {list(labels.shape)} must be [n, c] and [n], n > 0")
    c = logits.shape[1]
    if labels.min() < 0 or labels.max() >= c:
        raise ValueError(f"labels are {labels.min()} to {labels.max()}; the classes are 0 to {c - 1}")
    found, confidence = answers(logits)
    held = found >= 0
    pairs = labels[held].astype(np.int64) * c + found[held]
    confusion = np.bincount(pairs, minlength=c * c).reshape(c, c)
    in_top = int((_ranks(logits, labels)[held] < TOP).sum()) if c > TOP else None
    calibration = _calibration(confidence[held], found[held] == labels[held])
    return Classification(confusion, np.bincount(labels[~held], minlength=c), in_top, calibration)


def multilabel(logits: NDArray[Any], labels: NDArray[Any]) -> Multilabel:
    """Figures of `[n, k]` logits beside 0 or 1 for each label, `[n, k]`; a sigmoid over 0.5 is a logit over 0.

    A logit that is NaN says nothing, and so misses a label that is so.

    Raises:
        ValueError: there is no row, or they do not fit.
    """
    if logits.ndim != 2 or labels.shape != logits.shape or not logits.size:
        raise ValueError(f"scores {list(logits.shape)} and labels {list(labels.shape)} must be [n, k] both, n > 0")
    numbers = np.asarray(logits, np.float64)
    said, so, lost = numbers > 0, labels > 0.5, np.isnan(numbers)
    counts = Counts(*((one & other).sum(axis=0) for one, other in ((said, so), (said, ~so), (~said, so))))
    exact = int(((said == so) & ~lost).all(axis=1).sum())
    return Multilabel(counts, exact, len(numbers), int(lost.any(axis=1).sum()))


def regression(predicted: NDArray[Any], wanted: NDArray[Any]) -> Regression:
    """Figures of numbers `[n]` or `[n, k]` beside the right ones.

    Raises:
        ValueError: there is no row, they do not fit, or a right one is NaN or infinite.
    """
    shapes = f"answers {list(predicted.shape)} and numbers {list(wanted.shape)}"
    if wanted.ndim not in (1, 2) or not wanted.size or predicted.shape[:1] != wanted.shape[:1]:
        raise ValueError(f"{shapes} must be [n] or [n, k] both, n > 0")
    flat = np.asarray(wanted, np.float64).reshape(len(wanted), -1)
    if predicted.size != flat.size:
        raise ValueError(f"{shapes} must be of one size")
    if not np.isfinite(flat).all():
        raise ValueError("a number that is wanted is NaN or infinite")
    return Regression(np.asarray(predicted, np.float64).reshape(flat.shape), flat)


def _chunks(logits: NDArray[Any]) -> Iterator[tuple[slice, Floats]]:
    for start in range(0, len(logits), _CHUNK):
        part = slice(start, start + _CHUNK)
        yield part, np.asarray(logits[part], np.float64)


def _ranks(logits: NDArray[Any], labels: NDArray[np.integer[Any]]) -> Ints:
    """How many classes are before each row's own: those with a better score and, of equal ones, those of lower number.

    A NaN is better than nothing and so is not counted; such rows have no answer, and nobody asks for theirs.
    """
    ranks = np.zeros(len(logits), np.int64)
    for part, rows in _chunks(logits):
        own = labels[part, None]
        score = np.take_along_axis(rows, own, axis=1)
        earlier = np.arange(rows.shape[1]) < own
        ranks[part] = ((rows > score) | ((rows == score) & earlier)).sum(axis=1)
    return ranks


def _calibration(confidence: Floats, right: NDArray[np.bool_]) -> Calibration:
    inner = np.linspace(0, 1, BINS + 1)[1:-1]
    bins = np.searchsorted(inner, confidence, side="left")
    counts = np.bincount(bins, minlength=BINS)
    sums = (np.bincount(bins, weights=values, minlength=BINS) for values in (confidence, right.astype(np.float64)))
    return Calibration(counts, *(ratio(total, counts) for total in sums))
