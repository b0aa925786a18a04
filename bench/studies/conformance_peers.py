"""`penstock check` on penstock, MLServer and Triton, of one small ONNX model: `python conformance_peers.py --work DIR`.

Builds a virtual environment for each peer in DIR (from the package index), starts them one after another on 127.0.0.1,
checks each, ends what it started, and prints the table of docs/conformance.md and every check that one of them fails.
Triton is the server inside nvidia-pytriton, its model a Python function around the same ONNX file; MLServer's is a
custom runtime around it. DIR gets JUnit XML and the servers' logs. `--only NAME` takes one server alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
HOST, NAME, START_S = "127.0.0.1", "small", 120
TOKEN = "penstock-check"  # noqa: S105  any will do: the server is ours
HEADERS = {"pytriton": [f"triton-access-token: {TOKEN}", f"triton-grpc-protocol-triton-access-token: {TOKEN}"]}
# uvloop 0.22 has no event loop where MLServer's worker asks for one.
REQUIREMENTS = {
    "penstock": (),
    "mlserver": ("mlserver==1.7.1", "uvloop<0.22", "onnxruntime==1.32.0", "numpy==2.4.6"),
    "pytriton": ("nvidia-pytriton==0.7.0", "onnxruntime==1.32.0"),
}


def environment(work: Path, name: str) -> str:
    """The peer's Python, with what it needs installed."""
    home = work / f"peers_{name}"
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-qq", *REQUIREMENTS[name]], check=True)
    return str(python)


def write_model(path: Path) -> None:
    """`scores` = `x` times a matrix and a bias, from 4 numbers to 3, any number of rows."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    matrix = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "matrix", "bias"], ["scores"])],
        NAME,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(matrix, "matrix"), numpy_helper.from_array(matrix[0] - 1, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(path))


def free_ports(count: int) -> list[int]:
    """Ports in a row that nobody has, HTTP's and those after it."""
    while True:
        with socket.socket() as first:
            first.bind((HOST, 0))
            start = int(first.getsockname()[1])
        try:
            for port in range(start, start + count):
                with socket.socket() as held:
                    held.bind((HOST, port))
        except OSError:
            continue
        return list(range(start, start + count))


def command(name: str, work: Path, model: Path, http: int, grpc: int) -> tuple[list[str], dict[str, str]]:
    """What starts a server, and what its environment has besides."""
    asked = {"CONFORMANCE_MODEL": str(model), "CONFORMANCE_HTTP": str(http), "CONFORMANCE_GRPC": str(grpc)}
    if name == "penstock":
        extensions = ["--allow-shared-memory", "--trace-file", str(model.with_name("traces.json"))]
        return [sys.executable, "-m", "penstock", "serve", str(model), "--port", str(http), *extensions], {}
    python = environment(work, name)
    if name == "pytriton":
        # Its Python stub must load the library of the Python whose standard library it finds.
        return [python, str(HERE / "conformance_models.py")], {
            **asked,
            "CONFORMANCE_TOKEN": TOKEN,
            "LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR"),
            "PYTRITON_HOME": str(work / "pytriton_home"),
        }
    home = work / "mlserver_home"
    home.mkdir(exist_ok=True)
    settings = {"host": HOST, "http_port": http, "grpc_port": grpc, "metrics_endpoint": None, "debug": False}
    (home / "settings.json").write_text(json.dumps(settings))
    tensors = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}],
    }
    declared = {"name": NAME, "implementation": "conformance_models.Runtime", "platform": "onnx", **tensors}
    (home / "model-settings.json").write_text(json.dumps({**declared, "parameters": {"version": "1"}}))
    return [str(Path(python).parent / "mlserver"), "start", str(home)], {**asked, "PYTHONPATH": str(HERE)}


@contextmanager
def serving(name: str, work: Path, model: Path, http: int, grpc: int) -> Iterator[None]:
    """The server, once it is ready; at the end its process group, which is its own, is ended."""
    words, extra = command(name, work, model, http, grpc)
    with (work / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            words, env={**os.environ, **extra}, cwd=work, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _await(process, f"http://{HOST}:{http}/v2/models/{NAME}/ready", name)
            yield
        finally:
            _end(process)


def _await(process: subprocess.Popen[bytes], url: str, name: str) -> None:
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{name} is not ready: see {name}.log")


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            continue


def check(name: str, work: Path, http: int, grpc: int) -> dict[tuple[str, str], tuple[str, str]]:
    """The verdict on each check, and why."""
    report = work / f"{name}.xml"
    words = ["check", f"http://{HOST}:{http}", "--model", NAME, "--grpc", f"{HOST}:{grpc}", "--junit", str(report)]
    words += [word for text in HEADERS.get(name, []) for word in ("--header", text)]
    with (work / f"{name}.check.txt").open("w") as told:
        subprocess.run([sys.executable, "-m", "penstock", *words, "--reload"], stdout=told, check=False, timeout=900)
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        held = [(item.tag, item.attrib.get("message", "")) for item in case]
        found[case.attrib["classname"], case.attrib["name"]] = held[0] if held else ("passed", "")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", choices=list(REQUIREMENTS), action="append")
    given = parser.parse_args()
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    model = work / f"{NAME}.onnx"
    write_model(model)
    results = {}
    for name in given.only or REQUIREMENTS:
        http, grpc, _ = free_ports(3)
        with serving(name, work, model, http, grpc):
            results[name] = check(name, work, http, grpc)
    _show(results)


def _show(results: dict[str, dict[tuple[str, str], tuple[str, str]]]) -> None:
    every = next(iter(results.values()))
    print(f"| group | {' | '.join(results)} |\n|{' --- |' * (len(results) + 1)}")
    for group in [*dict.fromkeys(group for group, _ in every), "all"]:
        cells = []
        for held in results.values():
            tags = [tag for (of, _), (tag, _) in held.items() if group in (of, "all")]
            cells.append(" / ".join(str(tags.count(tag)) for tag in ("passed", "failure", "skipped")))
        print(f"| {group} | {' | '.join(cells)} |")
    for key in every:
        if any(held[key][0] == "failure" for held in results.values()):
            print(f"\n{key[0]}: {key[1]}")
            for name, held in results.items():
                print(f"    {name}: {held[key][0]} {held[key][1][:240]}")


if __name__ == "__main__":
    main()
