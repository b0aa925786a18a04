"""The checks over HTTP: each a rule of the protocol or of good manners, and what tries it."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.serve.conformance.target import HEADER_LENGTH, Answer, Failed, Skipped, Target

Try = Callable[[Target], None]


@dataclass(frozen=True)
class Check:
    """One rule, in the group of the extension that it is of."""

    group: str
    rule: str
    run: Try


def expect(held: bool, what: str) -> None:
    if not held:
        raise Failed(what)


def ok(answer: Answer) -> Answer:
    """The answer, which must be a 200."""
    expect(answer.status == 200, f"answers {answer.status}: {answer.body[:160]!r}")
    return answer


def refused(answer: Answer, statuses: tuple[int, ...] = (400, 404, 413, 415, 422, 501)) -> None:
    """See that an answer is the client's fault, with an error of one sentence and nothing else."""
    expect(answer.status in statuses, f"answers {answer.status}: {answer.body[:160]!r}")
    content = answer.json
    expect(isinstance(content, dict) and list(content) == ["error"], f"the body is {answer.body[:160]!r}")
    expect(isinstance(content["error"], str) and content["error"] != "", "the error says nothing")


def every() -> list[Check]:
    """All checks, group by group."""
    return [*_health(), *_metadata(), *_json(), *_binary(), *_outputs(), *_extensions(), *_abuse()]


def _health() -> Iterator[Check]:
    group = "health"
    for path in ("/v2/health/live", "/v2/health/ready"):
        yield Check(group, f"GET {path} is 200 while the server is well", _gets(path))
    yield Check(group, "a model's ready is 200", lambda t: _status(t.ask("GET", f"{t.model}/ready")))
    unknown = "/v2/models/no-such/ready"
    yield Check(group, "an unknown model's ready is 4xx", lambda t: _status(t.ask("GET", unknown), 400, 499))


def _gets(path: str) -> Try:
    return lambda t: _status(t.ask("GET", path))


def _refuses(body: bytes) -> Try:
    return lambda t: refused(t.infer(body))


