"""Fixtures for measuring servers: one that behaves as a test says, and a real penstock server."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

WIDTH = 4


@dataclass
class Behaviour:
    """How the server answers infer requests; may be changed while it runs."""

    wrong_every: int = 0
    refuse_every: int = 0
    hurried_every: int = 0
    delay_s: float = 0.0
    hang: bool = False
    hang_at: int = 0
    hang_in_runs: bool = False
    chunked: bool = False
    closes: bool = False
    extensions: tuple[str, ...] = ()
    statistics: bool = False
    jitter: bool = False
    alike_every: int = 0
    stall_at: float = float("inf")
    stall_s: float = 0.0
    slow_in_runs_s: float = 0.0
    timing: str = ""
    raw: bytes = b""
    said: dict[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    looks: Callable[[], Any] | None = None


@dataclass
class Toy:
    """A server of the protocol, in JSON, whose model `double` doubles rows of numbers; a thread for each connection."""

    behaviour: Behaviour
    listener: socket.socket
    answered: int = 0
    in_runs: bool = False
    connections: list[socket.socket] = field(default_factory=list)
    dead: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def die(self) -> None:
        """End as a killed process does: the port is closed, and every connection."""
        self.dead = True
        for held in (self.listener, *self.connections):
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()

    def listen(self) -> None:
        while not self.dead:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            stream = connection.makefile("rb")
            while line := stream.readline():
                length = 0
                while (header := stream.readline().strip()) != b"":
                    name, _, value = header.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = stream.read(length)
                _, path, _ = line.decode().split()
                connection.sendall(self._answer(path, body))
                if self.behaviour.closes:
                    connection.close()
                    return
        except (OSError, ValueError):
            return

    def _answer(self, path: str, body: bytes) -> bytes:
        if path in self.behaviour.refused:
            return _http(403, {"error": "the API key 'a' lacks the right repository, which this needs"})
        if path in self.behaviour.said:
            return _http(200, self.behaviour.said[path])
        metadata = {"datatype": "FP32", "shape": [-1, WIDTH]}
        match path:
            case "/v2":
                return _http(200, {"name": "toy", "version": "1", "extensions": list(self.behaviour.extensions)})
            case "/v2/repository/index":
                return _http(200, [{"name": "double", "state": "READY"}, {"name": "other", "state": "READY"}])
            case "/v2/models/double":
                tensors = {"inputs": [{"name": "x", **metadata}], "outputs": [{"name": "y", **metadata}]}
                return _http(200, {"name": "double", "versions": ["1"], "platform": "toy", **tensors})
            case "/v2/models/double/stats":  # asked when a run begins
                self.in_runs = True
                if self.behaviour.looks is not None:
                    return _http(200, self.behaviour.looks())
            case "/v2/models/double/infer":
                return self._infer(body)
        return _http(404, {"error": "no such thing"})

    def _infer(self, body: bytes) -> bytes:
        told = self.behaviour
        with self.lock:
            self.answered += 1
            number = self.answered
        if told.raw:
            return told.raw
        if told.hang or number == told.hang_at or (told.hang_in_runs and self.in_runs):
            time.sleep(30)
        if time.monotonic() > told.stall_at:
            told.stall_at = float("inf")
            time.sleep(told.stall_s)
        time.sleep((told.slow_in_runs_s if self.in_runs else 0.0) or told.delay_s)
        if told.refuse_every and number % told.refuse_every == 0:
            return _http(503, {"error": "busy"})
        if told.hurried_every and number % told.hurried_every == 0:
            return _http(429, {"error": "the API key 'a' is over its rate"}, more="Retry-After: 2\r\n")
        (tensor,) = json.loads(body)["inputs"]
        factor = 3.0 if told.wrong_every and number > 200 and number % told.wrong_every == 0 else 2.0
        nudge = 1 + 1e-6 * (number % 5) if told.jitter else 1.0
        if told.alike_every and number % told.alike_every != 1:
            nudge = 1 + 1e-6 * number
        data = [factor * value * nudge for value in tensor["data"]]
        output = {"name": "y", "datatype": "FP32", "shape": tensor["shape"], "data": data}
        return _http(
            200,
            {"model_name": "double", "outputs": [output]},
            chunked=told.chunked,
            closes=told.closes,
            timing=told.timing,
        )


def _http(
    status: int, content: Any, *, chunked: bool = False, closes: bool = False, timing: str = "", more: str = ""
) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    ending = more + ("Connection: close\r\n" if closes else "")
    ending += f"Server-Timing: {timing}\r\n" if timing else ""
    if chunked:
        head = f"HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n{ending}\r\n".encode()
        parts = (body[:5], body[5:])
        return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{ending}\r\n".encode() + body


@pytest.fixture
def toy() -> Iterator[Callable[..., Toy]]:
    """Starts a toy server: `toy(delay_s=0.01)`."""
    made: list[Toy] = []

    def start(**told: Any) -> Toy:
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        server = Toy(Behaviour(**told), listener)
        made.append(server)
        threading.Thread(target=server.listen, daemon=True).start()
        return server

    yield start
    for server in made:
        server.die()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real penstock server of `line`, an ONNX file that multiplies rows of 8 numbers; gRPC at the next."""
    onnx = pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("line")
    shape = ["batch", 8]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy"]
    scale = onnx.numpy_helper.from_array(np.float32(3), "scale")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Mul", ["x", "scale"], ["y"])], "line", values[:1], values[1:], [scale]
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "line.onnx")
    command = [sys.executable, "-m", "penstock", "serve", str(folder / "line.onnx"), "--port", "0", "--threads", "1"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"(http://127\.0\.0\.1:\d+).*gRPC at (127\.0\.0\.1:\d+)", line)
            if found is not None:
                yield f"{found[1]} {found[2]}"
                break
        else:
            pytest.fail("the server did not start")
    finally:
        process.terminate()
        process.wait(timeout=30)
