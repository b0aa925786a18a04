"""Instances: several over one engine are one load, one close and one death, of which each learns in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.runtimes import InstanceDead
from penstock.runtimes.fake import FakeRunner
from penstock.serve import scheduler
from penstock.serve.instances import RunnerBatches, Shared, Spread
from penstock.serve.scheduler import Scheduler
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 2)),),
    outputs=(Tensor(name="y", shape=("batch", 1)),),
    dims={"batch": Dim(opt=2, max=8)},
)


class Engine(FakeRunner):
    """A runner that several may call, counts its closings, and dies or fails when it is told to."""

    def __init__(self) -> None:
        super().__init__(SIGNATURE)
        self.closings, self.wrong = 0, None

    wrong: Exception | None

    def run(self, feeds: Any) -> dict[str, Any]:
        if self.closings:
            raise RuntimeError("the runner is closed")
        if self.wrong is not None:
            raise self.wrong
        return super().run(feeds)

    def close(self) -> None:
        self.closings += 1


DEAD = InstanceDead("CUDA: cudaGraphLaunch: cudaErrorIllegalAddress")


@pytest.fixture
def engines() -> list[Engine]:
    """Those loaded so far."""
    return []


@pytest.fixture
def shared(engines: list[Engine]) -> Shared:
    def load() -> Engine:
        engines.append(Engine())
        return engines[-1]

    return Shared(load)


def ask(instance: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], value: float = 1.0) -> None:
    (answer,) = instance([{"x": np.full((2, 2), value, np.float32)}])
    assert answer["y"].tolist() == [[2 * value]] * 2


def test_instances_share_one_loaded_runner(shared: Shared, engines: list[Engine]) -> None:
    for instance in [shared.make() for _ in range(3)]:
        ask(instance)
    assert len(engines) == 1


def test_instances_made_at_once_load_one_runner(shared: Shared, engines: list[Engine]) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: shared.make(), range(8)))
    assert len(engines) == 1
    for instance in made:
        instance.close()
    assert engines[0].closings == 1


def test_it_is_closed_with_the_last_instance_and_once_however_often_they_close(
    shared: Shared, engines: list[Engine]
) -> None:
    first, second = shared.make(), shared.make()
    first.close()
    first.close()
    assert engines[0].closings == 0
    ask(second)
    second.close()
    second.close()
    first.close()
    assert engines[0].closings == 1


def test_after_the_last_was_closed_the_next_loads_anew(shared: Shared, engines: list[Engine]) -> None:
    shared.make().close()
    ask(shared.make())
    assert [engine.closings for engine in engines] == [1, 0]


def test_a_runner_that_died_is_closed_at_once_and_the_next_instance_loads_another(
    shared: Shared, engines: list[Engine]
) -> None:
    first, _ = shared.make(), shared.make()
    engines[0].wrong = DEAD
    with pytest.raises(InstanceDead, match="cudaErrorIllegalAddress"):
        ask(first)
    assert engines[0].closings == 1
    ask(shared.make())
    assert [engine.closings for engine in engines] == [1, 0]


def test_an_instance_whose_engine_died_under_another_learns_so_at_its_next_call(
    shared: Shared, engines: list[Engine]
) -> None:
    first, second = shared.make(), shared.make()
    engines[0].wrong = DEAD
    with pytest.raises(InstanceDead):
        ask(first)
    with pytest.raises(InstanceDead, match="died under another instance"):
        ask(second)
    first.close()
    again = shared.make()
    second.close()
    ask(shared.make())
    ask(again)
    assert [engine.closings for engine in engines] == [1, 0]


def test_the_dead_are_not_counted_among_those_that_keep_the_next_open(shared: Shared, engines: list[Engine]) -> None:
    dead = [shared.make() for _ in range(3)]
    engines[0].wrong = DEAD
    with pytest.raises(InstanceDead):
        ask(dead[0])
    alive = shared.make()
    for instance in dead:
        instance.close()
    ask(alive)
    alive.close()
    assert [engine.closings for engine in engines] == [1, 1]


def test_an_error_of_a_runner_that_lives_stays_what_it_is(shared: Shared, engines: list[Engine]) -> None:
    instance = shared.make()
    engines[0].wrong = RuntimeError("output 'y' has 1 rows for 2")
    with pytest.raises(RuntimeError, match="1 rows for 2"):
        ask(instance)
    engines[0].wrong = None
    ask(instance)
    assert engines[0].closings == 0


def test_a_load_that_fails_leaves_the_next_to_try_again(engines: list[Engine]) -> None:
    def load() -> Engine:
        engines.append(Engine())
        if len(engines) == 1:
            raise PenstockError("not enough device memory")
        return engines[-1]

    shared = Shared(load)
    with pytest.raises(PenstockError, match="not enough"):
        shared.make()
    ask(shared.make())


def test_a_runner_of_ones_own_is_closed_once_and_its_errors_are_its_own() -> None:
    engine = Engine()
    instance = RunnerBatches(engine)
    ask(instance)
    instance.close()
    instance.close()
    assert engine.closings == 1
    with pytest.raises(RuntimeError, match="the runner is closed"):
        ask(instance)


@pytest.mark.parametrize(
    "requests",
    [20, 1],
)
def test_requests_are_answered_though_the_engine_dies_under_two_instances(
    shared: Shared, engines: list[Engine], monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    monkeypatch.setattr(scheduler, "_BACKOFF_S", (0.0,))

    async def scenario() -> None:
        asked = Scheduler(shared.make, max_batch=2, instances=2)
        engines[0].wrong = DEAD
        rows = [{"x": np.full((2, 2), value, np.float32)} for value in range(requests)]
        answers = await asyncio.gather(*[asked.submit(part, rows=2) for part in rows])
        assert [answer["y"].tolist() for answer in answers] == [[[2.0 * value]] * 2 for value in range(requests)]
        await asked.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert len(engines) == 2
    assert engines[0].closings == 1


def spread(counts: list[list[int]]) -> Spread:
    """Instances on as many devices as there are lists; each list holds the closings of its runners."""

    def maker(closings: list[int]) -> Callable[[], RunnerBatches]:
        def make() -> RunnerBatches:
            engine = Engine()
            closings.append(0)
            number = len(closings) - 1
            engine.close = lambda: closings.__setitem__(number, 1)  # type: ignore[method-assign]
            return RunnerBatches(engine)

        return make

    return Spread([maker(closings) for closings in counts])


def test_instances_go_to_devices_in_turn() -> None:
    counts: list[list[int]] = [[], [], []]
    made = spread(counts)
    for _ in range(7):
        made.make()
    assert [len(closings) for closings in counts] == [3, 2, 2]


@pytest.mark.parametrize("how", [RunnerBatches.close, RunnerBatches.kill])
def test_one_that_replaces_another_goes_where_that_was(how: Callable[[RunnerBatches], None]) -> None:
    counts: list[list[int]] = [[], []]
    made = spread(counts)
    first, second = made.make(), made.make()
    how(second)
    made.make()
    assert [len(closings) for closings in counts] == [1, 2]
    how(first)
    how(first)
    made.make()
    assert [len(closings) for closings in counts] == [2, 2]


def test_a_device_on_which_none_can_be_made_counts_none() -> None:
    def failing() -> RunnerBatches:
        raise PenstockError("no room")

    made = Spread([failing, lambda: RunnerBatches(Engine())])
    for _ in range(3):
        with pytest.raises(PenstockError, match="no room"):
            made.make()
