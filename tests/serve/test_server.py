"""Where a server listens, and settings that go together: what is wrong is told by the option that is at fault."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from penstock import cuda
from penstock.errors import PenstockError
from penstock.serve.model import Limits
from penstock.serve.predict import Bounds
from penstock.serve.server import Address, Settings, busy_poll_us, runs_on_gpu, serve, slots_bytes, turn_s, workers_for


def refused(tmp_path: Path, address: Address) -> str:
    """Why a server does not begin there; no model is looked for before."""
    with pytest.raises(PenstockError) as caught:
        serve([tmp_path], Settings(address=address), print)
    return str(caught.value)


def test_an_address_of_another_machine_is_the_host_s_fault(tmp_path: Path) -> None:
    told = refused(tmp_path, Address("192.0.2.1", 0))  # which is for documentation alone
    assert told.startswith("--host 192.0.2.1: is no address of this machine; choose 127.0.0.1")
    assert "--port" not in told


@pytest.mark.parametrize("host", ["300.1.1.1", "nobody.invalid", "a b", "", "x" * 300, "\udcff"])
def test_what_is_no_address_is_the_host_s_fault(tmp_path: Path, host: str) -> None:
    told = refused(tmp_path, Address(host, 0))
    assert told.startswith(f"--host {host[:80]}: is no address, and no name of one: ")
    assert "--port" not in told


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_a_port_that_is_taken_is_the_port_s_fault(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused(tmp_path, Address(port=port) if option == "--port" else Address(port=0, grpc_port=port))
    assert told == (f"{option} {port}: another program listens there, at --host 127.0.0.1; choose another {option}")


def test_a_port_that_is_for_the_system_alone_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(self: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket.socket, "bind", bind)  # as root may, whom tests may be run by
    told = refused(tmp_path, Address(port=80))
    assert told == "--port 80: such low ports are for the system alone; choose one from 1024 on"


def test_memory_of_front_ends_is_refused_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="--slots-mb 8: is memory of front ends, and there are none: add --workers"):
        serve([tmp_path], Settings(workers=0, slots_mb=8), print)


def test_slots_that_cannot_hold_the_largest_body_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PenstockError, match="--slots-mb 8: has no room for bodies of --max-body-mb 64; give it as much"
    ):
        serve([tmp_path], Settings(workers=1, slots_mb=8), print)


def test_staying_awake_is_of_front_ends(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="--busy-poll-us 9: is of front ends and their engine, and there are none"):
        serve([tmp_path], Settings(workers=0, limits=Limits(busy_poll_us=9)), print)


@pytest.mark.parametrize(
    ("on_gpu", "workers", "asked", "expected"),
    [(False, 2, None, 0), (True, 2, None, 3000), (True, 3, None, 0), (True, 3, 50, 50), (False, 1, 9, 9)],
)
def test_processes_stay_awake_before_a_gpu_that_leaves_them_the_cores(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool, workers: int, asked: int | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    assert busy_poll_us(Settings(limits=Limits(busy_poll_us=asked)), workers, on_gpu) == expected


def test_an_engine_whose_processes_stay_awake_hands_its_interpreter_on_sooner() -> None:
    assert turn_s(Settings(limits=Limits(busy_poll_us=3000))) < turn_s(Settings(limits=Limits(busy_poll_us=0)))


@pytest.mark.parametrize(
    ("cores", "on_gpu", "asked", "expected"),
    [
        (2, True, None, 0),
        (8, True, None, 4),
        (64, True, None, 8),
        (64, False, None, 0),
        (2, False, 3, 3),
        (8, True, 0, 0),
    ],
)
def test_front_ends_are_the_default_before_a_gpu_alone(
    monkeypatch: pytest.MonkeyPatch, cores: int, on_gpu: bool, asked: int | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert workers_for(Settings(workers=asked), on_gpu) == expected


@pytest.mark.parametrize(
    ("name", "gpus", "device", "expected"),
    [
        ("", 1, "cpu", True),
        ("digits-trt-fp16", 1, "cpu", True),
        ("digits-onnx-fp32", 1, "cpu", False),
        ("", 0, "cpu", False),
        ("missing", 1, "cpu", False),
        ("digits-onnx-fp32", 1, "cuda:0", True),
    ],
)
def test_an_engine_computes_on_this_machine_s_gpu_though_no_device_was_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch, name: str, gpus: int, device: str, expected: bool
) -> None:
    monkeypatch.setattr(cuda, "count", lambda: gpus)
    assert runs_on_gpu([repository / name], Settings(limits=Limits(devices=(device,)))) is expected


@pytest.mark.parametrize(("slots_mb", "body_mb", "expected_mb"), [(None, 64, 256), (None, 500, 1000), (64, 64, 64)])
def test_slots_have_room_for_the_largest_body(slots_mb: int | None, body_mb: int, expected_mb: int) -> None:
    settings = Settings(slots_mb=slots_mb, bounds=Bounds(max_body_bytes=body_mb * 2**20))
    assert slots_bytes(settings) == expected_mb * 2**20
