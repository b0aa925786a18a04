"""The environment, and the clock made of work."""

from __future__ import annotations

import json
import os
from datetime import datetime
from types import SimpleNamespace

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


def test_a_gpu_tells_its_clocks_and_its_power_and_what_it_does_not_tell_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*_: object) -> None:
        raise RuntimeError("not supported")

    nvml = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetClockInfo=lambda handle, kind: 1000 * kind,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetPowerManagementLimit=lambda handle: 700_000,
        nvmlDeviceGetTemperature=refuses,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=2**37),
    )
    monkeypatch.setattr("penstock.cuda.facts", lambda number: {"gpu": "H100", "driver": "580"})
    monkeypatch.setattr("penstock.bench.energy.library", lambda: nvml)
    assert environment.machine("cuda:0")["gpu"] == {
        "gpu": "H100",
        "driver": "580",
        "clock_mhz": 1000,
        "most_clock_mhz": 1980,
        "memory_clock_mhz": 2000,
        "power_limit_w": 700.0,
        "memory_bytes": 2**37,
    }


def test_the_clock_takes_some_milliseconds_and_about_as_long_each_time() -> None:
    ticks = sorted(clock.tick() for _ in range(50))
    assert 1e-4 < ticks[0] < 0.1
    assert ticks[10] < 3 * ticks[0]
