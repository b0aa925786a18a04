"""What this machine is, and how busy others keep it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock import machine
from penstock.machine import Others, cpu_name


def test_the_processor_has_a_name() -> None:
    assert cpu_name()


@pytest.mark.parametrize(
    ("groups", "files"),
    {
        "version 2": ("0::/a/b\n", {"a/memory.max": "1000000", "a/b/memory.max": "max", "a/cpu.max": "5000 10000"}),
        "version 2, in a container": ("0::/\n", {"memory.max": "1000000", "cpu.max": "5000 10000"}),
        "version 1": (
            "4:memory:/a\n3:cpu,cpuacct:/a\n0::/\n",
            {
                "memory/a/memory.limit_in_bytes": "1000000",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/a/cpu.cfs_quota_us": "5000",
                "cpu/a/cpu.cfs_period_us": "10000",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "10000",
            },
        ),
    }.values(),
    ids=["2", "2 in a container", "1"],
)
def test_a_containers_limits_of_memory_and_cores_are_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str]
) -> None:
    for name, content in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{content}\n")
    (tmp_path / "cgroup").write_text(groups)
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "cgroup")
    assert machine.memory_bytes() == 1_000_000
    assert machine.cores() == 0.5


def test_without_limits_all_memory_and_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "none")
    assert machine.memory_bytes() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.cores() == len(os.sched_getaffinity(0))


def test_cores_that_others_use_are_counted_and_its_own_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, own = iter([100.0, 103.0]), iter([5.0, 6.0])
    monkeypatch.setattr(machine, "_busy_s", lambda: next(busy))
    monkeypatch.setattr(time, "process_time", lambda: next(own))
    now = iter([0.0, 1.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    assert Others().cores() == 2.0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the figures are Linux's")
def test_a_process_that_is_at_work_is_seen() -> None:
    others = Others()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        time.sleep(1.0)
        found = others.cores()
        busy.kill()
    assert found > 0.3


def test_where_nothing_tells_nobody_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_busy_s", lambda: None)
    assert Others().cores() == 0.0
