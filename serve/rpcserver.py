"""The gRPC server: the service's methods as handlers, health checks and reflection beside them, its start and end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from penstock import messages
from penstock.serve import calls, rpcguard
from penstock.serve.access import Access
from penstock.serve.drain import Calls
from penstock.serve.gate import Gate, Refused
from penstock.serve.repository import Repository
from penstock.serve.rpc import Service


async def start(
    service: Service,
    repository: Repository,
    address: str,
    most_bytes: int,
    access: Access,
    *,
    shared: bool = False,
) -> Callable[[float], Awaitable[None]]:
    """Start the service, with health checks and reflection beside it; the function that stops it, within seconds.

    Args:
        service: what answers.
        repository: the models, whose health is told.
        address: HOST:PORT.
        most_bytes: the largest message taken.
        access: who may call, and by which certificate.
        shared: whether other processes listen at the address too.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_client_s)
    options = [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", int(shared)),
    ]
    guards = None if access.gate is None else [rpcguard.Guard(access.gate)]
    server = grpc.aio.server(interceptors=guards, options=options)
    handlers = {name: _unary(getattr(service, name), name, service.calls) for name in messages.METHODS}
    handlers[messages.STREAM] = grpc.stream_stream_rpc_method_handler(
        service.ModelStreamInfer,
        calls.reader("ModelInferRequest"),
        messages.message("ModelStreamInferResponse").SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(messages.SERVICE, handlers),))
    checks = _Health(repository, access.gate, service)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    names = (messages.SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool=_Pools())
    if access.certificates is None:
        server.add_insecure_port(address)
    else:
        server.add_secure_port(address, access.certificates.rpc_credentials())
    await server.start()

    async def stop(within_s: float) -> None:
        service.end_streams()
        await server.stop(within_s)

    service.calls.stop = stop

    return stop


def _is_no_client_s(record: logging.LogRecord) -> bool:
    """Whether a failure that gRPC logs, with all its lines, is one of this side; the client was told of its own."""
    return not (record.exc_info and isinstance(record.exc_info[1], DecodeError))


def _unary(method: Callable[..., Awaitable[Any]], name: str, counted: Calls) -> Any:
    """A handler that turns failures into gRPC's codes."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await method(calls.whole(request), context)
        except Exception as error:
            failed = error if isinstance(error, calls.Failed) else calls.failed(error, context)
            await calls.abort(context, failed.code, str(failed))

    async def handle(request: Any, context: Any) -> Any:
        answered = True
        counted.begun += 1
        try:
            return await answer(request, context)
        except asyncio.CancelledError:
            answered = False
            raise
        finally:
            counted.answered += answered
            counted.gone += not answered

    return grpc.unary_unary_rpc_method_handler(
        handle, calls.reader(f"{name}Request"), messages.message(f"{name}Response").SerializeToString
    )


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """grpc.health.v1: the whole server under no name and the service's, a model under its own, with a key for it."""

    def __init__(self, repository: Repository, gate: Gate | None, service: Service) -> None:
        self._repository, self._service = repository, service
        self._admit = None if gate is None else rpcguard.every_message(gate)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        kinds = health_pb2.HealthCheckResponse
        if request.service in ("", messages.SERVICE):
            ready = (await self._service.ServerReady(request, context)).ready
            return kinds(status=kinds.SERVING if ready else kinds.NOT_SERVING)
        if self._admit is not None:  # as ModelReady: who has no key learns no names
            try:
                self._admit(context)
            except Refused as refused:
                await rpcguard.end(refused, context)
        if self._repository.label(request.service) or self._repository.away:
            asked = messages.message("ModelReadyRequest")(name=request.service)
            ready = (await self._service.ModelReady(asked, context)).ready
        else:
            await calls.abort(context, grpc.StatusCode.NOT_FOUND, f"service {request.service[:128]!r} is unknown")
        return kinds(status=kinds.SERVING if ready else kinds.NOT_SERVING)


class _Pools:
    """Our descriptors, and the default pool's for health and reflection themselves."""

    def FindFileByName(self, name: str) -> Any:  # noqa: N802
        return _first(lambda pool: pool.FindFileByName(name))

    def FindFileContainingSymbol(self, name: str) -> Any:  # noqa: N802
        return _first(lambda pool: pool.FindFileContainingSymbol(name))


def _first(look: Callable[[Any], Any]) -> Any:
    try:
        return look(messages.pool())
    except KeyError:
        return look(descriptor_pool.Default())
