"""Tries an image, or any command that serves a repository: models, clients, an upload, and that SIGTERM drains it.

    python deploy/smoke.py MODELS -- docker run --rm --network host -v {models}:/models:ro … penstock

In the command {models} is a copy of the repository's ONNX artifacts, {port} a free port for HTTP, and {grpc_port} one
for gRPC. What the models are to answer is computed here, by the onnxruntime that is installed beside this script. Exits
with 1 at the first thing that is not as it should be.
"""

from __future__ import annotations

import http.client
import io
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from PIL import Image

from penstock import artifact, health
from penstock.artifact import Artifact

READY_S, DRAINED_S = 120, 60


def main(arguments: Sequence[str]) -> None:
    """Serve, ask, stop."""
    if len(arguments) < 3 or arguments[1] != "--":
        sys.exit(__doc__)
    models = Path(arguments[0])
    found = [artifact.read(folder) for folder in artifact.find([models])]
    served = [each for each in found if each.receipt.runtime == "onnxruntime"]
    assert served, f"{models}: holds no ONNX artifact to ask for"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # an image's user must be able to read it
        for each in served:
            shutil.copytree(each.folder.parent, Path(folder) / each.receipt.name)
        try_out(served, folder, arguments[2:])


def try_out(served: list[Artifact], models: str, command: Sequence[str]) -> None:
    """The command serves the folder `models`, in which these artifacts are."""
    port, grpc_port = free_port(), free_port()
    words = [word.format(models=models, port=port, grpc_port=grpc_port) for word in command]
    print("$", " ".join(words), flush=True)
    process = subprocess.Popen(words)
    try:
        began = time.monotonic()
        wait_until_ready(process, port)
        tell(f"ready after {time.monotonic() - began:.1f} s")
        for each in served:
            ask(each, port, grpc_port)
        drains(process, port, served[0])
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def tell(line: str) -> None:
    print(f"ok: {line}", flush=True)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number: int = taken.getsockname()[1]
    return number


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    give_up = time.monotonic() + READY_S
    while True:
        ready, why = health.ready(f"http://127.0.0.1:{port}", 5)
        if ready:
            return
        assert process.poll() is None, f"the command ended with status {process.returncode}"
        assert time.monotonic() < give_up, why
        time.sleep(0.2)


def ask(model: Artifact, port: int, grpc_port: int) -> None:
    """One model, by tritonclient over HTTP and gRPC, and with a picture where it reads pictures."""
    name = model.receipt.name
    feeds, _ = model.golden()
    with model.load(threads=1) as runner:
        expected = runner.run(feeds)
        for client, address in ((tritonclient.http, port), (tritonclient.grpc, grpc_port)):
            furthest = as_triton(client, f"127.0.0.1:{address}", name, feeds, expected)
            tell(f"{name} by {client.__name__}: at most {furthest:.1e} from onnxruntime here")
        preprocess = model.receipt.preprocess
        if preprocess is None or preprocess.kind != "image" or model.receipt.labels is None:
            return
        first = feeds[preprocess.input][:1]
        picture = png(first if preprocess.dtype == "uint8" else preprocess.pixels(first))
        scores = next(iter(runner.run({preprocess.input: preprocess.read(picture)}).values()))
    status, answer = request(port, "POST", f"/predict/{name}", picture, {"Content-Type": "image/png"})
    assert status == 200, answer
    label, wanted = json.loads(answer)["predictions"][0]["label"], model.receipt.labels[int(scores[0].argmax())]
    assert label == wanted, f"{name}: the picture is {label}, and {wanted} by onnxruntime here"
    tell(f"{name}: an uploaded picture of {len(picture)} bytes is {label!r}, as by onnxruntime here")


def as_triton(client: Any, address: str, name: str, feeds: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest difference of any output from what was expected."""
    tensors = []
    for each, array in feeds.items():
        tensor = client.InferInput(each, list(array.shape), tritonclient.utils.np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    connection = client.InferenceServerClient(address)
    try:
        answer = connection.infer(name, tensors)
        for output, wanted in expected.items():
            np.testing.assert_allclose(answer.as_numpy(output), wanted, rtol=1e-5, atol=1e-5, err_msg=name)
        return max(float(np.abs(answer.as_numpy(output) - wanted).max()) for output, wanted in expected.items())
    finally:
        connection.close()


def png(pixels: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.squeeze(pixels)).save(buffer, "PNG")
    return buffer.getvalue()


def request(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def drains(process: subprocess.Popen[bytes], port: int, model: Artifact) -> None:
    """SIGTERM while half of a request has arrived: it is answered all the same, nobody else is, and the status is 0."""
    feeds, _ = model.golden()
    tensors = [
        {"name": name, "shape": list(array.shape), "datatype": tritonclient.utils.np_to_triton_dtype(array.dtype)}
        | {"data": array.ravel().tolist()}
        for name, array in feeds.items()
    ]
    body = json.dumps({"inputs": tensors}).encode()
    head = f"POST /v2/models/{model.receipt.name}/infer HTTP/1.1\r\nHost: server\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head.encode() + body[: len(body) // 2])
        process.send_signal(signal.SIGTERM)
        wait_until_refused(port)
        connection.sendall(body[len(body) // 2 :])
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200, answer.read()
    status = process.wait(DRAINED_S)
    assert status == 0, f"SIGTERM: the exit status is {status}"
    tell("SIGTERM: what had begun was answered, new clients were refused, and the exit status is 0")


def wait_until_refused(port: int) -> None:
    """Until nobody new is let in."""
    give_up = time.monotonic() + DRAINED_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=5) as answer:
                answer.read()
        except urllib.error.HTTPError:
            pass
        except OSError:
            return
        assert time.monotonic() < give_up, "SIGTERM: new clients are still let in"
        time.sleep(0.05)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except AssertionError as error:
        sys.exit(f"failed: {error}")
