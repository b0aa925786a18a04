"""What is asked of a server beside inference: metadata, configuration, statistics, loading, logging, tracing, shared
memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from fastapi import FastAPI, Request, Response

import penstock
from penstock import tritonconfig
from penstock.serve import fields, replies
from penstock.serve.errors import RequestError
from penstock.serve.loading import ENDING
from penstock.serve.model import Model
from penstock.serve.repository import Repository
from penstock.serve.sharedmemory import Regions
from penstock.serve.tracing import Tracer

_EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
    "logging",
)
_MOST_ASKED = 65_536
NO_CUDA = "shared memory of a GPU is not taken; system shared memory is, with --allow-shared-memory"
Reply = Callable[..., Response]
_LOG = logging.getLogger("penstock")
_verbose = 0  # any level above 0 lets through the same
# The settings of the logging extension, and the level that each lets through.
_LEVELS = {"log_error": logging.ERROR, "log_warning": logging.WARNING, "log_info": logging.INFO}


def extensions(regions: Regions, tracer: Tracer) -> list[str]:
    """The protocol's extensions that there are."""
    found = {"system_shared_memory": regions.allowed, "trace": tracer.file is not None}
    return [*_EXTENSIONS, *(name for name, there in found.items() if there)]


def add(app: FastAPI, repository: Repository, reply: Reply, regions: Regions, tracer: Tracer) -> None:
    """Add the routes.

    Args:
        app: to what.
        repository: the models.
        reply: makes a response of what is JSON.
        regions: of shared memory.
        tracer: whose settings are told and set.
    """

    @app.get("/v2", tags=["models"])
    async def server() -> Response:
        return reply({"name": "penstock", "version": penstock.__version__, "extensions": extensions(regions, tracer)})

    _add_metadata(app, repository, reply)
    _add_repository(app, repository, reply)
    _add_logging(app, reply)
    _add_tracing(app, repository, reply, tracer)
    _add_shared_memory(app, reply, regions)


def _add_metadata(app: FastAPI, repository: Repository, reply: Reply) -> None:

    # Before a model's own: "stats" is no model's name there.
    @app.get("/v2/models/stats", tags=["models"])
    async def all_statistics() -> Response:
        return reply(statistics_of(repository.models.values()))

    @app.get("/v2/models/{name}/stats", tags=["models"])
    @app.get("/v2/models/{name}/versions/{version}/stats", tags=["models"])
    async def statistics(name: str, version: str | None = None) -> Response:
        return reply(statistics_of(repository.behind(name, version)))

    @app.get("/v2/models/{name}/config", tags=["models"])
    @app.get("/v2/models/{name}/versions/{version}/config", tags=["models"])
    async def config(name: str, version: str | None = None) -> Response:
        return reply(config_of(repository, name, version))

    @app.get("/v2/models/{name}", tags=["models"])
    @app.get("/v2/models/{name}/versions/{version}", tags=["models"])
    async def metadata(name: str, version: str | None = None) -> Response:
        return reply(metadata_of(repository, name, version))

    @app.get("/v2/models/{name}/ready", tags=["models"])
    @app.get("/v2/models/{name}/versions/{version}/ready", tags=["models"])
    async def model_ready(name: str, version: str | None = None) -> Response:
        if repository.ending or not repository.look(name, version).ready:
            broken = f"model {name!r} has an instance that is dead, or that no longer comes back"
            return reply({"error": ENDING if repository.ending else broken}, 503)
        return reply({"name": name, "ready": True})


def metadata_of(repository: Repository, name: str, version: str | None = None) -> dict[str, Any]:
    """The metadata of a model, or of a route: its models', with all of their versions; as the protocol has it."""
    models = repository.behind(name, version)
    platform = tritonconfig.PLATFORMS.get(_runtime(models[0]), _runtime(models[0]))
    return replies.metadata(name, sorted({model.version for model in models}), models[0].signature, platform)


def statistics_of(models: Iterable[Model]) -> dict[str, Any]:
    """What models have done, as the statistics extension has it."""
    return {"model_stats": [model.statistics.as_dict(model.name, model.version) for model in models]}


