"""Checks of tensors in system shared memory, over HTTP and gRPC, with segments that the checks make themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.serve.conformance.check import (
    Check,
    Try,
    answered,
    called,
    ends,
    expect,
    first,
    needs,
    ok,
    refused,
    same,
    values,
)
from penstock.serve.conformance.target import NUMPY, Skipped, Target

if TYPE_CHECKING:
    from penstock.serve.conformance.calls import Calls

_GROUP, _HOME, _ROOT = "system_shared_memory", Path("/dev/shm"), "/v2/systemsharedmemory"  # noqa: S108 (where shm_open keeps them)


@dataclass(frozen=True)
class Region:
    """A segment that is registered: its name there, its key, its file, and where its parts begin."""

    name: str
    key: str
    file: Path
    input_bytes: int
    output_bytes: int

    @property
    def total(self) -> int:
        return self.input_bytes + self.output_bytes


Use = Callable[[Target, Region], None]


def checks() -> Iterator[Check]:
    rules: dict[str, Use] = {
        "a region that is registered is listed, with key, offset and size": _status,
        "an input is read from a region": lambda t, r: _answers(t, _request(t, r)),
        "an input is read from an offset of a region": _offset,
        "an output is written into a region": _written,
        "an unknown region is refused": _refuses(shared_memory_region="no-such"),
        "an offset beyond the region is refused": _refuses(shared_memory_offset=2**40),
        "a negative offset is refused": _refuses(shared_memory_offset=-1),
        "a size that runs over the region's end is refused": _refuses(shared_memory_byte_size=2**40),
        "a size that is not the tensor's is refused": _refuses(shared_memory_byte_size=1),
        "a region without a size is refused": _refuses(shared_memory_byte_size=None),
        "data beside a region is refused": _data_too,
        "an output that does not fit its region is refused": _small,
        "a name that is taken is refused": _twice,
        "a region that is unregistered is of no use": _gone,
    }
    for rule, use in rules.items():
        yield Check(_GROUP, rule, needs(_GROUP, _with_region(use)))
    yield Check(_GROUP, "registering an unknown key is refused", needs(_GROUP, _unknown_key))
    yield Check(_GROUP, "the status of an unknown region is an error", needs(_GROUP, _unknown_status))
    over = "gRPC: system_shared_memory"
    yield Check(over, "a region is registered, listed, read from and unregistered", needs(_GROUP, called(_over_grpc)))
    yield Check(over, "an unknown region is refused", needs(_GROUP, called(_unknown_over_grpc)))


def _is_here(host: str) -> bool:
    """Whether a host is this machine, whose memory the server can see."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


@contextmanager
def _segment(t: Target) -> Iterator[Region]:
    if not _is_here(t.parts.hostname or "") or not _HOME.is_dir():
        raise Skipped("the server may be on another machine, and shares no memory with this one")
    size = sum(t.array(kind, shape).nbytes for _, kind, shape in t.inputs)
    out = sum(array.nbytes for array in values(first(t)).values())
    name = f"penstock-check-{os.getpid()}"
    region = Region(name, f"/{name}", _HOME / name, size, out)
    region.file.write_bytes(b"".join(t.array(kind, shape).tobytes() for _, kind, shape in t.inputs) + bytes(out))
    try:
        yield region
    finally:
        region.file.unlink()


@contextmanager
def _registered(t: Target) -> Iterator[Region]:
    with _segment(t) as region:
        ok(t.ask("POST", f"{_ROOT}/region/{region.name}/register", _registration(region)))
        try:
            yield region
        finally:
            t.ask("POST", f"{_ROOT}/region/{region.name}/unregister")


def _registration(region: Region) -> dict[str, Any]:
    return {"key": region.key, "offset": 0, "byte_size": region.total}


def _with_region(use: Use) -> Try:
    def tried(t: Target) -> None:
        with _registered(t) as region:
            use(t, region)

    return tried


def _request(t: Target, region: Region, at: int = 0) -> dict[str, Any]:
    """A request whose inputs lie in the region, one behind the other."""
    content = t.request()
    for entry, (_, kind, shape) in zip(content["inputs"], t.inputs, strict=True):
        size = t.array(kind, shape).nbytes
        del entry["data"]
        entry["parameters"] = {
            **{"shared_memory_region": region.name, "shared_memory_byte_size": size},
            **({"shared_memory_offset": at} if at else {}),
        }
        at += size
    return content


def _answers(t: Target, content: dict[str, Any]) -> None:
    same(values(ok(t.infer(content)).json), values(first(t)), "an input in shared memory")


def _status(t: Target, region: Region) -> None:
    for path in (f"{_ROOT}/region/{region.name}/status", f"{_ROOT}/status"):
        rows = [row for row in ok(t.ask("GET", path)).json if row["name"] == region.name]
        expect(rows == [{"name": region.name, **_registration(region)}], f"GET {path} answers {rows!r}"[:200])


