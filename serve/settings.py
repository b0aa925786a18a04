"""All that `penstock serve` is told but the models; as data, which other processes of a server are told too."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.serve.access import AccessFiles
from penstock.serve.connection import ConnectionLimits
from penstock.serve.drain import DrainLimits
from penstock.serve.lifecycle import Lifecycle
from penstock.serve.model import Limits
from penstock.serve.predict import Bounds


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 takes any that is free. Without a `grpc_port` there is no gRPC."""

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None


@dataclass(frozen=True)
class Settings:
    """All that `penstock serve` is told but the models: where it listens, how they run, what clients may do.

    `trace_file` is where the protocol's trace extension writes. `log_format` is one of `logs.FORMATS`, and
    `log_requests`, which requests are logged, one of `requestlog.WHICH`. `otel` is whether spans of
    requests are sent to a collector; None: as the environment says. `access` says who may come. `workers` are the
    processes that clients are connected to, 0 for one process in all, None for as many as suit the machine; each has
    `slots_mb` of memory for requests under way; None for as much as suits the largest body. `page`: whether there is
    one at `/`.
    """

    address: Address = field(default_factory=Address)
    limits: Limits = field(default_factory=Limits)
    bounds: Bounds = field(default_factory=Bounds)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    trace_file: Path | None = None
    log_format: str = "text"
    log_requests: str = "failed"
    otel: bool | None = None
    access: AccessFiles = field(default_factory=AccessFiles)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    drain: DrainLimits = field(default_factory=DrainLimits)
    workers: int | None = None
    slots_mb: int | None = None
    page: bool = True
