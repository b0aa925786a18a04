"""What the studies of servers share: models whose answers are known, a server, and clients that check."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 8
TOLD = re.compile(r"drained in ([\d.]+) s: (\d+) requests answered meanwhile, (\d+) lost")


def write_model(path: Path, scale: float, shift: float) -> None:
    """An ONNX file of y = scale x + shift, rows of 8: whole numbers, so that answers are right or wrong."""
    from onnx import TensorProto, helper, numpy_helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in "xy"]
    nodes = [helper.make_node("Mul", ["x", "scale"], ["scaled"]), helper.make_node("Add", ["scaled", "shift"], ["y"])]
    held = [numpy_helper.from_array(np.float32(value), name) for name, value in (("scale", scale), ("shift", shift))]
    graph = helper.make_graph(nodes, "line", values[:1], values[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    beside = path.with_suffix(".new")
    beside.write_bytes(model.SerializeToString())
    beside.replace(path)


def drawn(rng: np.random.Generator) -> Any:
    """A request's rows, unlike those of any other."""
    return rng.integers(-100_000, 100_000, (int(rng.integers(1, 5)), WIDTH)).astype(np.float32)


def request(model: str, x: Any, *, binary: bool, id: str = "") -> bytes:
    """An infer request, head and body; the answer comes as the request does."""
    entry: dict[str, Any] = {"name": "x", "shape": list(x.shape), "datatype": "FP32"}
    tail = x.tobytes() if binary else b""
    if binary:
        entry["parameters"] = {"binary_data_size": len(tail)}
    else:
        entry["data"] = x.ravel().tolist()
    text = json.dumps({"id": id, "inputs": [entry], "parameters": {"binary_data_output": binary}}).encode()
    said = f"Inference-Header-Content-Length: {len(text)}\r\n" if binary else ""
    length = len(text) + len(tail)
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: here\r\nContent-Length: {length}\r\n{said}\r\n"
    return head.encode() + text + tail


class Refused(OSError):
    """Nobody takes connections."""


class Broken(OSError):
    """A request was sent, and no answer came."""


