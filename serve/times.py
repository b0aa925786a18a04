"""How long the stages of a request took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Times:
    """Seconds: of making inputs of what was sent, of waiting for a batch, and of the batch in its runner.

    `started` is of `time.perf_counter`. Where a request is split, its parts run side by side: the longest counts.
    """

    started: float = field(default_factory=time.perf_counter)
    decode_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0

    def ran(self, queue_s: float, compute_s: float) -> None:
        """Told by the scheduler of each part that was answered."""
        self.queue_s = max(self.queue_s, queue_s)
        self.compute_s = max(self.compute_s, compute_s)

    def stages_ms(self) -> dict[str, float]:
        """Milliseconds of each stage, and in all until now: receiving the request and making the answer included."""
        total_s = time.perf_counter() - self.started
        stages = {"decode": self.decode_s, "queue": self.queue_s, "compute": self.compute_s, "total": total_s}
        return {name: round(1000 * seconds, 3) for name, seconds in stages.items()}


def header(stages_ms: dict[str, float]) -> str:
    """The stages as a Server-Timing header's value."""
    return ", ".join(f"{name};dur={duration:.3f}" for name, duration in stages_ms.items())
