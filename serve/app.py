"""The HTTP application: routes, and errors as `{"error": "one sentence"}`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.routing import Route

import penstock
from penstock.errors import PenstockError
from penstock.serve import answers, bodies, control, gauges, openapi, rights, slow, tritonmetrics
from penstock.serve.errors import RequestError, nearest_first
from penstock.serve.gate import Gate
from penstock.serve.gpus import Gpus
from penstock.serve.limits import BodyLimit
from penstock.serve.loading import ENDING
from penstock.serve.metrics import Metrics
from penstock.serve.outcomes import Closed
from penstock.serve.page import PATHS, routes
from penstock.serve.predict import Bounds
from penstock.serve.records import PREDICT, REQUEST_ID, Record
from penstock.serve.repository import Repository
from penstock.serve.sharedmemory import Regions
from penstock.serve.tracing import Tracer
from penstock.serve.watch import Watch
from penstock.serve.wire import Infer, Wire, refused, told

# It warns of each bad body; the client is told, and could fill the log with it.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

# Starts what runs beside HTTP in its event loop, and gives what stops it within seconds.
Beside = Callable[[], Awaitable[Callable[[float], Awaitable[None]]]]
_STOP_S = 30.0
_REASONS = (rights.INFER, rights.REPOSITORY)
_BOUNDS = Bounds()
_LIVE = "/v2/health/live"
ASGI = Callable[[Any, Any, Any], Awaitable[None]]
Gather = Callable[[], Awaitable[None]]


async def _nothing_to_gather() -> None:
    """All that is counted is counted here."""


def create_app(
    repository: Repository,
    metrics: Metrics,
    bounds: Bounds = _BOUNDS,
    beside: Beside | None = None,
    regions: Regions | None = None,
    tracer: Tracer | None = None,
    gate: Gate | None = None,
    watch: Watch | None = None,
    gather: Gather = _nothing_to_gather,
    page: bool = True,
) -> Wire:
    """The application that answers for `repository`; closing it drains the models.

    Args:
        repository: the models.
        metrics: what `/metrics` tells.
        bounds: on what a request may bring.
        beside: starts what runs in the same event loop.
        regions: of shared memory, if another road knows them too.
        tracer: of requests, likewise.
        gate: of API keys, if those are asked for, in front of this; it stands in the description, and without a key
            the server's health gives no reasons.
        watch: told of each request, likewise.
        gather: has others say what they have counted, before figures are told.
        page: whether there is a page at `/`.
    """
    watch = watch or Watch(metrics)
    regions, tracer = regions or Regions(bounds.shared_memory), tracer or Tracer()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        repository.start()
        stop = None if beside is None else await beside()
        yield
        if stop is not None:
            await stop(_STOP_S)
        await repository.close()

    # A body is bounded, and a container may have no disk to spool it to.
    MultiPartParser.spool_max_size = bounds.max_body_bytes
    app = FastAPI(title="penstock", version=penstock.__version__, lifespan=lifespan)
    app.add_middleware(BodyLimit, max_bytes=bounds.max_body_bytes)
    _add_errors(app, repository)
    _add_health(app, repository, metrics, gate, gather)
    control.add(app, repository, _reply, regions, tracer)
    slow.add(app, watch.slow, gather)
    if page:
        routes.add_files(app)
        routes.add_models(app, repository, metrics, _reply, gather)
    _add_predict(app, repository, watch, bounds)
    # Made when it is asked for: its examples are of the models that are loaded then.
    app.openapi = lambda: openapi.describe(app, repository, keyed=gate is not None)  # type: ignore[method-assign]
    return Wire(app, Infer(repository, watch, regions, tracer, bounds.max_body_bytes))


def create_front(
    repository: Repository,
    bounds: Bounds,
    forward: ASGI,
    beside: Beside | None,
    regions: Regions,
    watch: Watch,
    infer: Infer,
    page: bool = True,
) -> Wire:
    """The application of a front end: inference is answered here, and `forward` answers all else.

    Args:
        repository: the models, which are another process's.
        bounds: on what a request may bring.
        forward: an ASGI application.
        beside: starts what runs in the same event loop.
        regions: of shared memory.
        watch: told of each request.
        infer: answers infer requests.
        page: whether there is a page at `/`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stop = None if beside is None else await beside()
        yield
        if stop is not None:
            await stop(_STOP_S)

    MultiPartParser.spool_max_size = bounds.max_body_bytes
    app = FastAPI(lifespan=lifespan, openapi_url=None)
    app.add_middleware(BodyLimit, max_bytes=bounds.max_body_bytes)
    _add_errors(app, repository)
    _add_live(app)  # by which it is judged whether a server is to be ended: not while it begins its engine anew
    _add_predict(app, repository, watch, bounds)
    if page:
        routes.add_files(app)
    own = {_LIVE, *(PATHS if page else ())}

    @app.get("/v2/health/ready")
    @app.get("/v2/models/{name}/ready")
    @app.get("/v2/models/{name}/versions/{version}/ready")
    async def ready() -> Response:
        return _reply({"error": ENDING}, 503)

    async def either(scope: Any, receive: Any, send: Any) -> None:
        ours = scope["type"] != "http" or scope["path"] in own
        # The engine may hear of it later.
        ours = ours or (repository.ending and scope["method"] == "GET" and scope["path"].endswith("/ready"))
        ours = ours or (scope["path"].startswith("/predict/") and scope["method"] == "POST")
        await (app if ours else forward)(scope, receive, send)

    return Wire(either, infer)