def _refuses_change(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Try:
    return lambda t: refused(t.infer(_changed(t, change)))


def _status(answer: Answer, least: int = 200, most: int = 200) -> None:
    expect(least <= answer.status <= most, f"answers {answer.status}: {answer.body[:160]!r}")


def _metadata() -> Iterator[Check]:
    def server(t: Target) -> None:
        told = ok(t.ask("GET", "/v2")).json
        for key, kind in (("name", str), ("version", str), ("extensions", list)):
            expect(isinstance(told.get(key), kind), f"{key} is {told.get(key)!r}")

    def model(t: Target) -> None:
        told = ok(t.ask("GET", t.model)).json
        expect(told.get("name") == t.name, f"name is {told.get('name')!r}")
        expect(isinstance(told.get("platform"), str), f"platform is {told.get('platform')!r}")

    def versions(t: Target) -> None:
        told = t.metadata.get("versions")
        expect(isinstance(told, list) and all(isinstance(item, str) for item in told), f"versions is {told!r}")

    def tensors(t: Target) -> None:
        for entry in (*t.metadata["inputs"], *t.metadata["outputs"]):
            expect({"name", "datatype", "shape"} <= set(entry), f"a tensor is {entry!r}")
            expect(all(isinstance(size, int) for size in entry["shape"]), f"a shape is {entry['shape']!r}")

    def version(t: Target) -> None:
        for number in t.metadata.get("versions", []):
            told = ok(t.ask("GET", f"{t.model}/versions/{number}")).json
            expect(told["name"] == t.name, f"name is {told['name']!r}")

    group = "metadata"
    yield Check(group, "GET /v2 names the server, its version and its extensions", server)
    yield Check(group, "GET /v2/models/M names the model and its platform", model)
    yield Check(group, "versions are strings", versions)
    yield Check(group, "tensors have name, datatype and a shape of whole numbers", tensors)
    yield Check(group, "a version that is listed has metadata of its own", version)
    yield Check(group, "an unknown model is an error", lambda t: refused(t.ask("GET", "/v2/models/no-such")))
    yield Check(group, "an unknown version is an error", lambda t: refused(t.ask("GET", f"{t.model}/versions/99999")))
    yield Check(group, "an unknown path is 404", lambda t: _status(t.ask("GET", "/v2/no/such/path"), 404, 404))
    yield Check(group, "a wrong method is 404 or 405", lambda t: _status(t.ask("DELETE", "/v2"), 404, 405))


def _first(t: Target) -> dict[str, Any]:
    return dict(ok(t.infer(t.request())).json)


def _json() -> Iterator[Check]:
    group = "infer, JSON"

    def shape(t: Target) -> None:
        told = _first(t)
        expect(told.get("model_name") == t.name, f"model_name is {told.get('model_name')!r}")
        expect(isinstance(told.get("outputs"), list) and told["outputs"] != [], f"outputs is {told.get('outputs')!r}")

    def outputs(t: Target) -> None:
        names = [entry["name"] for entry in _first(t)["outputs"]]
        wanted = [entry["name"] for entry in t.metadata["outputs"]]
        expect(sorted(names) == sorted(wanted), f"answers {names}, and declares {wanted}")

    def flat(t: Target) -> None:
        for entry in _first(t)["outputs"]:
            data = entry["data"]
            expect(not any(isinstance(item, list) for item in data), f"data of {entry['name']} is nested")
            expect(len(data) == int(np.prod(entry["shape"])), f"{len(data)} numbers for shape {entry['shape']}")
            expect("parameters" not in entry, f"{entry['name']} has parameters {entry.get('parameters')!r}")

    def version(t: Target) -> None:
        told = _first(t).get("model_version")
        expect(told is None or isinstance(told, str), f"model_version is {told!r}")

    def nested(t: Target) -> None:
        content = t.request()
        for entry, (_, kind, size) in zip(content["inputs"], t.inputs, strict=True):
            entry["data"] = t.array(kind, size).tolist()
        expect(_values(ok(t.infer(content)).json) == _values(_first(t)), "nested data gives another answer")

    def without_type(t: Target) -> None:
        body = json.dumps(t.request()).encode()
        for headers in ({}, {"Content-Type": "application/octet-stream"}, {"Content-Type": "text/plain"}):
            ok(t.infer(body, headers))

    def identity(t: Target) -> None:
        told = ok(t.infer({**t.request(), "id": "a/7 ü"})).json
        expect(told.get("id") == "a/7 ü", f"id comes back as {told.get('id')!r}")

    def one(t: Target) -> None:
        name = t.metadata["outputs"][-1]["name"]
        told = ok(t.infer({**t.request(), "outputs": [{"name": name}]})).json
        expect([entry["name"] for entry in told["outputs"]] == [name], f"answers {told['outputs']!r}"[:160])

    def by_version(t: Target) -> None:
        for number in t.metadata.get("versions", [])[:1]:
            ok(t.ask("POST", f"{t.model}/versions/{number}/infer", t.request()))

    def rows(t: Target) -> None:
        if any(entry["shape"][:1] != [-1] for entry in t.metadata["inputs"]):
            raise Skipped("the model has no dynamic first size")
        content = t.request()
        for entry in content["inputs"]:
            entry["shape"], entry["data"] = [2, *entry["shape"][1:]], entry["data"] * 2
        for entry in ok(t.infer(content)).json["outputs"]:
            expect(entry["shape"][0] == 2, f"two rows give shape {entry['shape']}")

    yield Check(group, "an answer has model_name and outputs", shape)
    yield Check(group, "without a list of outputs all of them come", outputs)
    yield Check(group, "data is flat, as many numbers as its shape takes, without parameters", flat)
    yield Check(group, "model_version is a string", version)
    yield Check(group, "nested data is taken as flat data is", nested)
    yield Check(group, "no Content-Type is needed, and another does no harm", without_type)
    yield Check(group, "the id comes back as it was", identity)
    yield Check(group, "an output that is asked for comes alone", one)
    yield Check(group, "a version may be named in the path", by_version)
    yield Check(group, "two rows give two rows", rows)


def _values(content: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry["data"] for entry in content["outputs"]}


def _claimed(t: Target, extension: str) -> None:
    if not any(held.partition("(")[0] == extension for held in t.extensions):
        raise Skipped(f"the server does not list the extension {extension}")


def _read(answer: Answer) -> dict[str, bytes]:
    """The binary outputs of an answer, by name."""
    length = answer.headers.get(HEADER_LENGTH.lower())
    if length is None:
        raise Failed(f"has no {HEADER_LENGTH}")
    content, tail, found = json.loads(answer.body[: int(length)]), answer.body[int(length) :], {}
    for entry in content["outputs"]:
        size = entry.get("parameters", {}).get("binary_data_size")
        if size is not None:
            found[entry["name"]], tail = tail[:size], tail[size:]
    expect(tail == b"", f"{len(tail)} bytes follow the last output")
    return found


def _binary() -> Iterator[Check]:
    group = "binary_tensor_data"

    def claimed(run: Try) -> Try:
        def tried(t: Target) -> None:
            _claimed(t, group)
            run(t)

        return tried

    def taken(t: Target) -> None:
        expect(
            _values(ok(t.infer(*t.binary())).json) == _values(_first(t)), "binary inputs give another answer than JSON"
        )

    def given(t: Target) -> None:
        found = _read(ok(t.infer(*t.binary({"parameters": {"binary_data_output": True}}))))
        for entry in _first(t)["outputs"]:
            kind = {"FP32": "<f4", "FP64": "<f8", "INT64": "<i8", "INT32": "<i4"}.get(entry["datatype"])
            if kind is not None:
                same = np.allclose(
                    np.frombuffer(found[entry["name"]], kind), np.array(entry["data"], kind), equal_nan=True
                )
                expect(same, f"{entry['name']} is another in binary")

    def chosen(t: Target) -> None:
        name = t.metadata["outputs"][0]["name"]
        outputs = [{"name": name, "parameters": {"binary_data": True}}]
        expect(
            list(_read(ok(t.infer(*t.binary({"outputs": outputs}))))) == [name],
            "binary_data of an output is not heeded",
        )

    def raw(t: Target) -> None:
        if len(t.inputs) != 1 or sum(size == -1 for size in t.metadata["inputs"][0]["shape"]) > 1:
            raise Skipped("the model has several inputs or dynamic sizes")
        _, kind, shape = t.inputs[0]
        _read(ok(t.infer(t.array(kind, shape).tobytes(), {HEADER_LENGTH: "0"})))

    def wrong(headers: dict[str, str], change: Callable[[bytes], bytes] = lambda body: body) -> Try:
        def tried(t: Target) -> None:
            body, own = t.binary()
            refused(t.infer(change(body), {**own, **headers}))

        return tried

    def sized(change: int) -> Try:
        def tried(t: Target) -> None:
            body, headers = t.binary()
            length = int(headers[HEADER_LENGTH])
            content = json.loads(body[:length])
            content["inputs"][0]["parameters"]["binary_data_size"] += change
            text = json.dumps(content).encode()
            refused(t.infer(text + body[length:], {HEADER_LENGTH: str(len(text))}))

        return tried

    yield Check(group, "inputs behind the JSON are taken", claimed(taken))
    yield Check(group, "binary_data_output gives all outputs in binary", claimed(given))
    yield Check(group, "binary_data of an output gives that one in binary", claimed(chosen))
    yield Check(group, "a raw request (header length 0) is its input's bytes", claimed(raw))
    yield Check(group, "a header length beyond the body is refused", claimed(wrong({HEADER_LENGTH: "99999999"})))
    yield Check(group, "a negative header length is refused", claimed(wrong({HEADER_LENGTH: "-1"})))
    yield Check(group, "a header length that is no number is refused", claimed(wrong({HEADER_LENGTH: "ten"})))
    yield Check(group, "a body cut short is refused", claimed(wrong({}, lambda body: body[:-1])))
    yield Check(group, "bytes behind the last input are refused", claimed(wrong({}, lambda body: body + b"\0")))
    yield Check(group, "a binary_data_size of one more is refused", claimed(sized(1)))
    yield Check(group, "a binary_data_size of one less is refused", claimed(sized(-1)))
    yield Check(group, "a negative binary_data_size is refused", claimed(sized(-(10**9))))


def _outputs() -> Iterator[Check]:
    group = "classification"

    def classes(t: Target, count: int = 2) -> list[Any]:
        _claimed(t, group)
        told = t.metadata["outputs"][0]
        if len(told["shape"]) < 2 or not told["datatype"].startswith("FP"):
            raise Skipped("the first output has no rows of scores")
        outputs = [{"name": told["name"], "parameters": {"classification": count}}]
        return list(ok(t.infer({**t.request(), "outputs": outputs})).json["outputs"])

    def texts(t: Target) -> None:
        (entry,) = classes(t)
        expect(entry["datatype"] == "BYTES", f"the datatype is {entry['datatype']}")
        expect(all(len(text.split(":")) >= 2 for text in entry["data"]), f"the classes are {entry['data']!r}"[:160])

    def order(t: Target) -> None:
        (entry,) = classes(t, 3)
        scores = [float(text.split(":")[0]) for text in entry["data"][:3]]
        expect(scores == sorted(scores, reverse=True), f"the scores are {scores}")

    yield Check(group, "classes come as value:index[:label] in BYTES", texts)
    yield Check(group, "the largest score comes first", order)


def _extensions() -> Iterator[Check]:
    def config(t: Target) -> None:
        _claimed(t, "model_configuration")
        told = ok(t.ask("GET", f"{t.model}/config")).json
        expect(told.get("name") == t.name and "max_batch_size" in told, f"the configuration is {told!r}"[:160])

    def statistics(t: Target) -> None:
        _claimed(t, "statistics")
        before = ok(t.ask("GET", f"{t.model}/stats")).json["model_stats"][0]
        _first(t)
        after = ok(t.ask("GET", f"{t.model}/stats")).json["model_stats"][0]
        grown = int(after["inference_stats"]["success"]["count"]) - int(before["inference_stats"]["success"]["count"])
        expect(grown == 1, f"one request counts as {grown}")

    def failures(t: Target) -> None:
        _claimed(t, "statistics")
        names = [row["name"] for row in ok(t.ask("GET", "/v2/models/stats")).json["model_stats"]]
        expect(t.name in names, f"the statistics of all models are of {names}")

    def index(t: Target) -> None:
        _claimed(t, "model_repository")
        rows = ok(t.ask("POST", "/v2/repository/index", b"")).json
        (row,) = [row for row in rows if row["name"] == t.name][:1]
        expect(row.get("state") == "READY", f"the model's row is {row!r}")

    def unknown(verb: str) -> Try:
        def tried(t: Target) -> None:
            _claimed(t, "model_repository")
            refused(t.ask("POST", f"/v2/repository/models/no-such/{verb}", {}))

        return tried

    def logging(t: Target) -> None:
        _claimed(t, "logging")
        held = ok(t.ask("GET", "/v2/logging")).json
        expect(
            ok(t.ask("POST", "/v2/logging", {"log_info": held["log_info"]})).json == held,
            "setting what is set changes it",
        )

    def compressed(coding: str, pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes]) -> Iterator[Check]:
        def sent(t: Target) -> None:
            answer = t.infer(pack(json.dumps(t.request()).encode()), {"Content-Encoding": coding})
            expect(_values(ok(answer).json) == _values(_first(t)), "it gives another answer")

        def counted(t: Target) -> None:
            _claimed(t, "binary_tensor_data")
            body, headers = t.binary()
            ok(t.infer(pack(body), {**headers, "Content-Encoding": coding}))

        def returned(t: Target) -> None:
            answer = ok(t.ask("POST", f"{t.model}/infer", t.request(), {"Accept-Encoding": coding}))
            if answer.headers.get("content-encoding", "identity") == "identity":
                raise Skipped("the server sends it as it is")
            expect(answer.headers["content-encoding"] == coding, f"it is in {answer.headers['content-encoding']}")
            json.loads(unpack(answer.body))

        yield Check("compression", f"a body in {coding} is taken", sent)
        yield Check("compression", f"the header length counts what {coding} inflates to", counted)
        yield Check("compression", f"an answer comes in {coding} where that is asked for", returned)
        yield Check(
            "compression",
            f"{coding} that is none is refused",
            lambda t: refused(t.infer(b"{}", {"Content-Encoding": coding})),
        )

    yield Check("model_configuration", "GET config names the model and its max_batch_size", config)
    yield Check("statistics", "a request that succeeds counts as one", statistics)
    yield Check("statistics", "GET /v2/models/stats has every model", failures)
    yield Check("model_repository", "the index lists the model as READY", index)
    yield Check("model_repository", "loading an unknown model is an error", unknown("load"))
    yield Check("model_repository", "unloading an unknown model is an error", unknown("unload"))
    yield Check("logging", "settings are read and set", logging)
    yield from compressed("gzip", gzip.compress, gzip.decompress)
    yield from compressed("deflate", zlib.compress, zlib.decompress)


