"""A client's connection: what is answered on it, in which order, and how it ends."""

from __future__ import annotations

import asyncio
import http.client
import io
import itertools
import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.serve import connection as connection_module
from penstock.serve.connection import Connection, ConnectionLimits, Connections
from tests.serve.conftest import Server, StartServer

# Turns of the slow model that take about a second.
LONG = 5000
HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: here\r\n\r\n"


def infer(id: str, model: str = "pair", rows: int = 1, *headers: str, binary: bool = True) -> bytes:
    """An infer request whose ids add up to `rows` times three."""
    ids, weight = np.ones((rows, 3), np.int64), np.zeros(rows, np.float32)
    if binary:
        tensors = [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": kind,
                "parameters": {"binary_data_size": array.nbytes},
            }
            for name, array, kind in (("ids", ids, "INT64"), ("weight", weight, "FP32"))
        ]
        tail = ids.tobytes() + weight.tobytes()
    else:
        tensors = [
            {"name": "ids", "shape": [rows, 3], "datatype": "INT64", "data": ids.tolist()},
            {"name": "weight", "shape": [rows], "datatype": "FP32", "data": weight.tolist()},
        ]
        tail = b""
    text = json.dumps({"id": id, "inputs": tensors, "outputs": [{"name": "total"}]}).encode()
    said = [f"Inference-Header-Content-Length: {len(text)}"] if binary else []
    return post(model, text + tail, *said, *headers)


