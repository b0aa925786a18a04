"""Checks of what is asked beside inference: configuration, statistics, the repository, logging, tracing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from penstock.serve.conformance.check import Check, Try, expect, first, needs, ok, refused, same, values, within
from penstock.serve.conformance.target import Failed, Skipped, Target

_TRACE = "/v2/trace/setting"


def checks() -> Iterator[Check]:
    rules: dict[str, dict[str, Try]] = {
        "model_configuration": {"GET config names the model and its max_batch_size": _config},
        "statistics": {
            "a request that succeeds counts as one": _counted,
            "GET /v2/models/stats has every model": _all_counted,
            "statistics of an unknown model are an error": lambda t: refused(t.ask("GET", "/v2/models/no-such/stats")),
        },
        "model_repository": {
            "the index lists the model as READY": _index,
            "the index of what is ready lists nothing else": _ready_index,
            "loading an unknown model is an error": _unknown("load"),
            "unloading an unknown model is an error": _unknown("unload"),
        },
        "logging": {
            "settings are read and set": _logging,
            "an unknown setting is refused": lambda t: refused(t.ask("POST", "/v2/logging", {"no_such": True})),
            "a setting of another kind is refused": lambda t: refused(t.ask("POST", "/v2/logging", {"log_info": 7})),
        },
        "trace": {
            "settings are texts and lists of them": _trace,
            "a setting that is set is answered, and null takes it back": _trace_set,
            "a model's setting is its own, and nothing takes it back": _trace_model,
            "an unknown setting is refused": lambda t: refused(t.ask("POST", _TRACE, {"no_such": "1"})),
            "an unknown level is refused": lambda t: refused(t.ask("POST", _TRACE, {"trace_level": ["LOUD"]})),
            "a rate that is no number is refused": lambda t: refused(t.ask("POST", _TRACE, {"trace_rate": "often"})),
            "settings of an unknown model are an error": _trace_unknown,
        },
    }
    for group, held in rules.items():
        for rule, run in held.items():
            yield Check(group, rule, needs(group, run))


def reloading() -> Iterator[Check]:
    """What takes the model away for a moment, and so comes last."""
    rule = "a model that is unloaded is not ready, and answers again when it is loaded"
    yield Check("model_repository", rule, needs("model_repository", _reload))


def _config(t: Target) -> None:
    told = ok(t.ask("GET", f"{t.model}/config")).json
    expect(told.get("name") == t.name and "max_batch_size" in told, f"the configuration is {told!r}"[:160])


def _successes(t: Target) -> int:
    (row,) = ok(t.ask("GET", f"{t.model}/stats")).json["model_stats"][:1]
    return int(row["inference_stats"]["success"]["count"])


def _counted(t: Target) -> None:
    before = _successes(t)
    first(t)
    grown = counts_after(lambda: _successes(t) - before)
    expect(grown == 1, f"one request counts as {grown}")


def counts_after(read: Callable[[], int], within_s: float = 2.0) -> int:
    """What a count has grown by, once it has: a server may answer before it counts."""
    give_up = time.monotonic() + within_s
    while (grown := read()) == 0 and time.monotonic() < give_up:
        time.sleep(0.05)
    return grown


def _all_counted(t: Target) -> None:
    names = [row["name"] for row in ok(t.ask("GET", "/v2/models/stats")).json["model_stats"]]
    expect(t.name in names, f"the statistics of all models are of {names}")


def _index(t: Target) -> None:
    rows = ok(t.ask("POST", "/v2/repository/index", {})).json
    states = [row.get("state") for row in rows if row["name"] == t.name]
    expect("READY" in states, f"the model's states are {states}, in {len(rows)} rows")


def _ready_index(t: Target) -> None:
    rows = ok(t.ask("POST", "/v2/repository/index", {"ready": True})).json
    expect(t.name in [row["name"] for row in rows], f"it lists {rows!r}"[:160])
    others = [row for row in rows if row.get("state", "READY") != "READY"]
    expect(others == [], f"it lists {others!r}"[:160])


def _unknown(verb: str) -> Try:
    return lambda t: refused(t.ask("POST", f"/v2/repository/models/no-such/{verb}", {}))


def _reload(t: Target) -> None:
    if not t.reload:
        raise Skipped("it takes the model from its clients for a moment; allow it with --reload")
    before, path = values(first(t)), f"/v2/repository/models/{quote(t.name, safe='')}"
    loaded = t.ask("POST", f"{path}/load", {})
    if loaded.status != 200:  # as where it is in no repository: then it would be gone for good
        raise Skipped(f"the server does not load it anew, and it is not unloaded: {loaded.body[:120]!r}")
    ok(t.ask("POST", f"{path}/unload", {}))
    try:
        give_up = time.monotonic() + t.timeout_s
        while t.ask("GET", f"{t.model}/ready").status == 200:
            if time.monotonic() > give_up:
                raise Failed("it is still ready")
            time.sleep(0.05)
        within(t.infer(t.request()), 400, 503)
    finally:
        loaded = t.ask("POST", f"{path}/load", {})
    ok(loaded)
    same(values(first(t)), before, "after it")


def _logging(t: Target) -> None:
    held = ok(t.ask("GET", "/v2/logging")).json
    told = ok(t.ask("POST", "/v2/logging", {"log_info": held["log_info"]})).json
    expect(told == held, "setting what is set changes it")


def _settings(t: Target, path: str = _TRACE, change: dict[str, Any] | None = None) -> dict[str, Any]:
    return dict(ok(t.ask("GET", path) if change is None else t.ask("POST", path, change)).json)


def _trace(t: Target) -> None:
    held = _settings(t)
    expect({"trace_level", "trace_rate"} <= set(held), f"it has {', '.join(held)}")
    for name, value in held.items():
        listed = value if isinstance(value, list) else [value]
        expect(all(isinstance(item, str) for item in listed), f"{name} is {value!r}")


def _trace_set(t: Target) -> None:
    before = _settings(t)
    try:
        told = _settings(t, change={"trace_rate": "4711"})
        expect(told == {**before, "trace_rate": "4711"}, f"it answers {told!r}"[:160])
        expect(_settings(t) == told, "it answers otherwise when it is asked again")
    finally:
        after = t.ask("POST", _TRACE, {"trace_rate": None})
    expect(ok(after).json.get("trace_rate") == before["trace_rate"], f"null leaves {after.body[:160]!r}")


def _trace_model(t: Target) -> None:
    path, before = f"{t.model}/trace/setting", _settings(t)
    try:
        told = _settings(t, path, {"trace_rate": "4712"})
        expect(told.get("trace_rate") == "4712", f"it answers {told!r}"[:160])
        expect(_settings(t) == before, "it changes what holds for all models")
    finally:
        after = t.ask("POST", path, {"trace_rate": None})
    expect(ok(after).json.get("trace_rate") == before["trace_rate"], f"null leaves {after.body[:160]!r}")


def _trace_unknown(t: Target) -> None:
    refused(t.ask("GET", "/v2/models/no-such/trace/setting"))
    refused(t.ask("POST", "/v2/models/no-such/trace/setting", {"trace_rate": "1"}))