def config_of(repository: Repository, name: str, version: str | None = None) -> dict[str, Any]:
    """The configuration of a model, or of a route's first, as the protocol's extension has it."""
    model = repository.look(name, version)
    file = model.receipt.model_file if model.receipt else f"{model.name}.onnx"
    return tritonconfig.as_dict(name, _runtime(model), file, model.signature, model.scheduler.instances)


def traced(repository: Repository, name: str) -> str:
    """The model whose tracing is meant by a name.

    Raises:
        RequestError: there is none, or the name is a route's.
    """
    if (route := repository.routes.held.get(name)) is not None:
        raise RequestError(f"{name!r} is a route; traces are of its models: {', '.join(route.weights)}")
    return repository.find(name).name


def refuse_parameters(given: Any) -> None:
    """Refuse what a load request would change of a model.

    Raises:
        RequestError: there is anything.
    """
    if given:
        raise RequestError(
            f"load parameters {', '.join(sorted(given))[:80]!r} are not taken: a model is loaded as it was exported"
        )


def _runtime(model: Model) -> str:
    return model.receipt.runtime if model.receipt else "onnxruntime"


def _add_repository(app: FastAPI, repository: Repository, reply: Reply) -> None:
    @app.post("/v2/repository/index", tags=["repository"])
    async def index(request: Request) -> Response:
        asked = await _object(request)
        for key in asked:
            if key != "ready":
                raise RequestError(f"field {key[:40]!r} is unknown; the only one is ready")
        ready = asked.get("ready", False)
        if not isinstance(ready, bool):
            raise RequestError(f"ready is {str(ready)[:40]!r}; it must be true or false")
        return reply(repository.index(ready=ready))

    @app.post("/v2/repository/models/{name}/load", tags=["repository"])
    async def load(request: Request, name: str) -> Response:
        refuse_parameters((await _object(request)).get("parameters", {}))
        await repository.load(name)
        return reply({})

    @app.post("/v2/repository/models/{name}/unload", tags=["repository"])
    async def unload(request: Request, name: str) -> Response:
        await _object(request)  # unload_dependents: no model here hangs on another
        await repository.unload(name)
        return reply({})

    @app.get("/debug/shadow", tags=["repository"])
    async def shadows() -> Response:
        return reply(repository.shadows.as_dict() if repository.shadows else {"shadows": []}, indented=True)

    @app.get("/v2/routes", tags=["repository"])
    async def routes() -> Response:
        return reply(repository.routes.as_dict())

    @app.put("/v2/routes", tags=["repository"])
    async def change_routes(request: Request) -> Response:
        repository.change_routes(await _object(request))
        return reply(repository.routes.as_dict())


def _add_logging(app: FastAPI, reply: Reply) -> None:
    @app.get("/v2/logging", tags=["settings"])
    async def logging_settings() -> Response:
        return reply(log_settings())

    @app.post("/v2/logging", tags=["settings"])
    async def change_logging(request: Request) -> Response:
        set_logging(await _object(request))
        return reply(log_settings())


def _add_tracing(app: FastAPI, repository: Repository, reply: Reply, tracer: Tracer) -> None:
    @app.get("/v2/trace/setting", tags=["settings"])
    async def trace_settings() -> Response:
        return reply(tracer.settings())

    @app.get("/v2/models/{name}/trace/setting", tags=["settings"])
    async def model_trace_settings(name: str) -> Response:
        return reply(tracer.settings(traced(repository, name)))

    @app.post("/v2/trace/setting", tags=["settings"])
    async def change_tracing(request: Request) -> Response:
        return reply(tracer.update(await _object(request)))

    @app.post("/v2/models/{name}/trace/setting", tags=["settings"])
    async def change_model_tracing(request: Request, name: str) -> Response:
        return reply(tracer.update(await _object(request), traced(repository, name)))


