"""Running a server: load, bind, serve, drain."""

from __future__ import annotations

import errno
import gc
import importlib
import math
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn

from penstock import cuda, interpreter
from penstock.errors import PenstockError
from penstock.serve import declared, lifecycle, logs, telemetry, threads
from penstock.serve.access import Access
from penstock.serve.app import Beside, create_app
from penstock.serve.connection import Connections
from penstock.serve.drain import Calls, DrainingServer, end_process
from penstock.serve.family import BACKLOG, Family
from penstock.serve.guard import Guard
from penstock.serve.metrics import Metrics
from penstock.serve.model import Model
from penstock.serve.predict import Bounds
from penstock.serve.repository import Repository
from penstock.serve.requestlog import request_log
from penstock.serve.settings import Address, Settings
from penstock.serve.sharedmemory import Regions
from penstock.serve.tracing import Tracer
from penstock.serve.watch import Watch

_FEW_CORES, _MOST_WORKERS = 4, 8
_SLOTS_MB = 256
# Threads that inflate and decode give way to the event loop so soon, for which an answer waits several times. Where it
# and the runners are in one process, runners wait for it too; in an engine more turns cost more than they bring where
# its models need the cores (bench/results/states.txt), and less before a GPU, which has nothing to do while a runner
# waits (bench/results/h200_front_ends.txt).
_TURN_S, _ALONE_S = 0.0005, 0.0001
_BUSY_POLL_US = 3000


def serve(paths: list[Path], settings: Settings, say: Callable[[str], None]) -> int:
    """Serve the models under `paths` until SIGTERM or SIGINT, then finish what is under way.

    Returns how many requests were received and not answered: 0, unless what was under way took too long.

    Raises:
        PenstockError: no model can be served, the address is taken or none of this machine's, the trace file cannot be
            written, or the keys or the certificate cannot be read.
    """
    logs.set_up(settings.log_format)
    say, requests = logs.saying(say, settings.log_format), request_log(settings.log_requests)
    address, limits, bounds = settings.address, settings.limits, settings.bounds
    if address.port and address.port == address.grpc_port:
        raise PenstockError(f"--grpc-port {address.grpc_port}: that is --port's; choose another, or -1 for none")
    on_gpu = runs_on_gpu(paths, settings)
    if workers := workers_for(settings, on_gpu):
        limits = replace(limits, busy_poll_us=busy_poll_us(settings, workers, on_gpu))
        return _serve_family(paths, replace(settings, limits=limits), workers, say)
    if settings.slots_mb is not None:
        raise PenstockError(
            f"--slots-mb {settings.slots_mb}: is memory of front ends, and there are none: add --workers N"
        )
    if limits.busy_poll_us:
        raise PenstockError(
            f"--busy-poll-us {limits.busy_poll_us}: is of front ends and their engine, and there are none: "
            "add --workers N"
        )
    metrics, regions, tracer = Metrics(), Regions(bounds.shared_memory), Tracer(settings.trace_file)
    access = Access(settings.access)
    listener = _bind(address)
    with listener, _kept(address) as grpc_port, telemetry.opened(settings.otel) as spans:
        watch = Watch(metrics, tuple(told for told in (spans, requests) if told is not None))
        repository, besides = lifecycle.open_with(paths, limits, metrics, settings.lifecycle)
        announce(repository, say)
        if not repository.models and repository.mode != "poll":
            raise PenstockError("no model can be served; the reasons stand above")
        host, port = listener.getsockname()[:2]
        shown, calls = f"[{host}]" if ":" in host else host, Calls()
        if grpc_port is not None:
            service = rpc_module("rpc").Service(repository, regions, tracer, watch, access.gate)
            calls = service.calls
            besides.insert(0, rpc_beside(service, repository, f"{shown}:{grpc_port.free()}", bounds, access))
        gate, beside = access.gate, access.beside(lifecycle.together(besides))
        app = create_app(
            repository, metrics, bounds, beside, regions, tracer, gate=gate, watch=watch, page=settings.page
        )
        if gate is not None:
            metrics.include(gate.families)
        connections = Connections(app.infer, settings.connections, gate)
        guarded = app if gate is None else Guard(app, gate)
        server = DrainingServer(
            secure(config(guarded, connections), access), connections, repository, calls, settings.drain, say
        )
        # uvicorn drains on these, then raises the signal anew for whoever had it before; a drained server has
        # nothing left to end, and one that is told to stop before it has begun stops too.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, server.handle_exit)
        lifecycle.settle(repository, lambda: server.should_exit)
        _listen(listener, address)  # from here on a client that comes waits; before, it would be refused
        for warning in access.warnings(host):
            say(f"warning: {warning}")
        state = "listening, but not ready," if repository.problems else "ready"
        routes = _routes(next(iter(repository.models), "NAME"), settings)
        also = "" if grpc_port is None else f", gRPC at {shown}:{grpc_port.number}"
        say(f"{state} at {access.scheme}://{shown}:{port}  ({routes}){also}")
        settle(_ALONE_S)
        server.run(sockets=[listener])
    if threads.any_stuck():
        end_process(server.lost)
    return server.lost


