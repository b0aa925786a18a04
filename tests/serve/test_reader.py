"""Long JSON is read in another process: nobody waits for it, and what dies there takes nobody along."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.serve import protocol, reader, reading
from penstock.serve.errors import RequestError
from penstock.serve.outcomes import Expired, QueueFull
from penstock.serve.protocol import InferRequest
from penstock.serve.reader import Reader
from penstock.signature import Dim, ServedTensor, Signature, Tensor

if TYPE_CHECKING:
    from tests.serve.conftest import StartServer

READINGS = "tests.serve.readings"
SIGNATURE = Signature(
    inputs=(Tensor(name="x", dtype="float32", shape=("batch", 8)),),
    outputs=(Tensor(name="y", dtype="float32", shape=("batch", 8)),),
    dims={"batch": Dim(min=1, opt=4, max=64)},
)


@pytest.fixture(autouse=True)
def found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process finds this file's functions, which no served model's are."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def numbers(rows: int, said: int | None = None) -> bytes:
    entry = {"name": "x", "datatype": "FP32", "shape": [said or rows, 8], "data": []}
    text = json.dumps({"id": "mine", "inputs": [entry]}).encode()
    return text.replace(b"[]", b"[" + b",".join([b"1234567"] * (8 * rows)) + b"]")


def reading_process(module: str = "penstock.serve.reading") -> Reader:
    return Reader("bodies of long JSON", "send its tensors in binary", module)


async def ask(beside: Reader, name: str, body: bytes, seconds: float = 0.0, timeout_s: float = 60) -> Any:
    """The text that a call of `readings` gives."""
    said, _ = await beside.call(name, body, {"seconds": seconds}, timeout_s=timeout_s)
    return said["text"]


async def decoded(beside: Reader, body: bytes, signature: Signature = SIGNATURE) -> InferRequest:
    return reading.inferred(await beside.call("infer", body, reading.to_infer(None, signature), timeout_s=60))


def test_a_request_read_elsewhere_is_what_it_would_be_here() -> None:
    body = numbers(1000)
    found = asyncio.run(decoded(reading_process(), body))
    here = protocol.decode(body, None, SIGNATURE)
    assert (found.id, found.outputs, found.timeout_s, found.priority) == ("mine", here.outputs, None, 0)
    assert found.inputs["x"].dtype == np.float32
    assert np.array_equal(found.inputs["x"], here.inputs["x"])


@pytest.mark.parametrize(
    ("dtype", "datatype", "shape", "data"),
    [
        ("object", "BYTES", [2, 2], ["a", "", "ä\u0000", "1" * 5000]),
        ("object", "BYTES", [0, 2], []),
        ("bool", "BOOL", [1, 2], [True, False]),
        ("int64", "INT64", [2, 1], [-(2**63), 2**63 - 1]),
        ("float64", "FP64", [1, 1], [1e300]),
    ],
)
def test_arrays_of_every_kind_come_over_as_they_are(dtype: str, datatype: str, shape: list[int], data: Any) -> None:
    tensors = (ServedTensor(name="x", dtype=dtype, shape=("batch", "n")),)
    signature = Signature(inputs=tensors, outputs=tensors, dims={"batch": Dim(opt=1, max=9), "n": Dim(opt=1, max=9)})
    entry = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    outputs = [{"name": "x", "parameters": {"classification": 3}}]
    body = json.dumps({"inputs": [entry], "outputs": outputs, "parameters": {"timeout": 5, "priority": 3}}).encode()
    found, here = asyncio.run(decoded(reading_process(), body, signature)), protocol.decode(body, None, signature)
    assert (found.outputs, found.timeout_s, found.priority) == (here.outputs, here.timeout_s, here.priority)
    assert (found.inputs["x"].dtype, found.inputs["x"].shape) == (here.inputs["x"].dtype, here.inputs["x"].shape)
    assert found.inputs["x"].tolist() == here.inputs["x"].tolist()


def test_only_calls_of_the_table_are_made() -> None:
    with pytest.raises(RuntimeError, match="KeyError"):
        asyncio.run(reading_process().call("os.system", b"", {}, timeout_s=60))


@pytest.mark.parametrize("module", [reader, reading])
def test_nothing_that_could_be_run_passes_between_the_two(module: Any) -> None:
    assert "pickle" not in Path(module.__file__).read_text()


def test_what_is_wrong_with_it_is_said_as_it_would_be_here() -> None:
    with pytest.raises(RequestError, match="'shape' says") as caught:
        asyncio.run(decoded(reading_process(), numbers(1000, said=999)))
    assert caught.value.status == 400


def test_the_event_loop_and_other_threads_go_on_meanwhile() -> None:
    async def scenario() -> float:
        beside, body = reading_process(READINGS), numbers(400_000)
        await ask(beside, "sleep", b"", 0.0)  # it is there
        reading = asyncio.ensure_future(decoded(beside, body))
        worst, last = 0.0, time.perf_counter()
        while not reading.done():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            worst, last = max(worst, now - last), now
        await reading
        return worst

    # Parsed in this process it is 0.15 s and more; here it is 5 ms on an idle machine.
    assert asyncio.run(scenario()) < 0.08


def test_a_death_over_a_request_is_its_own_and_the_next_is_read() -> None:
    async def scenario() -> str:
        beside = reading_process(READINGS)
        with pytest.raises(RequestError, match="died over this request") as caught:
            await ask(beside, "end", b"")
        assert caught.value.status == 503
        return str(await ask(beside, "sleep", b"next", 0.0))

    assert asyncio.run(scenario()) == "next"


def test_a_client_that_goes_away_makes_room_for_the_next() -> None:
    async def scenario() -> float:
        beside = reading_process(READINGS)
        await ask(beside, "sleep", b"", 0.0)
        calls = [asyncio.ensure_future(ask(beside, "sleep", b"", 60.0)) for _ in range(3)]
        await asyncio.sleep(0.1)
        for call in calls:  # one is under way, two wait for their turns
            call.cancel()
        started = time.monotonic()
        assert await ask(beside, "sleep", b"next", 0.0) == "next"
        return time.monotonic() - started

    assert asyncio.run(scenario()) < 10


def test_whoever_comes_after_one_that_went_away_is_never_refused() -> None:
    async def scenario() -> None:
        beside = reading_process(READINGS)
        await ask(beside, "sleep", b"", 0.0)
        for turn in range(12):
            gone = asyncio.ensure_future(ask(beside, "sleep", b"", 0.005))
            following = asyncio.ensure_future(ask(beside, "sleep", b"next", 0.0))
            await asyncio.sleep(0.001 * turn)  # before, amid and after the answer
            gone.cancel()
            assert await following == "next"

    asyncio.run(scenario())


def test_clients_that_go_away_do_not_end_the_process_for_what_takes_it_no_time() -> None:
    async def scenario() -> None:
        beside = reading_process(READINGS)
        await ask(beside, "sleep", b"", 0.0)
        first = beside.process_id
        for _ in range(5):
            calls = [asyncio.ensure_future(ask(beside, "sleep", b"", 0.05)) for _ in range(3)]
            await asyncio.sleep(0.01)
            for call in calls:  # one is under way, two wait for their turns
                call.cancel()
            assert await ask(beside, "sleep", b"next", 0.0) == "next"
        assert beside.process_id == first

    asyncio.run(scenario())


def test_a_process_that_was_killed_just_as_it_had_answered_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the system is in ending it."""
    exchanged, poll, cancelled = reader._exchanged, subprocess.Popen.poll, threading.Event()

    def answered(process: Any, wish: Any) -> Any:
        found = exchanged(process, wish)
        if found[0].get("text") == "gone":
            cancelled.wait(10)
        return found

    async def scenario() -> str:
        beside = reading_process(READINGS)
        await ask(beside, "sleep", b"", 0.0)
        gone = asyncio.ensure_future(ask(beside, "sleep", b"gone", 0.0))
        await asyncio.sleep(0.1)
        gone.cancel()
        await asyncio.wait([gone])
        monkeypatch.setattr(subprocess.Popen, "poll", lambda process: None)  # not quite dead
        cancelled.set()
        return str(await ask(beside, "sleep", b"next", 0.0))

    monkeypatch.setattr(reader, "_exchanged", answered)
    monkeypatch.setattr(reader, "_GRACE_S", 0.0)
    assert asyncio.run(scenario()) == "next"
    monkeypatch.setattr(subprocess.Popen, "poll", poll)


