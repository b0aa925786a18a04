"""A control made of work on several cores at once: how fast they are together at the moment.

The clock (`penstock.bench.clock`) is one thread's. A virtual machine's cores may be two threads of one core of its host
at one moment and two cores at the next, and its threads may be packed onto one of them: one thread runs as fast as
before, several do not. Cells of several threads are measured beside a control of as many, and two results are compared
where theirs held still (`penstock.bench.rounds`). No division would do: where the control took 1.1 times as long, cells
took 1.2 to 1.7 times (bench/results/compare_aa.txt).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from penstock.bench import peaks

# As long as a small model's run: what threads lose by waiting for one another is in it, and what they gain.
_SIDE, _FIRST, _RUNS = 160, 3, 21


class Control:
    """One product of matrices by a runtime's threads, which share it as they share a model's.

    Args:
        threads: how many, one for each core.

    Raises:
        ImportError: there is no onnxruntime.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._run, _ = peaks.runtime_products("float32", _SIDE, threads)()

    def tick(self) -> float:
        """Seconds that it takes now: the median of some runs, the first not counted, since threads wake in them."""
        return statistics.median([self._once() for _ in range(_FIRST + _RUNS)][_FIRST:])

    def _once(self) -> float:
        started = time.perf_counter()
        self._run()
        return time.perf_counter() - started


def beside(cores: Mapping[int, int]) -> dict[int, Control]:
    """Controls of as many threads as a cell keeps cores busy, by the cell's identity; of one thread the clock is it.

    Without onnxruntime there are none.
    """
    try:
        made = {threads: Control(threads) for threads in sorted(set(cores.values())) if threads > 1}
    except ImportError:
        return {}
    return {cell: made[threads] for cell, threads in cores.items() if threads in made}
