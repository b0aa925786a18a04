"""Checks of inference in JSON, and of classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.serve.conformance.check import Check, Try, expect, first, needs, ok, refused, same, values, within
from penstock.serve.conformance.target import Skipped, Target


def checks() -> Iterator[Check]:
    group = "infer, JSON"
    yield Check(group, "an answer has model_name and outputs", _shape)
    yield Check(group, "without a list of outputs all of them come", _outputs)
    yield Check(group, "data is flat, as many numbers as its shape takes, and not in binary", _flat)
    yield Check(group, "outputs have the datatypes that metadata says", _datatypes)
    yield Check(group, "model_version is a string", _version)
    yield Check(group, "nested data is taken as flat data is", _nested)
    yield Check(group, "no Content-Type is needed, and another does no harm", _without_type)
    yield Check(group, "a chunked body is taken", _chunked)
    yield Check(group, "the id comes back as it was", _identity)
    yield Check(group, "an output that is asked for comes alone", _one)
    yield Check(group, "a version may be named in the path", _by_version)
    yield Check(group, "two rows give two rows", _rows)
    group = "classification"
    yield Check(group, "classes come as value:index[:label] in BYTES", needs(group, _texts))
    yield Check(group, "the largest score comes first", needs(group, _order))
    yield Check(group, "classes are those of the scores", needs(group, _right))
    group = "schedule_policy"
    yield Check(group, "a priority and a timeout are taken", needs(group, _policy))
    yield Check(group, "a timeout that passes is a 503", needs(group, _late))
    for what, parameters in (("negative timeout", {"timeout": -1}), ("priority that is a text", {"priority": "high"})):
        yield Check(group, f"a {what} is refused", needs(group, _refuses(parameters)))


def _shape(t: Target) -> None:
    told = first(t)
    expect(told.get("model_name") == t.name, f"model_name is {told.get('model_name')!r}")
    expect(isinstance(told.get("outputs"), list) and told["outputs"] != [], f"outputs is {told.get('outputs')!r}")


def _outputs(t: Target) -> None:
    names = [entry["name"] for entry in first(t)["outputs"]]
    wanted = [entry["name"] for entry in t.metadata["outputs"]]
    expect(sorted(names) == sorted(wanted), f"answers {names}, and declares {wanted}")


def _flat(t: Target) -> None:
    for entry in first(t)["outputs"]:
        data = entry["data"]
        expect(not any(isinstance(item, list) for item in data), f"data of {entry['name']} is nested")
        expect(len(data) == int(np.prod(entry["shape"])), f"{len(data)} numbers for shape {entry['shape']}")
        expect("binary_data_size" not in entry.get("parameters", {}), f"{entry['name']} says that it is in binary")


def _datatypes(t: Target) -> None:
    told = {entry["name"]: entry["datatype"] for entry in t.metadata["outputs"]}
    for entry in first(t)["outputs"]:
        name, kind = entry["name"], entry["datatype"]
        expect(kind == told.get(name), f"{name} is {kind}, and metadata says {told.get(name)}")


def _version(t: Target) -> None:
    told = first(t).get("model_version")
    expect(told is None or isinstance(told, str), f"model_version is {told!r}")


def _nested(t: Target) -> None:
    content = t.request()
    for entry, (_, kind, size) in zip(content["inputs"], t.inputs, strict=True):
        entry["data"] = t.array(kind, size).tolist()
    same(values(ok(t.infer(content)).json), values(first(t)), "nested data")


def _without_type(t: Target) -> None:
    body = json.dumps(t.request()).encode()
    for headers in ({}, {"Content-Type": "application/octet-stream"}, {"Content-Type": "text/plain"}):
        ok(t.infer(body, headers))


def _chunked(t: Target) -> None:
    body = json.dumps(t.request()).encode()
    parts = [body[at : at + 40] for at in range(0, len(body), 40)][:200]
    parts.append(body[40 * len(parts) :])
    same(values(ok(t.infer(filter(None, iter(parts)))).json), values(first(t)), "a chunked body")


def _identity(t: Target) -> None:
    told = ok(t.infer({**t.request(), "id": "a/7 ü"})).json
    expect(told.get("id") == "a/7 ü", f"id comes back as {told.get('id')!r}")


def _one(t: Target) -> None:
    name = t.metadata["outputs"][-1]["name"]
    told = ok(t.infer({**t.request(), "outputs": [{"name": name}]})).json
    expect([entry["name"] for entry in told["outputs"]] == [name], f"answers {told['outputs']!r}"[:160])


def _by_version(t: Target) -> None:
    for number in t.metadata.get("versions", [])[:1]:
        ok(t.ask("POST", f"{t.model}/versions/{number}/infer", t.request()))


def _rows(t: Target) -> None:
    if any(entry["shape"][:1] != [-1] for entry in t.metadata["inputs"]):
        raise Skipped("the model has no dynamic first size")
    content = t.request()
    for entry in content["inputs"]:
        entry["shape"], entry["data"] = [2, *entry["shape"][1:]], entry["data"] * 2
    for entry in ok(t.infer(content)).json["outputs"]:
        expect(entry["shape"][0] == 2, f"two rows give shape {entry['shape']}")


def _classes(t: Target, count: int) -> Any:
    told = t.metadata["outputs"][0]
    if len(told["shape"]) != 2 or not told["datatype"].startswith("FP"):
        raise Skipped("the first output has no rows of scores")
    outputs = [{"name": told["name"], "parameters": {"classification": count}}]
    (entry,) = ok(t.infer({**t.request(), "outputs": outputs})).json["outputs"]
    return entry


def _texts(t: Target) -> None:
    entry = _classes(t, 2)
    expect(entry["datatype"] == "BYTES", f"the datatype is {entry['datatype']}")
    expect(all(len(text.split(":")) >= 2 for text in entry["data"]), f"the classes are {entry['data']!r}"[:160])


def _order(t: Target) -> None:
    entry = _classes(t, 3)
    scores = [float(text.split(":")[0]) for text in entry["data"][:3]]
    expect(scores == sorted(scores, reverse=True), f"the scores are {scores}")


def _right(t: Target) -> None:
    entry = _classes(t, 1)
    scores = values(first(t))[t.metadata["outputs"][0]["name"]].reshape(-1)
    index = int(entry["data"][0].split(":")[1])
    expect(scores[index] == scores.max(), f"the class is {index}, and the largest score is at {int(scores.argmax())}")


def _policy(t: Target) -> None:
    parameters = {"priority": 0, "timeout": 3_000_000_000}
    same(values(ok(t.infer({**t.request(), "parameters": parameters})).json), values(first(t)), "with both")


def _refuses(parameters: dict[str, Any]) -> Try:
    return lambda t: refused(t.infer({**t.request(), "parameters": parameters}))


def _late(t: Target) -> None:
    for _ in range(20):
        answer = t.infer({**t.request(), "parameters": {"timeout": 1}})
        if answer.status != 200:  # which it may be: what it does is the model's policy
            within(answer, 503, 503)
            expect(list(answer.json) == ["error"], f"the body is {answer.body[:160]!r}")
