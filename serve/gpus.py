"""GPUs of this machine, by NVML, as Prometheus' families under the names that Triton gives them.

Names and units: docs/user_guide/metrics.md in Triton's server repository. All that NVML sees is told, whatever the
server runs on. Without nvidia-ml-py, or without a driver, there is nothing to tell, and nothing is said of it.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import Metric

from penstock.serve.threads import CallThread

log = logging.getLogger(__name__)
# Reading takes a millisecond or two; a driver that hangs must not hold up whoever asks.
_WITHIN_S = 1.0
_LABEL = "gpu_uuid"


@dataclass
class Gpu:
    """One GPU: NVML's handle, its UUID, and what it had used when it was first asked, in millijoules."""

    handle: Any
    uuid: str
    energy_mj: float | None


class Gpus:
    """Reads the GPUs when it is asked to, in a thread of its own.

    Args:
        within_s: how long is waited for it; after that the figures of the reading before are told.
    """

    def __init__(self, within_s: float = _WITHIN_S) -> None:
        self._within_s = within_s
        self._thread: CallThread | None = None
        self._reading: asyncio.Future[list[Metric]] | None = None
        self._nvml: Any = None
        self._gpus: list[Gpu] = []
        self._known: list[Metric] = []
        self._absent = False

    async def families(self) -> list[Metric]:
        """The figures of every GPU; those that a GPU does not have are left out."""
        if self._absent:
            return []
        if self._reading is None:
            self._thread = self._thread or CallThread("penstock-gpus")
            self._reading = self._thread.call(self._read)
        done, _ = await asyncio.wait([self._reading], timeout=self._within_s)
        if done:
            self._known, self._reading = self._reading.result(), None
        return self._known

    def _read(self) -> list[Metric]:
        try:
            if self._nvml is None:
                self._open()
            return _families(self._nvml, self._gpus) if self._gpus else []
        except Exception as error:  # whatever a driver does, the other figures are to be told
            log.warning("the GPUs cannot be read: %s; they are left out of /metrics from now on", error)
            self._absent = True
            return []

    def _open(self) -> None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            self._absent = True
            return
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            self._absent = True
            return
        self._nvml = nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
            named = uuid.decode() if isinstance(uuid, bytes) else uuid
            self._gpus.append(Gpu(handle, named, _asked(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle)))


def _families(nvml: Any, gpus: Iterable[Gpu]) -> list[Metric]:
    said = {
        "nv_gpu_utilization": "The share of the last moments in which a kernel ran, 0 to 1.",
        "nv_gpu_memory_total_bytes": "Memory of the GPU, in bytes.",
        "nv_gpu_memory_used_bytes": "Memory in use by whomever, in bytes.",
        "nv_gpu_power_usage": "Power that is drawn, in watts.",
        "nv_gpu_power_limit": "Power that may be drawn, in watts.",
        "penstock_gpu_temperature_celsius": "Temperature of the GPU.",
        "nv_energy_consumption": "Energy used since the GPU was first asked, in joules.",
    }
    # As a counter, the last would be written under another name, one that ends in _total.
    kinds = {"nv_energy_consumption": "unknown"}
    found = {name: Metric(name, text, kinds.get(name, "gauge")) for name, text in said.items()}
    for gpu in gpus:
        for name, value in _figures(nvml, gpu).items():
            if value is not None:
                found[name].add_sample(name, {_LABEL: gpu.uuid}, value)
    return [metric for metric in found.values() if metric.samples]


def _figures(nvml: Any, gpu: Gpu) -> dict[str, float | None]:
    """One GPU's figures by their names; None for those that it does not have."""

    def asked(function: Callable[..., Any], *arguments: Any) -> Any:
        return _asked(nvml, function, gpu.handle, *arguments)

    used, memory = asked(nvml.nvmlDeviceGetUtilizationRates), asked(nvml.nvmlDeviceGetMemoryInfo)
    power, limit = asked(nvml.nvmlDeviceGetPowerUsage), asked(nvml.nvmlDeviceGetPowerManagementLimit)
    energy = asked(nvml.nvmlDeviceGetTotalEnergyConsumption)
    return {
        "nv_gpu_utilization": None if used is None else used.gpu / 100,
        "nv_gpu_memory_total_bytes": None if memory is None else memory.total,
        "nv_gpu_memory_used_bytes": None if memory is None else memory.used,
        "nv_gpu_power_usage": None if power is None else power / 1000,
        "nv_gpu_power_limit": None if limit is None else limit / 1000,
        "penstock_gpu_temperature_celsius": asked(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        "nv_energy_consumption": None if None in (energy, gpu.energy_mj) else (energy - gpu.energy_mj) / 1000,
    }


def _asked(nvml: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """What NVML answers; None where this GPU has no such figure, or will not tell it."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None
