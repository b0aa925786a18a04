"""Latency at a share of capacity: `python bench/serving/paced.py MODEL.onnx [--share 0.8] [--rounds 3] [--json FILE]`.

A server of its own, asked for one row in binary over 32 connections, by a generator on the same cores. First in a
closed loop, which gives the rate that server and generator reach together; then at a share of that rate, evenly spaced,
each latency counted from the moment at which its request was due, so that a server that stalls is charged for those
who would have come (Tene, "How NOT to measure latency"). Closed and paced rounds take turns.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench.studies.traffic import serving

CONNECTIONS = 32


def one_row(path: Path) -> bytes:
    """An infer request of one row, for a bare ONNX file of one float32 input."""
    from penstock.runtimes.onnxruntime import read_signature

    (tensor,) = read_signature(path).inputs
    shape = [1, *(size if isinstance(size, int) else 1 for size in tensor.shape[1:])]
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32).tobytes()
    entry = {"name": tensor.name, "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    text = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    head = f"POST /v2/models/{path.stem}/infer HTTP/1.1\r\nHost: here\r\nContent-Length: {len(text) + len(data)}\r\n"
    return head.encode() + f"Inference-Header-Content-Length: {len(text)}\r\n\r\n".encode() + text + data


class Connection:
    """A socket that asks for one row at a time; all answers are as long as the first, whose head is read."""

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request, self.due, self.size, self.got = request, 0.0, 0, 0

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, due: float) -> None:
        self.due = due
        self.socket.sendall(self.request)

    def answered(self) -> bool:
        """Reads what there is; whether the answer is whole.

        Raises:
            SystemExit: an answer that is no 200.
        """
        data = self.socket.recv(1 << 16)
        if not self.got and not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"an answer that is no 200: {data[:200]!r}")
        if not self.size:
            head, _, _ = data.partition(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            self.size = len(head) + 4 + int(length.split(b":")[1])
        self.got = (self.got + len(data)) % self.size
        return self.got == 0


def run(connections: list[Connection], seconds: float, rate: float | None) -> list[float]:
    """The latencies in seconds of requests for so long: in a closed loop, or evenly spaced at a rate.

    By select(), whose timeouts are of microseconds: an event loop's are of a millisecond or are spun away, and either
    would be taken for the server's.
    """
    free, late, latencies = deque(connections), deque[float](), list[float]()
    began, sent = time.perf_counter(), 0
    while (now := time.perf_counter()) - began < seconds or len(free) < len(connections):
        over = now - began >= seconds
        if rate is None:
            late.extend([now] * (0 if over else len(free)))
        else:
            while not over and (due := began + sent / rate) <= now:
                late.append(due)
                sent += 1
        while free and late:
            free.popleft().send(late.popleft())
        wait = 1.0 if rate is None or over else max(0.0, began + sent / rate - time.perf_counter())
        for connection in select.select(connections, (), (), wait)[0]:
            if connection.answered():
                latencies.append(time.perf_counter() - connection.due)
                free.append(connection)
    return latencies


def measure(port: int, request: bytes, options: argparse.Namespace) -> list[dict[str, Any]]:
    connections, rounds = [Connection(port, request) for _ in range(CONNECTIONS)], []
    run(connections, options.seconds / 2, None)  # warms both
    for _ in range(options.rounds):
        capacity = len(run(connections, options.seconds, None)) / options.seconds
        used = time.process_time()
        paced = run(connections, options.seconds, options.share * capacity)
        p50, p99 = (float(1e3 * np.percentile(paced, share)) for share in (50, 99))
        held = {"capacity": capacity, "rate": options.share * capacity, "p50_ms": p50, "p99_ms": p99}
        own = (time.process_time() - used) / options.seconds
        rounds.append(held | {"samples": len(paced), "ratio": p99 / p50, "generator_cores": own})
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with serving(options.model) as served:
        rounds = measure(served.port, one_row(options.model), options)
    for held in rounds:
        print(
            f"{options.model.stem}: capacity {held['capacity']:.0f}/s; at {held['rate']:.0f}/s p50 "
            f"{held['p50_ms']:.2f} ms, p99 {held['p99_ms']:.2f} ms, {held['ratio']:.2f} times as long "
            f"({held['samples']} samples; the generator took {held['generator_cores']:.2f} cores)"
        )
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
