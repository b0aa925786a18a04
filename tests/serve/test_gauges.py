"""Instances, sizes of models, and the server's own process in /metrics."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PenstockError
from penstock.runtimes import InstanceDead
from penstock.serve import drift, gauges
from penstock.serve.fronts import Fronts
from penstock.serve.gate import Gate
from penstock.serve.gpus import Gpus
from penstock.serve.repository import Repository
from penstock.serve.scheduler import Scheduler
from penstock.serve.sharedmemory import Regions
from penstock.serve.tracing import Tracer
from tests.serve.test_gpus import FakeNvml

if TYPE_CHECKING:
    from tests.serve.conftest import Server

NAME = "digits-onnx-fp32"


def test_instances_are_busy_idle_or_dead() -> None:
    gate, dying = threading.Event(), threading.Event()

    def function(items: list[Any]) -> list[Any]:
        gate.wait(10)
        if items == ["deadly"] and not dying.is_set():
            dying.set()
            raise InstanceDead("gone")
        return items

    made = 0

    def make() -> Any:
        nonlocal made
        made += 1
        if made == 3:
            raise PenstockError("not yet")
        return function

    async def scenario() -> None:
        scheduler = Scheduler(make, max_batch=1, max_queue_rows=9, instances=2)
        assert scheduler.states == {"busy": 0, "idle": 2, "dead": 0}
        deadly = asyncio.ensure_future(scheduler.submit("deadly"))
        await asyncio.sleep(0.05)
        assert scheduler.states == {"busy": 1, "idle": 1, "dead": 0}
        gate.set()
        await deadly
        assert scheduler.states == {"busy": 0, "idle": 1, "dead": 1}
        while not scheduler.healthy:
            await asyncio.sleep(0.05)
        assert scheduler.states["dead"] == 0
        await scheduler.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_the_page_on_observability_names_every_metric(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    server.ask("POST", f"/v2/models/{NAME}/infer", {})
    exposed = {line.split()[2] for line in server.ask("GET", "/metrics").body.decode().splitlines() if "# HELP" in line}
    exposed |= {metric.name for metric in asyncio.run(Gpus().families())}
    exposed |= {f"{metric.name}_total" for metric in Gate([]).families()}  # as it is written down
    fronts = Fronts(Repository(), lambda _: None, Tracer(), Regions())
    exposed |= {metric.name for metric in fronts.families()}
    several = {metric.name: metric.type for metric in gauges.processes({"head": os.getpid()})}
    exposed |= {f"{name}_total" if kind == "counter" else name for name, kind in several.items()}
    shadowed = {metric.name: metric.type for metric in drift.families([])}
    exposed |= {f"{name}_total" if kind == "counter" else name for name, kind in shadowed.items()}
    assert {"penstock_requests_total", "nv_inference_count", "process_open_fds", "nv_gpu_power_usage"} <= exposed
    page = (Path(__file__).parents[2] / "docs/observability.md").read_text()
    named = {
        name
        for line in page.splitlines()
        if line.startswith("| `")
        for name in re.findall("`(\\w+)`", line.split("|")[1])
    }
    assert named == exposed


def test_a_server_tells_its_instances_its_models_sizes_and_its_memory(server: Server, served_repository: Path) -> None:
    labels = f'model="{NAME}"'
    states = {
        state: f'penstock_instances{{{labels},state="{state}",version="1"}}' for state in ("busy", "idle", "dead")
    }
    assert [server.metric(states[state]) for state in ("busy", "idle", "dead")] == [0, 1, 0]
    model = served_repository / NAME / "1" / "model.onnx"
    size = server.metric(f'penstock_model_file_bytes{{{labels},version="1"}}')
    assert size == pytest.approx(model.stat().st_size, rel=0.1)
    resident = server.metric("process_resident_memory_bytes")
    told = next(line for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines() if "VmRSS" in line)
    assert resident == pytest.approx(1024 * int(told.split()[1]), rel=0.2)
    assert server.metric("process_cpu_seconds_total") > 0
    assert server.metric("process_open_fds") > 0


def test_each_process_of_a_family_has_its_series_and_one_that_is_gone_has_none() -> None:
    found = {metric.name: metric for metric in gauges.processes({"head": os.getpid(), "front-end-0": 2**22 + 1})}
    memory = found["penstock_process_resident_memory_bytes"]
    assert [sample.labels for sample in memory.samples] == [{"process": "head"}]
    assert memory.samples[0].value > 2**20
    assert [sample.name for sample in found["penstock_process_cpu_seconds"].samples] == [
        "penstock_process_cpu_seconds_total"
    ]
