"""The conditions that a server was measured under, as far as this machine can tell, and its own speed meanwhile."""

from __future__ import annotations

import os
import platform
import time
from datetime import datetime, timezone
from typing import Any

import penstock
from penstock.machine import cpu_name

_WORK = 200_000


def environment() -> dict[str, Any]:
    """Of the machine that the generators run on."""
    return {
        "penstock": penstock.__version__,
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": cores(),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def clock_s() -> float:
    """The seconds that a fixed piece of work takes here, the best of three: the machine's own speed at the moment."""
    return min(_worked() for _ in range(3))


def _worked() -> float:
    began, value = time.perf_counter(), 0
    for number in range(_WORK):
        value = (value + number) & 0xFFFF
    return time.perf_counter() - began


def busy_cores() -> float | None:
    """How many cores are at work on average over a tenth of a second, before a run; None where that is not told."""
    before = ticks()
    time.sleep(0.1)
    share = busy_share(before)
    return None if share is None else share * (os.cpu_count() or 1)


def busy_share(before: tuple[int, int] | None) -> float | None:
    """How much of all cores was at work since `ticks` gave `before`; None where that is not told."""
    now = ticks()
    if before is None or now is None or now[1] == before[1]:
        return None
    return (now[0] - before[0]) / (now[1] - before[1])


def ticks() -> tuple[int, int] | None:
    """Busy and all ticks of all cores since the start (Linux, /proc/stat)."""
    try:
        with open("/proc/stat") as file:  # noqa: PTH123
            fields = [int(field) for field in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(fields) - fields[3] - fields[4], sum(fields)
