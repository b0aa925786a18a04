"""Shares of counts, with their intervals."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson(count: int, of: int, confidence: float) -> tuple[float, float]:
    """Wilson's interval of a share: "Probable inference, the law of succession", JASA 22 (1927)."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, extra = count / of, z**2 / of
    middle, half = share + extra / 2, z * math.sqrt(share * (1 - share) / of + extra / (4 * of))
    return max(0.0, (middle - half) / (1 + extra)), min(1.0, (middle + half) / (1 + extra))