@dataclass
class Reply:
    """An answer: its status, its headers in lower case, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def tensor(self) -> Any:
        """The tensor that it holds, and its id."""
        length = int(self.headers.get("inference-header-content-length", len(self.body)))
        said = json.loads(self.body[:length])
        (output,) = said["outputs"]
        flat = output["data"] if "data" in output else np.frombuffer(self.body[length:], np.float32)
        return np.array(flat, np.float32).reshape(output["shape"]), said.get("id", "")


class Client:
    """One connection at a time, kept as long as the server keeps it; sees whether it had ended before a request."""

    def __init__(self, port: int, timeout_s: float = 60.0) -> None:
        self._port, self._timeout_s = port, timeout_s
        self._socket: socket.socket | None = None
        self._stream: Any = None

    def connect(self) -> None:
        try:
            self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=self._timeout_s)
        except (ConnectionRefusedError, TimeoutError) as error:
            raise Refused(str(error)) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def close(self) -> None:
        if self._socket is not None:
            self._stream.close()
            self._socket.close()
            self._socket = None

    def send(self, data: bytes) -> None:
        """Send bytes, on a new connection if there is none or the server has ended this one."""
        if self._socket is not None and self._has_ended():
            self.close()
        if self._socket is None:
            self.connect()
        assert self._socket is not None
        self._socket.sendall(data)

    def _has_ended(self) -> bool:
        assert self._socket is not None
        self._socket.setblocking(False)
        try:
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        finally:
            self._socket.settimeout(self._timeout_s)

    def read(self) -> Reply:
        line = self._stream.readline()
        if not line:
            raise Broken("the connection ended where an answer was due")
        status, headers = int(line.split()[1]), {}
        while (line := self._stream.readline().strip()) != b"":
            key, _, value = line.decode("latin-1").partition(":")
            headers[key.lower()] = value.strip()
        body = self._stream.read(int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self.close()
        return Reply(status, headers, body)

    def ask(self, data: bytes) -> Reply:
        """The answer to a request.

        Raises:
            Refused: nobody takes connections. Broken: the request was sent, and no answer came.
        """
        try:
            self.send(data)
            return self.read()
        except Refused:
            raise
        except OSError as error:
            self.close()
            raise Broken(f"{type(error).__name__}: {error}") from None


@dataclass
class Served:
    """A `penstock serve` that was started here."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        """Of its process, and of all that came of it: front ends, the engine, runners."""
        found, new = [self.process.pid], [self.process.pid]
        while new:
            with suppress(OSError):
                children = Path(f"/proc/{new[0]}/task").glob("*/children")
                new += [pid for listed in children for pid in map(int, listed.read_text().split())]
            found += [pid for pid in new[1:] if pid not in found]
            new = new[1:]
        return found

    def status(self, key: str) -> int:
        """A figure of /proc/PID/status, of all its processes together: VmRSS and VmHWM in KiB, Threads."""
        return sum(_status(pid, key) for pid in self.pids)

    @property
    def rss_mb(self) -> float:
        return self.status("VmRSS") / 1024

    @property
    def rss_by_process(self) -> dict[int, float]:
        """MiB of each."""
        return {pid: round(_status(pid, "VmRSS") / 1024, 1) for pid in self.pids}

    @property
    def open_files(self) -> int:
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.pids)

    def post(self, path: str) -> Reply:
        client = Client(self.port)
        try:
            return client.ask(f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n".encode())
        finally:
            client.close()


def _status(pid: int, key: str) -> int:
    with suppress(OSError):
        found = re.search(rf"^{key}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


@contextmanager
def serving(*arguments: str | Path) -> Iterator[Served]:
    """A server of these models and options, on any free port, that is killed at the end if it still runs."""
    command = [sys.executable, "-m", "penstock", "serve", *map(str, arguments), "--port", "0", "--grpc-port", "-1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})  # noqa: S603
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)) is not None:
                yield Served(process, int(found[1]))
                break
        else:
            raise RuntimeError("the server did not start")
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@dataclass
class Tally:
    """What clients saw; one for each phase of a run, shared by threads."""

    latencies_ms: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    notes: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, status: str, *, wrong: bool = False, ms: float | None = None, note: str = "") -> None:
        with self._lock:
            self.statuses[status] += 1
            self.wrong += wrong
            if ms is not None:
                self.latencies_ms.append(ms)
            if note and len(self.notes) < 20:
                self.notes.append(note)

    @property
    def failed(self) -> int:
        """Requests that were not answered with 200."""
        return sum(count for status, count in self.statuses.items() if status != "200")

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.latencies_ms, share)) if self.latencies_ms else float("nan")


Question = tuple[bytes, Callable[[Reply], bool]]
"""A request, and whether an answer of 200 to it is right."""


class Crowd:
    """Clients who ask at a steady rate, whether or not the last answer has come, and check every answer.

    A latency is counted from when the request was due. What they see goes to `tally`, which may be another's at any
    time.

    Args:
        port: the server's.
        rate: requests a second, of all clients together.
        clients: how many there are.
        question: makes the next request of a client, by its number and its own random numbers.
    """

    def __init__(
        self, port: int, rate: float, clients: int, question: Callable[[int, np.random.Generator], Question]
    ) -> None:
        self.tally, self._question, self._over = Tally(), question, threading.Event()
        given = ((port, clients / rate, number, clients) for number in range(clients))
        self._threads = [threading.Thread(target=self._ask, args=arguments) for arguments in given]
        for thread in self._threads:
            thread.start()

    def _ask(self, port: int, every_s: float, number: int, clients: int) -> None:
        rng, held = np.random.default_rng(number), Client(port)
        moment = time.perf_counter() + every_s * number / clients
        while not self._over.is_set():
            moment += every_s
            wait_until(moment)
            (data, right), tally = self._question(number, rng), self.tally
            try:
                answer = held.ask(data)
            except (Broken, OSError) as error:
                tally.add("broken", note=str(error))
                continue
            ms, wrong = 1e3 * (time.perf_counter() - moment), answer.status == 200 and not right(answer)
            note = f"{answer.status} {answer.body[:160]!r}" if wrong or answer.status != 200 else ""
            tally.add(str(answer.status), wrong=wrong, ms=ms, note=note)

    def end(self) -> Tally:
        """Ask no more; what they saw last."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        return self.tally


def wait_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)
