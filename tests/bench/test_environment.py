"""The environment, and the clock made of work."""

from __future__ import annotations

import json
import os
from datetime import datetime

import pytest

import penstock
from penstock.bench import clock, environment


def test_the_environment_names_machine_versions_and_load() -> None:
    found = environment.machine()
    assert json.loads(json.dumps(found)) == found
    assert found["penstock"] == penstock.__version__
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["versions"]["numpy"]
    assert found["cpu"]
    assert found["gpu"] is None
    assert datetime.fromisoformat(found["started"]).utcoffset() is not None


def test_a_gpu_that_is_not_there_has_no_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cuda.count", lambda: 0)
    assert environment.machine("cuda:0")["gpu"] is None


def test_the_clock_takes_some_milliseconds_and_about_as_long_each_time() -> None:
    ticks = sorted(clock.tick() for _ in range(50))
    assert 1e-4 < ticks[0] < 0.1
    assert ticks[10] < 3 * ticks[0]
