"""The environment of a measurement: what a reader must know of the machine to judge a figure, or to repeat it."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import penstock
from penstock import cuda
from penstock.bench import energy
from penstock.machine import cpu_name

_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "torch", "tensorrt", "cuda-bindings")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_CPU = Path("/sys/devices/system/cpu")


def machine(device: str = "cpu", *, gpu: bool = False) -> dict[str, Any]:
    """The machine as it is now: processor, GPU, clocks, driver, versions, load.

    Args:
        device: `cpu` or `cuda:0`.
        gpu: whether a GPU is used though the device does not say so.
    """
    load = os.getloadavg()
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "penstock": penstock.__version__,
        "python": platform.python_version(),
        "versions": _versions(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "cores_of_machine": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "governor": _word(_CPU / "cpu0/cpufreq/scaling_governor"),
        "clock_mhz": _clock_mhz(),
        "load_1min": round(load[0], 2),
        "load_5min": round(load[1], 2),
        "thread_variables": {name: os.environ[name] for name in _THREADS if name in os.environ},
        "gpu": _gpu(cuda.number(device)) if gpu or device != "cpu" else None,
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _clock_mhz() -> float | None:
    """The clock of the fastest core at the moment, in MHz."""
    with contextlib.suppress(OSError, ValueError):
        told = [int(path.read_text()) / 1e3 for path in _CPU.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")]
        if told:
            return round(max(told), 1)
        told = [float(mhz) for mhz in re.findall(r"cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text())]
        return round(max(told), 1) if told else None
    return None


def _word(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return None


def _gpu(number: int) -> dict[str, Any] | None:
    """CUDA's facts, and NVML's clocks in MHz, power limit in watts, and temperature, where it tells them."""
    facts = cuda.facts(number)
    nvml = energy.library() if facts is not None else None
    if facts is None or nvml is None:
        return facts
    with contextlib.suppress(Exception):  # NVML may not have a GPU that CUDA has
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        asked: dict[str, Callable[[], Any]] = {
            "clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "most_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3,
            "celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "memory_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        }
        for name, ask in asked.items():
            with contextlib.suppress(Exception):  # a figure that this GPU does not have
                facts[name] = ask()
    return facts
