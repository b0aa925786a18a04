"""Running a server: load, bind, serve, drain."""

from __future__ import annotations

import importlib
import logging
import math
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvicorn

from penstock.errors import PenstockError
from penstock.serve import threads
from penstock.serve.app import Beside, create_app
from penstock.serve.connection import ConnectionLimits, Connections
from penstock.serve.drain import Calls, DrainingServer, DrainLimits, end_process
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model
from penstock.serve.predict import Bounds
from penstock.serve.repository import Repository, open_repository
from penstock.serve.sharedmemory import Regions
from penstock.serve.tracing import Tracer

BACKLOG = 2048


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 takes any that is free. Without a `grpc_port` there is no gRPC."""

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None


@dataclass(frozen=True)
class Settings:
    """All that `penstock serve` is told but the models: where it listens, how they run, what clients may do.

    `trace_file` is where the protocol's trace extension writes.
    """

    address: Address = field(default_factory=Address)
    limits: Limits = field(default_factory=Limits)
    bounds: Bounds = field(default_factory=Bounds)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    trace_file: Path | None = None
    drain: DrainLimits = field(default_factory=DrainLimits)


def serve(paths: list[Path], settings: Settings, say: Callable[[str], None]) -> int:
    """Serve the models under `paths` until SIGTERM or SIGINT, then finish what is under way.

    Returns how many requests were received and not answered: 0, unless what was under way took too long.

    Raises:
        PenstockError: no model can be served, the address is taken, or the trace file cannot be written.
    """
    _log_to_stderr()
    address, limits, bounds = settings.address, settings.limits, settings.bounds
    metrics, regions, tracer = Metrics(), Regions(bounds.shared_memory), Tracer(settings.trace_file)
    listener = _bind(address)
    with listener, _kept(address) as grpc_port:
        repository = open_repository(paths, limits, metrics)
        _announce(repository, say)
        if not repository.models:
            raise PenstockError("no model can be served; the reasons stand above")
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        state = "listening, but not ready," if repository.problems else "ready"
        beside, calls = None, Calls()
        if grpc_port is not None:
            service = _rpc().Service(repository, regions, tracer)
            calls = service.calls
            beside = _beside(service, repository, metrics, f"{shown}:{grpc_port.free()}", bounds)
        app = create_app(repository, metrics, bounds, beside, regions, tracer)
        connections = Connections(app.infer, settings.connections)
        config = uvicorn.Config(
            app,
            http=connections,  # type: ignore[arg-type] # called, as a class would be
            # Its warnings are of what clients send, who are told themselves.
            log_level="error",
            ws="none",
            access_log=False,
            server_header=False,
            # Idle connections are looked after by their own protocol, in whose hands they are.
            timeout_keep_alive=math.ceil(settings.connections.idle_s),
        )
        server = DrainingServer(config, connections, repository, calls, settings.drain, say)
        # uvicorn drains on these, then raises the signal anew for whoever had it before; a drained server has
        # nothing left to end, and one that is told to stop before it has begun stops too.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, server.handle_exit)
        _listen(listener, address)  # from here on a client that comes waits; before, it would be refused
        first = next(iter(repository.models))
        also = "" if grpc_port is None else f", gRPC at {shown}:{grpc_port.number}"
        say(f"{state} at http://{shown}:{port}  (POST /predict/{first}, GET /docs, GET /metrics){also}")
        server.run(sockets=[listener])
    if threads.any_stuck():
        end_process(server.lost)
    return server.lost


def _log_to_stderr() -> None:
    """Where what the logging extension lets through is to be seen; without a handler only warnings would be."""
    log = logging.getLogger("penstock")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.propagate = False


def _announce(repository: Repository, say: Callable[[str], None]) -> None:
    for model in repository.models.values():
        say(f"serving {model.name} version {model.version}: {_described(model)}")
    for name, reason in repository.failures.items():
        say(f"NOT serving {name}: {reason}")
    if repository.failures and repository.models:
        say("the server is not ready while a declared model is missing; name the folders to serve to leave it out")


def _described(model: Model) -> str:
    receipt = model.receipt
    if receipt is None:
        alone = (
            "" if model.signature.batch else "; each request runs alone, as its rows hang on one another or are none"
        )
        return f"bare ONNX file, unverified: no receipt vouches for its answers{alone}"
    run = "verified" if receipt.verification.real else "verified on synthetic samples"
    if not receipt.verification.engine_run:
        run = "its engine was never run before"
    return (
        f"{receipt.format} {receipt.precision} by {receipt.runtime}, {run}, batches up to {model.signature.max_batch}"
    )


class _Kept:
    """A port that is kept until gRPC, which binds its own, takes it: another server must not come between."""

    def __init__(self, held: socket.socket) -> None:
        self._held, self.number = held, int(held.getsockname()[1])

    def free(self) -> int:
        self._held.close()
        return self.number


@contextmanager
def _kept(address: Address) -> Iterator[_Kept | None]:
    if address.grpc_port is None:
        yield None
        return
    with _bind(replace(address, port=address.grpc_port), "--grpc-port") as held:
        yield _Kept(held)


def _beside(service: Any, repository: Repository, metrics: Metrics, address: str, bounds: Bounds) -> Beside:
    rpc = _rpc()

    async def start() -> Callable[[float], Awaitable[None]]:
        def counted(name: str, status: int, seconds: float) -> None:
            metrics.answered(repository.label(name), status, seconds)

        stop: Callable[[float], Awaitable[None]] = await rpc.start(
            service, repository, counted, address, bounds.max_body_bytes
        )
        return stop

    return start


def _rpc() -> Any:
    try:
        return importlib.import_module("penstock.serve.rpc")
    except ModuleNotFoundError as error:
        raise PenstockError(
            f"gRPC needs {error.name}, which is not installed: pip install 'penstock[serve]', or serve without: "
            "--grpc-port -1"
        ) from None


def _listen(listener: socket.socket, address: Address) -> None:
    try:
        listener.listen(BACKLOG)
    except OSError as error:  # another took the port while the models were loaded
        raise _refused(address, error) from None


def _refused(address: Address, error: Exception, option: str = "--port") -> PenstockError:
    reason = getattr(error, "strerror", None) or error
    return PenstockError(
        f"--host {address.host[:80]} {option} {address.port}: cannot listen there: {reason}; choose another {option}"
    )


def _bind(address: Address, option: str = "--port") -> socket.socket:
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
    except (OSError, OverflowError, UnicodeError) as error:
        raise _refused(address, error, option) from None
    return listener
