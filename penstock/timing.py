"""Timing: runners measured in interleaved rounds, so that drift hits all alike, with raw samples kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.progress import bar
from penstock.runtimes import Runner

ROUNDS = 10
WARMUP_RUNS, WARMUP_S = 3, 0.2
# Below this many samples the 99th percentile is one of the last few values, and says nothing.
MIN_FOR_P90, MIN_FOR_P99 = 20, 200


@dataclass
class Cell:
    """One runner at one batch size: seconds of each run, by round."""

    batch: int
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def samples(self) -> list[float]:
        return [seconds for part in self.rounds for seconds in part]

    def percentile(self, q: float) -> float | None:
        """Seconds; None where there are too few samples for that percentile to mean anything."""
        needed = {50.0: 1, 90.0: MIN_FOR_P90, 99.0: MIN_FOR_P99}[q]
        return float(np.percentile(self.samples, q)) if len(self.samples) >= needed else None

    @property
    def rows_per_second(self) -> float:
        return self.batch * len(self.samples) / sum(self.samples)

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


def feeds(inputs: dict[str, Any], batch: int) -> dict[str, Any]:
    """`batch` rows of inputs, over again if there are fewer."""
    index = np.arange(batch) % len(next(iter(inputs.values())))
    return {name: np.ascontiguousarray(array[index]) for name, array in inputs.items()}


def measure(work: Sequence[tuple[Runner, dict[str, Any], Cell]], seconds: float, rounds: int = ROUNDS) -> None:
    """Run each of `work` for about `seconds` in all, in interleaved rounds, into its cell.

    An interrupt leaves the rounds that were finished in the cells: only whole ones count, since ratios compare round
    with round.

    Args:
        work: runners, what they are fed, and where their times go.
        seconds: of measured time for each.
        rounds: how many.
    """
    with bar("measuring", len(work) * (rounds + 1)) as advance:
        for runner, fed, _ in work:
            _warm_up(runner, fed)
            advance()
        for _ in range(rounds):
            part = []
            for runner, fed, cell in work:
                part.append((cell, _slice(runner, fed, seconds / rounds)))
                advance()
            for cell, samples in part:
                cell.rounds.append(samples)


def _warm_up(runner: Runner, fed: dict[str, Any]) -> None:
    runner.settled()
    end = time.perf_counter() + WARMUP_S
    runs = 0
    while runs < WARMUP_RUNS or time.perf_counter() < end:
        runner.run(fed)
        runs += 1


def _slice(runner: Runner, fed: dict[str, Any], seconds: float) -> list[float]:
    """The seconds of each run, for about `seconds`, but at least three runs.

    The run before the first is not counted: it pays for the change from another runner or batch size.
    """
    runner.run(fed)
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < 3 or time.perf_counter() < end:
        started = time.perf_counter()
        runner.run(fed)
        samples.append(time.perf_counter() - started)
    return samples
