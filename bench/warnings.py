"""Warnings: what casts doubt on a measurement, each with what can be done about it."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock import cuda, machine
from penstock.bench import energy
from penstock.bench.contrast import FEWEST
from penstock.bench.statistics import needed

# Cores that others may have without a word, shares of time that may be stolen, and by how much a machine may change.
_OTHERS, _STOLEN, _DRIFT = 0.15, 0.01, 0.10
# A run that takes so many times the median is an outlier; one in a thousand is to be expected of any machine.
_FAR, _OUTLIERS = 3.0, 0.001
# So many of them move the median too.
_MANY = 0.05
_TICKS_S = os.sysconf("SC_CLK_TCK")
_STAT = Path("/proc/stat")
# NVML's reasons for a lower clock that a measurement suffers from: power caps, heat, and the hardware's own brakes.
_BRAKES = {0x4: "its power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "its power brake"}


@dataclass(frozen=True)
class Warning:
    """What is wrong, and what helps."""

    text: str
    remedy: str


class Lookout:
    """Watches the machine from when it is made: who else is at work, and whether the processors are slowed down."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._others = machine.Others()
        self._stolen, self._all = _stolen_s()
        self._throttled = _throttled()
        self.brakes: set[str] = set()

    def look(self) -> None:
        """See what slows a GPU at this moment; it is not told later."""
        if self._device != "cpu":
            self.brakes |= _gpu_brakes(self._device)

    def warnings(self, ticks: Sequence[float] = ()) -> list[Warning]:
        """What was seen so far.

        Args:
            ticks: seconds of the machine's clock (`penstock.bench.clock`) in each round.
        """
        found = [self._busy(), self._robbed(), self._slowed(), self._braked(), _drifted(ticks)]
        return [one for one in found if one is not None]

    def _busy(self) -> Warning | None:
        if (others := self._others.cores()) <= _OTHERS:
            return None
        return Warning(
            f"the machine was busy: other processes had {others:.1f} of {len(os.sched_getaffinity(0))} cores",
            "stop them, or measure on a machine that has nothing else to do",
        )

    def _robbed(self) -> Warning | None:
        stolen, total = _stolen_s()
        if total <= self._all or (share := (stolen - self._stolen) / (total - self._all)) <= _STOLEN:
            return None
        return Warning(
            f"the host of this virtual machine took {share:.1%} of its processors' time away",
            "measure on a host that is not shared, or compare ratios alone",
        )

    def _slowed(self) -> Warning | None:
        if (throttled := _throttled() - self._throttled) <= 0:
            return None
        return Warning(
            f"the processors were slowed down {throttled} times, by heat or by the container's share of them",
            "cool the machine, or give the container more (cpu.max), and measure again",
        )

    def _braked(self) -> Warning | None:
        if not self.brakes:
            return None
        return Warning(
            f"the GPU was slowed down by {' and '.join(sorted(self.brakes))}",
            "fix its clock below that (nvidia-smi --lock-gpu-clocks), raise the power limit, or cool it",
        )


def _drifted(ticks: Sequence[float]) -> Warning | None:
    if len(ticks) < 2 or (change := max(ticks) / min(ticks) - 1) <= _DRIFT:
        return None
    return Warning(
        f"the machine's own speed changed by {change:.0%} between rounds",
        "trust ratios rather than times; --seconds 5 or more evens it out",
    )


def of_samples(parts: Iterable[tuple[str, Sequence[float]]]) -> list[Warning]:
    """Outliers among runs.

    Args:
        parts: names of lines, and the seconds of all their runs.
    """
    worst = ("", 0.0, 0.0)
    for name, samples in parts:
        far = np.asarray(samples) > _FAR * np.median(samples)
        if len(samples) >= 100 and far.mean() > max(_OUTLIERS, worst[1]):
            worst = (name, float(far.mean()), float(np.max(samples) / np.median(samples)))
    if not worst[0]:
        return []
    feels = "the median and the ratios hardly feel it" if worst[1] <= _MANY else "so many move the median too"
    return [
        Warning(
            f"{worst[0]}: {worst[1]:.1%} of its runs took more than {_FAR:g} times the median, the longest "
            f"{worst[2]:.0f} times",
            f"keep other work off these cores (taskset, isolated cores); {feels}",
        )
    ]


def unsteady(names: Sequence[str]) -> Warning:
    """Lines whose warm-up did not end by itself."""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Warning(
        f"{names[0]}{others}: the rounds began though no three windows had come within 5 % of each other",
        "a longer --seconds; if it stays so, look at what else the machine does",
    )


def incomparable(threads: int, count: int, rounds: int) -> Warning:
    """Lines of so many threads that cannot be compared with another result's: others were at work, or it was cut."""
    of = f"of lines with {threads} thread{'s' * (threads != 1)} "
    why = "others were on the cores in the rest" if count < rounds else "it was broken off"
    return Warning(
        f"{of}{count} of {rounds} rounds can be compared with another result (--compare), which takes {FEWEST}: {why}",
        "stop what else runs, and measure again" if count < rounds else "measure again",
    )


def packed(threads: int) -> Warning:
    """Lines of several threads whose cores did not run alike all the time."""
    return Warning(
        f"the machine's speed with {threads} threads changed meanwhile: lines of so many cannot be compared with "
        "another result (--compare)",
        "--threads 1 measures what can be; or measure on a machine whose cores are its own",
    )


def beyond(name: str, share: float) -> Warning:
    """A line that is faster than it could be."""
    return Warning(
        f"{name} reaches {share:.0%} of its ceiling: this machine was slower while its peaks were measured",
        "measure again where nobody else is at work",
    )


def too_few(lines: int, of: int, fewest: int, seconds: float) -> Warning:
    """Lines that have no p99.

    Args:
        lines: how many.
        of: all there are.
        fewest: the samples of the one that has the fewest.
        seconds: what each was measured for.
    """
    enough = seconds * needed(99.0) / max(1, fewest)
    return Warning(
        f"{lines} of {of} lines have too few samples for a p99, which takes {needed(99.0)}",
        f"--seconds {max(1, math.ceil(1.1 * enough)):g} gives it to all of them",
    )


def _stolen_s() -> tuple[float, float]:
    """Seconds that a hypervisor has kept this machine's processors for others, and all their seconds (proc(5))."""
    with contextlib.suppress(OSError, ValueError):
        words = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
        return words[7] / _TICKS_S, sum(words) / _TICKS_S
    return 0.0, 0.0


def _throttled() -> int:
    """How often the cores were slowed down by heat, or the container for having used up its share."""
    count = 0
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        with contextlib.suppress(OSError, ValueError):
            count += int(path.read_text())
    with contextlib.suppress(OSError):
        told = re.search(r"^nr_throttled (\d+)$", Path("/sys/fs/cgroup/cpu.stat").read_text(), re.MULTILINE)
        count += int(told[1]) if told else 0
    return count


def _gpu_brakes(device: str) -> set[str]:
    nvml = energy.library()
    if nvml is None:
        return set()
    with contextlib.suppress(Exception):  # a GPU that does not tell
        handle = nvml.nvmlDeviceGetHandleByIndex(cuda.number(device))
        reasons = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        return {words for bit, words in _BRAKES.items() if reasons & bit}
    return set()
