"""Timing: runners measured in interleaved rounds, so that drift hits all alike, with raw samples kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.errors import PenstockError, first_line
from penstock.progress import bar
from penstock.runtimes import Runner

ROUNDS = 10
# Warm is who takes as long in three windows that follow each other, within 5 %; in the end one is measured anyway.
WINDOWS, WINDOW_S, STEADY = 3, 0.07, 0.05
WARMUP_MOST_S = 1.0


@dataclass
class Cell:
    """One runner at one batch size: seconds of each run, by round.

    `streams` is how many callers were at it at once, each with a runner of its own or a place in one; `spans` are the
    seconds that their rounds took from the first start to the last end. `steady` says whether the warm-up ended by
    itself, `failure` why there are no rounds. `joules` is what all rounds took, where that is known. `controls` are the
    seconds that a control took before and after each round, where one was run.
    """

    batch: int
    rounds: list[list[float]] = field(default_factory=list)
    streams: int = 1
    spans: list[float] = field(default_factory=list)
    steady: bool = True
    failure: str | None = None
    joules: float | None = None
    controls: list[tuple[float, float]] = field(default_factory=list)

    @property
    def samples(self) -> list[float]:
        return [seconds for part in self.rounds for seconds in part]

    @property
    def median(self) -> float | None:
        """Seconds, of all runs; None where there are none."""
        return float(np.median(self.samples)) if self.rounds else None

    @property
    def rows_per_second(self) -> float:
        """Of all streams together."""
        return self.batch * len(self.samples) / (sum(self.spans) if self.streams > 1 else sum(self.samples))

    def fail(self, error: Exception) -> None:
        """Note why, and forget what was measured."""
        self.failure = str(error) if isinstance(error, PenstockError) else first_line(error)
        for held in (self.rounds, self.spans, self.controls):
            held.clear()

    def ratios(self, reference: Cell) -> list[float]:
        """For each round how many times as fast as `reference` in the same one: ratios of medians."""
        return [
            float(np.median(theirs) / np.median(mine))
            for mine, theirs in zip(self.rounds, reference.rounds, strict=True)
        ]

    def speedup(self, reference: Cell) -> tuple[float, float, float]:
        """How many times as fast as `reference`: the median over rounds, and the quartiles around it."""
        low, middle, high = np.percentile(self.ratios(reference), [25, 50, 75])
        return float(middle), float(low), float(high)


@dataclass
class Work:
    """What is measured: runners, of which each stream has one to itself or shares it, and what they are fed."""

    runners: Sequence[Runner]
    feeds: dict[str, Any]
    cell: Cell


class Watch:
    """Told of every part of a measurement, to read what else there is to read then. This one does nothing."""

    def before(self, work: Work) -> None:
        """A part begins: its runs of one round, all of which count."""

    def after(self, work: Work) -> None:
        """It has ended."""

    def round(self) -> None:
        """A round has ended."""


def feeds(inputs: dict[str, Any], batch: int) -> dict[str, Any]:
    """`batch` rows of inputs, over again if there are fewer."""
    index = np.arange(batch) % len(next(iter(inputs.values())))
    return {name: np.ascontiguousarray(array[index]) for name, array in inputs.items()}


def measure(work: Sequence[tuple[Runner, dict[str, Any], Cell]], seconds: float, rounds: int = ROUNDS) -> None:
    """Run each of `work` for about `seconds` in all, in interleaved rounds, into its cell; an error ends it.

    An interrupt leaves the rounds that were finished in the cells: only whole ones count, since ratios compare round
    with round.

    Args:
        work: runners, what they are fed, and where their times go.
        seconds: of measured time for each.
        rounds: how many.
    """
    measure_all([Work((runner,), fed, cell) for runner, fed, cell in work], seconds, rounds, tolerant=False)


def measure_all(
    work: Sequence[Work], seconds: float, rounds: int = ROUNDS, *, tolerant: bool = True, watch: Watch | None = None
) -> None:
    """The same for work of several streams.

    Args:
        work: what is measured.
        seconds: of measured time for each.
        rounds: how many.
        tolerant: what fails says so in its cell, and the rest is measured.
        watch: told of every part.
    """
    watch = watch or Watch()
    most = max((one.cell.streams for one in work), default=1)
    with ThreadPoolExecutor(most) as threads, bar("measuring", len(work) * (rounds + 1)) as advance:
        for one in work:
            if one.cell.failure is None:
                with _failing(one.cell, tolerant):
                    _warm_up(one, threads)
            advance()
        for _ in range(rounds):
            part = []
            for one in work:
                if one.cell.failure is None:
                    with _failing(one.cell, tolerant):
                        part.append((one.cell, *_slice(one, threads, seconds / rounds, watch)))
                advance()
            watch.round()
            for cell, samples, span in part:
                cell.rounds.append(samples)
                cell.spans.append(span)


@contextmanager
def _failing(cell: Cell, tolerant: bool) -> Iterator[None]:
    """What fails in the block has failed for good, and what was measured of it before does not count."""
    try:
        yield
    except Exception as error:  # whatever a runtime raises
        if not tolerant:
            raise
        cell.fail(error)


def _warm_up(one: Work, threads: ThreadPoolExecutor) -> None:
    for runner in one.runners:
        runner.settled()
    end = time.perf_counter() + WARMUP_MOST_S
    medians: list[float] = []
    while True:
        medians.append(float(np.median(_spell(one, threads, WINDOW_S, least=1)[0])))
        last = medians[-WINDOWS:]
        one.cell.steady = max(last) <= min(last) * (1 + STEADY)
        if len(last) == WINDOWS and (one.cell.steady or time.perf_counter() >= end):
            return


def _slice(one: Work, threads: ThreadPoolExecutor, seconds: float, watch: Watch) -> tuple[list[float], float]:
    """The seconds of each run, for about `seconds`, but at least three runs, and those of all together.

    The run before the first is not counted: it pays for the change from another runner or batch size.
    """
    for runner in one.runners:
        runner.run(one.feeds)
    watch.before(one)
    found = _spell(one, threads, seconds, least=3)
    watch.after(one)
    return found


def _spell(one: Work, threads: ThreadPoolExecutor, seconds: float, least: int) -> tuple[list[float], float]:
    """Runs of every stream, for about `seconds`, but at least `least` of each."""
    stop = threading.Event()
    if one.cell.streams == 1:
        starts, ends = _stream(one.runners[0], one.feeds, seconds, least, stop)
    else:
        ready = threading.Barrier(one.cell.streams)
        given = [one.runners[stream % len(one.runners)] for stream in range(one.cell.streams)]
        running = [threads.submit(_stream, runner, one.feeds, seconds, least, stop, ready) for runner in given]
        try:
            done = [future.result() for future in running]
        finally:
            stop.set()
        starts, ends = ([moment for part in parts for moment in part] for parts in zip(*done, strict=True))
    return [end - start for start, end in zip(starts, ends, strict=True)], max(ends) - min(starts)


def _stream(
    runner: Runner,
    fed: dict[str, Any],
    seconds: float,
    least: int,
    stop: threading.Event,
    ready: threading.Barrier | None = None,
) -> tuple[list[float], list[float]]:
    """One caller's runs, one after the other: the moments at which they began and ended."""
    if ready is not None:
        ready.wait()
    starts: list[float] = []
    ends: list[float] = []
    last = time.perf_counter() + seconds
    while (len(starts) < least or time.perf_counter() < last) and not stop.is_set():
        started = time.perf_counter()
        runner.run(fed)
        ends.append(time.perf_counter())
        starts.append(started)
    return starts, ends