def post(model: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as held:
        yield held


class _Kept:
    """What http.client reads answers from, several from one stream."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream

    def makefile(self, mode: str) -> io.BufferedReader:
        self._stream.close = lambda: None  # type: ignore[method-assign]
        return self._stream


def read(stream: Any) -> tuple[int, Any]:
    """The next answer's status and JSON."""
    response = http.client.HTTPResponse(_Kept(stream))  # type: ignore[arg-type]
    response.begin()
    return response.status, json.loads(response.read())


def answers(held: socket.socket, count: int) -> list[tuple[int, str]]:
    """The next answers: their status, and their id or else what field they have."""
    stream = held.makefile("rb")
    found = [read(stream) for _ in range(count)]
    return [(status, content.get("id", next(iter(content)))) for status, content in found]


@given(st.lists(st.sampled_from(("infer", "ends", "health")), max_size=8), st.integers(0, 200), st.booleans())
def test_requests_that_wait_are_counted_by_their_heads(kinds: list[str], cut: int, in_chunks: bool) -> None:
    """`ends`: one whose body looks like ends of heads; a whole body is none's business."""
    made = {"infer": infer("a"), "ends": post("pair", b"\r\n\r\nPOST / HTTP/1.1\r\n\r\n"), "health": HEALTH}
    parts = [made[kind] for kind in kinds]
    if in_chunks:
        parts.append(chunked(infer("b", binary=False)))
    received = b"".join(parts)
    kept = max(0, len(received) - cut)
    starts = itertools.accumulate((len(part) for part in parts), initial=0)
    whole = [start + part.index(b"\r\n\r\n") + 4 <= kept for start, part in zip(starts, parts, strict=False)]
    assert connection_module.begun(received[:kept]) == sum(whole)


def test_what_is_no_request_is_not_counted_as_one() -> None:
    assert connection_module.begun(b"\r\n" * 9000) == 0
    assert connection_module.begun(b"\r\n" + HEALTH + b"\x16\x03" + b"\r\n\r\n" * 9) == 1


def test_requests_of_all_kinds_take_turns_on_one_connection(server: Server) -> None:
    with connected(server) as held:
        for number in range(3):
            held.sendall(infer(str(number)))
            assert answers(held, 1) == [(200, str(number))]
            held.sendall(HEALTH)
            assert answers(held, 1) == [(200, "live")]


@pytest.mark.parametrize(
    "order", ["iii", "ihi", "hii", "hhi", "ihh", "ici", "cii", "iei"], ids=lambda order: f"order {order}"
)
def test_requests_sent_ahead_are_answered_in_their_order(server: Server, order: str) -> None:
    kinds: dict[str, Any] = {
        "i": lambda id: (infer(id), (200, id)),
        "h": lambda id: (HEALTH, (200, "live")),
        "c": lambda id: (chunked(infer(id, binary=False)), (200, id)),
        "e": lambda id: (infer(id, "none"), (404, "error")),
    }
    made = [kinds[kind](f"{number}") for number, kind in enumerate(order)]
    with connected(server) as held:
        held.sendall(b"".join(request for request, _ in made))
        assert answers(held, len(order)) == [answer for _, answer in made]


def chunked(request: bytes) -> bytes:
    """The same request with its body in chunks."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    parts = [body[:7], body[7:]]
    told = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    return b"\r\n".join([*lines, b"Transfer-Encoding: chunked"]) + b"\r\n\r\n" + told


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 1500), max_size=12))
def test_however_the_bytes_come_in_the_answers_are_the_same(server: Server, cuts: list[int]) -> None:
    stream = b"".join([infer("a"), HEALTH, infer("b", rows=4), infer("c", binary=False), HEALTH, infer("d")])
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    with connected(server) as held:
        held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, end in itertools.pairwise(edges):
            held.sendall(stream[start:end])
        live = (200, "live")
        assert answers(held, 6) == [(200, "a"), live, (200, "b"), (200, "c"), live, (200, "d")]


def test_a_request_that_comes_a_byte_at_a_time_is_answered(server: Server) -> None:
    with connected(server) as held:
        held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in infer("slow"):
            held.sendall(bytes([byte]))
        assert answers(held, 1) == [(200, "slow")]


def test_a_client_that_asks_first_is_told_to_go_on(server: Server) -> None:
    request = infer("patient", "pair", 1, "Expect: 100-continue")
    head, _, body = request.partition(b"\r\n\r\n")
    with connected(server) as held:
        held.sendall(head + b"\r\n\r\n")
        assert held.recv(100).startswith(b"HTTP/1.1 100 ")
        held.sendall(body)
        assert answers(held, 1) == [(200, "patient")]


@pytest.mark.parametrize(
    "last", [infer("end", "pair", 1, "Connection: close"), infer("end", "none", 1, "Connection: close")]
)
def test_a_connection_that_is_to_end_ends_with_its_answer(server: Server, last: bytes) -> None:
    with connected(server) as held:
        held.sendall(infer("first") + last + infer("never"))
        content = held.makefile("rb").read()
    assert content.count(b"HTTP/1.1 ") == 2
    assert b"connection: close\r\n" in content
    assert b"never" not in content


def test_a_body_over_the_limit_is_refused_before_it_is_sent(narrow_server: Server) -> None:
    with connected(narrow_server) as held:
        held.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n\r\n")
        status, content = read(held.makefile("rb"))
    assert (status, "over the limit" in content["error"]) == (413, True)


@pytest.mark.parametrize(
    "noise", [b"\x00\x01\x02\r\n\r\n", b"POST /v2/models/m/infer HTTP/9.9.9\r\n\r\n", b"A" * 200_000]
)
def test_noise_is_refused_and_the_next_client_served(server: Server, noise: bytes) -> None:
    with connected(server) as held:
        try:
            held.sendall(noise)
            assert held.recv(100).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
        except ConnectionError:
            pass  # refused before all of it was sent
    with connected(server) as held:
        held.sendall(infer("after"))
        assert answers(held, 1) == [(200, "after")]


def ended(held: socket.socket, noise: bytes) -> bool:
    """Whether the server ends the connection over so much noise."""
    try:
        for _ in range(2000):
            held.sendall(noise)
            if select.select([held], [], [], 0)[0] and not held.recv(1):
                return True
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("path", ["POST /v2/models/pair/infer", "GET /v2"])
def test_a_head_without_an_end_is_not_kept_without_end(server: Server, path: str) -> None:
    with connected(server) as held:
        held.sendall(f"{path} HTTP/1.1\r\nX: ".encode())
        assert ended(held, b"x" * 65_536)
    assert server.ask("GET", "/v2/health/live").status == 200


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory, start_server: StartServer) -> Server:
    """A server of `same`, which gives back what it is given."""
    onnx = pytest.importorskip("onnx")
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", "n"]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", values[:1], values[1:])
    path = tmp_path_factory.mktemp("echo") / "same.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), str(path))
    return start_server(path)


def same(array: Any, id: str = "x") -> bytes:
    entry = {"name": "x", "shape": array.shape, "datatype": "FP32", "parameters": {"binary_data_size": array.nbytes}}
    text = json.dumps({"id": id, "inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return post("same", text + array.tobytes(), f"Inference-Header-Content-Length: {len(text)}")


def read_same(stream: Any) -> Any:
    response = http.client.HTTPResponse(_Kept(stream))  # type: ignore[arg-type]
    response.begin()
    body, length = response.read(), int(response.headers["Inference-Header-Content-Length"])
    shape = json.loads(body[:length])["outputs"][0]["shape"]
    return np.frombuffer(body[length:], np.float32).reshape(shape)


@pytest.mark.parametrize("size", [1, 5, 4000, 16_384, 65_536, 400_000])
def test_arrays_of_every_size_come_back_as_they_were(echo: Server, size: int) -> None:
    array = np.random.default_rng(size).random((3, size), np.float32)
    with connected(echo) as held:
        held.sendall(same(array) + same(array[:1]))
        stream = held.makefile("rb")
        assert np.array_equal(read_same(stream), array)
        assert np.array_equal(read_same(stream), array[:1])


def test_a_client_that_reads_late_gets_all_its_answers(echo: Server) -> None:
    arrays = [np.full((8, 65_536), number, np.float32) for number in range(12)]  # 2 MB each, there and back
    with connected(echo) as held:
        held.setblocking(False)
        left = memoryview(b"".join(same(array) for array in arrays))
        read = bytearray()
        while left:  # nothing is read while anything can be sent
            _, writable, _ = select.select([], [held], [], 1)
            if not writable:
                read += held.recv(1 << 20)
                continue
            left = left[held.send(left) :]
        held.setblocking(True)
        stream = io.BufferedReader(_Rest(bytes(read), held), 1 << 16)
        for array in arrays:
            assert np.array_equal(read_same(stream), array)


class _Rest(io.RawIOBase):
    """What was read already, and then what a socket has."""

    def __init__(self, first: bytes, held: socket.socket) -> None:
        self._first, self._held = first, held

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._first:
            return self._held.recv_into(buffer)
        count = min(len(buffer), len(self._first))
        buffer[:count], self._first = self._first[:count], self._first[count:]
        return count


def test_the_work_of_a_client_that_went_away_is_dropped(narrow_server: Server) -> None:
    """One that runs cannot be stopped; the one that waits behind it is never begun."""
    started = narrow_server.metric('penstock_batch_rows_count{model="slow",version="1"}')

    def turns(count: int) -> bytes:
        entry = {"name": "turns", "shape": [1], "datatype": "INT64", "data": [count]}
        return post("slow", json.dumps({"inputs": [entry]}).encode())

    with connected(narrow_server) as first:
        first.sendall(turns(LONG))
        time.sleep(0.1)
        with connected(narrow_server) as second:
            second.sendall(turns(1))
            narrow_server.wait_for_metric('penstock_pending_rows{model="slow",version="1"}', 1)
        narrow_server.wait_for_metric('penstock_pending_rows{model="slow",version="1"}', 0)
        assert answers(first, 1)[0][0] == 200
    assert narrow_server.metric('penstock_batch_rows_count{model="slow",version="1"}') == started + 1
    assert narrow_server.metric('penstock_requests_total{code="499",model="slow"}') >= 1


class _Transport:
    """A transport that keeps what it is told."""

    def __init__(self) -> None:
        self.closed = self.paused = self.aborted = False
        self.unsent = 1000
        self.pauses = 0
        self.sent = b""

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True
        self.pauses += 1

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.sent += data


def receive(connection: Connection, data: bytes) -> None:
    room = connection.get_buffer(-1)
    room[: len(data)] = data
    connection.buffer_updated(len(data))


def alone(
    infer: Any, idle_s: float = 60, receive_s: float = 60, body_bytes: int = 1000
) -> tuple[Connection, _Transport]:
    state = SimpleNamespace(connections=set(), tasks=set(), default_headers=[], total_requests=0)
    limits = ConnectionLimits(body_bytes, 10, idle_s, receive_s)
    connection, transport = Connections(infer, limits)(SimpleNamespace(), state, None), _Transport()
    connection.connection_made(transport)
    return connection, transport


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async def scenario() -> list[bool]:
        over = asyncio.Event()

        class Infer:
            async def answer(self, *request: Any) -> Any:
                await over.wait()
                return 200, {}, [b"done"]

        (idle, idle_end), (busy, busy_end) = alone(Infer(), 0.05), alone(Infer(), 0.05)
        receive(busy, post("m", b"{}"))
        await asyncio.sleep(0.2)
        first = [idle_end.closed, busy_end.closed]
        over.set()
        await asyncio.sleep(0.02)
        assert busy_end.sent.endswith(b"done")
        again = busy_end.closed
        await asyncio.sleep(0.2)
        for connection in (idle, busy):
            connection.connection_lost(None)
        return [*first, again, busy_end.closed]

    assert asyncio.run(scenario()) == [True, False, False, True]


def test_a_server_that_stops_closes_idle_connections_and_lets_a_request_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "QUIET_S", 0.0)

    async def scenario() -> None:
        over = asyncio.Event()

        class Infer:
            async def answer(self, *request: Any) -> Any:
                await over.wait()
                return 200, {}, [b"done"]

        (idle, idle_end), (busy, busy_end) = alone(Infer()), alone(Infer())
        receive(busy, post("m", b"{}") + post("m", b"{}"))
        for connection in (idle, busy):
            connection._server.leaving = connection._server.closing = True
            connection.shutdown()
        assert (idle_end.closed, busy_end.closed) == (True, False)
        over.set()
        await asyncio.sleep(0.02)
        assert busy_end.closed
        # What was sent ahead of an answer is answered too, and the last answer alone says that it is the last.
        assert busy_end.sent.count(b"done") == 2
        assert b"connection: close" not in busy_end.sent.partition(b"done")[0]
        assert b"connection: close" in busy_end.sent.partition(b"done")[2]
        for connection in (idle, busy):
            connection.connection_lost(None)

    asyncio.run(scenario())


class _Never:
    async def answer(self, *request: Any) -> Any:
        raise AssertionError("nothing was whole")


@pytest.mark.parametrize("sent", [b"P", b"POST /v2/models/m/infer HTTP/1.1\r\nX", post("m", b"{}")[:-1]])
def test_a_request_that_does_not_become_whole_is_cut_off(sent: bytes) -> None:
    async def scenario() -> None:
        connection, transport = alone(_Never(), receive_s=0.1)
        receive(connection, sent[:1])
        for byte in sent[1:]:
            await asyncio.sleep(0.001)
            receive(connection, bytes([byte]))
        await asyncio.sleep(0.15)
        assert transport.sent.startswith(b"HTTP/1.1 408 ")
        assert b"not whole after 0.1 s (--receive-limit-s)" in transport.sent
        assert transport.closed
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_a_request_that_was_answered_does_not_count_against_the_next() -> None:
    async def scenario() -> None:
        class Infer:
            async def answer(self, *request: Any) -> Any:
                return 200, {}, [b"done"]

        connection, transport = alone(Infer(), receive_s=0.2)
        for _ in range(4):
            receive(connection, post("m", b"{}"))
            await asyncio.sleep(0.08)
        assert transport.sent.count(b"done") == 4
        assert not transport.closed
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_what_a_client_sends_while_it_reads_nothing_is_bounded() -> None:
    async def scenario() -> None:
        connection, transport = alone(_Never())
        connection.pause_writing()
        sent = 0
        while not transport.paused:
            receive(connection, post("m", b"{}"))
            sent += 1
            assert sent < 10_000
        assert len(connection._waiting) < 2 * 65_536
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_a_client_that_does_not_read_what_it_was_answered_is_cut_off() -> None:
    async def scenario() -> None:
        connection, transport = alone(_Never(), idle_s=0.1)
        connection.pause_writing()
        receive(connection, post("m", b"{}"))
        for _ in range(10):  # one that reads slowly is not
            await asyncio.sleep(0.04)
            transport.unsent -= 1
        assert not transport.aborted
        await asyncio.sleep(0.25)
        assert transport.aborted
        connection.connection_lost(None)

    asyncio.run(scenario())


@pytest.fixture(scope="module")
def strict(served_repository: Any, start_server: StartServer) -> Server:
    """A server that waits for little and for few."""
    limits = ("--max-connections", "4", "--receive-limit-s", "0.5", "--idle-limit-s", "0.8")
    return start_server(served_repository / "pair", *limits)


@pytest.mark.parametrize("path", ["/v2/models/pair/infer", "/predict/pair"])
def test_a_client_that_drips_its_body_is_cut_off_on_both_roads(strict: Server, path: str) -> None:
    with connected(strict) as held:
        held.sendall(f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n".encode())
        started = time.monotonic()
        while not select.select([held], [], [], 0.05)[0]:
            held.sendall(b"x")
            assert time.monotonic() < started + 10
        answer = held.recv(1000)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert 0.4 < time.monotonic() - started < 5


def test_a_connection_too_many_is_told_so_and_the_others_go_on(strict: Server) -> None:
    held = [socket.create_connection(("127.0.0.1", strict.port), timeout=20) for _ in range(4)]
    try:
        for connection in held:
            connection.sendall(infer("mine"))
            assert answers(connection, 1) == [(200, "mine")]
        with connected(strict) as another:
            status, content = read(another.makefile("rb"))
        assert (status, "4 connections are open" in content["error"]) == (503, True)
        held[0].sendall(infer("still"))
        assert answers(held[0], 1) == [(200, "still")]
        assert all(connection.recv(1) == b"" for connection in held)  # once they have been idle for long enough
    finally:
        for connection in held:
            connection.close()
    with connected(strict) as fresh:
        fresh.sendall(infer("again"))
        assert answers(fresh, 1) == [(200, "again")]


def test_a_client_that_goes_away_at_once_leaves_no_task_behind() -> None:
    async def scenario() -> None:
        connection, _ = alone(_Never())
        receive(connection, post("m", b"{}"))
        connection.connection_lost(None)  # before the task has taken its first step
        await asyncio.sleep(0.02)
        assert not connection._state.tasks

    asyncio.run(scenario())


def test_nothing_is_begun_on_a_connection_that_is_closing() -> None:
    async def scenario() -> None:
        class Infer:
            async def answer(self, *request: Any) -> Any:
                transport.closed = True  # as when the answer cannot be written
                return 200, {}, [b"done"]

        connection, transport = alone(Infer())
        receive(connection, post("m", b"{}") + post("m", b"{}"))
        await asyncio.sleep(0.02)
        assert connection._task is None
        assert not connection._state.tasks
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_an_answer_comes_whatever_fails() -> None:
    async def scenario() -> None:
        class Infer:
            async def answer(self, *request: Any) -> Any:
                raise ValueError("nobody expected this")

        connection, transport = alone(Infer())
        receive(connection, post("m", b"{}") + post("m", b"{}"))
        await asyncio.sleep(0.02)
        assert transport.sent.count(b"HTTP/1.1 500 ") == 2
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_a_head_alone_takes_no_memory_for_its_body() -> None:
    async def scenario() -> None:
        connection, _ = alone(_Never(), body_bytes=2**40)
        receive(connection, f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {2**39}\r\n\r\nx".encode())
        assert len(connection.get_buffer(-1)) < 2**20
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_others_have_their_turn_while_a_long_body_comes() -> None:
    async def scenario() -> tuple[int, int]:
        class Infer:
            async def answer(self, *request: Any) -> Any:
                return 200, {}, [b"%d" % len(request[3])]

        length, turns = 5 * 2**20, 0
        connection, transport = alone(Infer(), body_bytes=2**30)
        receive(connection, f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        left = length
        while left:
            room = connection.get_buffer(-1)
            assert len(room) <= 2**18, "read at once, nobody else runs meanwhile"
            left -= len(room)
            connection.buffer_updated(len(room))
            del room
            if transport.paused:
                turns += 1
                await asyncio.sleep(0)
                assert not transport.paused, "reading goes on by itself"
        await asyncio.sleep(0.01)
        assert transport.sent.endswith(b"%d" % length)
        connection.connection_lost(None)
        return turns, transport.pauses

    turns, pauses = asyncio.run(scenario())
    assert turns == pauses >= 8


def test_a_body_of_less_than_a_mebibyte_is_read_in_one_go() -> None:
    async def scenario() -> int:
        connection, transport = alone(_Never(), body_bytes=2**30)
        receive(
            connection, f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {2**20 - 1}\r\n\r\nx".encode()
        )
        for _ in range(7):
            connection.buffer_updated(len(connection.get_buffer(-1)))
        connection.connection_lost(None)
        return transport.pauses

    assert asyncio.run(scenario()) == 0


UPGRADES = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


def test_a_request_that_wishes_to_upgrade_is_answered_as_it_is(server: Server) -> None:
    request = infer("first").replace(b"Host: here\r\n", b"Host: here\r\n" + UPGRADES)
    with connected(server) as held:
        head, _, body = request.partition(b"\r\n\r\n")
        held.sendall(head + b"\r\n\r\n")
        time.sleep(0.05)  # the body in a packet of its own, which must not be taken for a request
        held.sendall(body + infer("second"))
        assert answers(held, 2) == [(200, "first"), (200, "second")]


def test_so_is_one_that_is_answered_behind(server: Server) -> None:
    body = b'{"inputs": {"ids": [[1, 2]], "weight": [0]}}'
    head = b"POST /predict/pair HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n" + UPGRADES
    with connected(server) as held:
        held.sendall(head + f"Content-Length: {len(body)}\r\n\r\n".encode())
        time.sleep(0.05)
        held.sendall(body + HEALTH)
        stream = held.makefile("rb")
        assert read(stream)[0] == 200
        assert read(stream) == (200, {"live": True})


def test_one_that_is_sent_ahead_is_refused_and_its_body_not_taken_for_a_request(server: Server) -> None:
    body = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"POST /predict/pair HTTP/1.1\r\nHost: here\r\n" + UPGRADES
    with connected(server) as held:
        held.sendall(HEALTH + head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        content = held.makefile("rb").read()
    assert content.count(b"HTTP/1.1 ") == content.count(b'{"live":true}') == 1


def test_garbage_behind_a_request_does_not_take_its_answer_s_place(server: Server) -> None:
    with connected(server) as held:
        held.sendall(HEALTH + b"\x00\x01garbage\r\n\r\n")
        content = held.makefile("rb").read()
    assert content.startswith(b"HTTP/1.1 200 ")
    assert content.count(b"HTTP/1.1 ") == 1


def test_a_websocket_is_not_opened_and_leaves_nothing(server: Server) -> None:
    head = (
        b"GET /x HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    )
    with connected(server) as held:
        held.sendall(head + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" + HEALTH)
        assert [status for status, _ in answers(held, 2)] == [404, 200]


def test_trailers_without_an_end_are_cut_off(server: Server) -> None:
    with connected(server) as held:
        held.sendall(b"POST /predict/pair HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n")
        assert ended(held, b"X: " + b"x" * 8000 + b"\r\n")


def test_what_is_no_http_is_refused_in_the_form_of_all_refusals(server: Server) -> None:
    with connected(server) as held:
        held.sendall(b"GET / HTTP/9.9.9\r\n\r\n")
        assert read(held.makefile("rb")) == (400, {"error": "the request is not HTTP/1.1: Invalid HTTP version"})


@pytest.mark.parametrize("path", ["POST /v2/models/pair/infer", "POST /predict/pair", "GET /v2/health/live"])
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("Host: x\r\nContent-Length: 2\r\nContent-Length: 2", "Duplicate Content-Length"),
        ("Host: x\r\nContent-Length: -1", "Invalid character in Content-Length"),
        ("Host: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked", "Transfer-Encoding can't be present"),
        ("Content-Length: 2", "Missing Host"),
        ("Host: x\r\nContent-Length: 2\r\nhost: y", "Duplicate Host"),
    ],
)
def test_a_head_that_is_wrong_is_refused_once_and_by_what_is_wrong(
    server: Server, path: str, lines: str, why: str
) -> None:
    with connected(server) as held:
        held.sendall(f"{path} HTTP/1.1\r\n{lines}\r\n\r\n{{}}".encode() + HEALTH)
        file = held.makefile("rb")
        status, content = read(file)
        assert (status, f"not HTTP/1.1: {why}" in content["error"]) == (400, True), content
        assert file.read() == b""
