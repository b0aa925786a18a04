"""What the road from the socket to the model costs: `python wire.py OUTPUT [SECONDS [ROUNDS]]`; needs wrk.

`penstock serve` with a model that gives its input back, asked in binary for 3 KB and 602 KB, beside a FastAPI route
that takes the raw body and answers it, by the same uvicorn. The generator runs on the same cores. Rounds are
interleaved; prints a line for each, medians last, and writes JSON.
"""

from __future__ import annotations

import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

CONCURRENCY = (1, 32)
SIZES = {"3 KB": (1, 768), "602 KB": (1, 3, 224, 224)}
ROUTE = """
from fastapi import FastAPI, Request, Response
app = FastAPI()

@app.post("/echo")
async def echo(request: Request) -> Response:
    return Response(await request.body(), media_type="application/octet-stream")
"""
LUA = """
local file = io.open("{body}", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
file:close()
{headers}
"""


def identity(path: Path) -> Path:
    """A model that gives back what it is given, of any shape of float32 with rows."""
    import onnx

    shapes = ["batch", *[f"d{number}" for number in range(1, len(SIZES[path.stem]))]]
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", values[:1], values[1:])
    file = path.with_name(path.name.replace(" ", "_") + ".onnx")
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), file)
    return file


def script(home: Path, name: str, body: bytes, headers: dict[str, str | int]) -> Path:
    (home / f"{name}.body").write_bytes(body)
    lines = "\n".join(f'wrk.headers["{key}"] = "{value}"' for key, value in headers.items())
    file = home / f"{name}.lua"
    file.write_text(LUA.format(body=home / f"{name}.body", headers=lines))
    return file


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def wait(url: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=1):  # noqa: S310
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer")


def load(url: str, lua: Path, connections: int, seconds: float) -> dict[str, float]:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(lua), url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    if "Non-2xx" in text or "Socket errors" in text:
        raise RuntimeError(text)
    middle = re.search(r"50%\s+([\d.]+)(us|ms|s)", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    assert middle is not None, text
    assert rate is not None, text
    return {"p50_ms": float(middle[1]) * {"us": 1e-3, "ms": 1, "s": 1e3}[middle[2]], "rate": float(rate[1])}


def cases(home: Path, served: int, plain: int) -> dict[str, tuple[str, Path]]:
    found = {}
    for size, shape in SIZES.items():
        array = np.zeros(shape, np.float32)
        entry = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": array.nbytes}}
        head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
        lua = script(
            home, size.replace(" ", "_"), head + array.tobytes(), {"Inference-Header-Content-Length": len(head)}
        )
        url = f"http://127.0.0.1:{served}/v2/models/{size.replace(' ', '_')}/infer"
        found[f"penstock, {size}"] = (url, lua)
        found[f"FastAPI route, {size}"] = (f"http://127.0.0.1:{plain}/echo", lua)
    return found


def main(output: Path, seconds: float, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        models = [identity(home / size) for size in SIZES]
        (home / "route.py").write_text(ROUTE)
        served, plain = free_port(), free_port()
        commands = [
            [sys.executable, "-m", "penstock", "serve", *map(str, models), "--port", str(served), "--grpc-port", "-1"],
            [
                sys.executable,
                "-m",
                "uvicorn",
                "route:app",
                "--port",
                str(plain),
                "--no-access-log",
                "--log-level",
                "error",
            ],
        ]
        running = [subprocess.Popen(command, cwd=home, stdout=subprocess.DEVNULL) for command in commands]  # noqa: S603
        try:
            wait(f"http://127.0.0.1:{served}/v2/health/ready")
            wait(f"http://127.0.0.1:{plain}/docs")
            figures = measure(cases(home, served, plain), seconds, rounds)
        finally:
            for process in running:
                process.terminate()
                process.wait()
    report(figures)
    output.write_text(json.dumps(figures, indent=1))


def measure(found: dict[str, tuple[str, Path]], seconds: float, rounds: int) -> dict[str, list[dict[str, float]]]:
    figures: dict[str, list[dict[str, float]]] = {}
    for turn in range(rounds + 1):  # the first warms up
        for connections in CONCURRENCY:
            for name, (url, lua) in found.items():
                got = load(url, lua, connections, seconds)
                if turn:
                    figures.setdefault(f"{name}, {connections} connections", []).append(got)
                    print(f"{name}, {connections} connections: {got['p50_ms']:.3f} ms, {got['rate']:.0f}/s", flush=True)
    return figures


def report(figures: dict[str, list[dict[str, float]]]) -> None:
    def middle(name: str, key: str) -> float:
        return statistics.median(got[key] for got in figures[name])

    print()
    for name in figures:
        print(f"{name}: p50 {middle(name, 'p50_ms'):.3f} ms, {middle(name, 'rate'):.0f} requests/s")
    for size in SIZES:
        for connections in CONCURRENCY:
            ours, theirs = (
                figures[f"{who}, {size}, {connections} connections"] for who in ("penstock", "FastAPI route")
            )
            ratios = sorted(a["rate"] / b["rate"] for a, b in zip(ours, theirs, strict=True))
            print(
                f"{size}, {connections} connections: {statistics.median(ratios):.2f} times the route's throughput "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )
    small, large = (middle(f"penstock, {size}, 1 connections", "p50_ms") for size in SIZES)
    print(f"602 KB takes {large - small:.3f} ms more than 3 KB at one connection")


if __name__ == "__main__":
    words: list[Any] = sys.argv[1:]
    main(Path(words[0]), float(words[1]) if len(words) > 1 else 5.0, int(words[2]) if len(words) > 2 else 5)