def _reply(
    content: Any, status: int = 200, headers: dict[str, str] | None = None, *, indented: bool = False
) -> Response:
    option = orjson.OPT_INDENT_2 if indented else None
    try:
        text = orjson.dumps(content, option=option)
    except TypeError:  # a name or a reason quotes what is no text
        text = orjson.dumps(_written(content), option=option)
    return Response(text, status, headers, media_type="application/json")


def _written(content: Any) -> Any:
    """The same, with every text as it can be written."""
    if isinstance(content, str):
        return told(content)
    if isinstance(content, dict):
        return {_written(key): _written(value) for key, value in content.items()}
    return [_written(item) for item in content] if isinstance(content, list | tuple) else content


def _error(error: Exception, record: Record | None = None) -> Response:
    status, headers, parts = refused(error, record)
    return Response(b"".join(parts), status, headers)


def _quoting(response: Response, record: Record) -> Response:
    """The answer with the request's id, where that is quoted."""
    record.status = response.status_code
    if record.quoted:
        response.headers[REQUEST_ID] = record.name()
    return response


def _add_errors(app: FastAPI, repository: Repository) -> None:
    async def known(request: Request, error: Exception) -> Response:
        record = Record(headers=dict(request.scope["headers"]))
        return _quoting(_error(error, record), record)

    async def routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message, headers = error.detail, dict(error.headers or {})
        if error.status_code == 404:
            message = f"path {request.url.path!r} is unknown; {_near(request.url.path, repository)}"
        elif error.status_code == 405:
            taken = _methods(app, request.url.path) or headers.get("Allow", "")
            headers["Allow"] = taken
            message = f"method {request.method} is not taken at {request.url.path!r}{taken and f'; {taken} is'}"
        return _reply({"error": message}, error.status_code, headers)

    app.add_exception_handler(PenstockError, known)
    app.add_exception_handler(HTTPException, routing)
    app.add_exception_handler(Exception, known)


def _near(path: str, repository: Repository) -> str:
    """What could have been meant by a path that there is not."""
    if path.rstrip("/") != "/predict":
        return "/docs lists what there is"
    # Whoever a gate lets come to an unknown path may see the repository's index, too.
    return f"it is POST /predict/MODEL; {nearest_first('', [*repository.models, *repository.routes.held])}"


