"""Figures of merit: what a model's answers are worth beside what is known to be right.

A ratio of nothing to nothing (the precision of a class that was never answered, the recall of one without samples) is
NaN, and means leave it out. Rows without an answer, whose outputs are no numbers, are counted as such: to a classifier
they are wrong, in a regression's errors they have no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORST = 10

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def ratio(part: Any, whole: Any) -> Floats:
    """part ÷ whole, NaN where there is no whole."""
    whole = np.asarray(whole)
    return np.asarray(np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole != 0))


@dataclass(frozen=True, eq=False)
class Counts:
    """By class, int64 `[c]`: said and so (`hits`), said and not so (`alarms`), so and not said (`misses`)."""

    hits: Ints
    alarms: Ints
    misses: Ints

    @property
    def support(self) -> Ints:
        return self.hits + self.misses

    @property
    def precision(self) -> Floats:
        """hits ÷ (hits + alarms)."""
        return ratio(self.hits, self.hits + self.alarms)

    @property
    def recall(self) -> Floats:
        """hits ÷ (hits + misses)."""
        return ratio(self.hits, self.support)

    @property
    def f1(self) -> Floats:
        """2 hits ÷ (2 hits + alarms + misses), the harmonic mean of both (van Rijsbergen, 1979)."""
        return ratio(2 * self.hits, 2 * self.hits + self.alarms + self.misses)

    @property
    def macro_f1(self) -> float:
        """The mean over the classes that have samples or were answered."""
        held = self.f1[~np.isnan(self.f1)]
        return float(held.mean()) if held.size else float("nan")

    @property
    def weighted_f1(self) -> float:
        """The mean weighted by the classes' samples."""
        there = self.support > 0
        return float(np.average(self.f1[there], weights=self.support[there])) if there.any() else float("nan")

    @property
    def micro_f1(self) -> float:
        """F1 of all classes' counts together."""
        hits, wrong = int(self.hits.sum()), int(self.alarms.sum() + self.misses.sum())
        return float(ratio(2 * hits, 2 * hits + wrong))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Rows by how sure their answers are, in bins of equal width, each without its lower end: counts, int64 `[bins]`;
    and in each the mean confidence and the share that is right, NaN where there is no row.
    """

    counts: Ints
    confidence: Floats
    accuracy: Floats

    @property
    def edges(self) -> Floats:
        return np.linspace(0, 1, len(self.counts) + 1)

    @property
    def error(self) -> float:
        """The expected calibration error: Σ rows of the bin ÷ rows × |accuracy − confidence|.

        Guo et al., "On Calibration of Modern Neural Networks", 2017, equation 3.
        """
        held = self.counts > 0
        if not held.any():
            return float("nan")
        gaps = np.abs(self.accuracy - self.confidence)[held]
        return float(np.average(gaps, weights=self.counts[held]))


@dataclass(frozen=True, eq=False)
class Classification:
    """Answers beside classes: `confusion`, int64 `[c, c]`, has a row for each class and a column for each answer.

    `unanswered`, int64 `[c]`, are the rows without an answer by their class. `in_top` are the rows whose class is among
    the five best scores, None where there are no more classes than that.
    """

    confusion: Ints
    unanswered: Ints
    in_top: int | None
    calibration: Calibration

    @property
    def samples(self) -> int:
        return int(self.confusion.sum() + self.unanswered.sum())

    @property
    def correct(self) -> int:
        return int(self.confusion.trace())

    @property
    def accuracy(self) -> float:
        return self.correct / self.samples

    @property
    def top5(self) -> float | None:
        return None if self.in_top is None else self.in_top / self.samples

    @cached_property
    def counts(self) -> Counts:
        hits = self.confusion.diagonal()
        return Counts(hits, self.confusion.sum(axis=0) - hits, self.confusion.sum(axis=1) - hits + self.unanswered)


@dataclass(frozen=True, eq=False)
class Multilabel:
    """Labels said, where the score is over 0.5, beside those that are so; `exact` are the rows without a mistake."""

    counts: Counts
    exact: int
    samples: int
    unanswered: int

    @property
    def exact_match(self) -> float:
        return self.exact / self.samples


@dataclass(frozen=True, eq=False)
class Regression:
    """Numbers answered beside the right ones, float64 `[n, k]` each; errors are of rows that have an answer."""

    predicted: Floats
    wanted: Floats

    @property
    def samples(self) -> int:
        return len(self.wanted)

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        return np.asarray(np.isfinite(self.predicted).all(axis=1))

    @property
    def unanswered(self) -> int:
        return int((~self.answered).sum())

    @cached_property
    def errors(self) -> Floats:
        """Answer less truth, `[answered, k]`."""
        return self.predicted[self.answered] - self.wanted[self.answered]

    @property
    def maes(self) -> Floats:
        """The mean absolute error of each output, `[k]`."""
        return _means(np.abs(self.errors))

    @property
    def rmses(self) -> Floats:
        """The root of the mean squared error of each output, `[k]`."""
        return np.sqrt(_means(self.errors**2))

    @property
    def r2s(self) -> Floats:
        """The share of each output's variance that is explained, 1 − Σ error² ÷ Σ (truth − its mean)²; NaN where the
        truth does not vary.
        """
        wanted = self.wanted[self.answered]
        if not len(wanted):
            return np.full(self.wanted.shape[1], np.nan)
        spread = np.where(np.ptp(wanted, axis=0) > 0, ((wanted - wanted.mean(axis=0)) ** 2).sum(axis=0), 0.0)
        return np.asarray(1 - ratio((self.errors**2).sum(axis=0), spread))

    @property
    def mae(self) -> float:
        return float(self.maes.mean())

    @property
    def rmse(self) -> float:
        return float(self.rmses.mean())

    @property
    def r2(self) -> float:
        """The mean over the outputs whose truth varies."""
        held = self.r2s[~np.isnan(self.r2s)]
        return float(held.mean()) if held.size else float("nan")

    def worst(self, most: int = WORST) -> list[int]:
        """The rows that are furthest off in any output, the worst first; before them those without an answer."""
        off = np.abs(self.predicted - self.wanted).max(axis=1)
        return [int(row) for row in np.argsort(-np.where(self.answered, off, np.inf), kind="stable")[:most]]


Figures = Classification | Multilabel | Regression


def _means(values: Floats) -> Floats:
    return np.asarray(values.mean(axis=0)) if len(values) else np.full(values.shape[1], np.nan)
