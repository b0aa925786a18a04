"""Spans of requests for OpenTelemetry, sent to a collector by OTLP over HTTP, in batches and in a thread of the SDK's.

Settings are the standard OTEL_* environment variables. Attributes: OpenTelemetry's semantic conventions for HTTP and
RPC servers; those of penstock's own begin with `penstock.`. A request's spans are made when it has ended, of what its
record says: nothing is paid while it is under way.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import penstock
from penstock.errors import PenstockError, first_line, require
from penstock.serve.records import Record

_SERVICE = "inference.GRPCInferenceService"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PARENT = (b"traceparent", b"tracestate")
# A collector that is gone must not keep a server from ending.
_CLOSING_S = 5.0
log = logging.getLogger(__name__)


@contextmanager
def opened(asked: bool | None) -> Iterator[Spans | None]:
    """Spans of requests, sent until the end; None where none are wanted.

    Args:
        asked: for them or against them; None: as the environment says, by naming an endpoint or the exporter.

    Raises:
        PenstockError: they were asked for, and what they need is not installed, or the environment asks for what there
            is not. Where the environment alone wants them, that is a warning.
    """
    spans = None
    if wanted(asked, os.environ):
        try:
            refuse_others(os.environ)
            spans = Spans()
        except PenstockError as error:
            if asked:
                raise
            log.warning("no spans are sent: %s", error)
    try:
        yield spans
    finally:
        if spans is not None:
            spans.close()


def wanted(asked: bool | None, environment: Mapping[str, str]) -> bool:
    """Whether spans are to be sent."""
    if asked is not None:
        return asked
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    return exporter != "none" if exporter else any(environment.get(name) for name in _ENDPOINTS)


def refuse_others(environment: Mapping[str, str]) -> None:
    """Refuse an environment that asks for what is not done.

    Raises:
        PenstockError: naming the variable.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        raise PenstockError("--otel and OTEL_SDK_DISABLED=true: give one or the other")
    exporter = environment.get("OTEL_TRACES_EXPORTER", "") or "otlp"
    if exporter != "otlp":
        raise PenstockError(f"OTEL_TRACES_EXPORTER is {exporter[:40]!r}; spans are sent by otlp alone")
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        raise PenstockError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol[:40]!r}; spans are sent by http/protobuf alone, "
            "which collectors take at port 4318"
        )


class Spans:
    """Told of each request that has ended; makes its spans, and has them sent.

    Raises:
        PenstockError: the extra is not installed, or the SDK cannot be set up as the environment says.
    """

    def __init__(self) -> None:
        sdk = require("opentelemetry.sdk.trace", "otel", "--otel")
        export = require("opentelemetry.sdk.trace.export", "otel", "--otel")
        otlp = require("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otel", "--otel")
        self._trace = require("opentelemetry.trace", "otel", "--otel")
        context = require("opentelemetry.trace.propagation.tracecontext", "otel", "--otel")
        self._nowhere = require("opentelemetry.context", "otel", "--otel").Context()
        self._parents = context.TraceContextTextMapPropagator()
        try:
            self._provider = sdk.TracerProvider(resource=_resource(), shutdown_on_exit=False)
            self._provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
        except Exception as error:
            raise PenstockError(f"--otel: OpenTelemetry cannot be set up: {first_line(error)}") from None
        self._tracer = self._provider.get_tracer("penstock", penstock.__version__)

    def __call__(self, record: Record) -> None:
        ended_ns, ended = time.time_ns(), time.perf_counter()

        def moment(seconds: float) -> int:
            return ended_ns - round(1e9 * (ended - seconds))

        span = self._tracer.start_span(
            _name(record),
            context=self._parent(record),
            kind=self._trace.SpanKind.SERVER,
            start_time=moment(record.started),
        )
        if span.is_recording():
            record.trace_id = f"{span.get_span_context().trace_id:032x}"
            span.set_attributes(attributes(record))
            if record.status >= 500:
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, record.error or None))
            within = self._trace.set_span_in_context(span, self._nowhere)
            for stage, start, end in stages(record):
                self._tracer.start_span(stage, context=within, start_time=moment(start)).end(moment(end))
        span.end(moment(record.started + record.total_s))

    def close(self) -> None:
        """Send what has not been sent, for a few seconds at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="penstock-spans", daemon=True)
        closing.start()
        closing.join(_CLOSING_S)

    def _parent(self, record: Record) -> Any:
        """The client's span, by W3C's trace context; none where it sent none that can be read."""
        headers = record.headers
        if headers is None or _PARENT[0] not in headers:
            return self._nowhere
        carried = {name.decode(): headers[name].decode("latin-1") for name in _PARENT if name in headers}
        return self._parents.extract(carried, self._nowhere)


def attributes(record: Record) -> dict[str, str | int]:
    """What the conventions have of a request, and what is penstock's own."""
    found: dict[str, str | int] = {
        "penstock.model.name": record.model,
        **({"penstock.route": record.route} if record.route else {}),
        "penstock.model.version": str(record.version),
        "penstock.rows": record.rows,
        "penstock.request_id": record.name(),
    }
    address, _, port = record.client.rpartition(":")
    if port.isdigit():
        found |= {"client.address": address.strip("[]"), "client.port": int(port)}
    if record.status >= 500:
        found["error.type"] = str(record.status)
    road = record.road
    if not road.route:
        found |= {"rpc.system": "grpc", "rpc.service": _SERVICE, "rpc.method": road.method}
        return {**found, "rpc.grpc.status_code": record.code or 0}
    if record.model:
        found["url.path"] = road.route.format(model=record.route or record.model, version=record.version)
    found |= {"http.request.method": road.method, "http.route": road.route}
    return {**found, "http.response.status_code": record.status}


def stages(record: Record) -> Iterator[tuple[str, float, float]]:
    """Each stage that took any time, with its start and end, of the clock of `Record.started`."""
    waited = record.started + record.decode_s + record.queue_s
    batch = record.computed - record.compute_s if record.computed else waited
    queued = max(record.started, batch - record.queue_s)
    decoding = max(record.started, queued - record.decode_s)
    last = record.started + record.total_s
    for stage, start, took in (
        ("decode", decoding, record.decode_s),
        ("queue", queued, record.queue_s),
        ("compute", batch, record.compute_s),
    ):
        if took > 0:
            yield stage, start, min(start + took, last)


def _name(record: Record) -> str:
    return str(record.road) if record.road.route else f"{_SERVICE}/{record.road.method}"


def _resource() -> Any:
    """Who sends the spans, as the environment has it; its name is penstock where it has none."""
    resources = require("opentelemetry.sdk.resources", "otel", "--otel")
    found = resources.Resource.create({"service.version": penstock.__version__})
    if str(found.attributes.get("service.name", "")).startswith("unknown_service"):
        found = found.merge(resources.Resource({"service.name": "penstock"}))
    return found
