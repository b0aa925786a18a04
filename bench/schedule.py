"""When requests are due in an open loop: evenly spaced, or as from many clients who know nothing of each other."""

from __future__ import annotations

import random
from collections.abc import Iterator


def constant(rate_per_s: float, part: int = 0, parts: int = 1) -> Iterator[float]:
    """Seconds from the begin of a run at which requests are due, evenly spaced.

    Args:
        rate_per_s: of all parts together.
        part: which of the parts this is, from 0 on: they take turns.
        parts: how many processes share the rate.
    """
    number = part
    while True:
        yield number / rate_per_s
        number += parts


def poisson(rate_per_s: float, part: int = 0, parts: int = 1, seed: int = 0) -> Iterator[float]:
    """The same as a Poisson process: gaps are independent, and exponential of mean 1 / rate.

    Poisson processes laid over one another are one whose rate is the sum of theirs (Kingman, Poisson Processes, 2.2),
    so each part draws for itself.
    """
    draw, due = random.Random(f"{seed}/{part}"), 0.0  # noqa: S311 (chance that is no secret)
    while True:
        due += draw.expovariate(rate_per_s / parts)
        yield due
