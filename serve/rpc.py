"""The Open Inference Protocol over gRPC: the same models, scheduler and rules as over HTTP, in the same event loop."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

import grpc
from google.protobuf import json_format

import penstock
from penstock import messages
from penstock.serve import calls, control, payloads, rpcguard
from penstock.serve.drain import Calls
from penstock.serve.errors import RequestError
from penstock.serve.gate import Gate, Refused
from penstock.serve.loading import ENDING
from penstock.serve.model import Model
from penstock.serve.outcomes import Closed
from penstock.serve.records import CALL, REQUEST_ID, STREAM, Record
from penstock.serve.repository import Repository
from penstock.serve.sharedmemory import Regions
from penstock.serve.streams import Stream
from penstock.serve.tracing import Tracer
from penstock.serve.watch import Watch

# From so many bytes on, what takes a step for each number or text is read beside the event loop.
_LONG = 65_536
_ID = REQUEST_ID.lower()


class Service:
    """The service's methods; each takes a request message and answers with another."""

    def __init__(
        self, repository: Repository, regions: Regions, tracer: Tracer, watch: Watch, gate: Gate | None = None
    ) -> None:
        self._repository, self._regions, self._tracer, self._watch = repository, regions, tracer, watch
        self._admit = None if gate is None else rpcguard.every_message(gate)
        self.calls = Calls()
        self._streams: set[Stream] = set()
        self._ending = False

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.message("ServerLiveResponse")(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.message("ServerReadyResponse")(ready=not self._repository.problems)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        ready = self._repository.is_ready(request.name, request.version or None)
        return messages.message("ModelReadyResponse")(ready=ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.message("ServerMetadataResponse")(
            name="penstock", version=penstock.__version__, extensions=control.extensions(self._regions, self._tracer)
        )

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        held = control.metadata_of(self._repository, request.name, request.version or None)
        return json_format.ParseDict(held, messages.message("ModelMetadataResponse")())

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        held = control.config_of(self._repository, request.name, request.version or None)
        answer = messages.message("ModelConfigResponse")()
        json_format.ParseDict({"config": held}, answer, ignore_unknown_fields=True)
        return answer

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        models: Iterable[Model] = self._repository.models.values()
        if request.name:
            models = self._repository.behind(request.name, request.version or None)
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
        return log_settings(control.log_settings())

    async def TraceSetting(self, request: Any, context: Any) -> Any:  # noqa: N802
        name = control.traced(self._repository, request.model_name) if request.model_name else ""
        given = {key: list(held.value) or None for key, held in request.settings.items()}
        settings = self._tracer.update(given, name) if given else self._tracer.settings(name)
        return trace_settings(settings)

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
        record = calls.recorded(CALL, context)
        try:
            return await self._watched(request, context, record)
        finally:
            if record.quoted:
                context.set_trailing_metadata(((_ID, record.name()),))

    async def _watched(self, request: Any, context: Any, record: Record) -> Any:
        label = self._repository.label(request.model_name)
        return await calls.watched(self._infer(request, context, record), record, label, context, self._watch)

    async def _infer(self, request: Any, context: Any, times: Record) -> Any:
        left = context.time_remaining()
        model = self._model(request.model_name, request.model_version)
        size = request.ByteSize()
        contents = not request.raw_input_contents or model.reads_text  # which are read a number or a text at a time
        read = functools.partial(payloads.decode, request, model, self._regions)
        call = await asyncio.to_thread(read) if contents and size > _LONG else read()
        times.decode_s = time.perf_counter() - times.started
        times.found(model.name, model.version, call.id)
        wait = min((seconds for seconds in (call.timeout_s, left) if seconds is not None), default=None)
        try:
            answer = await model.infer(call.inputs, timeout_s=wait, priority=call.priority, times=times)
        except Closed:  # another version took its place while the request was read
            if self._model(request.model_name, request.model_version).scheduler.closed:
                raise
            return await self._infer(request, context, times)
        response = payloads.encode(model, call, answer)
        self._tracer.answered(model.name, model.version, call.id, times)
        if (shadows := self._repository.shadows) is not None:
            shadows.offer(request.model_name, model, times.name(), call.inputs, answer)
        return response

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> None:  # noqa: N802
        """Answers in the order of the requests, each computed as it came; a failure is a message, not the end."""

        def begin(request: Any) -> Coroutine[Any, Any, Any]:
            return self._streamed(request, context, calls.recorded(STREAM, context))

        stream = Stream(requests, begin, context.write, self.calls)
        self._streams.add(stream)
        if self._ending:  # it had come before, and begins only now
            stream.end()
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
        if not stream.whole:
            await calls.abort(context, grpc.StatusCode.UNAVAILABLE, ENDING)

    async def _streamed(self, request: Any, context: Any, record: Record) -> Any:
        """The answer to one request of a stream, which says what went wrong with it, if anything did."""
        record.id, record.sent_id = "", False  # an id of the stream's is none of its requests'
        why = ""
        try:
            if self._admit is not None:
                self._admit(context)
            answered = await self._watched(calls.whole(request), context, record)
        except (calls.Failed, Refused) as failed:
            # As Triton has it: whose failure it is stands in the answer beside it.
            whose = {} if failed is request else {"id": request.id, "model_name": request.model_name}
            answered, why = messages.message("ModelInferResponse")(**whose), str(failed)
            if failed.status >= 500:
                answered.parameters[_ID].string_param = record.name()
        answered.parameters["triton_final_response"].bool_param = True
        return messages.message("ModelStreamInferResponse")(error_message=why, infer_response=answered)

    def end_streams(self) -> None:
        """Read nothing more from streams, which end once they have answered what had come."""
        self._ending = True
        for stream in self._streams:
            stream.end()

    def _model(self, name: str, version: str) -> Model:
        return self._repository.find(name, version or None)


def log_settings(held: dict[str, Any]) -> Any:
    """The answer to a call for the settings of logging."""
    answer = messages.message("LogSettingsResponse")()
    for name, value in held.items():
        kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
        setattr(answer.settings[name], kind, value)
    return answer


def trace_settings(held: dict[str, Any]) -> Any:
    """The answer to a call for the settings of tracing."""
    answer = messages.message("TraceSettingResponse")()
    for key, value in held.items():
        answer.settings[key].value.extend(value if isinstance(value, list) else [value])
    return answer
