"""The highest rate at which a server keeps a limit: bracketed by steps, halved, and confirmed by a longer run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_STEP, _LARGEST_STEP, _NEAR, _BACK = 1.6, 6.0, 1.05, 0.95
_MOST_STEPS, _MOST_CONFIRMED = 24, 5
# Void runs in a row, with none before them that kept the limit, after which lower rates are not tried either.
_MOST_VOID = 4


@dataclass(frozen=True)
class Verdict:
    """Whether a run at a rate kept the limit; `void` where the generator was what could not."""

    kept: bool
    void: bool = False


@dataclass
class Found:
    """The highest rate that kept the limit when it was confirmed, None where none did.

    `probed_per_s` is the highest that a short run kept, `refuted_per_s` are those at which longer runs did not keep it.
    `gives_out_per_s` is the rate at which the generator was the limit, and ended the search: the server may do more.
    `tried` are rates and verdicts, in order.
    """

    rate_per_s: float | None = None
    gives_out_per_s: float | None = None
    probed_per_s: float | None = None
    refuted_per_s: list[float] = field(default_factory=list)
    tried: list[tuple[float, Verdict]] = field(default_factory=list)


def highest(
    start_per_s: float, probe: Callable[[float], Verdict], confirm: Callable[[float], Verdict], least_per_s: float = 1.0
) -> Found:
    """The highest rate that keeps a limit, to a twentieth.

    From `start_per_s` on, up by steps while it is kept or down until it is, of 1.6 at first and longer then; then the
    middle (geometric) of the highest that kept it and the lowest that did not, until they are within a twentieth. The
    last that kept it is run for longer, and a twentieth less where that fails, five times in all: a short run may have
    had luck. A void run says nothing of the server: its rate is not kept, whatever its latencies were.

    Args:
        start_per_s: a guess.
        probe: a short run at a rate.
        confirm: a longer one.
        least_per_s: the lowest rate tried.
    """
    found = Found()

    def tried(run: Callable[[float], Verdict], rate: float) -> bool:
        verdict = run(rate)
        found.tried.append((rate, verdict))
        good = verdict.kept and not verdict.void
        if not good:  # of those that fail the last is the lowest
            found.gives_out_per_s = rate if verdict.void else None
        return good

    low, high, rate, step = 0.0, float("inf"), max(start_per_s, least_per_s), _STEP
    for _ in range(_MOST_STEPS):
        if tried(probe, rate):
            low = rate
        else:
            high = rate
            last = [verdict.void for _, verdict in found.tried[-_MOST_VOID:]]
            if rate <= least_per_s or (low <= 0 and len(last) == _MOST_VOID and all(last)):
                break
        if low > 0 and high / low <= _NEAR:
            break
        if low > 0 and high < float("inf"):
            rate = (low * high) ** 0.5
        else:
            rate = rate * step if low > 0 else max(rate / step, least_per_s)
            step = min(step * step, _LARGEST_STEP)
    found.probed_per_s, rate = low or None, low
    for _ in range(_MOST_CONFIRMED):
        if rate < least_per_s:
            break
        if tried(confirm, rate):
            found.rate_per_s = rate
            break
        found.refuted_per_s.append(rate)
        rate *= _BACK
    return found


def refuted(probed_per_s: float, longer_per_s: Sequence[float]) -> str:
    """That a short run kept the limit, and no longer one did, with what helps.

    Args:
        probed_per_s: the rate that a probe kept.
        longer_per_s: those of the longer runs.
    """
    low, high = (f"{rate:,.6g}" for rate in (min(longer_per_s), max(longer_per_s)))
    several = len(longer_per_s) > 1
    longer = f"{len(longer_per_s)} longer runs from {low} to {high}/s" if several else f"a longer run at {low}/s"
    return (
        f"a probe kept {probed_per_s:,.6g}/s, and {longer} did not; run it again on a machine "
        "that is idle, or with longer --seconds"
    )
