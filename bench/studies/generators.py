"""penstock's load generator beside wrk and LoadGen: `python bench/studies/generators.py MODEL.onnx [--rounds 12]`.

One `penstock serve`, one request of one row in binary, turns of a few seconds: wrk and the generator in closed loops
of --connections, then LoadGen's SingleStream and the generator at one. Needs wrk and mlcommons-loadgen. All on one
machine: what else runs there moves single turns, so the ratios are medians over them.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bench import loadgen
from penstock.bench.answers import Checker, Expected
from penstock.bench.connections import Connections, Endpoint
from penstock.bench.fleet import Fleet, Goal
from penstock.bench.generator import Order
from penstock.bench.serving.paced import one_row
from penstock.bench.studies.traffic import serving

_LUA = """
local file = io.open("{body}", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
file:close()
wrk.headers["Inference-Header-Content-Length"] = "{length}"
"""


def due(port: int, request: bytes) -> Expected:
    """The answer to the request, asked alone."""
    road = Connections(Endpoint("127.0.0.1", port), [request])
    road.grow(1)
    road.send(0, 0)
    for _ in range(100):
        for event in road.wait(0.1):
            if event.answer is None or event.answer.head.status != 200:
                raise SystemExit(f"no answer: {event}")
            return Expected.of(event.answer)
    raise SystemExit("no answer")


def wrk(url: str, home: Path, request: bytes, connections: int, seconds: float) -> tuple[float, float]:
    """Answers a second, and the median latency in microseconds."""
    head, _, body = request.partition(b"\r\n\r\n")
    found = re.search(rb"Inference-Header-Content-Length: (\d+)", head)
    assert found is not None
    (home / "body").write_bytes(body)
    (home / "post.lua").write_text(_LUA.format(body=home / "body", length=int(found[1])))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(home / "post.lua"), url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    rate, middle = re.search(r"Requests/sec:\s+([\d.]+)", text), re.search(r"50%\s+([\d.]+)(us|ms|s)", text)
    if rate is None or middle is None or "Non-2xx" in text or "Socket errors" in text:
        raise SystemExit(text)
    return float(rate[1]), float(middle[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[middle[2]]


def ours(fleet: Fleet, connections: int, seconds: float) -> tuple[float, float]:
    tally, _ = fleet.run(Order(0.0, 0.5, seconds, 10.0, connections, connections))
    if tally.failures:
        raise SystemExit(f"failures: {tally.failures}")
    return tally.arrived / tally.seconds, 1e6 * float(np.median(tally.latencies))


def single_stream(port: int, request: bytes, expected: Expected, home: Path, seconds: float) -> tuple[float, float]:
    """LoadGen's own figures: queries a second without its overhead, and the median latency in microseconds."""
    checker = Checker([expected], 0.01)

    def connect() -> socket.socket:
        made = socket.create_connection(("127.0.0.1", port), timeout=10)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    settings = loadgen.Settings("singlestream", home / "logs", seconds, samples=1, target_qps=20_000.0, threads=1)
    outcome = loadgen.run(settings, lambda: loadgen.OverHttp(connect, [request], checker.right))
    if outcome.failures:
        raise SystemExit(f"failures: {outcome.failures}")
    return (
        float(outcome.summary["QPS w/o loadgen overhead"]),
        float(outcome.summary["50.00 percentile latency (ns)"]) / 1e3,
    )


def told(name: str, turns: list[tuple[tuple[float, float], tuple[float, float]]]) -> None:
    """A line for each turn, and the medians of the ratios."""
    for (rate, middle), (our_rate, our_middle) in turns:
        print(f"{name} {rate:.0f}/s, p50 {middle:.0f} us; penstock bench {our_rate:.0f}/s, p50 {our_middle:.0f} us")
    ratios: Any = [[b / a for a, b in zip(one, other, strict=True)] for one, other in turns]
    rate, middle = np.median(ratios, axis=0)
    print(f"penstock bench beside {name}: {rate:.3f} times the rate, {middle:.3f} times the median latency", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=32)
    options = parser.parse_args()
    request = one_row(options.model)
    with serving(options.model, "--threads", "1") as served, tempfile.TemporaryDirectory() as folder:
        home, port, seconds, count = Path(folder), served.port, options.seconds, options.connections
        expected = due(port, request)
        url = f"http://127.0.0.1:{port}/v2/models/{options.model.stem}/infer"
        with Fleet(Goal("127.0.0.1", port), [request], [expected], 1, 10.0, 0.01) as fleet:
            turns = range(options.rounds)
            many = [(wrk(url, home, request, count, seconds), ours(fleet, count, seconds)) for _ in turns]
            told(f"wrk, {count} connections", many)
            one = [(single_stream(port, request, expected, home, seconds), ours(fleet, 1, seconds)) for _ in turns]
            told("LoadGen SingleStream", one)


if __name__ == "__main__":
    main()
