"""A clock made of work: how fast this machine is at the moment, by the time of one piece of work that never changes.

Processors change their speed with heat, load and neighbours. Taken all through a measurement it says whether the
machine held still, and two measurements of different days can be set against it.
"""

from __future__ import annotations

import time

import numpy as np

# Small enough that no BLAS gives a product to several threads; some 2 ms in all.
_SIDE, _PRODUCTS, _REPEATS = 48, 150, 3
_LEFT, _RIGHT = (np.linspace(-1, 1, _SIDE * _SIDE, dtype=np.float32).reshape(_SIDE, _SIDE) for _ in range(2))
_OUT = np.empty_like(_LEFT)


def tick() -> float:
    """Seconds that the work takes now, small matrix products: the least of three, since one may be interrupted."""
    return min(_once() for _ in range(_REPEATS))


def _once() -> float:
    started = time.perf_counter()
    for _ in range(_PRODUCTS):
        np.matmul(_LEFT, _RIGHT, out=_OUT)
    return time.perf_counter() - started
