"""Histograms of magnitudes that do not depend on how values are grouped, and the thresholds that they give.

A threshold is the magnitude that the last quantisation step stands for; what is larger is clipped to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BINS = 4096
# int8 has this many steps on each side of zero.
_STEPS = 128
# Bins from one candidate of the entropy method to the next: a fraction of what clipping there could change.
_STRIDE = 8
_PERCENTILE = 99.99
_CLIPPED = 0.01
# What is smaller counts as zero: no scale could hold it, and dividing by its power of two would overflow.
_TINY = 2.0**-110


@dataclass
class Histogram:
    """How often values of each magnitude came: `BINS` equal bins from 0 to `top`, a power of two over the largest.

    When a larger value comes `top` doubles and bins merge in pairs, which is exact: the counts depend on the values
    alone, not on their order or on how many came at a time. Zeros, which every scale holds exactly, are counted apart.
    `unbounded` is the first sample on which the tensor got NaN or Inf; what was counted until then says nothing.
    """

    low: float = 0.0
    high: float = 0.0
    top: float = 0.0
    zeros: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    unbounded: int | None = None

    def add(self, values: NDArray[np.floating]) -> None:
        """Count finite values, of any shape.

        Raises:
            ValueError: there is a NaN or an Inf among them.
        """
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ValueError("NaN or Inf")
        self.low, self.high = min(self.low, low), max(self.high, high)
        most = max(-low, high)
        if most < _TINY:
            self.zeros += values.size
            return
        self._widen(most)
        magnitudes = np.abs(values, dtype=np.float32).ravel()
        # Dividing by a power of two is exact, so that a value's bin does not depend on rounding either.
        places = (magnitudes * np.float32(BINS / self.top)).astype(np.int32)
        found = np.bincount(places, minlength=BINS)
        zeros = int(np.count_nonzero(magnitudes < _TINY))
        found[0] -= zeros
        self.zeros += zeros
        self.counts += found

    def _widen(self, most: float) -> None:
        top = 2.0 ** np.frexp(most)[1]
        if not self.top:
            self.top = top
        while self.top < top:
            merged = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([merged, np.zeros(BINS // 2, np.int64)])
            self.top *= 2

    @property
    def most(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)

    def threshold(self, method: str) -> float:
        """The magnitude to clip at: by `max` the largest, by `percentile` or `percentile=99.9` that share's, else by
        `entropy` the one that loses least.
        """
        name, _, share = method.partition("=")
        if name == "max" or not self.counts.any():
            return self.most
        edge = self._percentile(float(share or _PERCENTILE)) if name == "percentile" else self._entropy()
        return float(min(edge * self.top / BINS, self.most))

    def _percentile(self, share: float) -> int:
        """The first edge with `share` percent of all values, zeros too, under it."""
        under = self.zeros + np.cumsum(self.counts)
        return int(np.searchsorted(under, share / 100 * under[-1])) + 1

    def _entropy(self) -> int:
        """The edge whose clipped and quantised histogram has the least Kullback-Leibler divergence from the whole.

        Source: Migacz 2017, "8-bit Inference with TensorRT", GTC. Candidates that clip over a hundredth of the values
        are left out: where values lie in clusters, a range that ends inside the first looks perfect to the divergence.
        """
        last = max(int(np.flatnonzero(self.counts)[-1]) + 1, _STEPS)
        under = np.cumsum(self.counts)
        least = max(int(np.searchsorted(under, (1 - _CLIPPED) * under[-1])) + 1, _STEPS)
        edges = np.unique(np.r_[least:last:_STRIDE, last])
        return int(edges[int(np.argmin([_divergence(self.counts, int(edge)) for edge in edges]))])


def _divergence(counts: NDArray[np.int64], edge: int) -> float:
    """KL(P‖Q): P the counts under `edge` with what is over it in the last bin, Q the same in `_STEPS` equal steps."""
    kept = counts[:edge].astype(np.float64)
    clipped = kept.copy()
    clipped[-1] += counts[edge:].sum()
    step = np.arange(edge) * _STEPS // edge
    used = kept > 0
    sums = np.bincount(step, weights=kept, minlength=_STEPS)
    bins = np.bincount(step[used], minlength=_STEPS)
    spread = np.where(used, sums[step] / np.maximum(bins[step], 1), 0.0)
    p, q = clipped / clipped.sum(), spread / max(spread.sum(), 1.0)
    seen = p > 0
    # What P has where Q has nothing would make the divergence infinite: the least that a count can be stands in.
    return float(np.sum(p[seen] * np.log(p[seen] / np.maximum(q[seen], 1e-12))))
