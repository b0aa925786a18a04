"""Statistics of latencies: percentiles and ratios with intervals, and how many samples a percentile takes.

Nothing is assumed of a latency's distribution, which is skewed, has several peaks, and none of them Gauss's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
# A percentile wants so many samples that this sure at least two of them lie beyond it: one may be a freak.
_SURE, _MISSES = 0.99, 1
_RESAMPLES = 10_000
# Of fewer rounds not even the whole range holds the middle in about 95 %: 1 - 2 / 2**n.
FEWEST_ROUNDS = 5
# Counts further from their mean than so many standard deviations do not occur.
_WIDTH = 12.0

Rounds = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Percentile:
    """A percentile of samples, and the interval that holds the true one, with `CONFIDENCE`; in the samples' unit."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """How many times as fast the one is as the other, and the interval that holds that, with its confidence.

    From fewer than `FEWEST_ROUNDS` there is no telling: the interval is then from 0 to infinity.
    """

    value: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the one is faster or slower for certain: the interval leaves 1 out."""
        return not self.low <= 1 <= self.high


@cache
def needed(q: float) -> int:
    """The fewest samples that a percentile is given from: 11 for the median, 64 for p90, 130 for p95, 662 for p99.

    The smallest n for which P(B ≤ 1) ≤ 1 %, B being how many of n independent samples lie beyond the percentile, which
    is binomial(n, 1 - q/100): one miss allowed at 99 % confidence, MLPerf's rule for a run that ends early (LoadGen's
    early_stopping.cc, which comes to the same 64 and 662). Below the middle, the samples beyond are the smaller ones.

    Args:
        q: in percent, above 0 and below 100.
    """
    tail = min(q, 100 - q) / 100
    if not tail > 0:  # NaN is none either
        raise ValueError(f"a percentile is above 0 and below 100, which {q} is not")
    n = _MISSES + 1
    while (1 - tail) ** n + n * tail * (1 - tail) ** (n - 1) > 1 - _SURE:
        n += 1
    return n


def percentile(samples: Sequence[float] | NDArray[np.float64], q: float) -> Percentile | None:
    """A percentile with its 95 % interval, or None where there are fewer samples than `needed`.

    The value is interpolated between two samples (numpy's default, type 7 of Hyndman and Fan 1996). The interval is
    made of two of the samples, whatever the distribution: the number of samples below the true percentile is
    binomial(n, q/100), and each end is the sample nearest the middle that is on the wrong side with 2.5 % at most
    (Conover 1999, "Practical Nonparametric Statistics", section 3.2). It takes samples as independent; where slow ones
    come in bursts, the truth may be further off, and a ratio of rounds is what to go by.

    Args:
        samples: in any order.
        q: in percent, above 0 and below 100.
    """
    if len(samples) < needed(q):
        return None
    ordered = np.sort(np.asarray(samples, np.float64))
    low, high = _ranks(len(ordered), q)
    return Percentile(float(np.percentile(ordered, q)), float(ordered[low]), float(ordered[high]))


@cache
def _ranks(n: int, q: float) -> tuple[int, int]:
    """The places, from 0 on, of the samples at the ends of a percentile's interval.

    The one at place k is over the true percentile where at most k samples are below that, and under it where more are.
    """
    counts, below = _binomial(n, q / 100)
    tail = (1 - CONFIDENCE) / 2
    # P(B <= low) <= tail: it is over the percentile that seldom; P(B > high) <= tail: under it.
    low = int(counts[0]) - 1 + int(np.searchsorted(below, tail, side="right"))
    high = int(counts[np.searchsorted(below, 1 - tail, side="left")])
    return min(max(low, 0), n - 1), min(high, n - 1)


def _binomial(n: int, p: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Counts around the mean of binomial(n, p), and the probability of as many or fewer, for each.

    By the ratio of neighbours, P(k + 1) / P(k) = (n - k) p / ((k + 1) (1 - p)); what lies outside is under 1e-30.
    """
    around = _WIDTH * math.sqrt(n * p * (1 - p)) + _WIDTH
    counts = np.arange(max(0, math.floor(n * p - around)), min(n, math.ceil(n * p + around)) + 1)
    steps = np.log(n - counts[:-1]) - np.log(counts[:-1] + 1.0) + math.log(p) - math.log(1 - p)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    shares = np.exp(logs - logs.max())
    return counts, np.cumsum(shares) / shares.sum()


def ratio(mine: Rounds, theirs: Rounds, *, paired: bool = True, confidence: float = CONFIDENCE) -> Ratio:
    """How many times as fast as `theirs` `mine` is: their median over mine, with the interval by resampling rounds.

    Rounds are resampled, not runs, since what slows one run slows the next: they are not independent.
    Paired rounds took turns, so that drift moves no ratio: the value is the median over rounds of the ratio of the two
    medians in one. Else it is the ratio of the medians over rounds of a round's median, and both sides are resampled.
    The interval is the bootstrap's of percentiles (Efron and Tibshirani 1993, "An Introduction to the Bootstrap",
    chapter 13), widened for few rounds (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", expanded
    percentiles). Of simulated ones, ten rounds of normal, heavy-tailed and bursty noise, 96 to 97 % held the truth.

    Args:
        mine: seconds of each run, by round; every round has at least one.
        theirs: the same of what it is compared with.
        paired: whether round i of both was measured in turns.
        confidence: how often the interval holds the true ratio, 0 to 1.

    Raises:
        ValueError: there are no rounds, or paired ones are not as many on both sides.
    """
    fast, slow = (np.array([np.median(part) for part in rounds], np.float64) for rounds in (mine, theirs))
    if not len(fast) or not len(slow) or (paired and len(fast) != len(slow)):
        raise ValueError(f"{len(fast)} rounds cannot be compared with {len(slow)}")
    drawn = np.random.default_rng(0)
    if paired:
        held = slow / fast
        value, found = float(np.median(held)), _medians(held, drawn)
    else:
        value, found = float(np.median(slow) / np.median(fast)), _medians(slow, drawn) / _medians(fast, drawn)
    if min(len(fast), len(slow)) < FEWEST_ROUNDS:
        return Ratio(value, 0.0, math.inf)
    tail = _widened((1 - confidence) / 2, min(len(fast), len(slow)))
    low, high = np.quantile(found, [tail, 1 - tail])
    return Ratio(value, float(min(low, value)), float(max(high, value)))


def _medians(values: NDArray[np.float64], drawn: np.random.Generator) -> NDArray[np.float64]:
    """The medians of resamples."""
    found: NDArray[np.float64] = np.median(values[drawn.integers(0, len(values), (_RESAMPLES, len(values)))], axis=1)
    return found


@cache
def _widened(tail: float, n: int) -> float:
    """The share of resamples to leave out on one side, so that `tail` of the truth is left out where n is small.

    Φ(-√(n/(n-1)) t), t being Student's quantile with n - 1 degrees of freedom: Hesterberg's expanded percentiles.
    """
    return NormalDist().cdf(-math.sqrt(n / (n - 1)) * _student(tail, n - 1))


def _student(tail: float, freedom: int) -> float:
    """Student's t beyond which there is `tail`, 0 to 0.5: its density summed by trapezoids over t = tan(angle)."""
    angles = np.linspace(0, math.pi / 2, 100_001)[:-1]
    density = np.cos(angles) ** (freedom - 1) * (1 + (1 / freedom - 1) * np.sin(angles) ** 2) ** (-(freedom + 1) / 2)
    passed = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.tan(float(np.interp(1 - 2 * tail, passed / passed[-1], angles)))
