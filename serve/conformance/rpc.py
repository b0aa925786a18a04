"""Checks over gRPC: health, metadata and inference, as over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.serve.conformance.check import (
    Check,
    answered,
    called,
    ends,
    expect,
    first,
    same,
    values,
)
from penstock.serve.conformance.target import Skipped, Target

if TYPE_CHECKING:
    from penstock.serve.conformance.calls import Calls

Call = Callable[[Target, "Calls"], None]


def checks() -> Iterator[Check]:
    rules: dict[str, dict[str, Call]] = {
        "gRPC: health": {
            "the server is live": lambda t, c: _true(c, "ServerLive", "live"),
            "the server is ready": lambda t, c: _true(c, "ServerReady", "ready"),
            "the model is ready": lambda t, c: _true(c, "ModelReady", "ready", name=t.name),
            "a version of it is ready": _version_ready,
            "an unknown model is not ready": _unknown_ready,
        },
        "gRPC: metadata": {
            "the server's is that of HTTP": _server,
            "the model's is that of HTTP": _model,
            "an unknown model is NOT_FOUND": lambda t, c: lost(c, "ModelMetadata", name="no-such"),
            "an unknown version is NOT_FOUND": lambda t, c: lost(c, "ModelMetadata", name=t.name, version="99999"),
        },
        "gRPC: infer": {
            "raw contents give the answer of HTTP": lambda t, c: _as_http(t, c.ask("ModelInfer", c.request(t)), c),
            "typed contents give the answer of HTTP": _typed,
            "outputs come as raw contents or typed ones, never as both": _one_kind,
            "the answer names its model and version": _named,
            "the id comes back as it was": _identity,
            "an output that is asked for comes alone": _one,
            "a version may be named": _by_version,
            "two rows give two rows": _rows,
        },
    }
    for group, held in rules.items():
        for rule, run in held.items():
            yield Check(group, rule, called(run))


def _true(calls: Calls, method: str, field: str, **fields: Any) -> None:
    told = answered(calls.ask(method, calls.message(f"{method}Request", **fields)))
    expect(getattr(told, field) is True, f"{field} is false")


def lost(calls: Calls, method: str, **fields: Any) -> None:
    """See that a method does not find what it is asked for."""
    ends(calls.ask(method, calls.message(f"{method}Request", **fields)), "NOT_FOUND")


def _version_ready(t: Target, calls: Calls) -> None:
    for number in t.metadata.get("versions", []):
        _true(calls, "ModelReady", "ready", name=t.name, version=number)


def _unknown_ready(t: Target, calls: Calls) -> None:
    reply = calls.ask("ModelReady", calls.message("ModelReadyRequest", name="no-such"))
    expect(reply.code == "NOT_FOUND" or answered(reply).ready is False, "it is ready")


def _server(t: Target, calls: Calls) -> None:
    told = answered(calls.ask("ServerMetadata"))
    found = {"name": told.name, "version": told.version, "extensions": list(told.extensions)}
    wanted = {key: t.server.get(key) for key in found}
    expect(found == wanted, f"it is {found}, and over HTTP {wanted}")


def _model(t: Target, calls: Calls) -> None:
    told = answered(calls.ask("ModelMetadata", calls.message("ModelMetadataRequest", name=t.name)))
    wanted = t.metadata
    for key in ("name", "platform"):
        expect(getattr(told, key) == wanted[key], f"{key} is {getattr(told, key)!r}, and over HTTP {wanted[key]!r}")
    expect(list(told.versions) == wanted.get("versions", []), f"versions are {list(told.versions)}")
    for key in ("inputs", "outputs"):
        found = [(entry.name, entry.datatype, list(entry.shape)) for entry in getattr(told, key)]
        http = [(entry["name"], entry["datatype"], entry["shape"]) for entry in wanted[key]]
        expect(found == http, f"{key} are {found}, and over HTTP {http}")


def _as_http(t: Target, reply: Any, calls: Calls) -> None:
    same(calls.outputs(answered(reply)), values(first(t)), "over gRPC")


def _typed(t: Target, calls: Calls) -> None:
    _as_http(t, calls.ask("ModelInfer", calls.request(t, typed=True)), calls)


def _one_kind(t: Target, calls: Calls) -> None:
    told = answered(calls.infer(t))
    if told.raw_output_contents:
        expect(len(told.raw_output_contents) == len(told.outputs), f"{len(told.raw_output_contents)} raw contents")
        expect(not any(tensor.contents.ListFields() for tensor in told.outputs), "they come as both")
    else:
        expect(all(tensor.contents.ListFields() for tensor in told.outputs), "they come as neither")


def _named(t: Target, calls: Calls) -> None:
    told = answered(calls.infer(t))
    expect(told.model_name == t.name, f"model_name is {told.model_name!r}")
    versions = t.metadata.get("versions") or [told.model_version]  # a server need not list them
    expect(told.model_version in versions, f"model_version is {told.model_version!r}, of {versions}")


def _identity(t: Target, calls: Calls) -> None:
    told = answered(calls.infer(t, lambda request: setattr(request, "id", "a/7 ü")))
    expect(told.id == "a/7 ü", f"id comes back as {told.id!r}")


def _one(t: Target, calls: Calls) -> None:
    name = t.metadata["outputs"][-1]["name"]
    told = answered(calls.infer(t, lambda request: request.outputs.add(name=name)))
    expect([tensor.name for tensor in told.outputs] == [name], f"answers {[tensor.name for tensor in told.outputs]}")


def _by_version(t: Target, calls: Calls) -> None:
    for number in t.metadata.get("versions", [])[:1]:
        told = answered(calls.infer(t, lambda request: setattr(request, "model_version", number)))  # noqa: B023
        expect(told.model_version == number, f"model_version is {told.model_version!r}")


def _rows(t: Target, calls: Calls) -> None:
    if any(entry["shape"][:1] != [-1] for entry in t.metadata["inputs"]):
        raise Skipped("the model has no dynamic first size")

    def double(request: Any) -> None:
        for place, tensor in enumerate(request.inputs):
            tensor.shape[0] = 2
            request.raw_input_contents[place] *= 2

    for tensor in answered(calls.infer(t, double)).outputs:
        expect(tensor.shape[0] == 2, f"two rows give shape {list(tensor.shape)}")
