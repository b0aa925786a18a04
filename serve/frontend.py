"""A process that clients are connected to: python -m penstock.serve.frontend WHAT-AS-JSON, begun by the family's head.

It receives, decodes and answers; the models are the engine's, and what is no inference is the engine's to answer too.
Nothing here knows of a runtime.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import orjson
from pydantic import TypeAdapter

from penstock.serve import logs, server, supervised, telemetry, threads
from penstock.serve.access import Access
from penstock.serve.app import create_front
from penstock.serve.awake import Awake
from penstock.serve.connection import Connections
from penstock.serve.drain import Calls
from penstock.serve.forward import Forward
from penstock.serve.guard import Guard
from penstock.serve.meters import Meters
from penstock.serve.metrics import Metrics
from penstock.serve.mirror import Mirror
from penstock.serve.remote import EngineLink
from penstock.serve.requestlog import request_log
from penstock.serve.settings import Settings
from penstock.serve.sharedmemory import Regions
from penstock.serve.slots import Slots
from penstock.serve.supervised import Control, DealtServer
from penstock.serve.watch import Watch
from penstock.serve.wire import Infer


def main(text: str) -> None:
    """Answer clients until the head of the family says that it is over."""
    told = orjson.loads(text)
    control = supervised.begin(told["control"])
    settings = TypeAdapter(Settings).validate_python(told["settings"])
    logs.set_up(settings.log_format)
    FrontEnd(told, settings, control).run()
    if threads.any_stuck():
        threads.hard_end(0)


class FrontEnd:
    """One such process: its clients, and its way to the engine.

    Args:
        told: by the head of the family.
        settings: of the whole server.
        control: the way to the head.
    """

    def __init__(self, told: dict[str, Any], settings: Settings, control: Control) -> None:
        self._settings, self._control = settings, control
        self._slots = Slots(told["slots_bytes"])
        self._metrics, self._access = Metrics(), Access(settings.access, Meters(told["meters"]))
        self._watch: Watch
        self._regions = Regions(settings.bounds.shared_memory)
        self._mirror = Mirror(self._regions)
        self._running: DealtServer | None = None

    def run(self) -> None:
        settings, control = self._settings, self._control
        regions, access, repository, tracer = self._regions, self._access, self._mirror.repository, self._mirror.tracer
        with telemetry.opened(settings.otel) as spans:
            watched = (spans, request_log(settings.log_requests))
            watch = self._watch = Watch(self._metrics, tuple(told for told in watched if told is not None))
            forward = Forward(self._connect)
            infer = Infer(repository, watch, regions, tracer, settings.bounds.max_body_bytes)
            calls, beside, address = Calls(), None, settings.address
            if address.grpc_port is not None:
                service = server.rpc_module("rpcfront").FrontService(repository, regions, tracer, watch, access.gate)
                service.forward, calls = forward, service.calls
                host = f"[{address.host}]" if ":" in address.host else address.host
                beside = server.rpc_beside(
                    service, repository, f"{host}:{address.grpc_port}", settings.bounds, access, shared=True
                )
            beside = access.beside(beside)
            app = create_front(repository, settings.bounds, forward, beside, regions, watch, infer, settings.page)
            connections = Connections(app.infer, settings.connections, access.gate, self._slots.receive)
            config = server.secure(
                server.config(app if access.gate is None else Guard(app, access.gate), connections), access
            )
            running = DealtServer(config, connections, repository, calls, settings.drain, print)
            running.control, running.started_with = control, self._started
            self._running = running
            server.settle()
            running.run(sockets=[])

    def _started(self) -> None:
        self._control.follow(self._heard)
        self._control.tell("ready", [self._slots.fd])

    def _heard(self, message: dict[str, Any], descriptors: list[int]) -> None:
        assert self._running is not None
        what = message["what"]
        if what == "connection":
            self._running.deal(descriptors[0], is_over=message["is_over"])
        elif what == "alive":
            self._control.tell("alive", open=self._running.open, dealt=self._running.dealt)
        elif what == "link":
            supervised.keep(self._link_to(descriptors[0]))
        elif what == "leave":
            self._running.leave()
        elif what == "end":
            self._running.end(at_once=message["at_once"])

    async def _link_to(self, way: int) -> None:
        awake = Awake((self._settings.limits.busy_poll_us or 0) / 1e6)
        link = EngineLink(self._slots, self._changed, self._ended, self._figures, awake)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: link, socket.socket(fileno=way))

    def _changed(self, link: EngineLink, state: dict[str, Any]) -> None:
        anew = self._mirror.link is not link
        self._mirror.follow(link, state)
        if anew:
            self._control.tell("linked")

    def _ended(self, link: EngineLink) -> None:
        if self._mirror.ended(link):
            self._control.tell("cut")

    def _figures(self) -> dict[str, Any]:
        """What was counted since the engine last asked."""
        routes = self._mirror.repository.routes.held.items()
        return {
            "metrics": self._metrics.taken(),
            "slow": self._watch.slow.taken(),
            "routes": {name: route.taken() for name, route in routes},
            "slots": [self._slots.taken, self._slots.free],
            "gate": None if self._access.gate is None else self._access.gate.taken(),
        }

    def _connect(self) -> socket.socket | None:
        """One end of a connection whose other end is the engine's, if there is one."""
        own, other = socket.socketpair()
        try:
            if self._mirror.link is not None and self._control.tell("connection", [other.fileno()]):
                return own
        finally:
            other.close()
        own.close()
        return None


if __name__ == "__main__":
    main(sys.argv[1])
