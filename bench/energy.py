"""Energy: joules that a GPU or the processors have used, by NVML and by Linux's powercap, where they tell.

Both count all that the device does, for whomever, idling included. NVML's counter
(nvmlDeviceGetTotalEnergyConsumption, from Volta on) is in millijoules; powercap's energy_uj in microjoules, of a whole
package, and starts anew past max_energy_range_uj (the kernel's power/powercap documentation). Reading that takes root.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import cuda

_POWERCAP = Path("/sys/class/powercap")


class Meter:
    """Joules since it was made; `source` names where they come from, and is None where nothing tells.

    Args:
        device: `cuda:0`; for `cpu` the processors' packages.
    """

    def __init__(self, device: str, powercap: Path = _POWERCAP) -> None:
        self.source: str | None = None
        self._reads: list[Callable[[], float]] = []
        if device == "cpu":
            self._reads = [read for zone in sorted(powercap.glob("intel-rapl:?")) if (read := _package(zone))]
            self.source = "RAPL" if self._reads else None
        elif (read := _gpu(cuda.number(device))) is not None:
            self._reads, self.source = [read], "NVML"

    def joules(self) -> float | None:
        """Used so far; None where nothing tells."""
        if self.source is None:
            return None
        try:
            return sum(read() for read in self._reads)
        except Exception:  # a driver that stops telling
            self.source = None
            return None


def _package(zone: Path) -> Callable[[], float] | None:
    """What tells the joules of a package since now, or None where it may not be read."""
    try:
        last, most = int((zone / "energy_uj").read_text()), int((zone / "max_energy_range_uj").read_text())
    except (OSError, ValueError):
        return None
    used = 0

    def read() -> float:
        nonlocal last, used
        now = int((zone / "energy_uj").read_text())
        used += now - last if now >= last else now - last + most
        last = now
        return used / 1e6

    return read


def _gpu(number: int) -> Callable[[], float] | None:
    nvml = library()
    if nvml is None:
        return None
    with contextlib.suppress(Exception):  # a GPU without the counter, or of another number than CUDA's
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        first = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle) - first) / 1e3
    return None


def library() -> Any:
    """NVML's module, ready to be asked, or None where it or a driver is missing."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or no driver
        return None
    return nvml
