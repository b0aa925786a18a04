"""The TensorRT runner against the bare engine call: `python trt_runner.py ARTIFACT [SECONDS]`, on a GPU host.

The ceiling is the engine alone, launched as a CUDA graph with its input on the GPU already: one launch at a time, and
back to back for what overlaps; then with its copies. The runner is asked in three ways: a lease (its own page-locked
memory, nothing copied), `run` with numpy arrays, and both from several threads at once. Rounds are interleaved. Prints
a line for each, and JSON last.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import artifact, cuda, timing
from penstock.runtimes.tensorrt import TensorRTRunner

ROUNDS = 15


def bare(runner: TensorRTRunner, shapes: Any, launches: int = 1) -> Callable[[], None]:
    """The kernels alone of a captured batch, on a stream of their own."""
    engine, lane = runner._engine, runner._lanes[0]
    profile = lane.launches[shapes].profile
    context = engine.context(lane._scratch, profile, lane.stream)
    for name, address in lane.buffers.items():
        context.set_tensor_address(name, address)
    for name, shape in zip(engine.inputs, shapes, strict=True):
        context.set_input_shape(name, shape)
    stream = int(cuda.call("cudaStreamCreateWithFlags", cuda.runtime().cudaStreamNonBlocking))
    context.execute_async_v3(stream)
    cuda.call("cudaStreamSynchronize", stream)
    cuda.call("cudaStreamBeginCapture", stream, cuda.runtime().cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal)
    context.execute_async_v3(stream)
    graph = cuda.call("cudaGraphInstantiate", cuda.call("cudaStreamEndCapture", stream), 0)

    def launch() -> None:
        for _ in range(launches):
            cuda.call("cudaGraphLaunch", graph, stream)
        cuda.call("cudaStreamSynchronize", stream)

    launch.held = context  # type: ignore[attr-defined]
    return launch


def ways(runner: TensorRTRunner, feeds: dict[str, Any]) -> dict[str, tuple[Callable[[], None], int]]:
    """Each way of asking, and how many batches a call of it answers."""
    shapes = tuple(tuple(array.shape) for array in feeds.values())
    lane = runner._lanes[0]

    def leased() -> None:
        with runner.lease(shapes) as lease:
            lease.run()

    def with_copies() -> None:
        lane._launched(lane.launches[shapes])
        lane.wait()

    def pipelined(count: int, each: int, ask: Callable[[], Any]) -> Callable[[], None]:
        def work() -> None:
            threads = [threading.Thread(target=lambda: [ask() for _ in range(each)]) for _ in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        return work

    return {
        "bare graph": (bare(runner, shapes), 1),
        "bare, back to back": (bare(runner, shapes, 96), 96),
        "graph with copies": (with_copies, 1),
        "lease": (leased, 1),
        "run": (lambda: _forget(runner.run(feeds)), 1),
        "lease, 2 threads": (pipelined(2, 48, leased), 96),
        "run, 4 threads": (pipelined(4, 12, lambda: runner.run(feeds)), 48),
    }


def _forget(answer: Any) -> None:
    pass


def main(folder: Path, seconds: float) -> None:
    started = time.perf_counter()
    found = artifact.read(folder)
    runner: Any = found.load(device="cuda:0")
    inputs, _ = found.golden()
    runner.run({name: array[:1] for name, array in inputs.items()})
    first = time.perf_counter() - started
    runner.settled()
    figures: dict[str, Any] = {"artifact": found.receipt.name, "load_to_first_answer_s": first, **(cuda.facts() or {})}
    for batch in (1, found.receipt.signature.max_batch):
        asked = ways(runner, timing.feeds(inputs, batch))
        samples: dict[str, list[float]] = {name: [] for name in asked}
        for _ in range(ROUNDS):
            for name, (ask, count) in asked.items():
                until = time.perf_counter() + seconds / ROUNDS
                while time.perf_counter() < until:
                    begun = time.perf_counter()
                    ask()
                    samples[name].append((time.perf_counter() - begun) / count)
        for name, taken in samples.items():
            middle = statistics.median(taken)
            base = statistics.median(samples["bare, back to back" if "threads" in name else "bare graph"])
            print(
                f"{found.receipt.name} batch {batch:4} {name:18} {1e3 * middle:8.3f} ms  {batch / middle:9.0f} rows/s  "
                f"{base / middle:5.3f} of bare, {1e6 * (middle - base):+8.1f} us  n={len(taken)}",
                flush=True,
            )
        figures[f"batch {batch}"] = {name: sorted(taken) for name, taken in samples.items()}
    print(f"{found.receipt.name}: load to first answer {first:.2f} s")
    Path(f"{found.receipt.name}.json").write_text(json.dumps(figures))
    runner.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 6.0)
