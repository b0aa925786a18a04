"""How busy a GPU is while requests wait: `python lanes.py [KERNELS_MS [WAITING [INSTANCES]]]`, anywhere.

The engine's end of its ways to four front ends, a model and its scheduler, in this process. An instance gathers a batch
of 64 rows, gives it to the GPU, which is a clock, and lays the answers. Each answer is followed by the next request at
once, so that there are always batches to be had. Prints the share of the time in which the GPU was taken, which is the
share of its own rate that the server reaches.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np

from penstock.laid import GIVEN, Memory, gather, scatter, shape_of
from penstock.runtimes import BaseRunner
from penstock.serve import frames, fronts
from penstock.serve.instances import RunnerBatches
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model
from penstock.serve.repository import Repository
from penstock.serve.sharedmemory import Regions
from penstock.serve.slots import rounded
from penstock.serve.tracing import Tracer
from penstock.signature import Dim, Signature, Tensor

LINKS, CLASSES, MOST, SIZE = 4, 2, 64, 1024


class Gpu:
    """Computes what it is given one after the other, for so long each; whoever gave it sleeps until it is done."""

    def __init__(self, kernels_s: float) -> None:
        self._kernels_s, self._lock, self._until, self.taken_s = kernels_s, threading.Lock(), 0.0, 0.0

    def run(self) -> None:
        with self._lock:
            self._until = until = max(self._until, time.perf_counter()) + self._kernels_s
            self.taken_s += self._kernels_s
        time.sleep(max(0.0, until - time.perf_counter()))


class Rows(BaseRunner):
    """Takes rows, and has answers."""

    steady = True

    def __init__(self, signature: Signature, gpu: Gpu) -> None:
        super().__init__(signature)
        self._gpu = gpu
        self._staged = np.zeros((MOST, SIZE), np.uint8)
        self._made = np.zeros((MOST, CLASSES), np.float32)

    def run_together(self, items: Any) -> list[dict[str, Any]]:
        rows = sum(shape_of(item, "x")[0] for item in items)
        gather(items, "x", self._staged)
        self._gpu.run()
        if not scatter({"scores": self._made[:rows]}, items):
            raise RuntimeError("answers have no room")
        return [GIVEN] * len(items)


class Client:
    """A front end's end of a way: asks again as often as it is answered."""

    def __init__(self, family: fronts.Fronts, model: Model, waiting: int) -> None:
        fd, answers = os.memfd_create("slots"), rounded(4 * CLASSES)
        os.ftruncate(fd, waiting * (rounded(SIZE) + answers))
        self.link, self._numbers, self.answered = fronts.FrontLink(family, Memory(fd)), 0, 0
        self._waiting, self._answers = waiting, answers
        self.link.connection_made(self)
        places = {"inputs": [["x", "uint8", [1, SIZE], 0]], "outputs": [["scores", "float32", [1, CLASSES], 0]]}
        self.link.data_received(frames.told(frames.FORM, {"form": 1, "model": model.id, **places}))

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        sizes = [len(content) for kind, content in frames.Frames().feed(data) if kind == frames.ANSWERS]
        count = sum(sizes) // frames.ANSWERED.size
        self.answered += count
        if count:
            asyncio.get_running_loop().call_soon(self.ask, count)

    def ask(self, count: int) -> None:
        asks = []
        for _ in range(count):
            self._numbers += 1
            at = self._numbers % self._waiting
            begin, room = at * rounded(SIZE), self._waiting * rounded(SIZE) + at * self._answers
            asks.append(frames.ASKED.pack(self._numbers, 1, begin, room, 30.0, 0))
        self.link.data_received(frames.frame(frames.ASKS, *asks))


async def main(kernels_s: float, waiting: int, instances: int) -> None:
    signature = Signature(
        inputs=(Tensor(name="x", dtype="uint8", shape=("batch", SIZE)),),
        outputs=(Tensor(name="scores", dtype="float32", shape=("batch", CLASSES)),),
        dims={"batch": Dim(min=1, opt=64, max=MOST)},
    )
    repository, gpu = Repository(), Gpu(kernels_s)
    limits = Limits(instances=instances, max_queue_rows=16_384)
    model = Model("m", 1, signature, None, lambda: RunnerBatches(Rows(signature, gpu)), limits, Metrics())
    repository.models["m"] = model
    family = fronts.Fronts(repository, lambda _: None, Tracer(None), Regions(allowed=False))
    clients = [Client(family, model, waiting // LINKS) for _ in range(LINKS)]
    for client in clients:
        client.ask(waiting // LINKS)
    await asyncio.sleep(0.5)
    for _ in range(3):
        before, taken_s, began = sum(client.answered for client in clients), gpu.taken_s, time.perf_counter()
        await asyncio.sleep(2.0)
        took_s = time.perf_counter() - began
        rate = (sum(client.answered for client in clients) - before) / took_s
        print(f"{rate:,.0f} rows/s, the GPU taken for {(gpu.taken_s - taken_s) / took_s:.1%} of the time", flush=True)
    os._exit(0)


if __name__ == "__main__":
    with suppress(ImportError):
        import uvloop

        uvloop.install()
    sys.setswitchinterval(0.0005)  # as a server has it
    words = sys.argv[1:]
    kernels_ms, waiting, instances = *words, *("4.3", "512", "2")[len(words) :]
    asyncio.run(main(float(kernels_ms) / 1e3, int(waiting), int(instances)))
