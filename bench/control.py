"""A control made of work on several cores at once: how fast they are together at the moment.

The clock (`penstock.bench.clock`) is one thread's. A virtual machine's cores may be two threads of one core of its host
at one moment and two cores at the next, and its threads may be packed onto one of them: one thread runs as fast as
before, several do not. Cells of several threads are measured beside a control of as many, and two results are compared
where theirs held still (`penstock.bench.rounds`). No division would do: cells feel it each in its own way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

# Small enough that no BLAS gives a product to several threads; stacked, so that threads seldom wait for Python's lock.
_SIDE, _STACK, _PRODUCTS, _REPEATS = 48, 32, 5, 5
_RIGHT = np.linspace(-1, 1, _SIDE * _SIDE, dtype=np.float32).reshape(_SIDE, _SIDE)
_PATIENCE_S = 10.0

Arrays = tuple[NDArray[np.float32], NDArray[np.float32]]


class Control:
    """Threads that each do the same small matrix products, all at once; used as a context.

    Args:
        threads: how many, one for each core.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._ready = threading.Barrier(threads, timeout=_PATIENCE_S)
        left = np.linspace(-1, 1, _STACK * _SIDE * _SIDE, dtype=np.float32).reshape(_STACK, _SIDE, _SIDE)
        self._held = [(left.copy(), np.empty_like(left)) for _ in range(threads)]

    def __enter__(self) -> Control:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def tick(self) -> float:
        """Seconds that the slowest of the threads takes now: the median of five."""
        taken = np.array(list(self._pool.map(self._repeat, self._held)))
        return float(np.median(taken.max(axis=0)))

    def _repeat(self, held: Arrays) -> list[float]:
        left, out = held
        taken = []
        for _ in range(_REPEATS):
            self._ready.wait()
            started = time.perf_counter()
            for _ in range(_PRODUCTS):
                np.matmul(left, _RIGHT, out=out)
            taken.append(time.perf_counter() - started)
        return taken


def beside(cores: Mapping[int, int], stack: ExitStack) -> dict[int, Control]:
    """Controls of as many threads as a cell keeps cores busy, by the cell's identity; of one thread the clock is it."""
    made = {threads: stack.enter_context(Control(threads)) for threads in sorted(set(cores.values())) if threads > 1}
    return {cell: made[threads] for cell, threads in cores.items() if threads in made}
