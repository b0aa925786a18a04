"""The process that runs the models of a family: python -m penstock.serve.engine WHAT-AS-JSON, begun by its head.

Front ends ask it over their ways to it (serve/fronts.py), and pass on by HTTP whatever is no inference: it is the whole
server but for the clients' connections.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from penstock.errors import PenstockError
from penstock.laid import Memory
from penstock.serve import failures, gauges, kept, lifecycle, logs, server, supervised, telemetry, threads
from penstock.serve.access import Access
from penstock.serve.app import create_app
from penstock.serve.connection import Connections
from penstock.serve.drain import Calls
from penstock.serve.fronts import FrontLink, Fronts
from penstock.serve.metrics import Metrics
from penstock.serve.model import Model
from penstock.serve.requestlog import request_log
from penstock.serve.settings import Settings
from penstock.serve.sharedmemory import Regions
from penstock.serve.supervised import Control, DealtServer
from penstock.serve.threads import CallThread
from penstock.serve.tracing import Tracer
from penstock.serve.watch import Watch

log = logging.getLogger(__name__)
_GATHER_S = 0.5
# How long a front end waits at most until the runners know its memory.
_PREPARE_S = 2.0
# Front ends are asked so often what they have counted, whether or not anybody wants to know.
_EVERY_S = 15.0


def main(text: str) -> None:
    """Load the models, and answer for them until the head of the family says that it is over."""
    told = orjson.loads(text)
    control = supervised.begin(told["control"])
    settings = TypeAdapter(Settings).validate_python(told["settings"])
    logs.set_up(settings.log_format)
    try:
        serve(told, settings, control)
    except PenstockError as error:
        control.tell("failed", **failures.described(error))
    if threads.any_stuck():
        threads.hard_end(0)


def serve(told: dict[str, Any], settings: Settings, control: Control) -> None:
    """Serve until it is over.

    Raises:
        PenstockError: no model can be served.
    """
    metrics, regions = Metrics(), Regions(settings.bounds.shared_memory)
    before = kept.read(told["kept"]) if "kept" in told else None  # what the engine was that ended
    if before is None:
        tracer = Tracer(settings.trace_file)
    else:
        before.set_again(regions)
        tracer = Tracer(settings.trace_file, before.tracing, before.traces)
    access = Access(settings.access)
    with telemetry.opened(settings.otel) as spans:
        watched = (spans, request_log(settings.log_requests))
        watch = Watch(metrics, tuple(told for told in watched if told is not None))
        repository, besides = lifecycle.open_with(
            list(map(Path, told["paths"])), settings.limits, metrics, settings.lifecycle, before
        )
        server.announce(repository, functools.partial(_say, control))
        if repository.failures and not repository.models and repository.mode != "poll":  # clients may unload them all
            raise PenstockError("no model can be served; the reasons stand above")

        def counted(figures: dict[str, Any]) -> None:
            metrics.add(figures["metrics"])
            watch.slow.add(figures["slow"])
            for name, counts in figures["routes"].items():
                if name in repository.routes.held:
                    repository.routes.held[name].add(counts)
            if access.gate is not None:
                access.gate.add(figures["gate"])

        fronts = Fronts(repository, counted, tracer, regions)
        fronts.keep = kept.Keeper(control, repository, tracer, regions).keep
        metrics.include(fronts.families)
        app = create_app(
            repository,
            metrics,
            settings.bounds,
            access.beside(lifecycle.together(besides)),
            regions,
            tracer,
            gate=access.gate,
            watch=watch,
            gather=lambda: fronts.gather(_GATHER_S),
            page=settings.page,
        )
        # Of clients' connections the head sees to it that they are not too many; these are front ends'.
        connections = Connections(app.infer, replace(settings.connections, connections=sys.maxsize))
        if access.gate is not None:
            metrics.include(access.gate.families)
        config = server.config(fronts.telling(app), connections)  # front ends have asked for keys
        config.forwarded_allow_ips = "*"  # nobody else is connected: of the client's scheme and address they say it all
        running = DealtServer(config, connections, repository, Calls(), settings.drain, print)
        running.control = control
        troubles: list[str] = []
        processes: dict[str, int] = {}
        metrics.include(lambda: gauges.processes(processes))
        repository.troubles = lambda: troubles

        def heard(message: dict[str, Any], descriptors: list[int]) -> None:
            what = message["what"]
            if what == "alive":
                control.tell("alive")
                fronts.keep()
                troubles[:] = message["troubles"]
                processes.clear()
                processes.update(message["processes"])
            elif what == "link":
                supervised.keep(_linked(fronts, *descriptors))
            elif what == "connection":
                running.deal(descriptors[0])
            elif what == "leave":
                running.leave()
            elif what == "end":
                running.end(at_once=message["at_once"])

        async def gathering() -> None:
            while True:
                await asyncio.sleep(_EVERY_S)
                await fronts.gather(_GATHER_S)

        async def settled() -> None:
            if before is None:  # after a death nobody waits for that
                await asyncio.to_thread(lifecycle.settle, repository, lambda: running.should_exit)
            control.tell("ready", problems=len(repository.problems), first=next(iter(repository.models), "NAME"))

        def started() -> None:
            supervised.keep(gathering())
            fronts.keep()
            control.follow(heard)
            supervised.keep(settled())

        running.started_with = started
        server.settle(server.turn_s(settings))
        running.run(sockets=[])


def _say(control: Control, line: str) -> None:
    control.tell("say", line=line)


async def _linked(fronts: Fronts, way: int, memory: int) -> None:
    """Have a front end ask over a way of its own, with what lies in its memory."""
    connection = socket.socket(fileno=way)  # closed if anything fails, which the front end sees
    held, thread = Memory(memory), CallThread("penstock-prepare")
    prepared = thread.call(_prepare, list(fronts.repository.models.values()), held)
    thread.end()
    await asyncio.wait([prepared], timeout=_PREPARE_S)  # one that is at a long batch must not keep it from all others
    await asyncio.get_running_loop().connect_accepted_socket(lambda: FrontLink(fronts, held), connection)


def _prepare(models: list[Model], memory: Memory) -> None:
    for model in models:
        try:
            model.scheduler.prepare(memory)
        except Exception as error:  # then its runner takes requests as it can
            log.warning("%s: memory of a front end could not be prepared: %s", model.name, error)


if __name__ == "__main__":
    main(sys.argv[1])
