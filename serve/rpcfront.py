"""gRPC's methods in a front end: inference as ever, all else asked of the engine as HTTP's twin of it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import orjson
from google.protobuf import json_format

from penstock import messages
from penstock.serve import control, rpc
from penstock.serve.errors import RequestError
from penstock.serve.forward import Forward


class FrontService(rpc.Service):
    """The service of a front end; `forward` asks the engine."""

    forward: Forward

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.message("ServerReadyResponse")(ready=await self._is_well("/v2/health/ready"))

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return messages.message("ModelReadyResponse")(ready=await self._is_well(f"{_model(request)}/ready"))

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        return json_format.ParseDict(await self._asked("GET", "/v2"), messages.message("ServerMetadataResponse")())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        held = await self._asked("GET", _model(request))
        return json_format.ParseDict(held, messages.message("ModelMetadataResponse")())

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        held = {"config": await self._asked("GET", f"{_model(request)}/config")}
        return json_format.ParseDict(held, messages.message("ModelConfigResponse")(), ignore_unknown_fields=True)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        path = f"{_model(request)}/stats" if request.name else "/v2/models/stats"
        held = await self._asked("GET", path)
        return json_format.ParseDict(held, messages.message("ModelStatisticsResponse")())

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        rows = await self._asked("POST", "/v2/repository/index", {"ready": request.ready})
        return json_format.ParseDict({"models": rows}, messages.message("RepositoryIndexResponse")())

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        control.refuse_parameters(request.parameters)
        await self._asked("POST", f"/v2/repository/models/{quote(request.model_name, safe='')}/load", {})
        return messages.message("RepositoryModelLoadResponse")()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._asked("POST", f"/v2/repository/models/{quote(request.model_name, safe='')}/unload", {})
        return messages.message("RepositoryModelUnloadResponse")()

    async def LogSettings(self, request: Any, context: Any) -> Any:  # noqa: N802
        given = {name: getattr(held, held.WhichOneof("parameter_choice")) for name, held in request.settings.items()}
        return rpc.log_settings(await self._asked("POST", "/v2/logging", given))

    async def TraceSetting(self, request: Any, context: Any) -> Any:  # noqa: N802
        given = {key: list(held.value) or None for key, held in request.settings.items()}
        where = f"/v2/models/{quote(request.model_name, safe='')}/trace" if request.model_name else "/v2/trace"
        settings = await self._asked("POST" if given else "GET", f"{where}/setting", given if given else None)
        return rpc.trace_settings(settings)

    async def SystemSharedMemoryStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        listed = await self._asked("GET", f"{_region(request)}/status")
        held = {region["name"]: region for region in listed}
        return json_format.ParseDict({"regions": held}, messages.message("SystemSharedMemoryStatusResponse")())

    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:  # noqa: N802
        asked = {"key": request.key, "offset": request.offset, "byte_size": request.byte_size}
        await self._asked("POST", f"/v2/systemsharedmemory/region/{quote(request.name, safe='')}/register", asked)
        return messages.message("SystemSharedMemoryRegisterResponse")()

    async def SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._asked("POST", f"{_region(request)}/unregister", {})
        return messages.message("SystemSharedMemoryUnregisterResponse")()

    async def _is_well(self, path: str) -> bool:
        if self._repository.ending:  # of which the engine may hear later
            return False
        status, _, _ = await self.forward.ask("GET", path)
        return status == 200

    async def _asked(self, method: str, path: str, content: Any = None) -> Any:
        """What the engine says.

        Raises:
            RequestError: it refuses, or is not there.
        """
        body = b"" if content is None else orjson.dumps(content)
        status, _, answer = await self.forward.ask(method, path, [("Content-Type", "application/json")], body)
        found = orjson.loads(answer or b"{}")
        if status != 200:
            raise RequestError(found.get("error", f"the engine answers {status}"), status)
        return found


def _model(request: Any) -> str:
    """The path of a model that is asked for, and of a version if one is."""
    version = f"/versions/{quote(request.version, safe='')}" if request.version else ""
    return f"/v2/models/{quote(request.name, safe='')}{version}"


def _region(request: Any) -> str:
    """The path of a region of shared memory, or of all."""
    return f"/v2/systemsharedmemory{f'/region/{quote(request.name, safe=str())}' if request.name else ''}"
