"""Checks of tensors behind the JSON, and of bodies in gzip and deflate."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from penstock.serve.conformance.check import Check, Try, expect, first, needs, ok, refused, same, values
from penstock.serve.conformance.target import HEADER_LENGTH, NUMPY, Answer, Failed, Skipped, Target

_GROUP = "binary_tensor_data"


def checks() -> Iterator[Check]:
    rules: dict[str, Try] = {
        "inputs behind the JSON are taken": _taken,
        "binary_data_output gives all outputs in binary": _given,
        "binary_data of an output gives that one in binary": _chosen,
        "the model's name beside the inputs does no harm": _example,
        "a raw request (header length 0) is its input's bytes": _raw,
        "a raw request of a byte too few is refused": _raw_cut,
        "a header length beyond the body is refused": _wrong({HEADER_LENGTH: "99999999"}),
        "a negative header length is refused": _wrong({HEADER_LENGTH: "-1"}),
        "a header length that is no number is refused": _wrong({HEADER_LENGTH: "ten"}),
        "a body cut short is refused": _wrong({}, lambda body: body[:-1]),
        "bytes behind the last input are refused": _wrong({}, lambda body: body + b"\0"),
        "a binary_data_size of one more is refused": _sized(1),
        "a binary_data_size of one less is refused": _sized(-1),
        "a negative binary_data_size is refused": _sized(-(10**9)),
    }
    for rule, run in rules.items():
        yield Check(_GROUP, rule, needs(_GROUP, run))
    yield from _compressed("gzip", gzip.compress, gzip.decompress)
    yield from _compressed("deflate", zlib.compress, zlib.decompress)


def read(answer: Answer) -> dict[str, bytes]:
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


def _taken(t: Target) -> None:
    same(values(ok(t.infer(*t.binary())).json), values(first(t)), "inputs in binary")


def _given(t: Target) -> None:
    found, wanted = read(ok(t.infer(*t.binary({"parameters": {"binary_data_output": True}})))), first(t)
    kinds = {entry["name"]: NUMPY[entry["datatype"]] for entry in wanted["outputs"]}
    arrays = values(wanted)
    got = {name: np.frombuffer(raw, kinds[name]).reshape(arrays[name].shape) for name, raw in found.items()}
    same(got, arrays, "outputs in binary")


def _chosen(t: Target) -> None:
    name = t.metadata["outputs"][0]["name"]
    outputs = [{"name": name, "parameters": {"binary_data": True}}]
    found = read(ok(t.infer(*t.binary({"outputs": outputs}))))
    expect(list(found) == [name], "binary_data of an output is not heeded")


def _example(t: Target) -> None:
    """The extension's own example has it."""
    same(values(ok(t.infer(*t.binary({"model_name": t.name}))).json), values(first(t)), "with the model's name")


def _raw_bytes(t: Target) -> bytes:
    if len(t.inputs) != 1 or sum(size == -1 for size in t.metadata["inputs"][0]["shape"]) > 1:
        raise Skipped("the model has several inputs or dynamic sizes")
    _, kind, shape = t.inputs[0]
    return bytes(t.array(kind, shape).tobytes())


def _raw(t: Target) -> None:
    found = read(ok(t.infer(_raw_bytes(t), {HEADER_LENGTH: "0"})))
    wanted = first(t)
    sizes = {entry["name"]: np.size(entry["data"]) * NUMPY[entry["datatype"]].itemsize for entry in wanted["outputs"]}
    got = {name: len(raw) for name, raw in found.items()}
    expect(got == sizes, f"its outputs have {got} bytes, and in JSON {sizes}")


def _raw_cut(t: Target) -> None:
    refused(t.infer(_raw_bytes(t)[:-1], {HEADER_LENGTH: "0"}))


def _wrong(headers: dict[str, str], change: Callable[[bytes], bytes] = lambda body: body) -> Try:
    def tried(t: Target) -> None:
        body, own = t.binary()
        refused(t.infer(change(body), {**own, **headers}))

    return tried


def _sized(change: int) -> Try:
    def tried(t: Target) -> None:
        body, headers = t.binary()
        length = int(headers[HEADER_LENGTH])
        content = json.loads(body[:length])
        content["inputs"][0]["parameters"]["binary_data_size"] += change
        text = json.dumps(content).encode()
        refused(t.infer(text + body[length:], {HEADER_LENGTH: str(len(text))}))

    return tried


def _compressed(coding: str, pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes]) -> Iterator[Check]:
    """Codings are HTTP's own: a server need not take them, and must not misread them."""

    def packed(t: Target, body: bytes, headers: dict[str, str] | None = None) -> Answer:
        answer = t.infer(pack(body), {**(headers or {}), "Content-Encoding": coding})
        if 400 <= answer.status < 500:
            raise Skipped(f"the server takes no {coding}: {answer.status}")
        return ok(answer)

    def sent(t: Target) -> None:
        answer = packed(t, json.dumps(t.request()).encode())
        same(values(answer.json), values(first(t)), f"a body in {coding}")

    def counted(t: Target) -> None:
        packed(t, *t.binary())

    def returned(t: Target) -> None:
        answer = ok(t.infer(t.request(), {"Accept-Encoding": coding}))
        if answer.headers.get("content-encoding", "identity") == "identity":
            raise Skipped("the server sends it as it is")
        expect(answer.headers["content-encoding"] == coding, f"it is in {answer.headers['content-encoding']}")
        same(values(json.loads(unpack(answer.body))), values(first(t)), f"an answer in {coding}")

    def none(t: Target) -> None:
        refused(t.infer(t.request(), {"Content-Encoding": coding}))

    group = "compression"
    yield Check(group, f"a body in {coding} is taken", sent)
    yield Check(group, f"the header length counts what {coding} inflates to", needs(_GROUP, counted))
    yield Check(group, f"an answer comes in {coding} where that is asked for", returned)
    yield Check(group, f"{coding} that is none is refused", none)
