"""The engine's end of a way to a front end: what it is asked in frames, and what it counts."""

from __future__ import annotations

import asyncio
import os

import numpy as np

from penstock.laid import Memory
from penstock.runtimes.fake import FakeRunner
from penstock.serve import frames
from penstock.serve.fronts import FrontLink, Fronts
from penstock.serve.instances import RunnerBatches
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model
from penstock.serve.repository import Repository
from penstock.serve.sharedmemory import NO_REGIONS
from penstock.serve.tracing import Tracer
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 2)),),
    outputs=(Tensor(name="y", shape=("batch", 1)),),
    dims={"batch": Dim(opt=2, max=8)},
)
SLOT, ROOM = 64, 4096  # where the answers' room begins


class Told:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.turns: list[list[tuple[int, memoryview]]] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.turns.append(frames.Frames().feed(data))


def made() -> RunnerBatches:
    return RunnerBatches(FakeRunner(SIGNATURE))


def served(*names: str) -> tuple[list[Model], Fronts]:
    repository = Repository()
    for name in names:
        repository.models[name] = Model(name, 1, SIGNATURE, None, made, Limits(instances=1), Metrics())
    return list(repository.models.values()), Fronts(repository, lambda _: None, Tracer(None), NO_REGIONS)


def asks(*requests: tuple[int, int]) -> bytes:
    """A frame of requests of one row, each with a number and a form."""
    packed = [
        frames.ASKED.pack(number, form, number * SLOT, ROOM + number * SLOT, 30.0, 0) for number, form in requests
    ]
    return frames.frame(frames.ASKS, *packed)


def test_answers_are_laid_where_they_were_wanted_told_once_and_counted_for_their_own_models() -> None:
    async def run() -> None:
        models, fronts = served("one", "other")
        fd = os.memfd_create("slots")
        os.ftruncate(fd, 2 * ROOM)
        told, link = Told(), FrontLink(fronts, Memory(fd))
        link.connection_made(told)
        for form, model in enumerate(models):
            places = {"inputs": [["x", "float32", [1, 2], 0]], "outputs": [["y", "float32", [1, 1], 0]]}
            link.data_received(frames.told(frames.FORM, {"form": form, "model": model.id, **places}))
        for number in range(5):
            np.ndarray((1, 2), np.float32, link.memory.map, number * SLOT)[...] = number
        link.data_received(asks((0, 0), (1, 1), (2, 0), (3, 0), (4, 1)))
        while sum(model.statistics.success.count for model in models) < 5:
            await asyncio.sleep(0.001)
        for model, count in zip(models, (3, 2), strict=True):
            said = model.statistics.as_dict(model.name, 1)["inference_stats"]
            assert [said[name]["count"] for name in ("success", "queue", "compute_infer", "fail")] == [count] * 3 + [0]
            assert said["success"]["ns"] >= said["queue"]["ns"] + said["compute_infer"]["ns"] > 0
        answers = [content for turn in told.turns for kind, content in turn if kind == frames.ANSWERS]
        numbers = [number for content in answers for number, _, _ in frames.ANSWERED.iter_unpack(content)]
        assert sorted(numbers) == list(range(5))
        sums = [float(np.ndarray((), np.float32, link.memory.map, ROOM + number * SLOT)) for number in range(5)]
        assert sums == [0, 2, 4, 6, 8]  # of rows of two equal numbers
        for model in models:
            await model.scheduler.close()

    asyncio.run(run())
