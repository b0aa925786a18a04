"""Fixtures for the serving tests: models without weights, artifacts of them, and real servers on real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from penstock import artifact, runtimes
from penstock.artifact import Artifact
from penstock.parity import Limits
from penstock.preprocess import ImagePreprocess
from penstock.receipt import Receipt, Source, Verification
from penstock.signature import Dim, Signature, Tensor

START_S = 60
TOPOLOGY = os.environ.pop("PENSTOCK_TEST_WORKERS", "")
"""Front ends of all servers that tests start, where they do not say themselves; none is the default's.

Taken out of the environment, since a server refuses variables that it does not know."""


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The one sentence of an error answer, whose body must hold nothing else."""
        content = self.json
        assert list(content) == ["error"], content
        assert isinstance(content["error"], str)
        return content["error"]


@dataclass
class Server:
    """A `penstock serve` process, its URL, the file that its stderr goes to, and the lines it printed."""

    process: subprocess.Popen[str]
    url: str
    log_path: Path
    lines: list[str] = field(default_factory=list)
    refused_at_first: bool = False
    trusts: ssl.SSLContext | None = None

    @property
    def netloc(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def port(self) -> int:
        return int(self.netloc.rpartition(":")[2])

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def connect(self, timeout_s: float = 30) -> http.client.HTTPConnection:
        if self.trusts is not None:
            return http.client.HTTPSConnection(self.netloc, timeout=timeout_s, context=self.trusts)
        return http.client.HTTPConnection(self.netloc, timeout=timeout_s)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout_s: float = 30
    ) -> Answer:
        """One request on a connection of its own; a dict or a list is sent as JSON."""
        headers = dict(headers or {})
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        connection = self.connect(timeout_s)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def raw(self, data: bytes, timeout_s: float = 30) -> bytes:
        """Send bytes as they are, and read what comes back until the headers and a declared body are complete."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as connection:
            connection.sendall(data)
            response = http.client.HTTPResponse(connection)
            response.begin()
            body = response.read()
            return f"{response.status}".encode() + b"\n" + body

    def metric(self, sample: str) -> float:
        """The value of one sample of /metrics, by its full name with labels; 0 where there is none yet."""
        for line in self.ask("GET", "/metrics").body.decode().splitlines():
            if line.startswith(sample + " "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def wait_for_metric(self, sample: str, value: float, within_s: float = 20) -> None:
        give_up = time.monotonic() + within_s
        while self.metric(sample) != value:
            assert time.monotonic() < give_up, f"{sample} did not become {value} within {within_s} s"
            time.sleep(0.01)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to this process alone, and wait for its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


StartServer = Callable[..., Server]


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **(extra or {})}


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts `python -m penstock serve ARGUMENTS --port 0`; what still runs at the end is stopped.

    The server is given back as soon as it has printed its address, and unless `settle` is False once it has
    also answered.
    """
    started: list[Server] = []

    def start(
        *arguments: str | Path,
        environment: Mapping[str, str] | None = None,
        settle: bool = True,
        trusts: ssl.SSLContext | None = None,
    ) -> Server:
        folder = tmp_path_factory.mktemp("server")
        log_path = folder / "stderr.txt"
        command = [sys.executable, "-m", "penstock", "serve", *map(str, arguments), "--port", "0"]
        if TOPOLOGY and "--workers" not in arguments:
            command += ["--workers", TOPOLOGY]
        with log_path.open("w") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env=_environment(environment),
            )
        server = Server(process, "", log_path, trusts=trusts)
        started.append(server)
        assert process.stdout is not None
        for line in process.stdout:
            server.lines.append(line.rstrip("\n"))
            if found := [word for word in line.split() if word.startswith(("http://", "https://"))]:
                server.url = found[0]
                break
        assert server.url, f"the server did not start: {server.lines} {server.log}"
        if settle:
            _wait_until_it_answers(server)
        return server

    yield start
    for server in started:
        server.stop()


