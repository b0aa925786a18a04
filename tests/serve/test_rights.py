"""Which right each route and method needs: each is decided, and no spelling of a path gets round it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Match, Route

from penstock import messages
from penstock.serve import rights
from penstock.serve.app import create_app
from penstock.serve.metrics import Metrics
from penstock.serve.repository import Repository

OPERATES = ("/load", "/unload", "/v2/logging", "/trace/setting")
ROUTES = [route for route in create_app(Repository(), Metrics())._app.routes if isinstance(route, Route)]


def test_every_route_s_right_was_decided() -> None:
    assert len(ROUTES) > 25
    assert [route.path for route in ROUTES if not rights.is_listed(route.path)] == []


def test_every_method_s_right_was_decided() -> None:
    assert rights._SERVICE == messages.SERVICE
    assert rights.STREAM == messages.STREAM
    assert set(rights._METHODS) == {*messages.METHODS, messages.STREAM}


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("/v2/health/live", None),
        ("/v2/health/ready", None),
        ("/v2", ("infer", "repository")),
        ("/v2/models/a/infer", ("infer",)),
        ("/v2/models/a/versions/1/infer", ("infer",)),
        ("/v2/models/trace", ("infer",)),
        ("/v2/models/trace/infer", ("infer",)),
        ("/v2/models/a/trace/setting", ("repository",)),
        ("/predict/a", ("infer",)),
        ("/v2/repository/index", ("infer", "repository")),
        ("/v2/repository/models/a/load", ("repository",)),
        ("/v2/logging", ("repository",)),
        ("/v2/systemsharedmemory/region/a/register", ("shared-memory",)),
        ("/metrics", ("metrics",)),
        ("/openapi.json", ("infer",)),
        ("/", None),
        ("/page/main.js", None),
        ("/page/models", ("infer",)),
        ("/page/figures", ("infer",)),
        ("/page/main.js/", ("repository",)),
        ("/page/what/nobody/decided", ("repository",)),
        ("/v2/health/live/", ("repository",)),
        ("/v2/health/live\n", ("repository",)),
        ("/what/nobody/decided", ("repository",)),
        ("", ("repository",)),
    ],
)
def test_a_path_needs(path: str, needed: tuple[str, ...] | None) -> None:
    assert rights.of_path(path) == needed


@given(st.sampled_from(["", "\n", "/", "//", " ", "\r", "\x00"]), st.sampled_from(["a", "\n", "infer", "trace", "ä"]))
def test_no_spelling_of_a_path_is_routed_to_more_than_its_right(tail: str, name: str) -> None:
    for route in ROUTES:
        path = route.path.replace("{name}", name).replace("{version}", "1") + tail
        scope = {"type": "http", "path": path, "method": next(iter(route.methods or {"GET"})), "root_path": ""}
        for other in ROUTES:
            if other.matches(scope)[0] is Match.FULL and any(word in other.path for word in OPERATES):
                assert rights.of_path(path) == ("repository",), (path, other.path)
                break


@pytest.mark.parametrize(
    ("method", "needed"),
    [
        ("/grpc.health.v1.Health/Check", None),
        ("/grpc.health.v1.Health/Watch", None),
        (f"/{messages.SERVICE}/ServerLive", None),
        (f"/{messages.SERVICE}/ServerReady", None),
        (f"/{messages.SERVICE}/ModelInfer", ("infer",)),
        (f"/{messages.SERVICE}/ModelStreamInfer", ("infer",)),
        (f"/{messages.SERVICE}/RepositoryModelLoad", ("repository",)),
        (f"/{messages.SERVICE}/SystemSharedMemoryRegister", ("shared-memory",)),
        (f"/{messages.SERVICE}/Unheard", ("repository",)),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", rights.EVERY),
        ("/other.Service/Method", ("repository",)),
        ("", ("repository",)),
    ],
)
def test_a_method_needs(method: str, needed: tuple[str, ...] | None) -> None:
    assert rights.of_method(method) == needed
