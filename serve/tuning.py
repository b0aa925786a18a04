"""How many threads a runner is best given on the cores that it has: measured once for a model, and kept.

More threads are not always faster: a small model waits for them longer than they compute. The fewest that are about as
fast as the best leave the other cores to the server's sockets.
"""

from __future__ import annotations

import itertools
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
# Seconds for all runs, the first of each runner included.
_SECONDS, _MOST_ROUNDS, _LEAST_ROUNDS = 5.0, 25, 2
# What takes no longer than this times the best is as fast; medians of so few rounds tell no finer.
_AS_FAST = 1.1
_DISTURBED_CORES = 0.2
# In less than this, cores that others use cannot be told.
_LOOKED_S = 0.3


def threads(
    key: tuple[str, ...], most: int, load: Callable[[int], Runner], feed: Callable[[], Mapping[str, Any]]
) -> int:
    """The number of intra-op threads, 1 to `most`; all, and nothing kept, while others are at work on the same cores.

    All as well, and that is kept, where the model is too slow to be measured in a few seconds.

    Args:
        key: all that it depends on beside `most`: the model, the machine, the runtime.
        most: what the cores allow.
        load: makes a runner with so many threads.
        feed: makes a batch of usual size, where one is to be run.
    """
    name = cache.key(*key, str(most))
    held = cache.read(_KIND, name)
    if held is not None and held.isdigit() and 1 <= int(held) <= most:
        return int(held)
    feeds, runners = feed(), dict[int, Runner]()
    spare = (os.cpu_count() or most) - most
    try:
        spent_s = _run_first(candidates(most), load, runners, feeds)
        medians = _measured(runners, feeds, spare + _DISTURBED_CORES, _SECONDS - spent_s)
    except _Disturbed as disturbed:
        log.info("%s: all %d threads; which number is best was not measured: %s", key[0], most, disturbed)
        return most
    except _Slow as slow:
        kept = cache.write(_KIND, name, str(most).encode())
        log.info("%s: all %d threads: %s; --threads overrides it%s", key[0], most, slow, kept)
        return most
    finally:
        for runner in runners.values():
            runner.close()
    found = fewest(medians)
    told = ", ".join(f"{count}: {1000 * medians[count]:.3g} ms" for count in sorted(medians))
    kept = cache.write(_KIND, name, str(found).encode())
    log.info("%s: %d of %d threads, by a batch's time (%s); --threads overrides it%s", key[0], found, most, told, kept)
    return found


class _Disturbed(Exception):
    """Others are at work on the cores that are measured."""


class _Slow(Exception):
    """Runs take too long for as many as it needs to tell the numbers apart."""


def candidates(most: int) -> list[int]:
    """Powers of two, and the most."""
    return sorted({most, *(1 << power for power in range(most.bit_length()) if 1 << power < most)})


def fewest(medians: Mapping[int, float]) -> int:
    """The fewest threads that are about as fast as the best."""
    best = min(medians.values())
    return min(count for count, seconds in medians.items() if seconds <= _AS_FAST * best)


def _run_first(
    counts: list[int], load: Callable[[int], Runner], runners: dict[int, Runner], feeds: Mapping[str, Any]
) -> float:
    """Load and run each once, which pays for what is made once; the seconds that the runs took.

    Raises:
        _Slow: each cannot be run twice more within the seconds that there are; the rest is not even loaded.
    """
    runs, spent_s = len(counts) * (1 + _LEAST_ROUNDS), 0.0
    for count in reversed(counts):  # what is taken where nothing can be measured comes first
        runners[count] = load(count)
        started = time.perf_counter()
        runners[count].run(feeds)
        spent_s += time.perf_counter() - started
        mean_s = spent_s / len(runners)
        if mean_s * runs > _SECONDS:
            raise _Slow(f"a run takes {mean_s:.2g} s, too long for {runs} within {_SECONDS:g} s")
    return spent_s


def _measured(
    runners: Mapping[int, Runner], feeds: Mapping[str, Any], most_others: float, most_s: float
) -> dict[int, float]:
    """The median seconds of a batch by each, in turns, so that drift hits all alike.

    Raises:
        _Disturbed: others use more cores than `most_others`.
        _Slow: each is not run twice within `most_s` seconds.
    """
    samples: dict[int, list[float]] = {count: [] for count in runners}
    others, began = Others(), time.perf_counter()
    for turn in itertools.count(1):
        for count, runner in runners.items():
            started = time.perf_counter()
            if started - began > most_s:
                break
            runner.run(feeds)
            samples[count].append(time.perf_counter() - started)
        passed = time.perf_counter() - began
        # For long enough, that cores which others use can be told.
        last = passed > most_s or (turn >= _MOST_ROUNDS and passed > _LOOKED_S)
        if (last or passed > _LOOKED_S) and (used := others.cores()) > most_others:
            raise _Disturbed(f"others use {used:.1f} cores")
        if last:
            break
    if min(map(len, samples.values())) < _LEAST_ROUNDS:
        raise _Slow(f"its runs are too slow to be measured within {_SECONDS:g} s")
    return {count: statistics.median(held) for count, held in samples.items()}