def _wait_until_it_answers(server: Server) -> None:
    give_up = time.monotonic() + START_S
    while True:
        try:
            assert server.ask("GET", "/v2/health/live").status == 200
        except ConnectionRefusedError:
            server.refused_at_first = True
            assert time.monotonic() < give_up, server.log
            time.sleep(0.01)
        else:
            return


PAIR = Signature(
    inputs=(
        Tensor(name="ids", dtype="int64", shape=("batch", "tokens")),
        Tensor(name="weight", dtype="float32", shape=("batch",)),
    ),
    outputs=(
        Tensor(name="total", dtype="float64", shape=("batch",)),
        Tensor(name="wide", dtype="int32", shape=("batch", 2, 3)),
    ),
    dims={"batch": Dim(min=1, opt=4, max=8), "tokens": Dim(min=1, opt=4, max=16)},
)


@pytest.fixture(scope="session")
def pair_signature() -> Signature:
    """Two inputs of different dtypes and ranks, a second dynamic dimension, batches up to 8."""
    return PAIR


def _source() -> Source:
    return Source(checkpoint="none.pth", sha256="0" * 64, architecture="fake", loaded=0, expected=0)


def write_fake_artifact(
    output: Path,
    name: str,
    signature: Signature = PAIR,
    expected: Mapping[str, Any] | None = None,
    graph: bytes | None = None,
    **told: Any,
) -> Artifact:
    """An artifact of the fake runtime, or of an ONNX `graph`.

    `expected` replaces the golden outputs that its runner really gives; what else is `told` stands in the receipt.
    """
    runtime, file = ("fake", "model.fake") if graph is None else ("onnxruntime", "model.onnx")
    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = {}
    for tensor in signature.inputs:
        shape = [5 if size == signature.batch else size if isinstance(size, int) else 3 for size in tensor.shape]
        inputs[tensor.name] = rng.integers(0, 2, shape).astype(tensor.dtype)
    with artifact.draft(output) as folder:
        (folder / file).write_bytes(graph or b"no model")
        with runtimes.load(runtime, folder / file, signature) as runner:
            outputs = {**runner.run(inputs), **(expected or {})}
        artifact.write_golden(folder, inputs, outputs)
        receipt = Receipt(
            name=name,
            version=1,
            created=datetime.now(timezone.utc),
            format=runtime.removesuffix("runtime"),
            precision="fp32",
            runtime=runtime,
            model_file=file,
            files=artifact.digests(folder),
            source=_source(),
            signature=signature,
            verification=Verification(
                runtime=runtime,
                engine_run=True,
                samples=5,
                real=False,
                batches=(1,),
                distances=(),
                limits={tensor.name: Limits(max_error=1e-4, min_agreement=1.0) for tensor in signature.outputs},
                passed=True,
            ),
            hardware="any",
            **told,
        )
        return artifact.publish(folder, output, receipt)


@pytest.fixture(scope="session")
def fake_artifact() -> Callable[..., Artifact]:
    """Writes an artifact that needs no model: `fake_artifact(repository_folder, name, signature, expected)`."""
    return write_fake_artifact


@pytest.fixture(scope="session")
def slow_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """slow.onnx: multiplies matrices as often as its input `turns` says, so a test sets how long an answer takes."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    side = 256
    matrix = numpy_helper.from_array(np.full((side, side), 1 / side, np.float32), "matrix")
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state_in", "matrix"], ["state_out"]),
            helper.make_node("Identity", ["going_in"], ["going_out"]),
        ],
        "turn",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("going_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_in", TensorProto.FLOAT, [side, side]),
        ],
        [
            helper.make_tensor_value_info("going_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_out", TensorProto.FLOAT, [side, side]),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Squeeze", ["turns"], ["count"]),
            helper.make_node("Loop", ["count", "", "matrix"], ["state"], body=body),
            helper.make_node("ReduceSum", ["state"], ["sum"], keepdims=0),
            helper.make_node("Reshape", ["sum", "one"], ["total"]),
        ],
        "slow",
        [helper.make_tensor_value_info("turns", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("total", TensorProto.FLOAT, [1])],
        [matrix, numpy_helper.from_array(np.array([1], np.int64), "one")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path_factory.mktemp("slow") / "slow.onnx"
    onnx.save(model, str(path))
    return path


@pytest.fixture(scope="session")
def served_repository(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ONNX variants of the digits checkpoint, and `pair`, an artifact of the fake runtime."""
    folder = tmp_path_factory.mktemp("served") / "models"
    for precision in ("fp32", "fp16", "int8"):
        shutil.copytree(repository / f"digits-onnx-{precision}", folder / f"digits-onnx-{precision}")
    write_fake_artifact(folder, "pair")
    return folder


