"""Checks over gRPC of what nobody should send, of streams, and of what stands beside the protocol."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.serve.conformance.check import Check, answered, called, ends, expect, first, offered, same, values
from penstock.serve.conformance.target import Skipped, Target

if TYPE_CHECKING:
    from penstock.serve.conformance.calls import Calls

_INFER = "/inference.GRPCInferenceService/ModelInfer"
# Over what servers take, or at least over what the model takes.
_OVERSIZED_BYTES = 80 * 2**20
_HEALTH, _SERVING = "/grpc.health.v1.Health/Check", b"\x08\x01"
_REFLECTION = "/grpc.reflection.{}.ServerReflection/ServerReflectionInfo"


def checks() -> Iterator[Check]:
    group = "gRPC: strictness"
    for what, change in _CHANGES.items():
        yield Check(group, f"{what} is INVALID_ARGUMENT", called(_refuses(change)))
    for what, change in _TYPED_CHANGES.items():
        yield Check(group, f"{what} is INVALID_ARGUMENT", called(_refuses(change, typed=True)))
    yield Check(group, "an output asked for twice is INVALID_ARGUMENT", called(_output_twice))
    for what, field, value in (("model", "model_name", "no-such"), ("version", "model_version", "99999")):
        yield Check(group, f"inference of an unknown {what} is NOT_FOUND", called(_lost(field, value)))
    yield Check(group, "bytes that are no message are an error", called(_garbage))
    yield Check(group, "an unknown method is UNIMPLEMENTED", called(_method))
    yield Check(group, "a message of 80 MiB that no tensor takes is refused", called(_oversized))
    yield Check(group, "what is no HTTP/2 ends its own connection alone", called(_no_http2))
    yield Check(group, "calls whose deadline passes leave the server well", called(_deadline))
    yield Check(group, "calls that are cancelled leave the server well", called(_cancelled))
    group = "gRPC: streaming"
    yield Check(group, "answers come in the order of the requests", called(_in_order))
    yield Check(group, "a refused request in the middle is a message, and not the end", called(_survives))
    yield Check(group, "a stream without a request ends well", called(_empty))
    group = "gRPC: beside the protocol"
    yield Check(group, "grpc.health.v1 says SERVING", called(_health))
    yield Check(group, "grpc.health.v1 does not know an unknown service", called(_unknown_service))
    yield Check(group, "reflection lists the service", called(_reflection))
    yield Check("gRPC: strictness", "the server is well afterwards", called(_well))


def _refuses(change: Callable[[Any], None], typed: bool = False) -> Callable[[Target, Calls], None]:
    def tried(t: Target, calls: Calls) -> None:
        request = calls.request(t, typed=typed)
        change(request)
        ends(calls.ask("ModelInfer", request), "INVALID_ARGUMENT")

    return tried


def _lost(field: str, value: str) -> Callable[[Target, Calls], None]:
    return lambda t, calls: ends(calls.infer(t, lambda request: setattr(request, field, value)), "NOT_FOUND")


def _output_twice(t: Target, calls: Calls) -> None:
    request = calls.request(t)
    for _ in range(2):
        request.outputs.add(name=t.metadata["outputs"][0]["name"])
    ends(calls.ask("ModelInfer", request), "INVALID_ARGUMENT")


def _garbage(t: Target, calls: Calls) -> None:
    reply = calls.send(_INFER, b"\xff" * 64)
    expect(reply.code != "OK", "they are answered")
    ends(reply, "INTERNAL", "INVALID_ARGUMENT", "UNKNOWN")


def _method(t: Target, calls: Calls) -> None:
    code = calls.send("/inference.GRPCInferenceService/NoSuch", b"").code
    expect(code == "UNIMPLEMENTED", f"it ends in {code}")


def _oversized(t: Target, calls: Calls) -> None:
    def swell(request: Any) -> None:
        request.raw_input_contents[0] = bytes(_OVERSIZED_BYTES)

    ends(calls.infer(t, swell), "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT")
    _well(t, calls)


def _no_http2(t: Target, calls: Calls) -> None:
    host, _, port = calls.address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=t.timeout_s) as connection:
            connection.sendall(b"\x16\x03\x01\x00\xa5 no preface, but what a stray client may send\r\n\r\n" * 64)
            connection.settimeout(1.0)
            while connection.recv(65536):
                pass
    except OSError:  # it is cut off, or left alone: as long as the others are not
        pass
    _well(t, calls)


def _deadline(t: Target, calls: Calls) -> None:
    for _ in range(10):
        ends(calls.infer(t, timeout_s=0.001), "OK", "DEADLINE_EXCEEDED", "CANCELLED", "UNAVAILABLE")
    _well(t, calls)


def _cancelled(t: Target, calls: Calls) -> None:
    calls.cancel([calls.request(t) for _ in range(32)])
    _well(t, calls)


def _well(t: Target, calls: Calls) -> None:
    same(calls.outputs(answered(calls.infer(t))), values(first(t)), "afterwards")


def _stream(t: Target, calls: Calls, spoil: tuple[int, ...] = (), count: int = 8) -> list[Any]:
    """What a stream of requests gives, of which some have an input of no such name."""
    requests = []
    for number in range(count):
        request = calls.request(t)
        request.id = str(number)
        if number in spoil:
            request.inputs[0].name = "no-such"
        requests.append(request)
    return list(answered(offered(calls.infer_stream(requests), "ModelStreamInfer")))


def _in_order(t: Target, calls: Calls) -> None:
    came = _stream(t, calls)
    errors = [message.error_message for message in came if message.error_message]
    expect(errors == [], f"a message is an error: {errors[:1]}")
    ids = [message.infer_response.id for message in came]
    expect(ids == [str(number) for number in range(8)], f"they come as {ids}")
    for message in came:
        same(calls.outputs(message.infer_response), values(first(t)), "in a stream")


def _survives(t: Target, calls: Calls) -> None:
    came = _stream(t, calls, spoil=(3, 5))
    expect(len(came) == 8, f"{len(came)} messages come for 8 requests")
    wrong = [place for place, message in enumerate(came) if message.error_message]
    expect(wrong == [3, 5], f"the errors come at {wrong}, not at 3 and 5")


def _empty(t: Target, calls: Calls) -> None:
    came = _stream(t, calls, count=0)
    expect(came == [], f"{len(came)} messages come")


def _health(t: Target, calls: Calls) -> None:
    told = answered(offered(calls.send(_HEALTH, b""), "grpc.health.v1"))
    expect(told == _SERVING, f"it says {told!r}")


def _unknown_service(t: Target, calls: Calls) -> None:
    ends(offered(calls.send(_HEALTH, b"\x0a\x07no-such"), "grpc.health.v1"), "NOT_FOUND")


def _reflection(t: Target, calls: Calls) -> None:
    list_services = b"\x3a\x00"
    for version in ("v1", "v1alpha"):
        reply = calls.stream(_REFLECTION.format(version), [list_services])
        if reply.code != "UNIMPLEMENTED":
            expect(b"inference.GRPCInferenceService" in b"".join(answered(reply)), "the service is not listed")
            return
    raise Skipped("the server has no reflection")


def _reshape(request: Any, shape: list[int]) -> None:
    del request.inputs[0].shape[:]
    request.inputs[0].shape.extend(shape)


def _twice(request: Any) -> None:
    request.inputs.append(request.inputs[0])
    request.raw_input_contents.append(request.raw_input_contents[0])


def _left_out(request: Any) -> None:
    del request.inputs[0]
    del request.raw_input_contents[0]


def _fewer_raw(request: Any) -> None:
    request.inputs.append(request.inputs[0])


def _raw(request: Any, change: Callable[[bytes], bytes]) -> None:
    request.raw_input_contents[0] = change(request.raw_input_contents[0])


def _filled(contents: Any) -> Any:
    """The list of numbers that a tensor has."""
    ((field, _),) = contents.ListFields()
    return getattr(contents, field.name)


def _another_field(request: Any) -> None:
    contents = request.inputs[0].contents
    count = len(_filled(contents))
    wrong = "bool_contents" if not contents.bool_contents else "fp32_contents"
    contents.Clear()
    getattr(contents, wrong).extend([1] * count)


def _out_of_range(request: Any) -> None:
    tensor = request.inputs[0]
    if tensor.datatype not in ("INT8", "INT16", "UINT8", "UINT16"):
        raise Skipped("the first input is of no numbers that its contents hold more of")
    _filled(tensor.contents)[0] = 70_000


_CHANGES: dict[str, Callable[[Any], None]] = {
    "an unknown input": lambda r: setattr(r.inputs[0], "name", "no-such"),
    "an input without a name": lambda r: setattr(r.inputs[0], "name", ""),
    "an input given twice": _twice,
    "an input left out": _left_out,
    "an unknown datatype": lambda r: setattr(r.inputs[0], "datatype", "FP99"),
    "another datatype than the model's": lambda r: setattr(
        r.inputs[0], "datatype", "INT64" if r.inputs[0].datatype != "INT64" else "FP64"
    ),
    "no datatype": lambda r: setattr(r.inputs[0], "datatype", ""),
    "no shape": lambda r: _reshape(r, []),
    "a negative size": lambda r: _reshape(r, [-1, *list(r.inputs[0].shape)[1:]]),
    "a shape of a rank too many": lambda r: _reshape(r, [1, *r.inputs[0].shape]),
    "sizes whose product overflows": lambda r: _reshape(r, [2**62, 4, *list(r.inputs[0].shape)[1:]]),
    "raw contents a byte too short": lambda r: _raw(r, lambda data: data[:-1]),
    "raw contents a byte too long": lambda r: _raw(r, lambda data: data + b"\0"),
    "raw contents for fewer tensors than inputs": _fewer_raw,
    "neither raw contents nor typed ones": lambda r: r.raw_input_contents.__delitem__(slice(None)),
    "raw contents and typed ones": lambda r: r.inputs[0].contents.bool_contents.append(True),
    "an unknown output": lambda r: r.outputs.add(name="no-such"),
    "a parameter without a value": lambda r: r.parameters["timeout"].Clear(),
}
_TYPED_CHANGES: dict[str, Callable[[Any], None]] = {
    "typed contents of a number too few": lambda r: _filled(r.inputs[0].contents).pop(),
    "typed contents of a number too many": lambda r: _filled(r.inputs[0].contents).append(1),
    "typed contents of another datatype": _another_field,
    "a typed number out of its datatype's range": _out_of_range,
}
