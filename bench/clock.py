"""A clock made of work: how fast this machine is at the moment, by the time of one piece of work that never changes.

Processors change their speed with heat, load and neighbours. Taken all through a measurement it says whether the
machine held still, and two measurements of different days can be set against it.
"""

from __future__ import annotations

import time

import numpy as np

# Small enough that no BLAS gives a product to several threads; some 2 ms in all.
_SIDE, _PRODUCTS, _STEPS = 48, 300, 60_000
_LEFT, _RIGHT = (np.linspace(-1, 1, _SIDE * _SIDE, dtype=np.float32).reshape(_SIDE, _SIDE) for _ in range(2))
_OUT = np.empty_like(_LEFT)


def tick() -> float:
    """Seconds that the piece of work takes now: small matrix products, and steps of Python's interpreter."""
    started = time.perf_counter()
    for _ in range(_PRODUCTS):
        np.matmul(_LEFT, _RIGHT, out=_OUT)
    total = 0
    for step in range(_STEPS):
        total += step
    return time.perf_counter() - started
