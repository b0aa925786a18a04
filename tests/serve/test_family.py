"""A server of several processes: the same answers, whoever of them dies, and nothing left behind."""

from __future__ import annotations

import ctypes
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.bench.studies.traffic import request
from tests.serve.conftest import write_fake_artifact

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

INFER = "/v2/models/pair/infer"


def asked(number: int = 1, rows: int = 1) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": "ids", "datatype": "INT64", "shape": [rows, 2], "data": [number] * (2 * rows)},
            {"name": "weight", "datatype": "FP32", "shape": [rows], "data": [1.0] * rows},
        ]
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family") / "models"
    write_fake_artifact(folder, "pair")
    return folder


@pytest.fixture(scope="module")
def server(models: Path, start_server: StartServer) -> Server:
    return start_server(models, "--workers", "2")


def members(server: Server) -> dict[str, list[int]]:
    """The processes of a family by what they run: engine, frontend."""
    found: dict[str, list[int]] = {"engine": [], "frontend": []}
    head = server.process.pid
    for pid in Path(f"/proc/{head}/task/{head}/children").read_text().split():
        for kind in found:
            if f"penstock.serve.{kind}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found[kind].append(int(pid))
    return found


def until(holds: Callable[[], bool], within_s: float = 20) -> None:
    give_up = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def answers(server: Server, number: int = 1) -> bool:
    """Whether a request is answered, and rightly."""
    try:
        answer = server.ask("POST", INFER, asked(number))
    except OSError:
        return False
    if answer.status != 200:
        assert answer.status == 503, answer.body
        return False
    expected = server.__dict__.setdefault("expected", {})
    said = answer.json["outputs"]
    assert expected.setdefault(number, said) == said
    return True


def answers_at(server: Server) -> bool:
    """Whether the server says that it is ready, to whichever of its processes is asked."""
    try:
        return ready(server)
    except OSError:
        return False


def ready(server: Server) -> bool:
    return server.ask("GET", "/v2/health/ready").status == 200


def test_there_is_an_engine_and_as_many_front_ends_as_were_asked_for(server: Server) -> None:
    assert "2 front ends" in server.lines[-1]
    found = members(server)
    assert (len(found["engine"]), len(found["frontend"])) == (1, 2)


