"""The Open Inference Protocol over gRPC: the same models, scheduler and rules as over HTTP, in the same event loop."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import descriptor_pool, json_format
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

import penstock
from penstock.serve import control, messages, payloads
from penstock.serve.drain import Calls
from penstock.serve.errors import RequestError, explained
from penstock.serve.model import Model
from penstock.serve.repository import Repository
from penstock.serve.scheduler import Expired
from penstock.serve.sharedmemory import Regions
from penstock.serve.times import Times
from penstock.serve.tracing import Tracer

# gRPC's code for each HTTP status that a failure has.
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
# From so many bytes on, what takes a step for each number or text is read beside the event loop.
_LONG = 65_536
# Requests of one stream that are under way at once; more wait in the connection.
_MOST_STREAMED = 64
# A deadline that is as near as this has passed.
_OVER_S = 0.005


class Service:
    """The service's methods; each takes a request message and answers with another."""

    def __init__(self, repository: Repository, regions: Regions, tracer: Tracer) -> None:
        self._repository, self._regions, self._tracer = repository, regions, tracer
        self.calls = Calls()
        self._taking: set[asyncio.Future[None]] = set()

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.message("ServerLiveResponse")(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.message("ServerReadyResponse")(ready=not self._repository.problems)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            ready = self._model(request.name, request.version).ready and not self._repository.ending
        except RequestError:
            ready = False
        return messages.message("ModelReadyResponse")(ready=ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.message("ServerMetadataResponse")(
            name="penstock", version=penstock.__version__, extensions=control.extensions(self._regions, self._tracer)
        )

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        held = control.metadata_of(self._model(request.name, request.version))
        return json_format.ParseDict(held, messages.message("ModelMetadataResponse")())

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        held = control.config_of(self._model(request.name, request.version))
        answer = messages.message("ModelConfigResponse")()
        json_format.ParseDict({"config": held}, answer, ignore_unknown_fields=True)
        return answer

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        models = [self._model(request.name, request.version)] if request.name else self._repository.models.values()
        return json_format.ParseDict(control.statistics_of(models), messages.message("ModelStatisticsResponse")())

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        rows = self._repository.index(ready=request.ready)
        return json_format.ParseDict({"models": rows}, messages.message("RepositoryIndexResponse")())

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        control.refuse_parameters(request.parameters)
        await self._repository.load(request.model_name)
        return messages.message("RepositoryModelLoadResponse")()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._repository.unload(request.model_name)
        return messages.message("RepositoryModelUnloadResponse")()

    async def LogSettings(self, request: Any, context: Any) -> Any:  # noqa: N802
        given = {name: getattr(held, held.WhichOneof("parameter_choice")) for name, held in request.settings.items()}
        control.set_logging(given)
        answer = messages.message("LogSettingsResponse")()
        for name, value in control.log_settings().items():
            kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
            setattr(answer.settings[name], kind, value)
        return answer

    async def TraceSetting(self, request: Any, context: Any) -> Any:  # noqa: N802
        name = self._model(request.model_name, "").name if request.model_name else ""
        given = {key: list(held.value) or None for key, held in request.settings.items()}
        settings = self._tracer.update(given, name) if given else self._tracer.settings(name)
        answer = messages.message("TraceSettingResponse")()
        for key, value in settings.items():
            answer.settings[key].value.extend(value if isinstance(value, list) else [value])
        return answer

    async def SystemSharedMemoryStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        held = {region["name"]: region for region in self._regions.status(request.name)}
        return json_format.ParseDict({"regions": held}, messages.message("SystemSharedMemoryStatusResponse")())

    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._regions.register(request.name, request.key, request.offset, request.byte_size)
        return messages.message("SystemSharedMemoryRegisterResponse")()

    async def SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._regions.unregister(request.name)
        return messages.message("SystemSharedMemoryUnregisterResponse")()

    async def CudaSharedMemoryStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.message("CudaSharedMemoryStatusResponse")()

    async def CudaSharedMemoryRegister(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise RequestError(control.NO_CUDA)

    async def CudaSharedMemoryUnregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.message("CudaSharedMemoryUnregisterResponse")()

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        left, times = context.time_remaining(), Times()
        model = self._model(request.model_name, request.model_version)
        size = request.ByteSize()
        contents = not request.raw_input_contents or model.reads_text  # which are read a number or a text at a time
        read = functools.partial(payloads.decode, request, model, self._regions)
        call = await asyncio.to_thread(read) if contents and size > _LONG else read()
        wait = min((seconds for seconds in (call.timeout_s, left) if seconds is not None), default=None)
        answer = await model.infer(call.inputs, timeout_s=wait, priority=call.priority, times=times)
        response = payloads.encode(model, call, answer)
        self._tracer.answered(model.name, model.version, call.id, times)
        return response

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Answers in the order of the requests, each computed as it came; a failure is a message, not the end."""
        answer = messages.message("ModelStreamInferResponse")
        waiting: asyncio.Queue[tuple[Any, asyncio.Task[Any]] | None] = asyncio.Queue(_MOST_STREAMED)
        owed = 0

        async def take() -> None:
            nonlocal owed
            try:
                async for request in requests:
                    self.calls.begun += 1
                    owed += 1
                    await waiting.put((request, asyncio.ensure_future(self.ModelInfer(request, context))))
            finally:
                await waiting.put(None)

        taking = asyncio.ensure_future(take())
        self._taking.add(taking)
        try:
            while (held := await waiting.get()) is not None:
                request, task = held
                try:
                    answered, why = await task, ""
                except Exception as error:
                    # As Triton has it: whose failure it is stands in the answer beside it.
                    why = explained(error)[1]
                    answered = messages.message("ModelInferResponse")(id=request.id, model_name=request.model_name)
                answered.parameters["triton_final_response"].bool_param = True
                yield answer(error_message=why, infer_response=answered)
                self.calls.answered += 1
                owed -= 1
        finally:
            self.calls.gone += owed
            self._taking.discard(taking)
            taking.cancel()
            while not waiting.empty():
                if (held := waiting.get_nowait()) is not None:
                    held[1].cancel()

    def end_streams(self) -> None:
        """Take nothing more by streams, which end once they have answered what had come."""
        for taking in self._taking:
            taking.cancel()

    def _model(self, name: str, version: str) -> Model:
        return self._repository.find(name, version or None)


async def start(
    service: Service, repository: Repository, counted: Callable[..., Any], address: str, most_bytes: int
) -> Callable[[float], Awaitable[None]]:
    """Start the service, with health checks and reflection beside it; the function that stops it, within seconds.

    Args:
        service: what answers.
        repository: the models, whose health is told.
        counted: told of each infer call: the model's name, HTTP's status for its end, and seconds.
        address: HOST:PORT.
        most_bytes: the largest message taken.
    """
    options = [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    handlers = {name: _unary(getattr(service, name), name, counted, service.calls) for name in messages.METHODS}
    handlers[messages.STREAM] = grpc.stream_stream_rpc_method_handler(
        service.ModelStreamInfer,
        messages.message("ModelInferRequest").FromString,
        messages.message("ModelStreamInferResponse").SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(messages.SERVICE, handlers),))
    checks = _Health(repository)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    names = (messages.SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool=_Pools())
    server.add_insecure_port(address)
    await server.start()

    async def stop(within_s: float) -> None:
        service.end_streams()
        await server.stop(within_s)

    service.calls.stop = stop

    return stop


def _unary(method: Callable[..., Awaitable[Any]], name: str, counted: Callable[..., Any], calls: Calls) -> Any:
    """A handler that turns failures into gRPC's codes, and counts inference."""

    async def handle(request: Any, context: Any) -> Any:
        started, status = time.perf_counter(), 200
        calls.begun += 1
        try:
            return await method(request, context)
        except asyncio.CancelledError:
            status = 499
            raise
        except Exception as error:
            status, message = explained(error)
            left = context.time_remaining()
            if isinstance(error, Expired) and left is not None and left < _OVER_S:
                status = 504  # the call's own deadline, and no timeout of the request or the server
            code = _CODES.get(status, grpc.StatusCode.INVALID_ARGUMENT if status < 500 else grpc.StatusCode.INTERNAL)
            await context.abort(code, message)
        finally:
            calls.answered += status != 499
            calls.gone += status == 499
            if name == "ModelInfer":
                counted(request.model_name, status, time.perf_counter() - started)

    return grpc.unary_unary_rpc_method_handler(
        handle, messages.message(f"{name}Request").FromString, messages.message(f"{name}Response").SerializeToString
    )


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """grpc.health.v1: the whole server under no name and the service's, a model under its own."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        kinds = health_pb2.HealthCheckResponse
        if request.service in ("", messages.SERVICE):
            ready = not self._repository.problems
        elif request.service in self._repository.models:
            ready = self._repository.models[request.service].ready and not self._repository.ending
        else:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"service {request.service[:128]!r} is unknown")
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
