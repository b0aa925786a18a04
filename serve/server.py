"""Running a server: load, bind, serve, drain."""

from __future__ import annotations

import math
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from penstock.errors import PenstockError
from penstock.serve.app import Bounds, create_app
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model
from penstock.serve.repository import Repository, open_repository

BACKLOG = 2048


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 takes any that is free."""

    host: str = "127.0.0.1"
    port: int = 8000


def serve(paths: list[Path], address: Address, limits: Limits, bounds: Bounds, say: Callable[[str], None]) -> None:
    """Serve the models under `paths` until SIGTERM or SIGINT, then finish what is under way and return.

    Raises:
        PenstockError: no model can be served, or the address is taken.
    """
    metrics = Metrics()
    listener = _bind(address)
    with listener:
        repository = open_repository(paths, limits, metrics)
        _announce(repository, say)
        if not repository.models:
            raise PenstockError("no model can be served; the reasons stand above")
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        state = "listening, but not ready," if repository.problems else "ready"
        config = uvicorn.Config(
            create_app(repository, metrics, bounds),
            log_level="warning",
            access_log=False,
            server_header=False,
            # No request is waited for longer than its own limit.
            timeout_graceful_shutdown=math.ceil(limits.timeout_s) + 1,
        )
        server = uvicorn.Server(config)
        # uvicorn drains on these, then raises the signal anew for whoever had it before; a drained server has
        # nothing left to end, and one that is told to stop before it has begun stops too.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, server.handle_exit)
        _listen(listener, address)  # from here on a client that comes waits; before, it would be refused
        first = next(iter(repository.models))
        say(f"{state} at http://{shown}:{port}  (POST /predict/{first}, GET /docs, GET /metrics)")
        server.run(sockets=[listener])


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
        return "bare ONNX file, unverified: no receipt vouches for its answers"
    run = "verified" if receipt.verification.real else "verified on synthetic samples"
    if not receipt.verification.engine_run:
        run = "its engine was never run before"
    return (
        f"{receipt.format} {receipt.precision} by {receipt.runtime}, {run}, batches up to {model.signature.max_batch}"
    )


def _listen(listener: socket.socket, address: Address) -> None:
    try:
        listener.listen(BACKLOG)
    except OSError as error:  # another took the port while the models were loaded
        raise _refused(address, error) from None


def _refused(address: Address, error: Exception) -> PenstockError:
    reason = getattr(error, "strerror", None) or error
    return PenstockError(
        f"--host {address.host[:80]} --port {address.port}: cannot listen there: {reason}; choose another --port"
    )


def _bind(address: Address) -> socket.socket:
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
    except (OSError, OverflowError, UnicodeError) as error:
        raise _refused(address, error) from None
    return listener
