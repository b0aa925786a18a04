"""Contrasts: how many times as long one measurement took as another one of another time, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import require

# The share of rounds that is left out at either end: a neighbour that takes a core for a moment spoils a round or two.
_TRIM = 0.2
# Of fewer rounds there is no telling how far apart they usually are.
FEWEST = 5
# What no number of rounds of one run shows, as relative standard deviations of a time. A model that is loaded anew has
# its memory elsewhere; and the clock follows the machine only so far. As measured: bench/results/compare_aa.txt.
LOADING, CLOCK = 0.014, 0.011


@dataclass(frozen=True)
class Contrast:
    """How many times as long the new one takes as the old one: above 1 is slower. `low` and `high` hold the truth."""

    value: float
    low: float
    high: float

    def slower(self, threshold: float) -> bool:
        """Whether it is slower for certain, and by `threshold` (0.05 is 5 %) at least."""
        return self.low > 1 and self.value >= 1 + threshold

    def faster(self, threshold: float) -> bool:
        """Whether it is faster for certain, and the old one by `threshold` slower at least."""
        return self.high < 1 and self.value * (1 + threshold) <= 1


def between(
    old: Sequence[float],
    new: Sequence[float],
    confidence: float,
    loads: tuple[float, float] = (1, 1),
    beside: float = 0.0,
) -> Contrast:
    """The contrast of two measurements, by their rounds.

    Means of logarithms without the fifth of the rounds at either end, and Student's interval of their difference with
    winsorised variances and Welch's degrees of freedom (Yuen 1974, "The two-sample trimmed t for unequal population
    variances", Biometrika 61). The variances of loading anew and of the clock are added as known ones (Kalibera and
    Jones 2013, "Rigorous Benchmarking in Reasonable Time": the highest level that varies is the one that counts).

    Args:
        old: a figure for each round, as the median seconds of its runs over those of the clock; positive.
        new: the same of the other.
        confidence: how often the interval holds the true contrast, as 0.99.
        loads: how many loads each side is the mean of.
        beside: a variance to add, of what else is known to move the logarithm of the ratio.

    Raises:
        ValueError: fewer than `FEWEST` rounds on a side.
    """
    if min(len(old), len(new)) < FEWEST:
        raise ValueError(f"{len(old)} and {len(new)} rounds; both sides must have at least {FEWEST}")
    (before, spread, kept), (after, other, left) = _trimmed(old), _trimmed(new)
    spreads = spread + other
    variance = spreads + sum(LOADING**2 / count + CLOCK**2 for count in loads) + beside
    shares = spread**2 / (kept - 1) + other**2 / (left - 1)
    freedom = variance**2 / shares if shares > 0 else math.inf
    return _around(after - before, math.sqrt(variance), freedom, confidence)


def of_intervals(
    old: tuple[float, float, float], new: tuple[float, float, float], known: float, confidence: float
) -> Contrast:
    """The contrast of two figures that come with intervals, where there are no rounds.

    Each interval is taken as that of a logarithm with a normal error. It knows nothing of drift.

    Args:
        old: the figure, and the ends of its interval.
        new: the same of the other.
        known: the confidence of the intervals, as 0.95.
        confidence: that of the contrast.
    """
    quantile = normal(known)
    errors = [math.log(high / low) / (2 * quantile) for _, low, high in (old, new)]
    error = math.sqrt(sum(e**2 for e in errors) + 2 * (LOADING**2 + CLOCK**2))
    return _around(math.log(new[0] / old[0]), error, math.inf, confidence)


def _around(middle: float, error: float, freedom: float, confidence: float) -> Contrast:
    half = _student(freedom, confidence) * error
    return Contrast(math.exp(middle), math.exp(middle - half), math.exp(min(middle + half, 700.0)))


def spread(values: Sequence[float]) -> float:
    """How far rounds are apart: the variance of their trimmed mean's logarithm."""
    return _trimmed(values)[1] if len(values) >= FEWEST else float(np.var(np.log(values)))


def _trimmed(values: Sequence[float]) -> tuple[float, float, int]:
    """The trimmed mean of the logarithms, the variance of that, and how many values are left."""
    logs: NDArray[np.float64] = np.sort(np.log(np.asarray(values, np.float64)))
    n = len(logs)
    cut = int(_TRIM * n)
    left = n - 2 * cut
    winsorised = np.clip(logs, logs[cut], logs[n - 1 - cut])
    variance = (n - 1) * float(np.var(winsorised, ddof=1)) / (left * (left - 1))
    return float(np.mean(logs[cut : n - cut])), variance, left


def normal(confidence: float) -> float:
    """The normal quantile of an interval on both sides: 1.96 for 0.95."""
    return _student(math.inf, confidence)


def _student(freedom: float, confidence: float) -> float:
    """Student's quantile, for an interval on both sides; the normal one where `freedom` is infinite."""
    special = require("scipy.special", "bench", "comparing results")
    tail = (1 - confidence) / 2
    return float(-special.ndtri(tail) if math.isinf(freedom) else -special.stdtrit(freedom, tail))