def _add_shared_memory(app: FastAPI, reply: Reply, regions: Regions) -> None:
    home = "/v2/systemsharedmemory"

    @app.get(f"{home}/status", tags=["shared memory"])
    @app.get(f"{home}/region/{{name}}/status", tags=["shared memory"])
    async def status(name: str = "") -> Response:
        return reply(regions.status(name))

    @app.post(f"{home}/region/{{name}}/register", tags=["shared memory"])
    async def register(request: Request, name: str) -> Response:
        asked = await _object(request)
        for field in asked:
            if field not in ("key", "offset", "byte_size"):
                raise RequestError(f"field {field[:40]!r} is unknown; it must be one of key, offset, byte_size")
        regions.register(name, asked.get("key"), asked.get("offset", 0), asked.get("byte_size"))
        return reply({})

    @app.post(f"{home}/unregister", tags=["shared memory"])
    @app.post(f"{home}/region/{{name}}/unregister", tags=["shared memory"])
    async def unregister(name: str = "") -> Response:
        regions.unregister(name)
        return reply({})

    # Clients ask and clear before they use any: of memory of a GPU there is none.
    @app.get("/v2/cudasharedmemory/status", tags=["shared memory"])
    async def cuda_status() -> Response:
        return reply([])

    @app.post("/v2/cudasharedmemory/unregister", tags=["shared memory"])
    @app.post("/v2/cudasharedmemory/region/{name}/unregister", tags=["shared memory"])
    async def cuda_unregister(name: str = "") -> Response:
        return reply({})

    @app.post("/v2/cudasharedmemory/region/{name}/register", tags=["shared memory"])
    async def cuda_register(name: str) -> Response:
        raise RequestError(NO_CUDA)


def log_settings() -> dict[str, Any]:
    """The settings of the logging extension, as they are."""
    level = _LOG.getEffectiveLevel()
    return {
        "log_file": "",
        **{name: level <= least for name, least in reversed(_LEVELS.items())},
        "log_verbose_level": _verbose if level <= logging.DEBUG else 0,
        "log_format": "default",
    }


def set_logging(wanted: dict[str, Any]) -> None:
    """Change settings of the logging extension.

    Raises:
        RequestError: one is unknown, of another kind, or cannot be changed, also not while another is as it is.
    """
    held = log_settings()
    for name, value in wanted.items():
        if name not in held:
            raise RequestError(f"log setting {name[:40]!r} is unknown; it must be one of {', '.join(held)}")
        if name in ("log_file", "log_format") and value != held[name]:
            raise RequestError(f"{name} is {str(value)[:40]!r}; it is {held[name]!r} and cannot be changed")
        if type(value) is not type(held[name]) or (name == "log_verbose_level" and value < 0):
            kind = {bool: "true or false", int: "a number from 0 on", str: "a string"}[type(held[name])]
            raise RequestError(f"{name} is {str(value)[:40]!r}; it must be {kind}")
    now = {**held, **wanted}
    louder = ["log_verbose_level"]
    for name in reversed(_LEVELS):  # what is graver than what is logged is logged too
        on = [other for other in louder if now[other]]
        if wanted.get(name) is False and on:
            raise RequestError(
                f"{name} is false, and {on[0]} is {str(now[on[0]]).lower()}, with which it is logged; turn that off too"
            )
        louder.append(name)
    level = logging.CRITICAL
    for name, least in _LEVELS.items():
        level = least if now[name] else level
    global _verbose
    _verbose = now["log_verbose_level"]
    _LOG.setLevel(logging.DEBUG if _verbose else level)


async def _object(request: Request) -> dict[str, Any]:
    """The body, a JSON object; nothing at all is an empty one."""
    body = await request.body()
    if len(body) > _MOST_ASKED:  # read on the event loop, where nobody else is served meanwhile
        raise RequestError(f"the body has {len(body)} bytes; {_MOST_ASKED} are the most that is taken here", 413)
    content = fields.parse_json(body) if body.strip() else {}
    if not isinstance(content, dict) or not isinstance(content.get("parameters", {}), dict):
        raise RequestError("the body must be a JSON object, and its parameters another")
    return content
