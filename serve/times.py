"""How long the stages of a request took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Times:
    """Seconds: of making inputs of what was sent, of waiting for a batch, and of the batch in its runner.

    `started` and `computed`, the runner's end, are of `time.perf_counter`. Where a request is split, its parts run side
    by side: the longest counts. `rows` is how many it has, once that is known.
    """

    started: float = field(default_factory=time.perf_counter)
    decode_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0
    computed: float = 0.0
    rows: int = 0

    def ran(self, queue_s: float, compute_s: float) -> None:
        """Told by the scheduler of each part that was answered."""
        self.queue_s = max(self.queue_s, queue_s)
        self.compute_s = max(self.compute_s, compute_s)
        self.computed = time.perf_counter()

    def late(self, waited_s: float, *, queued: bool) -> None:
        """Told by the scheduler of a part that was given up: while it waited, or after it had left the queue."""
        if queued:
            self.queue_s = max(self.queue_s, waited_s)
        else:
            self.compute_s = max(self.compute_s, waited_s)

    def stages_ms(self) -> dict[str, float]:
        """Milliseconds of each stage, and in all until now: from the whole request on, making the answer included."""
        total_s = time.perf_counter() - self.started
        stages = {"decode": self.decode_s, "queue": self.queue_s, "compute": self.compute_s, "total": total_s}
        return {name: round(1000 * seconds, 3) for name, seconds in stages.items()}

    def stamps(self) -> list[dict[str, Any]]:
        """When each stage of an answered request began and ended, in nanoseconds since the epoch, in Triton's words."""
        now, epoch_ns = time.perf_counter(), time.time_ns()
        began = self.computed - self.compute_s
        moments = {
            "REQUEST_START": self.started,
            "QUEUE_START": began - self.queue_s,
            "COMPUTE_START": began,
            "COMPUTE_END": self.computed,
            "REQUEST_END": now,
        }
        return [{"name": name, "ns": epoch_ns - round(1e9 * (now - moment))} for name, moment in moments.items()]


def header(stages_ms: dict[str, float]) -> str:
    """The stages as a Server-Timing header's value."""
    return ", ".join(f"{name};dur={duration:.3f}" for name, duration in stages_ms.items())