def runs_on_gpu(paths: list[Path], settings: Settings) -> bool:
    """Whether a GPU computes: one that was asked for, or one of this machine's, where an engine is served."""
    if any(device != "cpu" for device in settings.limits.devices):
        return True
    return cuda.count() > 0 and declared.with_engine(paths)  # --device names that of other models alone


def workers_for(settings: Settings, on_gpu: bool) -> int:
    """How many front ends a server has: what it is told, or else what suits the machine and its devices."""
    if settings.workers is not None:
        return settings.workers
    cores = len(os.sched_getaffinity(0))
    if cores < _FEW_CORES or not on_gpu:
        return 0  # the models need the cores, or front ends would stand in each other's way
    return min(cores // 2, _MOST_WORKERS)


def busy_poll_us(settings: Settings, workers: int, on_gpu: bool) -> int:
    """For how long front ends and their engine stay awake over a lone request: where a GPU leaves them the cores."""
    if settings.limits.busy_poll_us is not None:
        return settings.limits.busy_poll_us
    return _BUSY_POLL_US if on_gpu and len(os.sched_getaffinity(0)) >= 2 * workers else 0


def turn_s(settings: Settings) -> float:
    """How soon an engine's threads give way to each other: sooner where processes stay awake, and so have the cores."""
    return _ALONE_S if settings.limits.busy_poll_us else _TURN_S


def slots_bytes(settings: Settings) -> int:
    """How much memory for requests under way a front end has.

    Raises:
        PenstockError: less than the largest body needs.
    """
    most, slots_mb = settings.bounds.max_body_bytes, settings.slots_mb
    if slots_mb is None:
        return max(_SLOTS_MB * 2**20, 2 * most)
    if slots_mb * 2**20 < most:
        raise PenstockError(
            f"--slots-mb {slots_mb}: has no room for bodies of --max-body-mb {most / 2**20:g}; give it as much"
        )
    return slots_mb * 2**20


def _serve_family(paths: list[Path], settings: Settings, workers: int, say: Callable[[str], None]) -> int:
    """The same with front ends beside the process that runs the models."""
    access, address, slots = Access(settings.access), settings.address, slots_bytes(settings)
    with _bind(address) as listener, _kept(address, shared=True) as grpc_port:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host

        def answers(problems: int, first: str) -> None:
            for warning in access.warnings(host):
                say(f"warning: {warning}")
            state = "listening, but not ready," if problems else "ready"
            fronts = f"{workers} front end{'s' * (workers != 1)}"
            routes = f"{_routes(first, settings)}; {fronts}"
            also = "" if grpc_port is None else f", gRPC at {shown}:{grpc_port.number}"
            say(f"{state} at {access.scheme}://{shown}:{port}  ({routes}){also}")

        if grpc_port is not None:
            settings = replace(settings, address=replace(address, grpc_port=grpc_port.number))
        return Family(paths, settings, workers, slots, listener, say, answers).run()


def _routes(first: str, settings: Settings) -> str:
    """The routes that a line of the terminal has room for."""
    return f"{'GET /, ' if settings.page else ''}POST /predict/{first}, GET /docs, GET /metrics"


def config(app: Any, connections: Connections) -> uvicorn.Config:
    """How uvicorn is to serve an application over our connections."""
    return uvicorn.Config(
        app,
        http=connections,  # type: ignore[arg-type] # called, as a class would be
        log_config=None,
        # Its warnings are of what clients send, who are told themselves.
        log_level="error",
        ws="none",
        access_log=False,
        server_header=False,
        # Idle connections are looked after by their own protocol, in whose hands they are.
        timeout_keep_alive=math.ceil(connections.limits.idle_s),
    )


def secure(config: uvicorn.Config, access: Access) -> uvicorn.Config:
    """The same over TLS, where there are certificates."""
    if access.certificates is not None:
        config.load()  # which makes a context of its own settings, that is none
        config.ssl = access.certificates.context
    return config


def settle(turn_s: float = _TURN_S) -> None:
    """Told when all that a server begins with is in memory, before it answers anybody.

    Args:
        turn_s: seconds for which a thread has the interpreter at most while others wait for it, but for
            `interpreter.keep`.
    """
    # What is there by now stays: every full collection would look through it, and all answers wait some 30 ms.
    gc.collect()
    gc.freeze()
    interpreter.take_turns(turn_s)


def announce(repository: Repository, say: Callable[[str], None]) -> None:
    """Say which models are served, and which are not."""
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
        return f"bare ONNX file, unverified: no receipt vouches for its answers{alone}{_where(model)}"
    run = "verified" if receipt.verification.real else "verified on synthetic samples"
    if not receipt.verification.engine_run:
        run = "its engine was never run before"
    return (
        f"{receipt.format} {receipt.precision} by {receipt.runtime}, {run}, batches up to {model.signature.max_batch}"
        f"{_where(model)}"
    )


def _where(model: Model) -> str:
    threads = "" if model.threads is None else f", {model.threads} thread{'s' * (model.threads != 1)}"
    return f"{threads}{', in a process of its own' if model.limits.isolate else ''}"


class _Kept:
    """A port that is kept until gRPC, which binds its own, takes it: another server must not come between."""

    def __init__(self, held: socket.socket) -> None:
        self._held, self.number = held, int(held.getsockname()[1])

    def free(self) -> int:
        self._held.close()
        return self.number


@contextmanager
def _kept(address: Address, *, shared: bool = False) -> Iterator[_Kept | None]:
    if address.grpc_port is None:
        yield None
        return
    with _bind(replace(address, port=address.grpc_port), "--grpc-port", shared=shared) as held:
        yield _Kept(held)


def rpc_beside(
    service: Any, repository: Repository, address: str, bounds: Bounds, access: Access, **how: Any
) -> Beside:
    """Starts gRPC in the event loop of HTTP."""
    rpcserver = rpc_module("rpcserver")

    async def start() -> Callable[[float], Awaitable[None]]:
        stop: Callable[[float], Awaitable[None]] = await rpcserver.start(
            service, repository, address, bounds.max_body_bytes, access, **how
        )
        return stop

    return start


def rpc_module(module: str) -> Any:
    try:
        return importlib.import_module(f"penstock.serve.{module}")
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
    """Why nobody can listen there, by the option that is at fault."""
    host, port, number = f"--host {address.host[:80]}", f"{option} {address.port}", getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return PenstockError(f"{port}: another program listens there, at {host}; choose another {option}")
    if number in (errno.EACCES, errno.EPERM):
        return PenstockError(f"{port}: such low ports are for the system alone; choose one from 1024 on")
    instead = "choose 127.0.0.1 for clients on this machine, 0.0.0.0 for all"
    if number == errno.EADDRNOTAVAIL:
        return PenstockError(f"{host}: is no address of this machine; {instead}")
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(error, socket.gaierror | UnicodeError):
        return PenstockError(f"{host}: is no address, and no name of one: {reason}; {instead}")
    return PenstockError(f"{host}: cannot be listened at: {reason}; {instead}")


def _bind(address: Address, option: str = "--port", *, shared: bool = False) -> socket.socket:
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if shared else socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
    except (OSError, OverflowError, UnicodeError) as error:
        raise _refused(address, error, option) from None
    return listener
