"""The main job on real data, by the commands a user types: train, export, serve, predict, bench.

Run by `make demo`, after installation. Everything is written under demo/, which is emptied first.
"""

from __future__ import annotations

import io
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tritonclient.http
from PIL import Image

from penstock import data
from penstock.data.specs import Digits

FOLDER = Path(__file__).parent / "demo"
UPLOADS = 200
START_S = 60


def main() -> None:
    """Run the demo; any step that fails ends it with that step's exit code."""
    started = time.perf_counter()
    # A SIGTERM ends the demo as ^C does: through the `finally` that stops the server.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    step("Train on scikit-learn's 1,797 handwritten digits")
    penstock("train digits")
    penstock("eval runs/digits/best.pth")
    step("Export; each variant is run against the float32 source before it is published")
    penstock("export --format onnx --precision fp32,fp16,int8 runs/digits/best.pth")
    penstock("export --format torchscript runs/digits/best.pth")
    penstock("export --format trt --fp16 runs/digits/best.pth")
    cpu = sorted(path.name for path in (FOLDER / "models").iterdir() if "-trt-" not in path.name)
    step("Serve the variants that a CPU runs, and ask them over HTTP")
    with server([f"models/{name}" for name in cpu]) as url:
        penstock(f"health {url}")
        show_one(url, "digits-onnx-int8")
        for name in cpu:
            upload_all(url, name)
        ask_as_triton(url, "digits-onnx-fp16")
    step("Measure every variant")
    penstock(f"bench {' '.join(f'models/{path.name}' for path in sorted((FOLDER / 'models').iterdir()))}")
    print(f"\ndone in {time.perf_counter() - started:.0f} s; what was made lies in {FOLDER.name}/")
    print(
        "\nThe same with a checkpoint of your own (or --model ./net.py:Net for a class of your own):\n"
        "  .venv/bin/penstock export --format onnx --fp16 --model torchvision:resnet18 resnet18.pth\n"
        "  .venv/bin/penstock serve models/\n"
        "  .venv/bin/penstock bench models/*"
    )


def step(title: str) -> None:
    print(f"\n== {title}", flush=True)


def penstock(arguments: str) -> None:
    """Run one command in the demo's folder, as if it had been typed there."""
    print(f"$ penstock {arguments}", flush=True)
    done = subprocess.run([sys.executable, "-m", "penstock", *shlex.split(arguments)], cwd=FOLDER, check=False)
    if done.returncode:
        sys.exit(done.returncode)


@contextmanager
def server(paths: list[str]) -> Iterator[str]:
    """A server on a free port, stopped when the block is left, however it is left."""
    print(f"$ penstock serve {' '.join(paths)}", flush=True)
    command = [sys.executable, "-m", "penstock", "serve", *paths, "--port", "0"]
    process = subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, text=True)
    try:
        yield wait_until_ready(process)
    finally:
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(process: subprocess.Popen[str]) -> str:
    """The URL that the server prints once it is ready."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if line.startswith("ready at "):
            return line.split()[2]
    sys.exit(process.wait() or 1)


def held_out() -> list[tuple[bytes, int]]:
    """Held-out scans as PNG files, with the digit that each shows."""
    test = data.load(Digits())["test"]
    files = []
    for pixels, label in zip(test.items[:UPLOADS], test.labels[:UPLOADS], strict=True):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        files.append((buffer.getvalue(), int(label)))
    return files


def predict(url: str, name: str, png: bytes) -> str:
    request = urllib.request.Request(f"{url}/predict/{name}?top_k=1", png, {"Content-Type": "image/png"})
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: str = response.read().decode()
    return answer


def show_one(url: str, name: str) -> None:
    png, label = held_out()[0]
    print(f"$ curl --data-binary @a-{label}.png -H 'Content-Type: image/png' {url}/predict/{name}?top_k=1")
    print(predict(url, name, png))


def upload_all(url: str, name: str) -> None:
    """Upload scans from 16 clients at once, and count the right answers."""
    files = held_out()
    started = time.perf_counter()
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda file: json.loads(predict(url, name, file[0])), files))
    seconds = time.perf_counter() - started
    right = sum(
        answer["predictions"][0]["label"] == str(label) for answer, (_, label) in zip(answers, files, strict=True)
    )
    print(
        f"{name}: {right} of {len(files)} uploaded scans right, {len(files) / seconds:.0f} uploads/s",
        flush=True,
    )


def ask_as_triton(url: str, name: str) -> None:
    """The same model through NVIDIA's own client, with binary tensors."""
    client = tritonclient.http.InferenceServerClient(url.removeprefix("http://"))
    rows = np.zeros((4, 1, 8, 8), np.float32)
    tensor = tritonclient.http.InferInput("image", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    logits = client.infer(name, [tensor]).as_numpy("logits")
    print(f"{name} by tritonclient.http: logits of shape {list(logits.shape)}")
    client.close()


if __name__ == "__main__":
    main()
