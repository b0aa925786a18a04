"""GPUs by NVML: a module that stands in for pynvml, as there is no GPU where tests run."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import Metric

from penstock.serve.gpus import Gpus


class FakeNvml(ModuleType):
    """Two GPUs; the second has no figures of energy, as old ones do."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        """As pynvml's."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.driver, self.energy_mj, self.hanging, self.calls = True, 5_000_000, threading.Event(), 0
        self.hanging.set()

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("no driver")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:
        return b"GPU-old" if handle else "GPU-new"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self.calls += 1
        self.hanging.wait(20)
        return SimpleNamespace(gpu=75, memory=10)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=8 * 2**30, used=2**30, free=7 * 2**30)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 123_000

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        return 300_000

    def nvmlDeviceGetTemperature(self, handle: int, kind: int) -> int:
        return 61

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        if handle:
            raise self.NVMLError("not supported")
        return self.energy_mj


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def values(families: list[Metric]) -> dict[tuple[str, str], float]:
    return {(sample.name, sample.labels["gpu_uuid"]): sample.value for found in families for sample in found.samples}


def test_figures_stand_under_tritons_names_and_in_its_units(nvml: FakeNvml) -> None:
    async def scenario() -> dict[tuple[str, str], float]:
        gpus = Gpus()
        await gpus.families()
        nvml.energy_mj += 2500
        return values(await gpus.families())

    found = asyncio.run(scenario())
    assert {name: value for (name, uuid), value in found.items() if uuid == "GPU-new"} == {
        "nv_gpu_utilization": 0.75,
        "nv_gpu_memory_total_bytes": 8 * 2**30,
        "nv_gpu_memory_used_bytes": 2**30,
        "nv_gpu_power_usage": 123,
        "nv_gpu_power_limit": 300,
        "penstock_gpu_temperature_celsius": 61,
        "nv_energy_consumption": 2.5,
    }


def test_a_figure_that_a_gpu_does_not_have_is_left_out(nvml: FakeNvml) -> None:
    found = values(asyncio.run(Gpus().families()))
    assert ("nv_energy_consumption", "GPU-old") not in found
    assert found["nv_gpu_utilization", "GPU-old"] == 0.75


def test_a_driver_that_hangs_holds_nobody_up_and_is_asked_once(nvml: FakeNvml) -> None:
    async def scenario() -> None:
        gpus = Gpus(within_s=0.1)
        first = values(await gpus.families())
        nvml.hanging.clear()
        calls, started = nvml.calls, time.monotonic()
        for _ in range(3):
            assert values(await gpus.families()) == first
        assert time.monotonic() - started < 5
        assert nvml.calls == calls + 1
        nvml.hanging.set()
        assert values(await gpus.families()).keys() == first.keys()

    asyncio.run(scenario())


def test_the_event_loop_goes_on_while_gpus_are_read(nvml: FakeNvml) -> None:
    async def scenario() -> None:
        nvml.hanging.clear()
        reading = asyncio.ensure_future(Gpus(within_s=10).families())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not reading.done()
        nvml.hanging.set()
        assert values(await reading)

    asyncio.run(scenario())


def test_without_a_driver_or_without_the_package_there_is_nothing_to_tell(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nvml.driver = False
    assert asyncio.run(Gpus().families()) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert asyncio.run(Gpus().families()) == []
    assert not caplog.records


def test_whatever_else_fails_is_logged_once_and_left_out(nvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    nvml.nvmlDeviceGetCount = lambda: 1 // 0  # type: ignore[method-assign]
    gpus = Gpus()

    async def scenario() -> None:
        for _ in range(3):
            assert await gpus.families() == []

    asyncio.run(scenario())
    assert len(caplog.records) == 1
