"""The page's routes: its files, and what it is told of models and figures.

All that it shows of models comes by `/page/models` and `/page/figures`, which need a key where keys are asked for.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response

import penstock
from penstock.serve import page
from penstock.serve.metrics import SECONDS, Metrics
from penstock.serve.model import Model
from penstock.serve.page.described import described
from penstock.serve.repository import Repository

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Nothing is asked of anybody but this server, no text is ever read as markup or script, and no other page frames it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
# Counters begin anew with each process: by another word the page knows that it is another.
_PROCESS = os.urandom(4).hex()
Reply = Callable[..., Response]


def add_files(app: FastAPI) -> None:
    """Add what is the same on every server: the page itself, its style and its scripts."""
    for path, name in zip(page.PATHS, ("index.html", *page.FILES), strict=True):
        file = ("penstock.pages", "page.css") if name == "base.css" else ("penstock.serve.page", name)
        content = resources.files(file[0]).joinpath(file[1]).read_bytes()
        app.add_api_route(path, _file(name, content), methods=["GET", "HEAD"], include_in_schema=False)


def _file(name: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": tag}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])

    return answer


def add_models(
    app: FastAPI, repository: Repository, metrics: Metrics, reply: Reply, gather: Callable[[], Awaitable[None]]
) -> None:
    """Add what the page is told of this server.

    Args:
        app: to what.
        repository: the models.
        metrics: what was counted.
        reply: makes a response of what is JSON.
        gather: has others say what they have counted.
    """

    @app.get(page.MODELS, include_in_schema=False)
    async def models() -> Response:
        return reply(
            {
                "loaded": _loaded(repository),
                "penstock": penstock.__version__,
                "bounds_s": SECONDS,
                "models": [described(model) for model in _sorted(repository)],
                "held_back": repository.held_back,
                "unloaded": sorted(repository.unloaded),
                "routes": repository.routes.as_dict(),
            },
            headers={"Cache-Control": "no-store"},
        )

    @app.get(page.FIGURES, include_in_schema=False)
    async def figures() -> Response:
        await gather()
        return reply(
            {
                "process": _PROCESS,
                "loaded": _loaded(repository),
                "now_s": time.monotonic(),
                "problems": repository.problems,
                "models": {model.name: _figures(model, metrics) for model in _sorted(repository)},
                "unknown": metrics.of("", 0)["codes"],
            },
            headers={"Cache-Control": "no-store"},
        )


def _sorted(repository: Repository) -> list[Model]:
    return [repository.models[name] for name in sorted(repository.models)]


def _figures(model: Model, metrics: Metrics) -> dict[str, Any]:
    """All that was counted of a model since it was loaded, and what it does now."""
    sizes = {str(size): figure.count for size, figure in model.statistics.batches.items()}
    return {
        "version": model.version,
        "ready": model.ready,
        "waiting": model.scheduler.pending_rows,
        "instances": model.scheduler.states,
        "sizes": sizes,
        **metrics.of(model.name, model.version),
    }


def _loaded(repository: Repository) -> str:
    """A word that is another once other models are loaded, or others are missing."""
    held = [[model.id, model.name] for model in _sorted(repository)]
    told = [held, repository.failures, sorted(repository.unloaded), repository.held_back, repository.routes.as_dict()]
    return hashlib.sha256(repr(told).encode("utf-8", "backslashreplace")).hexdigest()[:16]