def _offset(t: Target, region: Region) -> None:
    moved = bytes(region.output_bytes) + region.file.read_bytes()[: region.input_bytes]
    with region.file.open("r+b") as held:  # the file itself: a new one would be no memory that the server has
        held.write(moved)
    _answers(t, _request(t, region, region.output_bytes))


def _outputs(t: Target, region: Region, short: int = 0) -> list[dict[str, Any]]:
    """The outputs, each wanted in the region behind the inputs."""
    wanted, at = [], region.input_bytes
    for name, array in values(first(t)).items():
        place = {"shared_memory_region": region.name, "shared_memory_offset": at}
        wanted.append({"name": name, "parameters": {**place, "shared_memory_byte_size": array.nbytes - short}})
        at += array.nbytes
    return wanted


def _written(t: Target, region: Region) -> None:
    told = ok(t.infer({**t.request(), "outputs": _outputs(t, region)})).json
    expect(all("data" not in entry for entry in told["outputs"]), "the answer has data too")
    tail, found = region.file.read_bytes()[region.input_bytes :], {}
    for entry in told["outputs"]:
        dtype = NUMPY[entry["datatype"]]
        size = int(np.prod(entry["shape"])) * dtype.itemsize
        found[entry["name"]], tail = np.frombuffer(tail[:size], dtype).reshape(entry["shape"]), tail[size:]
    same(found, values(first(t)), "an output in shared memory")


def _refuses(**parameters: Any) -> Use:
    def use(t: Target, region: Region) -> None:
        content = _request(t, region)
        held = content["inputs"][0]["parameters"]
        held.update({name: value for name, value in parameters.items() if value is not None})
        for name in [name for name, value in parameters.items() if value is None]:
            del held[name]
        refused(t.infer(content))

    return use


def _data_too(t: Target, region: Region) -> None:
    content = _request(t, region)
    content["inputs"][0]["data"] = t.request()["inputs"][0]["data"]
    refused(t.infer(content))


def _small(t: Target, region: Region) -> None:
    refused(t.infer({**t.request(), "outputs": _outputs(t, region, short=1)}))


def _twice(t: Target, region: Region) -> None:
    refused(t.ask("POST", f"{_ROOT}/region/{region.name}/register", _registration(region)))


def _gone(t: Target, region: Region) -> None:
    ok(t.ask("POST", f"{_ROOT}/region/{region.name}/unregister"))
    refused(t.infer(_request(t, region)))


def _unknown_key(t: Target) -> None:
    content = {"key": "/penstock-check-no-such", "offset": 0, "byte_size": 64}
    refused(t.ask("POST", f"{_ROOT}/region/penstock-check-no-such/register", content))


def _unknown_status(t: Target) -> None:
    refused(t.ask("GET", f"{_ROOT}/region/penstock-check-no-such/status"))


def _in_region(calls: Calls, t: Target, region: Region) -> Any:
    """A ModelInferRequest whose inputs lie in the region."""
    request = calls.request(t)
    del request.raw_input_contents[:]
    at = 0
    for entry, (_, kind, shape) in zip(request.inputs, t.inputs, strict=True):
        size = t.array(kind, shape).nbytes
        entry.parameters["shared_memory_region"].string_param = region.name
        entry.parameters["shared_memory_byte_size"].int64_param = size
        entry.parameters["shared_memory_offset"].int64_param = at
        at += size
    return request


def _over_grpc(t: Target, calls: Calls) -> None:
    method = "SystemSharedMemory"
    with _segment(t) as region:
        wanted = calls.message(f"{method}RegisterRequest", name=region.name, key=region.key, byte_size=region.total)
        answered(calls.ask(f"{method}Register", wanted))
        try:
            told = answered(calls.ask(f"{method}Status")).regions
            expect(region.name in told and told[region.name].byte_size == region.total, f"it lists {dict(told)}"[:200])
            found = calls.outputs(answered(calls.ask("ModelInfer", _in_region(calls, t, region))))
            same(found, values(first(t)), "an input in shared memory")
        finally:
            gone = calls.ask(f"{method}Unregister", calls.message(f"{method}UnregisterRequest", name=region.name))
        answered(gone)
        ends(calls.ask("ModelInfer", _in_region(calls, t, region)), "INVALID_ARGUMENT", "NOT_FOUND")


def _unknown_over_grpc(t: Target, calls: Calls) -> None:
    lost = Region("penstock-check-no-such", "", _HOME, 0, 0)
    ends(calls.ask("ModelInfer", _in_region(calls, t, lost)), "INVALID_ARGUMENT", "NOT_FOUND")
