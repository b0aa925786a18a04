"""What a request costs the engine of a family, by its event loop: `python engine_requests.py MODE ...`, anywhere.

`burst [REQUESTS [BATCHES [BYTES [slow]]]]`: all ask at once, and again when all are answered; frames come as from a
socket. With `slow`, batches of every size have run before, and one took 0.3 s: of what waits then it is seen whether
its deadline can be met. `paced [PER_SECOND [SECONDS]]`: another process asks as independent clients would (Poisson),
over Unix sockets, a request a frame.

The engine's end of its ways to front ends, a model and its scheduler are in this process; the runner gathers rows and
lays their answers as one of TensorRT does, and sleeps for 2 ms between. Prints processor microseconds a request.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import uvloop

from penstock.laid import GIVEN, Memory, gather, scatter, shape_of
from penstock.runtimes import BaseRunner
from penstock.serve import frames, fronts, server
from penstock.serve.instances import RunnerBatches
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model
from penstock.serve.repository import Repository
from penstock.serve.sharedmemory import Regions
from penstock.serve.slots import rounded
from penstock.serve.tracing import Tracer
from penstock.signature import Dim, Signature, Tensor

CLASSES, MOST = 1000, 128
ANSWER = rounded(4 * CLASSES)
BURST_LINKS, PACED_LINKS, PACED_EACH, PACED_BYTES = 4, 8, 512, 1504
WARM_S = 1.5


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


class Engine:
    """A model of pictures, and the engine's ends of ways to front ends that ask for it."""

    def __init__(self, size: int) -> None:
        signature = Signature(
            inputs=(Tensor(name="image", dtype="uint8", shape=("batch", size)),),
            outputs=(Tensor(name="scores", dtype="float32", shape=("batch", CLASSES)),),
            dims={"batch": Dim(min=1, opt=64, max=MOST)},
        )
        repository = Repository()
        self.size, self.runner = size, Rows(signature, size)
        limits = Limits(instances=2, max_queue_rows=16_384)
        self.model = Model("m", 1, signature, None, lambda: RunnerBatches(self.runner), limits, Metrics())
        repository.models["m"] = self.model
        self._fronts = fronts.Fronts(repository, lambda _: None, Tracer(None), Regions(allowed=False))

    def link(self, each: int) -> fronts.FrontLink:
        """A way to a front end with memory for so many requests; its form is told once it is there."""
        fd = os.memfd_create("slots")
        os.ftruncate(fd, each * (rounded(self.size) + ANSWER))
        return fronts.FrontLink(self._fronts, Memory(fd))

    def tell_form(self, link: fronts.FrontLink) -> None:
        places = {
            "inputs": [["image", "uint8", [1, self.size], 0]],
            "outputs": [["scores", "float32", [1, CLASSES], 0]],
        }
        link.data_received(frames.told(frames.FORM, {"form": 1, "model": self.model.id, **places}))


def asked(number: int, each: int, size: int) -> bytes:
    """A front end's request, which lies at a place of its own."""
    room = each * rounded(size) + number * ANSWER
    return frames.ASKED.pack(number, 1, number * rounded(size), room, 30.0, 0)


