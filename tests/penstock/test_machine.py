"""What this machine is, and how busy others keep it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock import machine
from penstock.machine import Others, cpu_name


def test_the_processor_has_a_name() -> None:
    assert cpu_name()


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