def test_what_is_not_read_in_time_is_told_and_makes_room_for_the_next() -> None:
    async def scenario() -> None:
        beside = reading_process(READINGS)
        await ask(beside, "sleep", b"", 0.0)
        calls = [asyncio.ensure_future(ask(beside, "sleep", b"", 60.0, timeout_s=0.3)) for _ in range(3)]
        started = time.monotonic()
        for call in calls:
            with pytest.raises(Expired, match=r"no answer within the timeout of 0\.3 s"):
                await call
        assert time.monotonic() - started < 3
        assert await ask(beside, "sleep", b"next", 0.0) == "next"

    asyncio.run(scenario())


def test_a_process_that_is_stopped_is_ended_at_the_deadline_and_replaced() -> None:
    async def scenario() -> None:
        beside = reading_process(READINGS)
        await ask(beside, "sleep", b"", 0.0)
        stopped = beside.process_id
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(Expired):
            await ask(beside, "sleep", b"", 0.0, timeout_s=0.3)
        assert await ask(beside, "sleep", b"next", 0.0) == "next"
        assert not Path(f"/proc/{stopped}").exists()

    asyncio.run(scenario())


def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_WAITING", 2)

    async def scenario() -> None:
        beside = reading_process(READINGS)
        calls = [asyncio.ensure_future(ask(beside, "sleep", b"", 0.2)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="2 bodies of long JSON wait"):
            await ask(beside, "sleep", b"", 0.0)
        await asyncio.gather(*calls)
        assert await ask(beside, "sleep", b"next", 0.0) == "next"

    asyncio.run(scenario())


@pytest.mark.parametrize("own_us", [None, 200_000])
def test_a_long_request_s_deadline_holds_while_it_is_read(
    tmp_path: Path, start_server: StartServer, fake_artifact: Any, own_us: int | None
) -> None:
    fake_artifact(tmp_path, "line", SIGNATURE)
    server = start_server(tmp_path, "--max-queue-rows", "100000", "--timeout-s", "1")
    text = numbers(reader.LONG // 8 // 8 + 100)
    if own_us is not None:
        text = text.replace(b'{"id"', b'{"parameters": {"timeout": %d}, "id"' % own_us)
    headers = {"Content-Type": "application/json"}
    server.ask("POST", "/v2/models/line/infer", text)  # the process is there
    (found,) = [int(pid) for thread in Path(f"/proc/{server.process.pid}/task").iterdir() for pid in _children(thread)]
    os.kill(found, signal.SIGSTOP)
    if own_us is not None:
        threading.Timer(0.5, os.kill, (found, signal.SIGCONT)).start()
    started = time.monotonic()
    answer = server.ask("POST", "/v2/models/line/infer", text)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert f"no answer within the timeout of {1 if own_us is None else 0.2:g} s" in answer.error
    assert time.monotonic() - started < 5
    if own_us is None:
        body = b'{"inputs": [' + b",".join([b"[1234567,1,1,1,1,1,1,1]"] * (60_000)) + b"]}"
        assert server.ask("POST", "/predict/line", body, headers).status == 200


def test_a_long_request_to_a_server_is_answered_and_its_process_ends_with_the_server(
    tmp_path: Path, start_server: StartServer, fake_artifact: Any
) -> None:
    fake_artifact(tmp_path, "line", SIGNATURE)
    server = start_server(tmp_path, "--max-queue-rows", "100000")

    rows = reader.LONG // 8 // 8 + 100
    answer = server.ask("POST", "/v2/models/line/infer", numbers(rows))
    assert answer.status == 200
    assert answer.json["outputs"][0]["data"][-1] == pytest.approx(8 * 1234567)
    found = [pid for thread in Path(f"/proc/{server.process.pid}/task").iterdir() for pid in _children(thread)]
    assert len(found) == 1
    body = b'{"inputs": [' + b",".join([b"[1234567,1,1,1,1,1,1,1]"] * (60_000)) + b"]}"
    assert len(body) > reader.LONG
    told = server.ask("POST", "/predict/line", body, {"Content-Type": "application/json"})
    assert told.json["outputs"]["y"][-1][0] == pytest.approx(1234574)
    assert server.stop() == 0
    give_up = time.monotonic() + 5
    while Path(f"/proc/{found[0]}").exists():
        assert time.monotonic() < give_up, "the process outlives the server"
        time.sleep(0.02)


def _children(thread: Path) -> list[str]:
    return (thread / "children").read_text().split()


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/logging", "/v2/trace/setting"])
def test_a_long_body_beside_inference_is_refused_before_it_is_parsed(controlled: Any, path: str) -> None:
    answer = controlled.ask("POST", path, b'{"ready": [' + b"1," * 40_000 + b"1]}")
    assert answer.status == 413
    assert "65536 are the most" in answer.error


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory, start_server: StartServer, fake_artifact: Any) -> Any:
    folder = tmp_path_factory.mktemp("control")
    fake_artifact(folder, "pair")
    return start_server(folder, "--trace-file", str(folder / "traces.json"))


def test_what_is_not_of_predict_in_long_json_is_said_as_for_short(
    tmp_path: Path, start_server: StartServer, repository: Path
) -> None:
    server = start_server(repository / "digits-onnx-fp32")
    said = [
        server.ask(
            "POST",
            "/predict/digits-onnx-fp32",
            b'{"rows": [[1]]' + b" " * padding + b"}",
            {"Content-Type": "application/json"},
        )
        for padding in (0, reader.LONG)
    ]
    assert said[0].status in (400, 415)
    assert (said[1].status, said[1].error) == (said[0].status, said[0].error)
