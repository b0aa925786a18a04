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
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")


def cpu_name() -> str:
    """The processor, as its maker calls it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> float:
    """The cores that this process may use: those that it is bound to, or fewer by its container's quota of time."""
    return min([float(len(os.sched_getaffinity(0))), *_cpu_quota()])


def memory_bytes() -> int:
    """The memory that this process may use: the machine's, or less by its container's limit."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits("memory", _MEMORY_LIMITS)])


def _cpu_quota() -> list[float]:
    """Cores' worth of time that control groups allow (kernel.org: cgroup-v2 `cpu.max`, v1 `cpu.cfs_quota_us`)."""
    found = []
    for folder in _groups("cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (folder / "cpu.max").read_text().split()
            found.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            found.append(int(quota) / int(period))
    return [cores for cores in found if cores > 0]


def _limits(controller: str, names: tuple[str, ...]) -> list[int]:
    found = []
    for folder in _groups(controller):
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                found.append(int((folder / name).read_text()))
    return found


def _groups(controller: str) -> list[Path]:
    """This process's control group and those above it, as they are mounted; of version 2, or a controller's own."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = _GROUPS / controller if controllers else _GROUPS
            # In a container the group is mounted as the root itself.
            inner = root / place.strip("/")
            found += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    return found


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
