"""The end of a server's life: not ready at once, nothing that was received is lost, and a line that says so."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.serve import drain
from penstock.serve.drain import Calls

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

SLOW = "/v2/models/slow/infer"
LONG = 12_000  # half a second of work, or more
ENDLESS = 100_000
READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: here\r\n\r\n"


def turns(count: int) -> dict[str, Any]:
    return {"inputs": [{"name": "turns", "datatype": "INT64", "shape": [1], "data": [count]}]}


def request(count: int = 1) -> bytes:
    body = json.dumps(turns(count)).encode()
    return f"POST {SLOW} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def until_busy(server: Server, count: float = 1) -> None:
    server.wait_for_metric('penstock_pending_rows{model="slow",version="1"}', count)


def tell(server: Server, number: int = signal.SIGTERM) -> None:
    """Tell the server to end, once it has counted what it has answered: an answer may be here before that."""
    time.sleep(0.05)
    server.process.send_signal(number)


def ended(server: Server, within_s: float = 20) -> tuple[int, int, int]:
    """The exit status, and how many requests the last line says were answered and lost."""
    code = server.process.wait(timeout=within_s)
    assert "Traceback" not in server.log
    assert server.process.stdout is not None
    last = server.process.stdout.read()
    found = re.search(r"drained in [\d.]+ s: (\d+) requests answered meanwhile, (\d+) lost", last)
    assert found is not None, last
    return code, int(found[1]), int(found[2])


def kept_alive(server: Server) -> http.client.HTTPConnection:
    """A connection on which a request has been answered, and another may follow."""
    held = server.connect()
    held.request("GET", "/v2/health/ready")
    answer = held.getresponse()
    assert (answer.status, answer.read(), answer.headers["connection"]) == (200, b'{"ready":true}', None)
    return held


@pytest.fixture(scope="module")
def address() -> Callable[[Server], str]:
    pytest.importorskip("grpc")
    return lambda server: re.search(r"gRPC at (\S+)", "\n".join(server.lines))[1]  # type: ignore[index]


# --- The lame-duck period ------------------------------------------------------------------------------------------


def test_a_lame_duck_is_not_ready_and_answers_with_word_to_leave(
    slow_onnx: Path, start_server: StartServer, address: Callable[[Server], str]
) -> None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from penstock import messages

    server = start_server(slow_onnx, "--lame-duck-s", "2")
    held = kept_alive(server)
    with grpc.insecure_channel(address(server)) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        def states() -> list[bool]:
            found = [health.Check(health_pb2.HealthCheckRequest(service=name)).status == 1 for name in ("", "slow")]
            for name, fields in (("ServerReady", {}), ("ModelReady", {"name": "slow"}), ("ServerLive", {})):
                call = channel.unary_unary(
                    f"/{messages.SERVICE}/{name}",
                    messages.message(f"{name}Request").SerializeToString,
                    messages.message(f"{name}Response").FromString,
                )
                answer = call(messages.message(f"{name}Request")(**fields))
                found.append(answer.live if name == "ServerLive" else answer.ready)
            return found

        assert states() == [True] * 5
        told_at = time.monotonic()
        tell(server)
        answer = server.ask("GET", "/v2/health/ready")
        assert (answer.status, answer.error) == (503, "the server is shutting down")
        assert answer.headers["connection"] == "close"
        assert states() == [False] * 4 + [True]
        assert server.ask("GET", "/v2/models/slow/ready").error == "the server is shutting down"
        assert server.ask("GET", "/v2/health/live").status == 200
        held.request("POST", SLOW, json.dumps(turns(1)))
        last = held.getresponse()
        assert (last.status, last.headers["connection"]) == (200, "close")
        last.read()
        assert server.ask("POST", SLOW, turns(1)).status == 200
    code, answered, lost = ended(server)
    assert time.monotonic() - told_at >= 2
    assert (code, lost) == (0, 0)
    assert answered == 5 + 3  # of HTTP and gRPC; the health service is not counted


def test_an_interrupt_waits_for_no_balancer(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx, "--lame-duck-s", "60")
    tell(server, signal.SIGINT)
    assert ended(server, within_s=10) == (0, 0, 0)


# --- What has begun is answered --------------------------------------------------------------------------------------


def test_what_was_received_is_answered_and_counted(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(server.ask, "POST", SLOW, turns(LONG)) for _ in range(2)]
        until_busy(server)
        tell(server)
        assert {answer.result().status for answer in asked} == {200}
    assert ended(server) == (0, 2, 0)


@pytest.mark.parametrize("path", ["fast", "behind"])
def test_requests_sent_ahead_are_answered_in_order_and_the_last_says_that_it_is_the_last(
    slow_onnx: Path, start_server: StartServer, path: str
) -> None:
    server = start_server(slow_onnx)
    others = request() if path == "fast" else READY
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as held:
        held.sendall(request(LONG) + others * 2)
        time.sleep(0.2)
        tell(server)
        got = b"".join(iter(lambda: held.recv(65_536), b""))
    assert got.count(b"HTTP/1.1 ") == 3
    assert got.count(b"connection: close") == 1
    assert b"connection: close" in got.rpartition(b"HTTP/1.1 ")[2]
    assert ended(server) == (0, 3, 0)


@pytest.mark.parametrize("cut", [5, 60, -1])
def test_a_request_that_had_begun_to_arrive_is_answered(slow_onnx: Path, start_server: StartServer, cut: int) -> None:
    server = start_server(slow_onnx)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as held:
        held.sendall(request()[:cut])
        time.sleep(0.1)
        tell(server)
        time.sleep(1.5)  # longer than an idle connection is kept
        held.sendall(request()[cut:])
        assert held.recv(65_536).startswith(b"HTTP/1.1 200 ")
    assert ended(server) == (0, 1, 0)


def test_a_request_behind_that_had_begun_to_arrive_is_answered(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as held:
        held.sendall(READY[:-20])
        time.sleep(0.1)
        tell(server)
        time.sleep(0.3)
        held.sendall(READY[-20:])
        got = held.recv(65_536)
    assert got.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in got
    assert ended(server) == (0, 1, 0)


def test_the_next_request_of_a_client_that_was_just_answered_is_answered_too(
    slow_onnx: Path, start_server: StartServer
) -> None:
    server = start_server(slow_onnx)
    held = kept_alive(server)
    tell(server)
    time.sleep(0.5)
    held.request("POST", SLOW, json.dumps(turns(1)))
    answer = held.getresponse()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    answer.read()
    assert ended(server) == (0, 1, 0)


def test_an_idle_connection_ends_without_a_reset(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx)
    idle = kept_alive(server)
    time.sleep(1.2)
    tell(server)
    assert idle.sock.recv(1) == b""
    assert ended(server, within_s=5) == (0, 0, 0)


def test_a_request_on_a_connection_that_was_closed_for_being_idle_is_counted_as_lost(
    slow_onnx: Path, start_server: StartServer
) -> None:
    server = start_server(slow_onnx)
    idle = kept_alive(server)
    time.sleep(1.2)
    tell(server)
    assert idle.sock.recv(1) == b""
    idle.sock.sendall(request())
    assert ended(server, within_s=5) == (1, 0, 1)


def test_a_client_that_connects_as_the_server_closes_is_answered_or_refused_but_not_reset() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(4)
        with socket.create_connection(listener.getsockname()) as early:
            drain.turn_away(listener)
            with pytest.raises(TimeoutError):
                socket.create_connection(listener.getsockname(), timeout=0.2)
            early.sendall(b"request")
            taken = listener.accept()[0]
            assert taken.recv(7) == b"request"
            taken.close()


# --- gRPC ------------------------------------------------------------------------------------------------------------


def asked_rpc(count: int) -> Any:
    from penstock import messages

    entry = {"name": "turns", "datatype": "INT64", "shape": [1]}
    raw = [np.array([count], np.int64).tobytes()]
    return messages.message("ModelInferRequest")(model_name="slow", inputs=[entry], raw_input_contents=raw)


def streaming(channel: Any) -> Any:
    from penstock import messages

    write = messages.message("ModelInferRequest").SerializeToString
    read = messages.message("ModelStreamInferResponse").FromString
    return channel.stream_stream(f"/{messages.SERVICE}/{messages.STREAM}", write, read)


def test_calls_and_streams_of_grpc_are_answered_and_streams_then_end(
    slow_onnx: Path, start_server: StartServer, address: Callable[[Server], str]
) -> None:
    import grpc

    from penstock import messages

    server = start_server(slow_onnx)
    write = messages.message("ModelInferRequest").SerializeToString
    with grpc.insecure_channel(address(server)) as channel:
        unary = channel.unary_unary(
            f"/{messages.SERVICE}/ModelInfer", write, messages.message("ModelInferResponse").FromString
        )
        over = False

        def requests() -> Any:
            yield from (asked_rpc(LONG), asked_rpc(1))
            while not over:  # it stays open, as a client's stream does
                time.sleep(0.05)

        call, answers = unary.future(asked_rpc(LONG)), streaming(channel)(requests())
        until_busy(server, 2)
        tell(server)
        assert call.result(timeout=20).model_name == "slow"
        assert [next(answers).error_message for _ in range(2)] == ["", ""]
        with pytest.raises(grpc.RpcError, match="shutting down") as caught:  # more of it might have been on its way
            next(answers)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        over = True
    assert ended(server) == (0, 3, 0)


def test_a_stream_that_has_more_than_is_taken_at_once_is_told_that_it_was_cut(
    slow_onnx: Path, start_server: StartServer, address: Callable[[Server], str]
) -> None:
    import grpc

    server, seen = start_server(slow_onnx), []
    with grpc.insecure_channel(address(server)) as channel:
        answers = streaming(channel)(iter([asked_rpc(100)] * 150))
        seen.append(next(answers))
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as caught:
            seen.extend(answers)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert 64 <= len(seen) < 150
    code, answered, lost = ended(server)
    assert (code, lost) == (0, 0)
    assert answered in (len(seen), len(seen) - 1)  # the first may have been counted before


def test_calls_that_are_under_way_are_those_that_neither_ended_nor_lost_their_client() -> None:
    assert Calls(begun=5, answered=2, gone=1).owed == 2


# --- What takes too long ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("road", ["http", "grpc"])
def test_what_takes_longer_than_drain_s_is_cut_counted_and_told_by_the_exit_status(
    slow_onnx: Path, start_server: StartServer, address: Callable[[Server], str], road: str
) -> None:
    server = start_server(slow_onnx, "--drain-s", "0.5")
    with ThreadPoolExecutor(2) as pool:
        if road == "http":
            asked = [pool.submit(server.ask, "POST", SLOW, turns(ENDLESS)) for _ in range(2)]
        else:
            triton = pytest.importorskip("tritonclient.grpc")
            wanted = triton.InferInput("turns", [1], "INT64")
            wanted.set_data_from_numpy(np.array([ENDLESS]))
            client = triton.InferenceServerClient(address(server))
            asked = [pool.submit(client.infer, "slow", [wanted]) for _ in range(2)]
        until_busy(server)
        tell(server)
        assert ended(server, within_s=5) == (1, 0, 2)
        assert all(answer.exception() is not None for answer in asked)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_an_upload_that_is_cut_is_told_in_one_line_and_leaves_no_traceback(
    served_repository: Path, start_server: StartServer, workers: str
) -> None:
    server = start_server(served_repository, "--drain-s", "0.3", "--workers", workers)
    assert f"; {workers} front end)" in server.lines[-1] or workers == "0"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as held:
        held.sendall(b"POST /predict/pair HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\nhalf")
        time.sleep(0.3)
        tell(server)
        rest = server.process.communicate(timeout=20)[0]
    assert "0 requests answered meanwhile, 1 lost (cut after --drain-s 0.3)" in rest
    assert "Traceback" not in server.log
    assert "CancelledError" not in server.log


def test_requests_sent_ahead_that_are_cut_are_each_counted(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx, "--drain-s", "0.5")
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as held:
        held.sendall(4 * request(ENDLESS))
        time.sleep(0.3)
        tell(server)
        assert ended(server, within_s=5) == (1, 0, 4)


def test_a_second_signal_ends_it_at_once_and_says_what_was_cut(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx, "--lame-duck-s", "60")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.ask, "POST", SLOW, turns(ENDLESS))
        time.sleep(0.3)
        tell(server)
        time.sleep(0.2)
        assert server.process.poll() is None
        tell(server)
        assert ended(server, within_s=2) == (1, 0, 1)
        assert asked.exception() is not None


def test_a_second_signal_to_a_server_that_owes_nothing_is_no_failure(
    slow_onnx: Path, start_server: StartServer
) -> None:
    server = start_server(slow_onnx, "--lame-duck-s", "60")
    tell(server)
    time.sleep(0.2)
    tell(server, signal.SIGINT)
    assert ended(server, within_s=2) == (0, 0, 0)


def test_an_upload_of_a_client_that_went_away_is_not_lost(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as held:
        held.sendall(request()[:-1])
        time.sleep(0.1)
        tell(server)
        time.sleep(0.1)
    assert ended(server) == (0, 0, 0)


# --- A server that cannot answer -------------------------------------------------------------------------------------


def test_a_server_that_is_stopped_is_told_to_be_unhealthy_within_the_timeout(
    slow_onnx: Path, start_server: StartServer
) -> None:
    server = start_server(slow_onnx)
    command = [sys.executable, "-m", "penstock", "health", server.url, "--timeout-s", "0.5"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    server.process.send_signal(signal.SIGSTOP)
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=15)
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert found.returncode == 1
    assert "timed out" in found.stdout + found.stderr
    assert server.ask("GET", "/v2/health/ready").status == 200
