"""Energy: RAPL's counters added up, past their ends, and nothing where nothing tells."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from penstock.bench.energy import Meter


def package(folder: Path, number: int, used: int, most: int = 1_000_000) -> Path:
    zone = folder / f"intel-rapl:{number}"
    zone.mkdir()
    (zone / "energy_uj").write_text(f"{used}\n")
    (zone / "max_energy_range_uj").write_text(f"{most}\n")
    return zone


def test_packages_are_added_up_and_a_counter_may_start_anew(tmp_path: Path) -> None:
    first, second = package(tmp_path, 0, 900_000), package(tmp_path, 1, 0)
    meter = Meter("cpu", tmp_path)
    assert (meter.source, meter.joules()) == ("RAPL", 0.0)
    (first / "energy_uj").write_text("100000")
    (second / "energy_uj").write_text("300000")
    assert meter.joules() == pytest.approx(0.5)
    (first / "energy_uj").write_text("200000")
    assert meter.joules() == pytest.approx(0.6)


def test_where_nothing_tells_there_are_no_joules(tmp_path: Path) -> None:
    assert (Meter("cpu", tmp_path / "none").source, Meter("cpu", tmp_path / "none").joules()) == (None, None)
    zone = package(tmp_path, 0, 5)
    meter = Meter("cpu", tmp_path)
    (zone / "energy_uj").unlink()
    assert (meter.joules(), meter.source) == (None, None)


class Nvml(ModuleType):
    """NVML with one GPU that has used `mj` millijoules."""

    mj = 5_000

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByIndex(self, number: int) -> SimpleNamespace:
        return SimpleNamespace(number=number)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: SimpleNamespace) -> int:
        if handle.number:
            raise RuntimeError("not supported")
        return self.mj


def test_a_gpu_tells_millijoules(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    meter = Meter("cuda:0")
    nvml.mj = 7_500
    assert (meter.source, meter.joules()) == ("NVML", 2.5)
    assert Meter("cuda:1").source is None
