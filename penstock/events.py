"""Events: how long work takes on a GPU, by its own clock, without what the processor does around it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress

from penstock import cuda

_DEFAULT = 0  # cudaEventDefault: with a time, of half a microsecond's resolution


def seconds(work: Callable[[], object], stream: int = 0, times: int = 10) -> float:
    """The median of several runs of what `work` enqueues on a stream, one after the other; it has run once before.

    Raises:
        CudaError: a call failed.
    """
    start, end = (cuda.call("cudaEventCreateWithFlags", _DEFAULT) for _ in range(2))
    try:
        work()
        found = []
        for _ in range(times):
            cuda.call("cudaEventRecord", start, stream)
            work()
            cuda.call("cudaEventRecord", end, stream)
            cuda.call("cudaStreamSynchronize", stream)
            found.append(float(cuda.call("cudaEventElapsedTime", start, end)) / 1e3)
        return statistics.median(found)
    finally:
        for event in (start, end):
            with suppress(cuda.CudaError):
                cuda.call("cudaEventDestroy", event)