class Socket:
    """A transport that counts what is answered."""

    def __init__(self, told: Any) -> None:
        self._told = told

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        sizes = [len(content) for kind, content in frames.Frames().feed(data) if kind == frames.ANSWERS]
        self._told(sum(sizes) // frames.ANSWERED.size)


async def burst(requests: int, batches: int, size: int, *, slow: bool) -> None:
    engine, each = Engine(size), requests // BURST_LINKS
    left, done = 0, asyncio.Event()

    def told(count: int) -> None:
        nonlocal left
        left -= count
        if left <= 0:
            done.set()

    links = [engine.link(each) for _ in range(BURST_LINKS)]
    asks = [asked(number, each, size) for number in range(each)]
    for link in links:
        link.connection_made(Socket(told))
        engine.tell_form(link)

    async def run(count: int, most: int = each) -> None:
        nonlocal left
        for _ in range(count):
            left = most * BURST_LINKS
            done.clear()
            for link in links:
                link.data_received(frames.frame(frames.ASKS, *asks[:most]))
            await done.wait()

    if slow:
        for most in range(1, min(each, MOST // BURST_LINKS) + 1):
            await run(3, most)
        engine.runner.next_s = 0.3
        await run(1)
    else:
        await run(50)
    loop, whole = time.thread_time(), time.process_time()
    await run(batches)
    count = batches * each * BURST_LINKS
    took, all_took = time.thread_time() - loop, time.process_time() - whole
    print(
        f"{each * BURST_LINKS} requests of {size:,} bytes a batch: event loop {1e6 * took / count:.1f} us a request, "
        f"all threads {1e6 * all_took / count:.1f}"
    )
    await engine.model.scheduler.close()


async def paced(ends: list[socket.socket], seconds: float) -> None:
    engine, loop = Engine(PACED_BYTES), asyncio.get_running_loop()
    for end in ends:
        link = engine.link(PACED_EACH)
        await loop.connect_accepted_socket(lambda link=link: link, end)  # type: ignore[misc]
        engine.tell_form(link)
    server.settle(1e-4)  # as an engine before a GPU
    await asyncio.sleep(WARM_S)
    statistics, began = engine.model.statistics, time.thread_time()
    count, runs = statistics.success.count, statistics.executions
    await asyncio.sleep(seconds)
    took, count = time.thread_time() - began, statistics.success.count - count
    print(
        f"{count / seconds:.0f} requests/s, {count / (statistics.executions - runs):.1f} rows a batch: "
        f"event loop {1e6 * took / count:.1f} us a request",
        flush=True,
    )


def ask(ends: list[socket.socket], rate: float) -> None:
    """Ask at a rate over all ways, each request over any of them, until they end."""
    draw, poll, read = random.Random(1), select.epoll(), [frames.Frames() for _ in ends]  # noqa: S311 (no secret)
    free, numbers = [list(range(PACED_EACH)) for _ in ends], {end.fileno(): number for number, end in enumerate(ends)}
    for end in ends:
        end.setblocking(False)
        poll.register(end.fileno(), select.EPOLLIN)
    due = time.perf_counter() + WARM_S / 3
    while True:
        while due <= time.perf_counter():
            way = draw.randrange(len(ends))
            if free[way]:
                number = free[way].pop()
                ends[way].send(frames.frame(frames.ASKS, asked(number, PACED_EACH, PACED_BYTES)))
            due += draw.expovariate(rate)
        for descriptor, _ in poll.poll(max(0.0, min(5e-4, due - time.perf_counter()))):
            way = numbers[descriptor]
            free[way] += answered(read[way], ends[way].recv(2**18))


def answered(read: frames.Frames, data: bytes) -> Iterator[int]:
    """The numbers of those whose answers have come.

    Raises:
        EOFError: nobody is there any more.
    """
    if not data:
        raise EOFError
    for kind, content in read.feed(data):
        if kind == frames.ANSWERS:
            yield from (number for number, _, _ in frames.ANSWERED.iter_unpack(content))


def main(mode: str, words: list[str]) -> None:
    if mode == "burst":
        numbers = [int(word) for word in words if word != "slow"]
        asyncio.run(burst(*[*numbers, *(64, 300, 150_528)[len(numbers) :]], slow="slow" in words))
        return
    if mode != "paced":
        raise SystemExit(__doc__)
    rate, seconds = [*map(float, words), *(12_000.0, 3.0)[len(words) :]]
    ways = [socket.socketpair() for _ in range(PACED_LINKS)]
    if os.fork() == 0:
        for own, _ in ways:
            own.close()
        with suppress(EOFError, ConnectionError):  # the engine has ended
            ask([other for _, other in ways], rate)
        os._exit(0)
    for _, other in ways:
        other.close()
    uvloop.install()
    asyncio.run(paced([own for own, _ in ways], seconds))


if __name__ == "__main__":
    main(" ".join(sys.argv[1:2]), sys.argv[2:])