@pytest.fixture(scope="session")
def server(served_repository: Path, start_server: StartServer) -> Server:
    """A server with default limits, all of whose models are ready."""
    return start_server(served_repository)


def _same_graph() -> bytes:
    """An ONNX graph that answers its picture as scores: the class of a pixel is its strongest colour."""
    from onnx import TensorProto, helper

    shape = ["batch", 3, 4, 6]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["image"], ["out"])],
        "colours",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)],
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    ).SerializeToString()
    return made


def _signature(inputs: dict[str, str], outputs: dict[str, str]) -> Signature:
    """Tensors as `name: dtype[shape]`, in batches up to 8."""
    read = [tuple(Tensor.parse(f"{name}:{rest}") for name, rest in held.items()) for held in (inputs, outputs)]
    return Signature(inputs=read[0], outputs=read[1], dims={"batch": Dim(min=1, opt=4, max=8)})


@pytest.fixture(scope="session")
def forms_repository(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for each form of /predict: digits, `colours` (class maps), `price` (rows of 3), `people` (columns)."""
    pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("forms") / "models"
    shutil.copytree(repository / "digits-onnx-fp32", folder / "digits-onnx-fp32")
    picture = _signature({"image": "float32[batch,3,4,6]"}, {"out": "float32[batch,3,4,6]"})
    preprocess = ImagePreprocess(input="image", mode="RGB", height=4, width=6, mean=(0, 0, 0), std=(1, 1, 1))
    told = {"task": "segmentation", "labels": ("red", "green", "blue"), "preprocess": preprocess}
    write_fake_artifact(folder, "colours", picture, graph=_same_graph(), **told)
    row = _signature({"row": "float32[batch,3]"}, {"price": "float32[batch,1]"})
    write_fake_artifact(folder, "price", row, task="regression")
    columns = {"age": "float32[batch]", "children": "int8[batch,1]", "member": "bool[batch]"}
    write_fake_artifact(folder, "people", _signature(columns, {"total": "float64[batch]"}))
    write_fake_artifact(folder, "pair")
    return folder


@pytest.fixture(scope="session")
def forms(forms_repository: Path, start_server: StartServer) -> Server:
    """A server of them that takes four images at once."""
    return start_server(forms_repository, "--max-images", "4")


@pytest.fixture(scope="session")
def damaged(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of digits-onnx-fp16 with one byte of its model changed."""
    folder = tmp_path_factory.mktemp("damaged") / "digits-onnx-fp16"
    shutil.copytree(repository / "digits-onnx-fp16", folder)
    model = folder / "1" / "model.onnx"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)
    return folder


@pytest.fixture(scope="session")
def narrow_server(repository: Path, damaged: Path, slow_onnx: Path, start_server: StartServer) -> Server:
    """A server of tight limits (one waiting row, 50 kB, 4096 pixels), with one model damaged and one slow."""
    return start_server(
        repository / "digits-onnx-fp32",
        damaged,
        slow_onnx,
        *("--max-queue-rows", "1", "--max-body-mb", "0.05", "--max-pixels", "4096"),
    )


@pytest.fixture(scope="session")
def png() -> Callable[[Any], bytes]:
    """Encodes a uint8 array as PNG."""
    import io

    from PIL import Image

    def encode(pixels: Any) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(np.asarray(pixels, np.uint8)).save(buffer, "PNG")
        return buffer.getvalue()

    return encode


async def is_heard(client: Any) -> None:
    """Wait until tritonclient finds a server ready: a process that had no core for a second is not well until heard."""
    for _ in range(100):
        if await client.is_server_ready():
            return
        await asyncio.sleep(0.1)