def _abuse() -> Iterator[Check]:
    group = "strictness"
    bodies: dict[str, bytes] = {
        "no body": b"",
        "a body that is no JSON": b"{'inputs': 1}",
        "a list for the request": b"[]",
        "null for the request": b"null",
        "a body that is not UTF-8": b'{"inputs": "\xff"}',
        "100,000 open brackets": b"[" * 100_000,
        "no inputs": b"{}",
        "inputs that are no list": b'{"inputs": {}}',
        "an empty list of inputs": b'{"inputs": []}',
        "an input that is a number": b'{"inputs": [7]}',
    }
    for what, body in bodies.items():
        yield Check(group, f"{what} is refused", _refuses(body))
    for what, change in _CHANGES.items():
        yield Check(group, f"{what} is refused", _refuses_change(change))
    yield Check(group, "an output asked for twice is refused", _output_twice)
    yield Check(group, "the server is well afterwards", lambda t: _status(t.infer(t.request())))


def _output_twice(t: Target) -> None:
    name = t.metadata["outputs"][0]["name"]
    refused(t.infer({**t.request(), "outputs": [{"name": name}, {"name": name}]}))


def _changed(t: Target, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> dict[str, Any]:
    content = t.request()
    change(content, content["inputs"][0])
    return content


def _whole_numbers(content: dict[str, Any], entry: dict[str, Any]) -> None:
    if not entry["datatype"].startswith(("INT", "UINT")):
        raise Skipped("the first input is of no whole numbers")
    entry["data"][0] = 1.5


def _out_of_range(content: dict[str, Any], entry: dict[str, Any]) -> None:
    entry["data"][0] = 2**70 if entry["datatype"].startswith(("INT", "UINT")) else 1e300
    if entry["datatype"] == "FP64":
        raise Skipped("FP64 holds what JSON has")


def _without(entry: dict[str, Any], field: str) -> None:
    del entry[field]


_CHANGES: dict[str, Callable[[dict[str, Any], dict[str, Any]], None]] = {
    "an unknown input": lambda c, e: e.update(name="no-such"),
    "an input without a name": lambda c, e: _without(e, "name"),
    "a name that is a number": lambda c, e: e.update(name=7),
    "an input given twice": lambda c, e: c["inputs"].append(dict(e)),
    "an input left out": lambda c, e: c.update(inputs=c["inputs"][1:] or [{}]),
    "an unknown datatype": lambda c, e: e.update(datatype="FP99"),
    "another datatype than the model's": lambda c, e: e.update(datatype="BOOL" if e["datatype"] != "BOOL" else "FP32"),
    "no datatype": lambda c, e: _without(e, "datatype"),
    "no shape": lambda c, e: _without(e, "shape"),
    "a shape that is a text": lambda c, e: e.update(shape="1"),
    "a negative size": lambda c, e: e.update(shape=[-1, *e["shape"][1:]]),
    "a size that is a fraction": lambda c, e: e.update(shape=[1.5, *e["shape"][1:]]),
    "sizes whose product overflows": lambda c, e: e.update(shape=[2**62, 4, *e["shape"][1:]]),
    "a shape of a rank too many": lambda c, e: e.update(shape=[1, *e["shape"]]),
    "more data than the shape takes": lambda c, e: e.update(data=[*e["data"], 1]),
    "less data than the shape takes": lambda c, e: e.update(data=e["data"][:-1]),
    "neither data nor binary_data_size": lambda c, e: _without(e, "data"),
    "data and binary_data_size": lambda c, e: e.update(parameters={"binary_data_size": 4}),
    "a text among the numbers": lambda c, e: e.update(data=["x", *e["data"][1:]]),
    "null among the numbers": lambda c, e: e.update(data=[None, *e["data"][1:]]),
    "a number too large for its datatype": _out_of_range,
    "a fraction for whole numbers": _whole_numbers,
    "data that is a number": lambda c, e: e.update(data=1, shape=[*e["shape"], 2]),
    "parameters that are a list": lambda c, e: c.update(parameters=[]),
    "an unknown output": lambda c, e: c.update(outputs=[{"name": "no-such"}]),
    "outputs that are an object": lambda c, e: c.update(outputs={}),
    "an id that is a number": lambda c, e: c.update(id=7),
    "a negative timeout": lambda c, e: c.update(parameters={"timeout": -1}),
    "a priority that is a text": lambda c, e: c.update(parameters={"priority": "high"}),
    "an unknown field": lambda c, e: c.update(inputz=[]),
}
