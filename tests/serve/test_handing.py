"""Batches behind batches: an instance goes on with a full one by itself, and what was handed to it is not lost."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runtimes import InstanceDead
from penstock.serve.outcomes import Expired, Hung, QueueFull
from penstock.serve.scheduler import Scheduler
from penstock.serve.times import Times
from tests.serve.test_scheduler import SOON_S, Engine, occupy, queued, run


async def handed(scheduler: Scheduler, *payloads: Any, **how: Any) -> list[asyncio.Task[Any]]:
    """Queue what fills a batch, and let it be handed to the instance that is busy."""
    tasks = [await queued(scheduler, payload, **how) for payload in payloads]
    await asyncio.sleep(0.01)
    return tasks


def test_an_instance_goes_on_with_a_full_batch_while_the_event_loop_is_busy() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=2)
        plug = await occupy(scheduler, engine)
        waiting = await handed(scheduler, 1, 2, 3, 4)
        engine.open()
        until = time.monotonic() + SOON_S
        while len(engine.batches) < 2 and time.monotonic() < until:
            time.sleep(0.001)
        assert engine.batches == [["plug"], [1, 2]]  # and the one behind that is the loop's to give
        assert await asyncio.gather(plug, *waiting) == [("done", payload) for payload in ("plug", 1, 2, 3, 4)]
        assert engine.batches == [["plug"], [1, 2], [3, 4]]
        assert scheduler.states == {"busy": 0, "idle": 1, "dead": 0}
        await scheduler.close()

    run(scenario())


def test_what_fills_no_batch_stays_in_the_queue_for_company() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=2)
        plug = await occupy(scheduler, engine)
        first = await handed(scheduler, 1)
        engine.open()
        second = await queued(scheduler, 2)
        await asyncio.gather(plug, *first, second)
        assert engine.batches == [["plug"], [1, 2]]
        await scheduler.close()

    run(scenario())


def test_what_was_handed_on_still_waits_and_fills_the_queue() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=2, max_queue_rows=3)
        plug = await occupy(scheduler, engine)
        waiting = await handed(scheduler, 1, 2, 3)
        assert (scheduler.pending_rows, scheduler.pending_items) == (3, 3)
        with pytest.raises(QueueFull, match="3 rows are waiting and the queue holds 3"):
            await scheduler.submit(4)
        engine.open()
        await asyncio.gather(plug, *waiting)
        assert (scheduler.pending_rows, scheduler.pending_items) == (0, 0)
        await scheduler.close()

    run(scenario())


def test_who_goes_first_goes_before_what_was_handed_on() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=2)
        plug = await occupy(scheduler, engine)
        waiting = await handed(scheduler, 1, 2, priority=2)
        waiting += await handed(scheduler, "first", priority=1)
        engine.open()
        await asyncio.gather(plug, *waiting)
        assert engine.batches == [["plug"], ["first", 1], [2]]
        await scheduler.close()

    run(scenario())


def test_a_free_instance_takes_what_was_handed_to_another() -> None:
    async def scenario() -> None:
        engines = [Engine(), Engine()]
        made = iter(engines)
        scheduler = Scheduler(lambda: next(made), max_batch=1, instances=2)
        for engine in engines:
            engine.shut()
        plugs = [await queued(scheduler, "a"), await queued(scheduler, "b")]
        for engine in engines:
            await engine.begun()
        waiting = await handed(scheduler, 1)  # behind one of them
        slow = engines[0] if scheduler._handed and scheduler._instances[0] in scheduler._handed else engines[1]
        quick = engines[1] if slow is engines[0] else engines[0]
        quick.open()
        assert await asyncio.wait_for(waiting[0], SOON_S) == ("done", 1)
        assert quick.computed[1:] == [1]
        slow.open()
        await asyncio.gather(*plugs)
        await scheduler.close()

    run(scenario())


def test_nobody_is_overtaken_behind_a_batch_that_takes_longer_than_others() -> None:
    async def scenario() -> None:
        slow, quick = Engine(), Engine(lambda payloads: time.sleep(0.002) or payloads)
        slow.shut()
        made = iter([slow, quick])
        scheduler = Scheduler(lambda: next(made), max_batch=1, instances=2)
        tasks = [await queued(scheduler, number) for number in range(8)]  # both are always at something
        await asyncio.wait(tasks, timeout=SOON_S / 20)
        assert [task.done() for task in tasks].count(False) == 1  # the one that is computed
        assert len(quick.computed) == 7
        assert all(abs(place - number) <= 2 for place, number in enumerate(quick.computed, 1)), quick.computed
        slow.open()
        await asyncio.gather(*tasks)
        assert scheduler.states == {"busy": 0, "idle": 2, "dead": 0}
        await scheduler.close()

    run(scenario())


def test_an_answer_that_cannot_be_told_takes_neither_others_nor_the_instance() -> None:
    class Raises:
        over = False

        def done(self) -> bool:
            return self.over

        def set_result(self, _: Any) -> None:
            self.over = True
            raise MemoryError

        def set_exception(self, _: Exception) -> None:
            self.over = True

    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=2)
        engine.shut()
        scheduler.enter("raises", Raises())
        beside = await queued(scheduler, "beside")
        await engine.begun()
        waiting = await handed(scheduler, 1, 2)
        engine.open()
        assert await asyncio.gather(beside, *waiting) == [("done", payload) for payload in ("beside", 1, 2)]
        assert scheduler.states == {"busy": 0, "idle": 1, "dead": 0}
        await scheduler.close()

    run(scenario())


def test_an_instance_that_has_just_died_is_handed_nothing() -> None:
    def work(payloads: list[Any]) -> list[Any]:
        if "dies" in payloads and not died:
            died.append(1)
            raise InstanceDead("it died")
        return payloads

    died: list[int] = []

    async def scenario() -> None:
        engine = Engine(work)
        scheduler = Scheduler(engine.make, max_batch=1)
        plug = await occupy(scheduler, engine)
        waiting = await handed(scheduler, "dies", 1, 2)
        engine.open()
        time.sleep(0.05)  # both have ended before the loop hears of either
        assert await asyncio.gather(plug, *waiting) == ["plug", "dies", 1, 2]
        assert engine.computed == ["plug", "dies", "dies", 1, 2]
        await scheduler.close()

    run(scenario())


def test_who_is_refused_takes_back_nothing() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=2, max_queue_rows=2)
        plug = await occupy(scheduler, engine)
        waiting = await handed(scheduler, 1, 2, priority=2)
        with pytest.raises(QueueFull):
            await scheduler.submit("first", priority=1)
        assert scheduler._handed
        engine.open()
        await asyncio.gather(plug, *waiting)
        await scheduler.close()

    run(scenario())


def test_what_is_taken_back_is_kept_by_nobody_else() -> None:
    class Payload:
        pass

    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=1)
        plug = await occupy(scheduler, engine)
        payload = Payload()
        seen = weakref.ref(payload)
        item = scheduler.enter(payload, asyncio.get_running_loop().create_future())
        await asyncio.sleep(0.01)
        assert scheduler._handed
        scheduler.withdraw(item)
        del payload, item
        gc.collect()
        assert seen() is None
        engine.open()
        await plug
        await scheduler.close()

    run(scenario())


def test_who_gives_up_behind_a_batch_is_not_computed_and_its_place_is_taken() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=2)
        plug = await occupy(scheduler, engine)
        first, second, third = await handed(scheduler, 1, 2, 3)
        first.cancel()
        await asyncio.sleep(0.01)
        assert scheduler.pending_rows == 2
        engine.open()
        await asyncio.gather(plug, second, third)
        assert engine.batches == [["plug"], [2, 3]]
        await scheduler.close()

    run(scenario())


def test_who_is_late_behind_a_batch_has_waited_all_the_time() -> None:
    async def scenario() -> None:
        engine, times = Engine(), Times()
        scheduler = Scheduler(engine.make, max_batch=1)
        plug = await occupy(scheduler, engine)
        (late,) = await handed(scheduler, 1, timeout_s=0.05, times=times)
        with pytest.raises(Expired):
            await late
        assert times.queue_s >= 0.05
        assert times.compute_s == 0
        engine.open()
        await plug
        assert engine.computed == ["plug"]
        await scheduler.close()

    run(scenario())


def test_what_was_handed_on_outlives_the_batch_before_it() -> None:
    class Fails(Exception):
        pass

    def work(payloads: list[Any]) -> list[Any]:
        if "dies" in payloads and len(deaths) < 1:
            deaths.append(1)
            raise InstanceDead("it died")
        if "fails" in payloads:
            raise Fails
        return payloads

    deaths: list[int] = []

    async def scenario(plug: str) -> None:
        engine = Engine(work)
        scheduler = Scheduler(engine.make, max_batch=2)
        engine.shut()
        first = await queued(scheduler, plug)
        await engine.begun()
        waiting = await handed(scheduler, 1, 2)
        engine.open()
        assert await asyncio.gather(*waiting) == [1, 2]
        if plug == "dies":
            assert await first == "dies"
        else:
            with pytest.raises(Fails):
                await first
        assert scheduler.states == {"busy": 0, "idle": 1, "dead": 0}
        await scheduler.close()

    run(scenario("fails"))
    run(scenario("dies"))


def test_what_was_handed_on_outlives_a_batch_that_hangs() -> None:
    async def scenario() -> None:
        hanging, well = Engine(), Engine()
        hanging.shut()
        made = iter([hanging, well])
        scheduler = Scheduler(lambda: next(made), max_batch=2, run_limit_s=0.2)
        first = await queued(scheduler, "hangs")
        waiting = await handed(scheduler, 1, 2)
        assert await asyncio.gather(*waiting) == [("done", 1), ("done", 2)]
        with pytest.raises(Hung):
            await first
        hanging.open()  # and comes back after all
        await asyncio.sleep(0.05)
        assert (hanging.computed, well.computed) == (["hangs"], [1, 2])
        assert scheduler.states == {"busy": 0, "idle": 1, "dead": 0}
        await scheduler.close()

    run(scenario())


def test_a_batch_that_was_gone_on_with_has_its_own_limit() -> None:
    async def scenario() -> None:
        def work(payloads: list[Any]) -> list[Any]:
            time.sleep(0.3)
            return payloads

        scheduler = Scheduler(Engine(work).make, max_batch=1, run_limit_s=0.5)
        tasks = [await queued(scheduler, number) for number in range(3)]
        assert await asyncio.gather(*tasks) == [0, 1, 2]
        assert scheduler.restarts == 0
        await scheduler.close()

    run(scenario())


def test_closing_finishes_what_was_handed_on() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=2)
        plug = await occupy(scheduler, engine)
        waiting = await handed(scheduler, 1, 2, 3)
        closing = asyncio.ensure_future(scheduler.close())
        await asyncio.sleep(0.01)
        engine.open()
        assert await asyncio.gather(plug, *waiting) == [("done", payload) for payload in ("plug", 1, 2, 3)]
        await closing

    run(scenario())


wishes = st.lists(
    st.tuples(
        st.integers(1, 3),  # rows
        st.integers(0, 2),  # priority
        st.sampled_from(["stays", "leaves", "late"]),
        st.sampled_from(["well"] * 8 + ["fails", "dies"]),
        st.integers(0, 3),  # turns of the loop before the next
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(wishes, st.integers(1, 3), st.integers(1, 4))
def test_everybody_is_told_once_and_rightly_whatever_happens(
    told: list[tuple[int, int, str, str, int]], instances: int, max_batch: int
) -> None:
    died: set[int] = set()

    def work(payloads: list[tuple[int, str]]) -> list[Any]:
        time.sleep(0.0003)
        for number, what in payloads:
            if what == "fails":
                raise ValueError(number)
            if what == "dies" and number not in died:
                died.add(number)
                raise InstanceDead("it died")
        return [number for number, _ in payloads]

    async def scenario() -> None:
        scheduler = Scheduler(lambda: work, max_batch=max_batch, instances=instances)
        tasks = []
        for number, (rows, priority, stays, what, turns) in enumerate(told):
            timeout_s = 0.001 if stays == "late" else None
            about = {"rows": min(rows, max_batch), "priority": priority, "timeout_s": timeout_s}
            tasks.append(asyncio.ensure_future(scheduler.submit((number, what), **about)))
            for _ in range(turns):
                await asyncio.sleep(0)
            if stays == "leaves":
                tasks[-1].cancel()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SOON_S)
        for number, (answer, (_, _, stays, what, _)) in enumerate(zip(answers, told, strict=True)):
            if isinstance(answer, Expired):
                assert stays == "late"
            elif isinstance(answer, asyncio.CancelledError):
                assert stays == "leaves"
            elif what == "fails":
                assert isinstance(answer, ValueError)
                assert answer.args == (number,)
            else:
                assert answer == number
        until = time.monotonic() + SOON_S
        while scheduler.states["idle"] != instances and time.monotonic() < until:
            await asyncio.sleep(0.001)
        assert scheduler.states == {"busy": 0, "idle": instances, "dead": 0}
        assert (scheduler.pending_rows, scheduler.pending_items, scheduler._handed) == (0, 0, {})
        await scheduler.close()

    run(scenario())
