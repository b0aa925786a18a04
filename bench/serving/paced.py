"""Latency at a share of capacity: `python bench/serving/paced.py MODEL.onnx [--share 0.8] [--rounds 3] [--json FILE]`.

A server of its own, asked for one row in binary over 32 connections, by a generator on the same cores. First in a
closed loop, which gives the rate that server and generator reach together; then at a share of that rate, evenly spaced,
each latency counted from the moment at which its request was due, so that a server that stalls is charged for those
who would have come (Tene, "How NOT to measure latency"). Closed and paced rounds take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from penstock.bench.studies.traffic import serving

CONNECTIONS = 32
_TICK_S = 0.0005


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


class Load:
    """Requests over connections, each answered before its next: as fast as they go, or when they are due."""

    def __init__(self, request: bytes) -> None:
        self.request, self.size = request, 0
        self.free: deque[Connection] = deque()
        self.due: deque[float] = deque()
        self.latencies: list[float] = []
        self.closed_loop = True
        self.over = False
        self.wrong = 0

    def send(self, connection: Connection, due: float) -> None:
        connection.due = due
        connection.transport.write(self.request)

    def answered(self, connection: Connection) -> None:
        now = time.perf_counter()
        self.latencies.append(now - connection.due)
        if self.over:
            self.free.append(connection)
        elif self.closed_loop:
            self.send(connection, now)
        elif self.due:
            self.send(connection, self.due.popleft())
        else:
            self.free.append(connection)

    def ask(self, due: float) -> None:
        """A request has become due; it waits if no connection is free."""
        if self.free:
            self.send(self.free.popleft(), due)
        else:
            self.due.append(due)


class Connection(asyncio.Protocol):
    """One connection; all answers are as long as the first, whose head is read."""

    def __init__(self, load: Load) -> None:
        self.load, self.due, self.got = load, 0.0, 0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.load.free.append(self)

    def data_received(self, data: bytes) -> None:
        if not self.got and not data.startswith(b"HTTP/1.1 200"):
            self.load.wrong += 1
        if not self.load.size:
            head, _, _ = data.partition(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            self.load.size = len(head) + 4 + int(length.split(b":")[1])
        self.got += len(data)
        if self.got >= self.load.size:
            self.got = 0
            self.load.answered(self)


async def run(load: Load, seconds: float, rate: float | None) -> list[float]:
    """The latencies of requests for so long: in a closed loop, or at a rate."""
    load.latencies, load.over, load.closed_loop = [], False, rate is None
    began = time.perf_counter()
    if rate is None:
        for _ in range(len(load.free)):
            load.send(load.free.popleft(), time.perf_counter())
        await asyncio.sleep(seconds)
    else:
        sent = 0
        while (passed := time.perf_counter() - began) < seconds:
            while sent < passed * rate:
                load.ask(began + sent / rate)
                sent += 1
            await asyncio.sleep(_TICK_S)
    load.over = True
    found = list(load.latencies)
    while len(load.free) < CONNECTIONS:
        await asyncio.sleep(0.005)
    return found


async def measure(port: int, request: bytes, options: argparse.Namespace) -> list[dict[str, Any]]:
    load, loop, rounds = Load(request), asyncio.get_running_loop(), []
    for _ in range(CONNECTIONS):
        await loop.create_connection(lambda: Connection(load), "127.0.0.1", port)
    await run(load, options.seconds / 2, None)  # warms both
    for _ in range(options.rounds):
        closed = await run(load, options.seconds, None)
        rate = options.share * len(closed) / options.seconds
        paced = await run(load, options.seconds, rate)
        p50, p99 = (float(1e3 * np.percentile(paced, share)) for share in (50, 99))
        rounds.append({"capacity": len(closed) / options.seconds, "rate": rate, "p50_ms": p50, "p99_ms": p99})
        rounds[-1] |= {"samples": len(paced), "ratio": p99 / p50}
    if load.wrong:
        raise SystemExit(f"{load.wrong} answers were no 200")
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
        rounds = uvloop.run(measure(served.port, one_row(options.model), options))
    for held in rounds:
        print(
            f"{options.model.stem}: capacity {held['capacity']:.0f}/s; at {held['rate']:.0f}/s p50 "
            f"{held['p50_ms']:.2f} ms, p99 {held['p99_ms']:.2f} ms, {held['ratio']:.2f} times as long "
            f"({held['samples']} samples)"
        )
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