def test_front_ends_have_no_runtime_and_no_torch(server: Server) -> None:
    for pid in members(server)["frontend"]:
        held = Path(f"/proc/{pid}/maps").read_text()
        assert "onnxruntime" not in held
        assert "libtorch" not in held
        assert "libcuda" not in held


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("kind", ["engine", "frontend"])
def test_one_that_dies_or_stops_is_replaced_and_no_answer_is_wrong(server: Server, kind: str, number: int) -> None:
    until(lambda: answers(server) and ready(server))
    victim = members(server)[kind][0]
    os.kill(victim, number)
    until(lambda: not _runs(victim), 15)
    until(lambda: sum(map(len, members(server).values())) == 3 and ready(server))
    assert answers(server)
    others = members(server)
    assert victim not in others[kind]
    assert f"is there again (process {others[kind][-1]}), after " in server.log


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def break_way(server: Server, pid: int) -> None:
    """End the connection of a front end with its engine, which the head has made for both."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    process = os.pidfd_open(pid)
    broken = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if not str(path.readlink()).startswith("socket:"):
                continue
        except FileNotFoundError:  # a connection to the engine that was idle, and is closed meanwhile
            continue
        descriptor = call(438, process, int(path.name), 0)  # pidfd_getfd
        if descriptor < 0:
            assert ctypes.get_errno() == errno.EBADF  # the same
            continue
        with socket.socket(fileno=descriptor) as held:
            if (held.family, held.type) == (socket.AF_UNIX, socket.SOCK_STREAM):
                maker = held.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                if int.from_bytes(maker[:4], sys.byteorder) == server.process.pid:
                    held.shutdown(socket.SHUT_RDWR)
                    broken += 1
    os.close(process)
    assert broken == 1


def test_a_way_that_breaks_between_two_that_live_is_made_anew(server: Server) -> None:
    until(lambda: answers(server) and ready(server))
    before = members(server)
    for pid in before["frontend"]:
        break_way(server, pid)
    assert not answers(server)
    until(lambda: ready(server) and all(answers(server) for _ in range(4)))  # each front end is dealt some
    assert members(server) == before
    assert "has ended, and both run; it is made anew" in server.log


def test_a_front_end_that_begins_while_there_is_no_engine_knows_no_models_and_says_why(
    models: Path, start_server: StartServer
) -> None:
    server = start_server(models, "--workers", "1")
    os.kill(members(server)["frontend"][0], signal.SIGKILL)
    roads = {INFER: "POST", "/predict/pair": "POST", "/v2/models/pair": "GET", "/v2/health/ready": "GET"}
    told: dict[str, set[str]] = {path: set() for path in roads}

    def all_told() -> bool:
        for pid in members(server)["engine"]:
            os.kill(pid, signal.SIGKILL)
        for path, method in roads.items():
            with suppress(OSError):  # the connection of the one that was killed
                told[path].add(server.ask(method, path, asked() if method == "POST" else None).json.get("error"))
        return all(told.values())

    until(all_told)
    said = set().union(*told.values())
    assert "the engine is being restarted; try again soon" in said
    assert not any("not served" in str(error) for error in said)
    until(lambda: ready(server) and answers(server))


def test_redirects_lead_to_the_host_and_scheme_that_the_client_asked(server: Server) -> None:
    until(lambda: answers(server) and ready(server))
    answer = server.ask("GET", "/docs/", headers={"Host": "models.example.com"})
    assert (answer.status, answer.headers["location"]) == (307, "http://models.example.com/docs")


def test_what_clients_have_set_outlives_the_engine(
    tmp_path: Path, fake_artifact: Callable[..., Any], start_server: StartServer
) -> None:
    for name in ("one", "other", "gone"):
        fake_artifact(tmp_path / "models", name)
    traces = tmp_path / "traces"
    server = start_server(tmp_path / "models", "--workers", "1", "--trace-file", traces, "--route", "old=one")
    fake_artifact(tmp_path / "models", "one")  # version 2, which nobody has loaded
    fake_artifact(tmp_path / "models", "new")
    for method, path, body in (
        ("PUT", "/v2/routes", {"r": {"one": 1, "other": 3}}),
        ("POST", "/v2/repository/models/gone/unload", {}),
        ("POST", "/v2/logging", {"log_info": False, "log_verbose_level": 0}),
        ("POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}),
        ("POST", "/v2/models/other/trace/setting", {"trace_rate": "7"}),
        ("POST", "/v2/models/one/infer", asked()),
    ):
        assert server.ask(method, path, body).status == 200
    until(lambda: len(json.loads(traces.read_text())) == 2)
    paths = ("/v2/routes", "/v2/logging", "/v2/trace/setting", "/v2/models/other/trace/setting", "/v2/models/one")

    def held() -> list[Any]:
        return [*(server.ask("GET", path).json for path in paths), server.ask("POST", "/v2/repository/index").json]

    before = held()
    for _ in range(2):  # what it was given, it hands on
        dead = members(server)["engine"]
        os.kill(dead[0], signal.SIGKILL)
        until(lambda: ready(server) and members(server)["engine"] not in ([], dead))  # noqa: B023
        assert held() == before
    assert server.ask("POST", "/v2/models/one/infer", asked()).status == 200
    until(lambda: len(json.loads(traces.read_text())) == 4)
    assert "what clients have set stays, what it counted begins anew" in server.log


def test_a_server_whose_models_were_all_unloaded_has_none_after_its_engine_ended(
    models: Path, start_server: StartServer
) -> None:
    server = start_server(models, "--workers", "1")
    assert server.ask("POST", "/v2/repository/models/pair/unload").status == 200
    dead = members(server)["engine"]
    os.kill(dead[0], signal.SIGKILL)
    until(lambda: server.ask("POST", "/v2/repository/index").status == 200 and members(server)["engine"] != dead)
    assert server.ask("POST", "/v2/repository/models/pair/load").status == 200
    assert answers(server)


def test_a_dead_engine_fails_what_it_was_asked_and_no_more(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx, "--workers", "1")
    turns = {"inputs": [{"name": "turns", "datatype": "INT64", "shape": [1], "data": [100_000]}]}
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(server.ask, "POST", "/v2/models/slow/infer", turns)
        time.sleep(0.5)
        os.kill(members(server)["engine"][0], signal.SIGKILL)
        answer = stuck.result(timeout=5)
    assert answer.status == 503
    assert "the engine ended over this request" in answer.error
    turns["inputs"][0]["data"] = [1]
    until(lambda: server.ask("POST", "/v2/models/slow/infer", turns).status == 200)


def test_a_server_is_alive_and_not_ready_while_its_engine_is_begun_anew(
    models: Path, start_server: StartServer
) -> None:
    server = start_server(models, "--workers", "1")
    os.kill(members(server)["engine"][0], signal.SIGKILL)
    seen = set()

    def both() -> tuple[int, int]:
        alive, is_ready = (server.ask("GET", f"/v2/health/{what}").status for what in ("live", "ready"))
        seen.add((alive, is_ready))
        return alive, is_ready

    until(lambda: both() == (200, 503))
    until(lambda: both() == (200, 200))
    assert {alive for alive, _ in seen} == {200}


def test_a_key_s_rate_is_its_own_whichever_front_end_it_comes_to(
    models: Path, start_server: StartServer, tmp_path: Path
) -> None:
    from penstock.serve import keys

    path = tmp_path / "keys.json"
    secret = keys.add(path, keys.make("slow", ("infer",), 0.01, 5, None))
    server = start_server(models, "--workers", "3", "--keys", path, "--grpc-port", "-1")
    headers = {"Authorization": f"Bearer {secret}"}
    statuses = [server.ask("POST", INFER, asked(), headers).status for _ in range(9)]
    assert statuses == [200] * 5 + [429] * 4


def test_a_model_that_cannot_be_served_ends_the_family(tmp_path: Path, start_server: StartServer) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"nothing")
    with pytest.raises(AssertionError, match="no model can be served"):
        start_server(bad, "--workers", "1")


def test_connections_are_dealt_evenly(server: Server) -> None:
    def open_files(pid: int) -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    until(lambda: answers(server) and ready(server))
    fronts = members(server)["frontend"]
    before = [open_files(pid) for pid in fronts]
    held: list[http.client.HTTPConnection] = []
    for _ in range(20):
        held.append(server.connect())
        held[-1].request("GET", "/v2/health/live")
        assert held[-1].getresponse().read()
    grown = [open_files(pid) - count for pid, count in zip(fronts, before, strict=True)]
    for connection in held:
        connection.close()
    assert min(grown) >= 8


@pytest.mark.parametrize("most", [1, 5])
def test_there_are_as_many_connections_as_may_be_of_all_front_ends_together(
    models: Path, start_server: StartServer, most: int
) -> None:
    server = start_server(models, "--workers", "2", "--max-connections", str(most))

    held: list[http.client.HTTPConnection] = []

    def asks(connection: http.client.HTTPConnection) -> int:
        connection.request("GET", "/v2/models/pair")  # which the engine answers
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def is_taken() -> bool:
        connection = server.connect()
        with suppress(OSError):  # it may be refused before it has asked
            if asks(connection) == 200:
                held.append(connection)
                return True
        connection.close()
        return False

    for _ in range(most):
        until(is_taken, 2)
    for number in range(12):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as over:
            told = over.makefile("rb").read()
        assert told.startswith(b"HTTP/1.1 503 ")
        assert f"{most} connections are open, as many as there may be (--max-connections)".encode() in told
        held.pop(number % most).close()
        until(is_taken, 2)
    assert {asks(each) for each in held} == {200}


def test_figures_are_those_of_all_processes(models: Path, start_server: StartServer) -> None:
    server = start_server(models, "--workers", "3")
    for _ in range(30):
        assert server.ask("POST", INFER, asked()).status == 200
    assert server.ask("POST", INFER, {"inputs": []}).status == 400
    assert server.metric('penstock_requests_total{code="200",model="pair"}') == 30
    assert server.metric('penstock_requests_total{code="400",model="pair"}') == 1
    (stats,) = server.ask("GET", "/v2/models/pair/stats").json["model_stats"]
    assert stats["inference_count"] == 30
    taken = stats["inference_stats"]
    assert {name: taken[name]["count"] for name in ("success", "queue", "compute_infer")} == {
        "success": 30,
        "queue": 30,
        "compute_infer": 30,
    }
    assert taken["success"]["ns"] >= taken["queue"]["ns"] + taken["compute_infer"]["ns"] > 0
    assert len(server.ask("GET", "/debug/slow").json["requests"]) == 31
    assert server.metric("penstock_front_ends") == 3
    names = ("head", "engine", "front-end-0", "front-end-1", "front-end-2")
    series = [f'penstock_process_resident_memory_bytes{{process="{name}"}}' for name in names]
    until(lambda: all(server.metric(each) > 2**20 for each in series))
    assert server.metric(series[1]) == pytest.approx(server.metric("process_resident_memory_bytes"), rel=0.1)
    assert (server.metric("penstock_slots_taken"), server.metric("penstock_slots_free_bytes")) == (0, 3 * 256 * 2**20)


def test_a_request_that_is_given_up_leaves_no_slot_taken(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx, "--workers", "1")
    whole = 256 * 2**20
    x = np.array([400], np.int64)
    entry = {"name": "turns", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}}
    text = json.dumps({"inputs": [entry]}).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: here\r\nContent-Length: {len(text) + 8}\r\n"
    data = head.encode() + f"Inference-Header-Content-Length: {len(text)}\r\n\r\n".encode() + text + x.tobytes()
    for number in range(60):
        with socket.create_connection(("127.0.0.1", server.port)) as held:
            held.sendall(data[: len(data) - number % 2])  # half of them never come whole
            time.sleep(0.001 * (number % 7))
    until(lambda: server.metric("penstock_slots_taken") == 0)
    assert server.metric("penstock_slots_free_bytes") == whole
    assert (
        server.ask("POST", "/v2/models/slow/infer", {"inputs": [{**entry, "parameters": {}, "data": [1]}]}).status
        == 200
    )


@pytest.mark.parametrize(
    ("busy_poll_us", "isolate", "awake"),
    [
        pytest.param(0, (), (), id="nobody"),
        pytest.param(1_000_000, ("--isolate",), ("frontend", "engine"), id="both"),
        # The engine's loop would take the interpreter from the thread that computes.
        pytest.param(1_000_000, (), ("frontend",), id="the front end"),
    ],
)
def test_a_lone_request_keeps_its_processes_awake_where_that_is_asked_for(
    slow_onnx: Path, start_server: StartServer, busy_poll_us: int, isolate: tuple[str, ...], awake: tuple[str, ...]
) -> None:
    options = ("--workers", "1", "--threads", "1", "--busy-poll-us", str(busy_poll_us))
    server = start_server(slow_onnx, *options, *isolate)
    kinds = members(server)
    loops = {kind: Path(f"/proc/{kinds[kind][0]}/task/{kinds[kind][0]}/schedstat") for kind in ("frontend", "engine")}
    entry = {"name": "turns", "datatype": "INT64", "shape": [1], "data": [1500]}  # more than half a second
    before, began = {kind: used_s(loop) for kind, loop in loops.items()}, time.perf_counter()
    assert server.ask("POST", "/v2/models/slow/infer", {"inputs": [entry]}).status == 200
    took = time.perf_counter() - began
    shares = {kind: (used_s(loop) - before[kind]) / took for kind, loop in loops.items()}
    assert {kind for kind, share in shares.items() if share > 0.2} == set(awake), shares
    before_s = used_s(loops["frontend"])
    time.sleep(0.4)
    later = (used_s(loops["frontend"]) - before_s) / 0.4
    assert (later > 0.2) == (busy_poll_us > 0), later  # who came alone may come again at once


def used_s(schedstat: Path) -> float:
    """Processor seconds of a thread."""
    return int(schedstat.read_text().split()[0]) / 1e9


def test_a_front_end_is_back_while_an_isolated_runner_is_at_a_long_batch(
    models: Path, slow_onnx: Path, start_server: StartServer
) -> None:
    server = start_server(models, slow_onnx, "--workers", "1", "--isolate", "--threads", "1")
    entry = {"name": "turns", "datatype": "INT64", "shape": [1], "data": [60_000]}  # half a minute
    text = json.dumps({"inputs": [entry]}).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: here\r\nContent-Length: {len(text)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as held:
        held.sendall(head.encode() + text)
        until(lambda: server.metric('penstock_instances{model="slow",state="busy",version="1"}') == 1)
        os.kill(members(server)["frontend"][0], signal.SIGKILL)
        until(lambda: answers(server), 10)
    server.process.kill()  # which would wait for the batch


def test_what_no_slot_can_ever_hold_is_too_large(identity: Path, start_server: StartServer) -> None:
    server = start_server(identity, "--workers", "1", "--slots-mb", "1", "--max-body-mb", "1")
    small = np.arange(8, dtype=np.float32).reshape(1, 8)
    entry = {"name": "x", "datatype": "FP32", "shape": [1, 300_000], "data": [0] * 300_000}
    content = json.dumps({"inputs": [entry]}, separators=(",", ":")).encode()
    assert len(content) < 2**20
    answer = server.ask("POST", "/v2/models/same/infer", content)
    assert (answer.status, answer.error) == (
        413,
        "its tensors take 1200000 bytes; 1048576 are the most here (--slots-mb)",
    )
    assert server.raw(request("same", small, binary=True)).startswith(b"200\n")


def test_a_slot_is_kept_as_long_as_its_batch_looks_at_it_though_its_request_has_expired(
    slow_onnx: Path, start_server: StartServer
) -> None:
    server = start_server(slow_onnx, "--workers", "1", "--timeout-s", "0.2")
    x = np.array([10_000], np.int64)
    entry = {"name": "turns", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}}
    text = json.dumps({"inputs": [entry]}).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: here\r\nContent-Length: {len(text) + 8}\r\n"
    data = head.encode() + f"Inference-Header-Content-Length: {len(text)}\r\n\r\n".encode() + text + x.tobytes()
    assert b"no answer within the timeout of 0.2 s" in server.raw(data)
    assert server.metric("penstock_slots_taken") > 0
    until(lambda: server.metric("penstock_slots_taken") == 0)


def turns_request(turns: int) -> bytes:
    entry = {"name": "turns", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}}
    text = json.dumps({"inputs": [entry]}).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: here\r\nContent-Length: {len(text) + 8}\r\n"
    said = f"Inference-Header-Content-Length: {len(text)}\r\n\r\n"
    return head.encode() + said.encode() + text + np.int64(turns).tobytes()


def test_requests_that_expire_whenever_leave_no_slot_taken(
    slow_onnx: Path, start_server: StartServer, many: ThreadPoolExecutor
) -> None:
    server = start_server(slow_onnx, "--workers", "1", "--timeout-s", "0.03", "--max-queue-rows", "4")
    answered = list(many.map(server.raw, [turns_request(turns) for turns in (1000, 2000, 4000, 8000) * 20]))
    assert sum(b"no answer within" in answer for answer in answered) > 2
    assert {answer[:4] for answer in answered} <= {b"200\n", b"503\n"}
    until(lambda: server.metric("penstock_slots_taken") == 0)


def test_a_batch_that_hangs_leaves_its_slots_once_its_process_has_ended(
    slow_onnx: Path, start_server: StartServer
) -> None:
    server = start_server(slow_onnx, "--workers", "1", "--isolate", "--run-limit-s", "0.3")
    assert server.raw(turns_request(10_000_000)).startswith(b"50")
    until(lambda: server.metric("penstock_slots_taken") == 0 and server.raw(turns_request(1)).startswith(b"200\n"))


def test_an_isolated_runner_takes_rows_from_where_any_front_end_has_them(
    identity: Path, start_server: StartServer, many: ThreadPoolExecutor
) -> None:
    server = start_server(identity, "--workers", "2", "--isolate")

    def ask(number: int) -> bool:
        x = np.full((1 + number % 3, 2**17), number, np.float32)
        answer = server.raw(request("same", x, binary=True))
        return answer.startswith(b"200\n") and answer.endswith(x.tobytes())

    assert all(many.map(ask, range(60)))
    os.kill(members(server)["frontend"][0], signal.SIGKILL)
    until(lambda: answers_at(server) and len(members(server)["frontend"]) == 2)
    assert all(many.map(ask, range(60)))
    assert server.metric("penstock_slots_taken") == 0


def test_an_answer_of_any_shape_and_length_holds_up_nobody(tmp_path: Path, start_server: StartServer) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["n"], ["y"])],
        "long",
        [helper.make_tensor_value_info("n", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["many"])],
    )
    path = tmp_path / "long.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    server = start_server(path, "--workers", "1")
    began = time.monotonic()
    asked = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [2**24]}]}
    asked["parameters"] = {"binary_data_output": True}  # type: ignore[assignment]
    answer = server.ask("POST", "/v2/models/long/infer", asked)
    assert answer.status == 200
    assert len(answer.body) > 2**26
    assert time.monotonic() - began < 5  # a second or two; it grew with the square of the length


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """same.onnx: rows of any length, as they came."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "same",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "n"])],
    )
    path = tmp_path_factory.mktemp("same") / "same.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_family_whichever_way_it_ends(
    models: Path, start_server: StartServer, number: int
) -> None:
    before = set(Path("/dev/shm").iterdir())
    server = start_server(models, "--workers", "2")
    pids = [pid for held in members(server).values() for pid in held]
    assert len(pids) == 3
    assert server.ask("POST", INFER, asked()).status == 200
    assert server.stop(number) == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    until(lambda: not any(map(_runs, pids)), 5)
    assert set(Path("/dev/shm").iterdir()) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_family_that_is_ended_while_it_begins_ends_well(models: Path, number: int) -> None:
    command = [sys.executable, "-m", "penstock", "serve", str(models), "--workers", "2", "--port", "0"]
    with subprocess.Popen([*command, "--grpc-port", "-1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as begun:
        assert begun.stdout is not None
        lines = iter(begun.stdout.readline, b"")
        assert any(line.startswith(b"serving ") for line in lines)
        begun.send_signal(number)
        said = b"".join(lines).decode()
        assert begun.wait(30) == 0
    assert "error" not in said
    assert "ready at" not in said


@pytest.fixture
def many() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_requests_of_all_sizes_at_once_get_their_own_answers(server: Server, many: ThreadPoolExecutor) -> None:
    until(lambda: answers(server) and ready(server))

    def ask(number: int) -> None:
        rows = number % 20 + 1
        answer = server.ask("POST", INFER, asked(number, rows))
        assert answer.status == 200, answer.body
        total = next(output for output in answer.json["outputs"] if output["name"] == "total")
        single = server.ask("POST", INFER, asked(number)).json
        one = next(output for output in single["outputs"] if output["name"] == "total")["data"]
        assert json.dumps(total["data"]) == json.dumps(one * rows)

    list(many.map(ask, range(100)))
