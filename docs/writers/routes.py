"""Routes and gRPC methods of a server, with the right that each needs where there are keys."""

from __future__ import annotations

from starlette.routing import Route

from docs.writers.markdown import WRITTEN, code, table
from penstock import messages
from penstock.errors import PenstockError
from penstock.serve import page as live
from penstock.serve import rights
from penstock.serve.app import create_app
from penstock.serve.metrics import Metrics
from penstock.serve.repository import Repository

FILES = set(live.PATHS) - {"/"}
# A path, without the version that may stand in it, and what it is for.
PURPOSES = {
    "/": "The [page](../page.md), for people; `--no-page` leaves it out.",
    "/page/{file}": "What it is made of.",
    "/page/models": "What it is told of models.",
    "/page/figures": "What it is told of their traffic.",
    "/predict/{name}": "Pictures, texts, table rows or tensors in; labels, class maps, values or outputs out.",
    "/v2/models/{name}/infer": "Inference by the Open Inference Protocol, in JSON, binary tensors or raw bytes.",
    "/v2": "The server's name, version and extensions.",
    "/v2/health/live": "Whether the process answers.",
    "/v2/health/ready": "Whether all that is declared answers; 503 says why not, to holders of a right to models.",
    "/v2/models/{name}": "A model's inputs, outputs and versions.",
    "/v2/models/{name}/ready": "Whether it answers.",
    "/v2/models/{name}/config": "Its configuration, in Triton's words.",
    "/v2/models/{name}/stats": "What it has done, and how long that took.",
    "/v2/models/stats": "The same of all models.",
    "/v2/models/{name}/trace/setting": "Which of its requests are traced.",
    "/v2/trace/setting": "Which requests are traced.",
    "/v2/logging": "What is logged.",
    "/v2/repository/index": "The models that there are, whether they answer, and why not.",
    "/v2/repository/models/{name}/load": "Loads a model, anew if it is there.",
    "/v2/repository/models/{name}/unload": "Takes a model out, once it has answered.",
    "/v2/routes": "Names that stand for models, and how requests are shared; PUT replaces all.",
    "/v2/systemsharedmemory/status": "Regions of shared memory.",
    "/v2/systemsharedmemory/region/{name}/status": "One of them.",
    "/v2/systemsharedmemory/region/{name}/register": "Names a segment, with `--allow-shared-memory`.",
    "/v2/systemsharedmemory/region/{name}/unregister": "Forgets it.",
    "/v2/systemsharedmemory/unregister": "Forgets all.",
    "/v2/cudasharedmemory/status": "There are none.",
    "/v2/cudasharedmemory/region/{name}/register": "Refused: shared memory of a GPU is not taken.",
    "/v2/cudasharedmemory/region/{name}/unregister": "Nothing to forget.",
    "/v2/cudasharedmemory/unregister": "Nothing to forget.",
    "/metrics": "Figures for Prometheus: [Watching a server](../observability.md).",
    "/debug/slow": "The slowest requests of the last minutes, and where their time went.",
    "/debug/shadow": "How far a shadow's answers are from those that clients had.",
    "/docs": "OpenAPI for people.",
    "/docs/oauth2-redirect": "Part of it.",
    "/redoc": "OpenAPI for people, by another viewer.",
    "/openapi.json": "OpenAPI, with examples of the models that are served.",
}


def page() -> str:
    """All routes and methods."""
    return "\n".join(
        [
            "# Routes and rights\n",
            WRITTEN,
            "What a server answers over HTTP, and over gRPC at the next port. Rights matter where there are keys "
            "(`penstock serve --keys`, `penstock keys add --rights`); any one of those that stand there is enough. A "
            "path that is not here needs `repository`. `/openapi.json` of a running server has the bodies, with "
            "examples that its models answer.\n",
            "## HTTP\n",
            table(("methods", "path", "right", "what"), _paths()),
            "Metadata, readiness, configuration, statistics and inference are there for one version too: "
            "`/v2/models/{name}/versions/{version}/…`. For `{name}` a route's name may stand (`--route`).\n",
            f"## gRPC: {code(messages.SERVICE)}\n",
            table(
                ("method", "right"),
                ((code(name), _right(_of_method(name))) for name in (*messages.METHODS, messages.STREAM)),
            ),
            "Beside it `grpc.health.v1.Health`, for everybody where it is asked for the whole server, and "
            "reflection, for holders of any key.\n",
        ]
    )


def _paths() -> list[tuple[str, str, str, str]]:
    wire = create_app(Repository(), Metrics())
    found: dict[str, set[str]] = {}
    for route in wire._app.routes:  # type: ignore[attr-defined]
        if isinstance(route, Route):
            path = "/page/{file}" if route.path in FILES else route.path.replace("/versions/{version}", "")
            found.setdefault(path, set()).update(route.methods or ())
    found.setdefault("/v2/models/{name}/infer", {"POST"})  # answered in front of the framework
    if set(found) != set(PURPOSES):
        raise PenstockError(f"docs/writers/routes.py and the server differ in {sorted(set(found) ^ set(PURPOSES))}")
    return [
        (
            ", ".join(sorted(found[path])),
            code(path),
            _right(rights.of_path(path.replace("{file}", live.FILES[0]))),
            what,
        )
        for path, what in PURPOSES.items()
    ]


def _of_method(name: str) -> rights.Needed:
    return rights.of_method(f"/{messages.SERVICE}/{name}")


def _right(needed: rights.Needed) -> str:
    return "none" if needed is None else " or ".join(map(code, needed))
