"""What a request costs the engine of a family: `python engine_requests.py [ROWS [BATCHES [BYTES [slow]]]]`, anywhere.

The engine's end of its ways to four front ends, a model and its scheduler, in this process; frames come as from a
socket, 64 requests of one row a batch, and the runner gathers them and lays their answers as one of TensorRT does, and
sleeps for 2 ms between. With `slow`, batches of every size have run before, and one took 0.3 s: of what waits then it
is seen whether its deadline can be met. Prints processor microseconds a request, of the event loop and of all threads.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
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

LINKS, CLASSES, MOST = 4, 1000, 128


class Rows(BaseRunner):
    """Takes rows, and has answers."""

    steady = True

    def __init__(self, signature: Signature, size: int) -> None:
        super().__init__(signature)
        self._staged = np.zeros((MOST, size), np.uint8)
        self._made = np.zeros((MOST, CLASSES), np.float32)
        self.next_s = 0.002

    def run_together(self, items: Any) -> list[dict[str, Any]]:
        rows = sum(shape_of(item, "image")[0] for item in items)
        gather(items, "image", self._staged)
        took_s, self.next_s = self.next_s, 0.002
        time.sleep(took_s)
        if not scatter({"scores": self._made[:rows]}, items):
            raise RuntimeError("answers have no room")
        return [GIVEN] * len(items)


class Socket:
    """A transport that counts what is answered."""

    def __init__(self, told: Any) -> None:
        self._told = told

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        sizes = [len(content) for kind, content in frames.Frames().feed(data) if kind == frames.ANSWERS]
        self._told(sum(sizes) // frames.ANSWERED.size)


async def main(rows: int, batches: int, size: int, *, slow: bool) -> None:
    signature = Signature(
        inputs=(Tensor(name="image", dtype="uint8", shape=("batch", size)),),
        outputs=(Tensor(name="scores", dtype="float32", shape=("batch", CLASSES)),),
        dims={"batch": Dim(min=1, opt=64, max=MOST)},
    )
    repository = Repository()
    limits = Limits(instances=2, max_queue_rows=16_384)
    runner = Rows(signature, size)
    model = Model("m", 1, signature, None, lambda: RunnerBatches(runner), limits, Metrics())
    repository.models["m"] = model
    family = fronts.Fronts(repository, lambda _: None, Tracer(None), Regions(allowed=False))
    left, done = 0, asyncio.Event()

    def told(count: int) -> None:
        nonlocal left
        left -= count
        if left <= 0:
            done.set()

    each, answers = rows // LINKS, rounded(4 * CLASSES)
    links: list[tuple[fronts.FrontLink, list[bytes]]] = []
    for _ in range(LINKS):
        fd = os.memfd_create("slots")
        os.ftruncate(fd, each * (rounded(size) + answers))
        link = fronts.FrontLink(family, Memory(fd))
        link.connection_made(Socket(told))
        places = {"inputs": [["image", "uint8", [1, size], 0]], "outputs": [["scores", "float32", [1, CLASSES], 0]]}
        link.data_received(frames.told(frames.FORM, {"form": 1, "model": model.id, **places}))
        room = each * rounded(size)
        asks = [
            frames.ASKED.pack(number, 1, number * rounded(size), room + number * answers, 30.0, 0)
            for number in range(each)
        ]
        links.append((link, asks))

    async def run(count: int, most: int = each) -> None:
        nonlocal left
        for _ in range(count):
            left = most * LINKS
            done.clear()
            for link, asks in links:
                link.data_received(frames.frame(frames.ASKS, *asks[:most]))
            await done.wait()

    if slow:
        for most in range(1, min(each, MOST // LINKS) + 1):
            await run(3, most)
        runner.next_s = 0.3
        await run(1)
    else:
        await run(50)
    loop, whole = time.thread_time(), time.process_time()
    await run(batches)
    requests = batches * each * LINKS
    took, all_took = time.thread_time() - loop, time.process_time() - whole
    print(
        f"{each * LINKS} requests of {size:,} bytes a batch: event loop {1e6 * took / requests:.1f} us a request, "
        f"all threads {1e6 * all_took / requests:.1f}"
    )
    await model.scheduler.close()


if __name__ == "__main__":
    slow = "slow" in sys.argv
    words = [int(word) for word in sys.argv[1:] if word != "slow"]
    asyncio.run(main(*[*words, *(64, 300, 150_528)[len(words) :]], slow=slow))
