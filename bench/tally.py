"""What a generator saw of a run, and what several saw together."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.bench.frames import Frame

_ARRAYS = ("latencies", "moments", "late")
_SUMS = ("client_s", "waited_s", "server_s", "queue_s", "compute_s")


@dataclass
class Tally:
    """Counts are of requests that were due while it was measured, seconds of those that were answered rightly.

    One of the warm-up that was under way when measuring began counts too if it was never answered.
    `latencies` run from the moment at which a request was due to the one at which its answer was read; `moments` are
    when they were due, in seconds from the begin of measuring. `late` is from the due moment to the sending, of those
    that had a connection. `arrived` counts right answers that were read while it was measured, whenever they were due.
    `backlogged` had no connection free when they were due. `behind_s` is how long what was due and not even looked at
    had been due when sending ended, at most. `cores` is the processor time of all processes by the
    second, `busiest` that of the busiest; `starved` the longest that one was ready to run and had no core, by the
    second (Linux, /proc/self/schedstat). `lost`: nobody answers any more; `stopped`: the caller ended it; `hopeless`:
    so many were late that it could not be met any more. `missing` processes died, or told nothing of it.
    """

    latencies: array[float] = field(default_factory=lambda: array("d"))
    moments: array[float] = field(default_factory=lambda: array("d"))
    late: array[float] = field(default_factory=lambda: array("d"))
    failures: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    arrived: int = 0
    backlogged: int = 0
    compared: int = 0
    opened: int = 0
    missing: int = 0
    timed: int = 0
    seconds: float = 0.0
    cores: float = 0.0
    busiest: float = 0.0
    starved: float = 0.0
    behind_s: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    example: str = ""
    lost: bool = False
    stopped: bool = False
    hopeless: bool = False

    def frame(self) -> Frame:
        told = {name: value for name, value in vars(self).items() if name not in _ARRAYS}
        return {"tally": told}, [getattr(self, name).tobytes() for name in _ARRAYS]

    @classmethod
    def of(cls, frame: Frame) -> Tally:
        told, parts = frame
        found = cls(**{**told["tally"], "failures": Counter(told["tally"]["failures"])})
        for name, data in zip(_ARRAYS, parts, strict=True):
            getattr(found, name).frombytes(data)
        return found


def together(tallies: Iterable[Tally]) -> Tally:
    """Several processes' tallies of one run as one; its `seconds` are the longest."""
    whole = Tally()
    for each in tallies:
        for name in _ARRAYS:
            getattr(whole, name).extend(getattr(each, name))
        whole.failures.update(each.failures)
        for name in ("requests", "arrived", "backlogged", "compared", "opened", "missing", "timed", "cores"):
            setattr(whole, name, getattr(whole, name) + getattr(each, name))
        for name, seconds in each.sums.items():
            whole.sums[name] += seconds
        for name in ("seconds", "busiest", "starved", "behind_s"):
            setattr(whole, name, max(getattr(whole, name), getattr(each, name)))
        whole.example = whole.example or each.example
        for name in ("lost", "stopped", "hopeless"):
            setattr(whole, name, getattr(whole, name) or getattr(each, name))
    return whole
