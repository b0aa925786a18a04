"""What this machine is."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from pathlib import Path

_TICKS_S = os.sysconf("SC_CLK_TCK")
# Of /proc/stat's first line: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE = (3, 4)


def cpu_name() -> str:
    """The processor, as its maker calls it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class Others:
    """How many cores were in use by other processes, from when it is made on, by Linux's /proc/stat (proc(5))."""

    def __init__(self) -> None:
        self._busy, self._own, self._since = _busy_s(), time.process_time(), time.perf_counter()

    def cores(self) -> float:
        """Those in use, on average; 0 where it cannot be told."""
        passed, busy = self._seen()
        return 0.0 if busy is None else max(0.0, busy - (time.process_time() - self._own)) / passed

    def all_cores(self) -> float | None:
        """How many were in use by anybody, this process too; None where it cannot be told."""
        passed, busy = self._seen()
        return None if busy is None else busy / passed

    def _seen(self) -> tuple[float, float | None]:
        """Seconds that have passed, and that all cores were at work meanwhile."""
        passed, busy = time.perf_counter() - self._since, _busy_s()
        return passed, None if self._busy is None or busy is None or passed <= 0 else busy - self._busy


def _busy_s() -> float | None:
    """Seconds that all cores have been at work, stolen ones included."""
    with contextlib.suppress(OSError, ValueError):
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        return sum(int(word) for index, word in enumerate(words) if index not in _IDLE) / _TICKS_S
    return None
