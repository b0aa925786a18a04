"""Checks of health, of metadata, and of what the server says that it can do."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.serve.conformance.check import Check, Try, expect, listed, ok, refused, within
from penstock.serve.conformance.target import Target


def checks() -> Iterator[Check]:
    yield from _health()
    yield from _metadata()
    yield from _listed()


def _health() -> Iterator[Check]:
    group, unknown = "health", "/v2/models/no-such/ready"
    for path in ("/v2/health/live", "/v2/health/ready"):
        yield Check(group, f"GET {path} is 200 while the server is well", _gets(path))
    yield Check(group, "a model's ready is 200", lambda t: within(t.ask("GET", f"{t.model}/ready")))
    yield Check(group, "an unknown model's ready is 4xx", lambda t: within(t.ask("GET", unknown), 400, 499))
    yield Check(group, "a version's ready is 200", _version_ready)


def _gets(path: str) -> Try:
    return lambda t: within(t.ask("GET", path))


def _version_ready(t: Target) -> None:
    for number in t.metadata.get("versions", []):
        within(t.ask("GET", f"{t.model}/versions/{number}/ready"))


def _metadata() -> Iterator[Check]:
    group = "metadata"
    yield Check(group, "GET /v2 names the server, its version and its extensions", _server)
    yield Check(group, "GET /v2/models/M names the model and its platform", _model)
    yield Check(group, "versions are strings", _versions)
    yield Check(group, "tensors have name, datatype and a shape of whole numbers", _tensors)
    yield Check(group, "a version that is listed has metadata of its own", _version)
    yield Check(group, "an unknown model is an error", lambda t: refused(t.ask("GET", "/v2/models/no-such")))
    yield Check(group, "an unknown version is an error", lambda t: refused(t.ask("GET", f"{t.model}/versions/99999")))
    yield Check(group, "an unknown path is 404", lambda t: within(t.ask("GET", "/v2/no/such/path"), 404, 404))
    yield Check(group, "a wrong method is 404 or 405", lambda t: within(t.ask("DELETE", "/v2"), 404, 405))


def _server(t: Target) -> None:
    told = ok(t.ask("GET", "/v2")).json
    for key, kind in (("name", str), ("version", str), ("extensions", list)):
        expect(isinstance(told.get(key), kind), f"{key} is {told.get(key)!r}")


def _model(t: Target) -> None:
    told = ok(t.ask("GET", t.model)).json
    expect(told.get("name") == t.name, f"name is {told.get('name')!r}")
    expect(isinstance(told.get("platform"), str), f"platform is {told.get('platform')!r}")


def _versions(t: Target) -> None:
    told = ok(t.ask("GET", t.model)).json.get("versions", [])  # which need not be there
    expect(isinstance(told, list) and all(isinstance(item, str) for item in told), f"versions is {told!r}")


def _tensors(t: Target) -> None:
    told = ok(t.ask("GET", t.model)).json
    for entry in (*told["inputs"], *told["outputs"]):
        expect({"name", "datatype", "shape"} <= set(entry), f"a tensor is {entry!r}")
        expect(all(isinstance(size, int) for size in entry["shape"]), f"a shape is {entry['shape']!r}")


def _version(t: Target) -> None:
    for number in t.metadata.get("versions", []):
        told = ok(t.ask("GET", f"{t.model}/versions/{number}")).json
        expect(told["name"] == t.name, f"name is {told['name']!r}")


def _listed() -> Iterator[Check]:
    """An extension has a path that answers where it is listed, and nowhere else."""
    paths = {
        "model_configuration": ("GET", "{}/config"),
        "model_repository": ("POST", "/v2/repository/index"),
        "statistics": ("GET", "{}/stats"),
        "logging": ("GET", "/v2/logging"),
        "trace": ("GET", "/v2/trace/setting"),
        "system_shared_memory": ("GET", "/v2/systemsharedmemory/status"),
        "cuda_shared_memory": ("GET", "/v2/cudasharedmemory/status"),
    }
    for extension, (method, path) in paths.items():
        yield Check(
            "extensions", f"{extension} is served if and only if it is listed", _serves(extension, method, path)
        )


def _serves(extension: str, method: str, path: str) -> Try:
    def tried(t: Target) -> None:
        answer = t.ask(method, path.format(t.model), {} if method == "POST" else None)
        if listed(t, extension):
            expect(answer.status == 200, f"it is listed, and {method} {path.format(t.model)} answers {answer.status}")
        else:
            # A list of no regions is true of a server that can have none.
            served = answer.status == 200 and answer.json != []
            expect(not served, f"{method} {path.format(t.model)} answers, and it is not listed")

    return tried
