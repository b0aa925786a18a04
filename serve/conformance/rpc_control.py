"""Checks over gRPC of what is asked beside inference, and of what requests ask besides: as over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.serve.conformance.check import (
    Check,
    answered,
    called,
    ends,
    expect,
    first,
    needs,
    offered,
    ok,
    same,
    values,
)
from penstock.serve.conformance.control import counts_after
from penstock.serve.conformance.rpc import Call, lost
from penstock.serve.conformance.target import Skipped, Target

if TYPE_CHECKING:
    from penstock.serve.conformance.calls import Calls


def checks() -> Iterator[Check]:
    rules: dict[str, dict[str, Call]] = {
        "classification": {"classes are those of HTTP": _classes},
        "schedule_policy": {
            "a timeout that passes is UNAVAILABLE": _late,
            "a negative timeout is INVALID_ARGUMENT": lambda t, c: _policy(t, c, "timeout", int64_param=-1),
            "a priority that is a text is INVALID_ARGUMENT": lambda t, c: _policy(
                t, c, "priority", string_param="high"
            ),
        },
        "model_configuration": {
            "the configuration is that of HTTP": _config,
            "an unknown model is NOT_FOUND": lambda t, c: lost(c, "ModelConfig", name="no-such"),
        },
        "statistics": {
            "a request that succeeds counts as one": _counted,
            "without a name they are of every model": _all_counted,
            "an unknown model is an error": _unknown_statistics,
        },
        "model_repository": {
            "the index is that of HTTP": _index,
            "loading an unknown model is an error": lambda t, c: _unknown(c, "RepositoryModelLoad"),
            "unloading an unknown model is an error": lambda t, c: _unknown(c, "RepositoryModelUnload"),
        },
        "logging": {
            "settings are those of HTTP, and setting what is set changes nothing": _logging,
            "an unknown setting is INVALID_ARGUMENT": _unknown_setting,
        },
        "trace": {"settings are those of HTTP": _trace},
    }
    for extension, held in rules.items():
        for rule, run in held.items():
            yield Check(f"gRPC: {extension}", rule, needs(extension, called(run)))


def reloading() -> Iterator[Check]:
    """What loads the model anew, and so comes last."""
    group, rule = "model_repository", "the model is loaded anew, and answers as before"
    yield Check(f"gRPC: {group}", rule, needs(group, called(_reload)))


def _classes(t: Target, calls: Calls) -> None:
    told = t.metadata["outputs"][0]
    if len(told["shape"]) != 2 or not told["datatype"].startswith("FP"):
        raise Skipped("the first output has no rows of scores")

    def ask(request: Any) -> None:
        request.outputs.add(name=told["name"]).parameters["classification"].int64_param = 1

    reply = answered(calls.infer(t, ask))
    outputs = [{"name": told["name"], "parameters": {"classification": 1}}]
    (wanted,) = ok(t.infer({**t.request(), "outputs": outputs})).json["outputs"]
    held = (
        reply.raw_output_contents[0][4:] if reply.raw_output_contents else reply.outputs[0].contents.bytes_contents[0]
    )
    expect(reply.outputs[0].datatype == "BYTES", f"the datatype is {reply.outputs[0].datatype}")
    expect(held.decode() == wanted["data"][0], f"the class is {held!r}, and over HTTP {wanted['data'][0]!r}")


def _late(t: Target, calls: Calls) -> None:
    for _ in range(20):
        reply = calls.infer(t, lambda request: setattr(request.parameters["timeout"], "int64_param", 1))
        ends(reply, "OK", "UNAVAILABLE")


def _policy(t: Target, calls: Calls, name: str, **value: Any) -> None:
    request = calls.request(t)
    request.parameters[name].CopyFrom(calls.message("InferParameter", **value))
    ends(calls.ask("ModelInfer", request), "INVALID_ARGUMENT")


def _config(t: Target, calls: Calls) -> None:
    told = answered(calls.ask("ModelConfig", calls.message("ModelConfigRequest", name=t.name))).config
    wanted = ok(t.ask("GET", f"{t.model}/config")).json
    found = (told.name, told.max_batch_size)
    expect(found == (wanted["name"], wanted["max_batch_size"]), f"it has {found}")
    names = [tensor.name for tensor in told.input]
    expect(names == [tensor["name"] for tensor in wanted["input"]], f"its inputs are {names}")


def _counted(t: Target, calls: Calls) -> None:
    def count() -> int:
        request = calls.message("ModelStatisticsRequest", name=t.name)
        (row,) = list(answered(calls.ask("ModelStatistics", request)).model_stats)[:1]
        return int(row.inference_stats.success.count)

    before = count()
    answered(calls.infer(t))
    grown = counts_after(lambda: count() - before)
    expect(grown == 1, f"one request counts as {grown}")


def _unknown_statistics(t: Target, calls: Calls) -> None:
    reply = calls.ask("ModelStatistics", calls.message("ModelStatisticsRequest", name="no-such"))
    ends(reply, "NOT_FOUND", "INVALID_ARGUMENT")


def _all_counted(t: Target, calls: Calls) -> None:
    names = [row.name for row in answered(calls.ask("ModelStatistics")).model_stats]
    expect(t.name in names, f"they are of {names}")


def _index(t: Target, calls: Calls) -> None:
    found = sorted((row.name, row.version, row.state) for row in answered(calls.ask("RepositoryIndex")).models)
    rows = ok(t.ask("POST", "/v2/repository/index", {})).json
    wanted = sorted((row["name"], row.get("version", ""), row.get("state", "")) for row in rows)
    expect(found == wanted, f"it is {found}, and over HTTP {wanted}"[:300])


def _unknown(calls: Calls, method: str) -> None:
    reply = calls.ask(method, calls.message(f"{method}Request", model_name="no-such"))
    ends(reply, "INVALID_ARGUMENT", "NOT_FOUND")


def _reload(t: Target, calls: Calls) -> None:
    if not t.reload:
        raise Skipped("allow it with --reload")
    before = values(first(t))
    reply = calls.ask("RepositoryModelLoad", calls.message("RepositoryModelLoadRequest", model_name=t.name))
    if reply.code != "OK":
        raise Skipped(f"the server does not load it anew: {reply.details[:120]}")
    same(calls.outputs(answered(calls.infer(t))), before, "after it")


def _setting(held: Any) -> Any:
    return getattr(held, held.WhichOneof("parameter_choice"))


def _logging(t: Target, calls: Calls) -> None:
    wanted = ok(t.ask("GET", "/v2/logging")).json
    request = calls.message("LogSettingsRequest")
    for sent in (None, bool(wanted["log_info"])):
        if sent is not None:
            request.settings["log_info"].bool_param = sent
        told = answered(calls.ask("LogSettings", request)).settings
        found = {name: _setting(held) for name, held in told.items()}
        expect(found == wanted, f"they are {found}, and over HTTP {wanted}"[:300])


def _unknown_setting(t: Target, calls: Calls) -> None:
    request = calls.message("LogSettingsRequest")
    request.settings["no_such"].bool_param = True
    ends(calls.ask("LogSettings", request), "INVALID_ARGUMENT")


def _trace(t: Target, calls: Calls) -> None:
    wanted = ok(t.ask("GET", "/v2/trace/setting")).json
    told = answered(offered(calls.ask("TraceSetting"), "TraceSetting")).settings
    found = {name: list(held.value) for name, held in told.items()}
    lists = {name: value if isinstance(value, list) else [value] for name, value in wanted.items()}
    expect(found == lists, f"they are {found}, and over HTTP {lists}"[:300])
