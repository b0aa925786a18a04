"""Checks of what nobody should send: refused in one sentence, with nothing else harmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.serve.conformance.check import Check, Try, expect, first, ok, refused, same, values
from penstock.serve.conformance.target import Request, Skipped, Target

_GROUP = "strictness"
_BODIES: dict[str, bytes] = {
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


def checks() -> Iterator[Check]:
    for what, body in _BODIES.items():
        yield Check(_GROUP, f"{what} is refused", _refuses(body))
    for what, change in _CHANGES.items():
        yield Check(_GROUP, f"{what} is refused", _refuses_change(change))
    yield Check(_GROUP, "an output asked for twice is refused", _output_twice)
    yield Check(_GROUP, "behind a refused request the connection answers the next", _next)
    yield Check(_GROUP, "the server is well afterwards", _well)


def _refuses(body: bytes) -> Try:
    return lambda t: refused(t.infer(body))


def _refuses_change(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Try:
    def tried(t: Target) -> None:
        content = t.request()
        change(content, content["inputs"][0])
        refused(t.infer(content))

    return tried


def _output_twice(t: Target) -> None:
    name = t.metadata["outputs"][0]["name"]
    refused(t.infer({**t.request(), "outputs": [{"name": name}, {"name": name}]}))


def _next(t: Target) -> None:
    good = Request("POST", f"{t.model}/infer", t.request())
    bad = Request("POST", f"{t.model}/infer", b'{"inputs": 7}' + b" " * 100_000)
    lost = Request("POST", "/v2/models/no-such/infer", b'{"inputs": []}' + b" " * 100_000)
    answers = t.ask_all([good, bad, good, lost, good])
    expect(answers[1].status >= 400 and answers[3].status >= 400, "what is to be refused is not")
    for place in (2, 4):
        same(values(ok(answers[place]).json), values(ok(answers[0]).json), "the next answer")


def _well(t: Target) -> None:
    expect(t.ask("GET", "/v2/health/ready").status == 200, "it is not ready")
    first(t)


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
    "an unknown field": lambda c, e: c.update(inputz=[]),
}
