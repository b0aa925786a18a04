"""How many threads a runner is best given on the cores that it has: measured once for a model, and kept.

More threads are not always faster: a small model waits for them longer than they compute. The fewest that are about as
fast as the best leave the other cores to the server's sockets.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock import cache
from penstock.machine import Others
from penstock.runtimes import Runner

log = logging.getLogger(__name__)
_KIND = "threads"
_SECONDS, _MOST_ROUNDS, _LEAST_ROUNDS = 5.0, 25, 3
# What takes no longer than this times the best is as fast; medians of so few rounds tell no finer.
_AS_FAST = 1.1
_DISTURBED_CORES = 0.2
# In less than this, cores that others use cannot be told.
_LOOKED_S = 0.3


def threads(key: tuple[str, ...], most: int, load: Callable[[int], Runner], feeds: Mapping[str, Any]) -> int:
    """The number of intra-op threads, 1 to `most`; all, and nothing kept, while others are at work on the same cores.

    Args:
        key: all that it depends on beside `most`: the model, the machine, the runtime.
        most: what the cores allow.
        load: makes a runner with so many threads.
        feeds: a batch of usual size.
    """
    name = cache.key(*key, str(most))
    held = cache.read(_KIND, name)
    if held is not None and held.isdigit() and 1 <= int(held) <= most:
        return int(held)
    runners: dict[int, Runner] = {}
    spare = (os.cpu_count() or most) - most
    try:
        for count in candidates(most):
            runners[count] = load(count)
        medians = _measured(runners, feeds, spare + _DISTURBED_CORES)
    except _Disturbed as disturbed:
        log.info("%s: %d threads; which number is best is not measured: %s", key[0], most, disturbed)
        return most
    finally:
        for runner in runners.values():
            runner.close()
    found = fewest(medians)
    told = ", ".join(f"{count}: {1000 * seconds:.3g} ms" for count, seconds in medians.items())
    log.info("%s: %d threads of %d (%s); --threads overrides it", key[0], found, most, told)
    cache.write(_KIND, name, str(found).encode())
    return found


class _Disturbed(Exception):
    """Others are at work on the cores that are measured."""


def candidates(most: int) -> list[int]:
    """Powers of two, and the most."""
    return sorted({most, *(1 << power for power in range(most.bit_length()) if 1 << power < most)})


def fewest(medians: Mapping[int, float]) -> int:
    """The fewest threads that are about as fast as the best."""
    best = min(medians.values())
    return min(count for count, seconds in medians.items() if seconds <= _AS_FAST * best)


def _measured(runners: Mapping[int, Runner], feeds: Mapping[str, Any], most_others: float) -> dict[int, float]:
    """The median seconds of a batch by each, in turns, so that drift hits all alike.

    Raises:
        _Disturbed: others use more cores than `most_others`.
    """
    samples: dict[int, list[float]] = {count: [] for count in runners}
    for runner in runners.values():
        runner.run(feeds)  # the first pays for what is made once
    others, began = Others(), time.perf_counter()
    for turn in range(_MOST_ROUNDS):
        passed = time.perf_counter() - began
        if turn >= _LEAST_ROUNDS and passed > _SECONDS:
            break
        for count, runner in runners.items():
            started = time.perf_counter()
            runner.run(feeds)
            samples[count].append(time.perf_counter() - started)
        if (passed > _LOOKED_S or turn == _MOST_ROUNDS - 1) and (used := others.cores()) > most_others:
            raise _Disturbed(f"others use {used:.1f} cores")
    return {count: statistics.median(held) for count, held in samples.items()}