def _methods(app: FastAPI, path: str) -> str:
    """What may be asked of a path, whichever of its routes takes it."""
    routes = [route for route in app.routes if isinstance(route, Route) and route.path_regex.match(path)]
    return ", ".join(sorted({method for route in routes for method in route.methods or ()}))


def _add_live(app: FastAPI) -> None:
    @app.head(_LIVE, include_in_schema=False)
    @app.get(_LIVE, tags=["health"])
    async def live() -> Response:
        return _reply({"live": True})


def _add_health(app: FastAPI, repository: Repository, metrics: Metrics, gate: Gate | None, gather: Gather) -> None:
    gpus = Gpus()
    _add_live(app)

    @app.head("/v2/health/ready", include_in_schema=False)
    @app.get("/v2/health/ready", tags=["health"])
    async def ready(request: Request) -> Response:
        problems = repository.problems
        if not problems:
            return _reply({"ready": True})
        # Reasons name models and paths: they are for whom the repository's index is open to.
        said = request.headers.get("authorization", "").encode("latin-1")
        told = gate is None or gate.fault(said, _REASONS, counts=False) is None
        return _reply({"error": "; ".join(problems) if told else "not ready"}, 503)

    @app.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    async def figures() -> Response:
        await gather()
        missing = dict.fromkeys((*repository.failures, *repository.unloaded), False)
        metrics.readiness(missing | {name: model.ready for name, model in repository.models.items()})
        of_triton = tritonmetrics.families(
            (name, model.version, model.statistics, model.scheduler.pending_items)
            for name, model in repository.models.items()
        )
        more = [
            *of_triton,
            *repository.families(),
            *gauges.families(repository.models.values()),
            *await gpus.families(),
        ]
        return Response(metrics.text(more), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_predict(app: FastAPI, repository: Repository, watch: Watch, bounds: Bounds) -> None:
    @app.post("/predict/{name}", tags=["inference"], openapi_extra=openapi.PREDICT)
    async def predict_route(request: Request, name: str) -> Response:
        async def work(times: Record) -> Response:
            model = repository.find(name)
            times.found(model.name, model.version, None)
            top_k = _top_k(request)
            inputs = await bodies.read_inputs(request, model, bounds, times)
            form = answers.wanted(model, ", ".join(request.headers.getlist("accept")), inputs)
            try:
                outputs = await model.infer(inputs, times=times)
            except Closed:  # another version took its place while the request was read
                if repository.find(name).scheduler.closed:
                    raise
                return await work(times)
            content, headers = await answers.encode(model, outputs, form, top_k, times)
            if repository.shadows is not None:
                repository.shadows.offer(name, model, times.name(), inputs, outputs)
            return Response(content, headers=headers)

        return await _counted(name, repository, watch, request, work)


async def _counted(
    name: str, repository: Repository, watch: Watch, request: Request, work: Callable[[Record], Awaitable[Response]]
) -> Response:
    """Answer, and count the answer, failures too; only declared models get a label of their own."""
    record = Record(road=PREDICT, headers=dict(request.scope["headers"]), peer=lambda: request.client)
    label = repository.label(name)
    try:
        response = await work(record)
    except ClientDisconnect:
        response = _reply({"error": "the client went away before its request was whole"}, 499)
    except HTTPException as error:
        response = _error(RequestError(error.detail, error.status_code))
    except Exception as error:
        response = _error(error, record)
    watch.ended(record, label, response.status_code)
    return _quoting(response, record)


def _top_k(request: Request) -> int:
    for key in request.query_params:
        if key != "top_k":
            raise RequestError(f"query parameter {key[:40]!r} is unknown; the only one is top_k")
    text = request.query_params.get("top_k", "3")
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= 1000:
        raise RequestError(f"top_k is {text[:20]!r}; it must be a number from 1 to 1000")
    return int(text)
