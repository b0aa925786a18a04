"""Artifacts behind a running server against their source's answers: `python served_engines.py HOST:PORT ARTIFACT…`.

Asks for 1, 7 and 128 rows through tritonclient, binary tensors over HTTP, compares, and then asks from several
connections at once for a few seconds. Prints a line for each.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton

BATCHES, THREADS, SECONDS = (1, 7, 128), 8, 3.0


def asked(client: Any, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    wanted = []
    for key, array in inputs.items():
        kind = {"float32": "FP32", "int64": "INT64"}[str(array.dtype)]
        wanted.append(triton.InferInput(key, list(array.shape), kind))
        wanted[-1].set_data_from_numpy(array)
    answer = client.infer(name, wanted)
    return {item["name"]: answer.as_numpy(item["name"]) for item in answer.get_response()["outputs"]}


def main(url: str, folders: list[Path]) -> None:
    for folder in folders:
        version = max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        name = json.loads((version / "penstock.json").read_text())["name"]
        with np.load(version / "golden.npz") as held:
            inputs = {key[6:]: held[key] for key in held.files if key.startswith("input:")}
            outputs = {key[7:]: held[key] for key in held.files if key.startswith("output:")}
        client = triton.InferenceServerClient(url, concurrency=1, network_timeout=60)
        for batch in BATCHES:
            rows = np.arange(batch) % len(next(iter(inputs.values())))
            answer = asked(client, name, {key: array[rows] for key, array in inputs.items()})
            for key, array in answer.items():
                true = outputs[key][rows]
                error = np.linalg.norm(array - true) / np.linalg.norm(true)
                agree = np.mean(array.reshape(batch, -1).argmax(1) == true.reshape(batch, -1).argmax(1))
                print(
                    f"{name} batch {batch:3}: {key} relative error {error:.1e}, top-1 agreement {agree:.1%}", flush=True
                )
        for batch in (1, 128):
            _load(url, name, {key: array[np.arange(batch) % len(array)] for key, array in inputs.items()}, batch)


def _load(url: str, name: str, feeds: dict[str, Any], batch: int) -> None:
    taken: list[float] = []
    until = time.perf_counter() + SECONDS

    def work() -> None:
        client = triton.InferenceServerClient(url, concurrency=1, network_timeout=60)
        while time.perf_counter() < until:
            started = time.perf_counter()
            asked(client, name, feeds)
            taken.append(time.perf_counter() - started)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(
        f"{name} {THREADS} connections, {batch} rows each: {batch * len(taken) / SECONDS:.0f} rows/s, median "
        f"{1e3 * statistics.median(taken):.2f} ms, n={len(taken)}",
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1], [Path(word) for word in sys.argv[2:]])
