"""The scheduler: what is batched with what, and that every caller gets its own answer, whatever goes wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runtimes import InstanceDead
from penstock.serve import scheduler as scheduler_module
from penstock.serve.batches import Choice, Item, choose, share
from penstock.serve.outcomes import Closed, Expired, Hung, QueueFull, Unmeetable
from penstock.serve.quick import Company
from penstock.serve.scheduler import Scheduler
from penstock.serve.times import Times

SOON_S = 10.0


# --- choose, the pure part ---------------------------------------------------------------------------------------


def item(
    number: int,
    rows: int = 1,
    key: Any = None,
    *,
    priority: int = 0,
    arrived: float = 0.0,
    urgent: bool = True,
) -> Item:
    nobody = cast("asyncio.Future[Any]", None)  # choosing looks at no future
    return Item(f"item {number}", rows, key, priority, arrived, urgent, nobody, number)


def numbers(choice: Choice) -> list[int]:
    return [chosen.number for chosen in choice.items]


def test_an_empty_queue_gives_nothing_and_no_time_to_look_again() -> None:
    assert choose([], 8, now=0.0) == Choice()


def test_items_are_taken_in_order_until_the_batch_is_full() -> None:
    queue = [item(0, rows=2), item(1, rows=2), item(2, rows=1)]
    assert numbers(choose(queue, 4, now=0.0)) == [0, 1]


def test_a_smaller_item_does_not_overtake_one_that_did_not_fit() -> None:
    queue = [item(0, rows=3), item(1, rows=2), item(2, rows=1)]
    assert numbers(choose(queue, 4, now=0.0)) == [0]


def test_an_item_of_exactly_max_batch_rows_goes_alone() -> None:
    assert numbers(choose([item(0, rows=4), item(1)], 4, now=0.0)) == [0]


@pytest.mark.parametrize(
    ("queue", "now", "max_delay_s", "reason"),
    [
        ([item(0, rows=4)], 0.0, 0.0, "full"),
        ([item(0, rows=3), item(1, rows=2)], 0.0, 0.0, "full"),
        ([item(0)], 0.0, 1.0, "idle"),
        ([item(0, urgent=False)], 0.0, 0.0, "free"),
        ([item(0, urgent=False)], 1.0, 1.0, "delay"),
        ([item(0, key="a"), item(1, key="b")], 0.0, 0.0, "key"),
        ([item(0, urgent=False)], 0.5, 1.0, ""),
    ],
)
def test_a_choice_says_why_it_was_made_already(queue: list[Item], now: float, max_delay_s: float, reason: str) -> None:
    assert choose(queue, 4, now, max_delay_s).reason == reason


def test_items_of_another_key_are_left_for_a_batch_of_their_own() -> None:
    queue = [item(0, key="a"), item(1, key="b"), item(2, key="a")]
    assert numbers(choose(queue, 8, now=0.0)) == [0, 2]


def test_items_that_met_a_busy_server_wait_for_company_until_the_oldest_has_waited_long_enough() -> None:
    queue = [item(0, arrived=1.0, urgent=False), item(1, arrived=1.5, urgent=False)]
    assert choose(queue, 8, now=1.6, max_delay_s=1.0) == Choice(look_again=2.0)
    assert numbers(choose(queue, 8, now=2.0, max_delay_s=1.0)) == [0, 1]


def test_a_full_batch_does_not_wait() -> None:
    queue = [item(n, urgent=False) for n in range(4)]
    assert numbers(choose(queue, 4, now=0.0, max_delay_s=60)) == [0, 1, 2, 3]


def test_a_batch_that_the_next_item_would_overfill_does_not_wait() -> None:
    queue = [item(0, rows=3, urgent=False), item(1, rows=2, urgent=False)]
    assert numbers(choose(queue, 4, now=0.0, max_delay_s=60)) == [0]


def test_one_urgent_item_takes_the_waiting_ones_of_its_key_with_it() -> None:
    queue = [item(0, urgent=False), item(1, urgent=True)]
    assert numbers(choose(queue, 4, now=0.0, max_delay_s=60)) == [0, 1]


def test_an_urgent_item_does_not_wait_behind_another_key_that_waits_for_company() -> None:
    queue = [item(0, key="a", urgent=False), item(1, key="b", urgent=True)]
    assert choose(queue, 4, now=0.0, max_delay_s=60).items


def test_a_full_batch_does_not_wait_behind_another_key_that_waits_for_company() -> None:
    queue = [item(0, key="a", urgent=False), *[item(n, key="b", urgent=False) for n in range(1, 5)]]
    assert choose(queue, 4, now=0.0, max_delay_s=60).items


MAX_BATCH = 8
queues = st.lists(
    st.builds(
        dict,
        rows=st.integers(1, MAX_BATCH),
        key=st.sampled_from("abc"),
        priority=st.integers(0, 2),
        arrived=st.floats(0, 10),
        urgent=st.booleans(),
    ),
    max_size=30,
).map(lambda fields: sorted((item(n, **given) for n, given in enumerate(fields)), key=lambda i: (i.priority, i.number)))


@given(queues, st.floats(0, 20), st.floats(0, 5))
def test_a_batch_is_one_key_within_max_batch_and_first_in_first_out(
    queue: list[Item], now: float, delay_s: float
) -> None:
    chosen = choose(queue, MAX_BATCH, now, delay_s).items
    assert sum(i.rows for i in chosen) <= MAX_BATCH
    assert len({i.key for i in chosen}) <= 1
    if chosen:
        assert list(chosen) == [i for i in queue if i.key == chosen[0].key][: len(chosen)]  # nobody overtakes


@given(queues, st.floats(10, 20))
def test_without_a_delay_the_first_in_line_always_goes_and_takes_all_that_fit(queue: list[Item], now: float) -> None:
    chosen = choose(queue, MAX_BATCH, now).items
    assert chosen[:1] == tuple(queue[:1])
    if chosen:
        behind = [i for i in queue if i.key == chosen[0].key][len(chosen) :]
        assert not behind or sum(i.rows for i in chosen) + behind[0].rows > MAX_BATCH


@given(queues.filter(bool), st.floats(0, 20), st.floats(0, 5))
def test_a_postponed_choice_names_the_time_at_which_it_will_be_made(
    queue: list[Item], now: float, delay_s: float
) -> None:
    choice = choose(queue, MAX_BATCH, now, delay_s)
    if choice.items:
        assert choice.look_again is None
        return
    assert choice.look_again is not None
    assert now < choice.look_again <= max(i.arrived for i in queue) + delay_s
    assert choose(queue, MAX_BATCH, choice.look_again, delay_s).items


@given(queues, st.floats(0, 20), st.floats(0, 5))
def test_choosing_leaves_the_queue_as_it_was(queue: list[Item], now: float, delay_s: float) -> None:
    before = list(queue)
    first = choose(queue, MAX_BATCH, now, delay_s)
    assert queue == before
    assert choose(queue, MAX_BATCH, now, delay_s) == first


# --- Scheduler, on a real event loop -----------------------------------------------------------------------------


class Engine:
    """A batch function under a test's control: it records each batch, and waits while its gate is shut."""

    def __init__(self, work: Callable[[list[Any]], list[Any]] | None = None) -> None:
        self.batches: list[list[Any]] = []
        self.makes = 0
        self._gate = threading.Event()
        self._gate.set()
        self._begun = threading.Semaphore(0)
        self._work = work or (lambda payloads: [("done", payload) for payload in payloads])

    def make(self) -> Callable[[list[Any]], list[Any]]:
        self.makes += 1
        return self

    def __call__(self, payloads: list[Any]) -> list[Any]:
        self.batches.append(list(payloads))
        self._begun.release()
        assert self._gate.wait(SOON_S)
        return self._work(payloads)

    def shut(self) -> None:
        self._gate.clear()

    def open(self) -> None:
        self._gate.set()

    async def begun(self) -> None:
        """Until one more batch has begun."""
        assert await asyncio.to_thread(self._begun.acquire, timeout=SOON_S)

    @property
    def computed(self) -> list[Any]:
        return [payload for batch in self.batches for payload in batch]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * SOON_S))


async def queued(scheduler: Scheduler, payload: Any, **how: Any) -> asyncio.Task[Any]:
    """Submit and let the submission reach the queue."""
    task = asyncio.ensure_future(scheduler.submit(payload, **how))
    await asyncio.sleep(0)
    return task


async def occupy(scheduler: Scheduler, engine: Engine) -> asyncio.Task[Any]:
    """Make the only instance busy with the payload "plug" until the engine's gate is opened."""
    engine.shut()
    task = await queued(scheduler, "plug")
    await engine.begun()
    return task


def test_a_lone_request_does_not_wait_for_company() -> None:
    async def scenario() -> None:
        scheduler = Scheduler(Engine().make, max_batch=8, max_delay_ms=60_000)
        assert await asyncio.wait_for(scheduler.submit("x"), 1) == ("done", "x")
        assert await asyncio.wait_for(scheduler.submit("y"), 1) == ("done", "y")
        await scheduler.close()

    run(scenario())


def test_what_waited_goes_as_one_batch_as_soon_as_the_instance_is_free() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=8)
        plug = await occupy(scheduler, engine)
        waiting = [await queued(scheduler, n) for n in range(5)]
        assert scheduler.pending_rows == 5
        engine.open()
        assert await asyncio.gather(plug, *waiting) == [("done", "plug"), *[("done", n) for n in range(5)]]
        assert engine.batches == [["plug"], [0, 1, 2, 3, 4]]
        await scheduler.close()

    run(scenario())


def test_two_instances_work_at_the_same_time() -> None:
    both = threading.Barrier(2)

    def meet(payloads: list[Any]) -> list[Any]:
        both.wait(SOON_S)  # passes only if the other instance is here too
        return payloads

    async def scenario() -> None:
        scheduler = Scheduler(lambda: meet, max_batch=8, instances=2)
        assert await asyncio.gather(scheduler.submit(1), scheduler.submit(2)) == [1, 2]
        await scheduler.close()

    run(scenario())


def test_rows_that_met_a_busy_server_wait_for_company_but_no_longer_than_max_delay_ms() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=8, max_delay_ms=100)
        plug = await occupy(scheduler, engine)
        arrived = loop.time()
        waiting = await queued(scheduler, "late")
        engine.open()
        await plug
        assert not waiting.done()
        await waiting
        waited_s = loop.time() - arrived
        assert 0.099 <= waited_s < 1.0
        await scheduler.close()

    run(scenario())


def test_a_request_that_finds_the_server_idle_ends_the_wait_of_those_before_it() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=8, max_delay_ms=60_000)
        plug = await occupy(scheduler, engine)
        waiting = await queued(scheduler, "late")
        engine.open()
        await plug
        assert await asyncio.wait_for(scheduler.submit("idle"), 1) == ("done", "idle")
        await asyncio.wait_for(waiting, 1)
        assert engine.batches[-1] == ["late", "idle"]
        await scheduler.close()

    run(scenario())


def test_a_request_that_finds_the_server_idle_does_not_wait_for_the_company_of_another_key() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=8, max_delay_ms=500)
        plug = await occupy(scheduler, engine)
        waiting = await queued(scheduler, "late", key="other")
        engine.open()
        await plug
        started = asyncio.get_running_loop().time()
        await scheduler.submit("idle", key="own")
        assert asyncio.get_running_loop().time() - started < 0.25
        await waiting
        await scheduler.close()

    run(scenario())


def test_a_batch_that_fills_up_while_it_waits_for_company_goes_at_once() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=4, max_delay_ms=60_000)
        plug = await occupy(scheduler, engine)
        waiting = [await queued(scheduler, n, rows=2) for n in range(2)]
        engine.open()
        assert await asyncio.wait_for(asyncio.gather(plug, *waiting), 2)
        assert engine.batches[-1] == [0, 1]
        await scheduler.close()

    run(scenario())


def test_the_queue_bound_counts_rows_and_the_refusal_says_how_many_wait() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=4, max_queue_rows=5)
        plug = await occupy(scheduler, engine)
        first = await queued(scheduler, "three", rows=3)
        with pytest.raises(QueueFull, match="3 rows are waiting and the queue holds 5"):
            await scheduler.submit("three more", rows=3)
        second = await queued(scheduler, "two", rows=2)
        assert scheduler.pending_rows == 5
        with pytest.raises(QueueFull):
            await scheduler.submit("one more")
        engine.open()
        await asyncio.gather(plug, first, second)
        assert "three more" not in engine.computed
        assert await scheduler.submit("after") == ("done", "after")
        await scheduler.close()

    run(scenario())


def test_a_cancelled_item_frees_its_rows_and_is_not_computed() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=4, max_queue_rows=4)
        plug = await occupy(scheduler, engine)
        unwanted = await queued(scheduler, "unwanted", rows=4)
        unwanted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unwanted
        assert scheduler.pending_rows == 0
        wanted = await queued(scheduler, "wanted", rows=4)
        engine.open()
        assert await asyncio.gather(plug, wanted) == [("done", "plug"), ("done", "wanted")]
        assert "unwanted" not in engine.computed
        await scheduler.close()

    run(scenario())


def test_an_item_whose_deadline_passes_in_the_queue_is_told_so_and_not_computed() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=4)
        plug = await occupy(scheduler, engine)
        with pytest.raises(Expired, match=r"timeout of 0\.02 s"):
            await scheduler.submit("stale", timeout_s=0.02)
        assert scheduler.pending_rows == 0
        fresh = await queued(scheduler, "fresh", timeout_s=SOON_S)
        engine.open()
        assert await asyncio.gather(plug, fresh) == [("done", "plug"), ("done", "fresh")]
        assert "stale" not in engine.computed
        await scheduler.close()

    run(scenario())


def test_an_item_whose_deadline_passes_while_it_is_computed_is_told_so_and_the_next_one_served() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=4)
        engine.shut()
        with pytest.raises(Expired):
            await scheduler.submit("slow", timeout_s=0.02)
        engine.open()
        assert await scheduler.submit("next") == ("done", "next")
        await scheduler.close()

    run(scenario())


def test_lower_priority_numbers_go_first_and_equal_ones_in_order_of_arrival() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=1)
        plug = await occupy(scheduler, engine)
        order = [("a", 5), ("b", 0), ("c", 5), ("d", 0)]
        waiting = [await queued(scheduler, name, priority=priority) for name, priority in order]
        engine.open()
        await asyncio.gather(plug, *waiting)
        assert engine.computed == ["plug", "b", "d", "a", "c"]
        await scheduler.close()

    run(scenario())


def test_items_of_different_keys_never_share_a_batch() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=8)
        plug = await occupy(scheduler, engine)
        waiting = [await queued(scheduler, (key, n), key=key) for n in range(3) for key in "ab"]
        engine.open()
        await asyncio.gather(plug, *waiting)
        assert engine.batches[1:] == [[("a", 0), ("a", 1), ("a", 2)], [("b", 0), ("b", 1), ("b", 2)]]
        await scheduler.close()

    run(scenario())


@pytest.mark.parametrize("poison", [0, 13, 31])
def test_one_poisoned_item_among_32_fails_alone(poison: int) -> None:
    def work(payloads: list[Any]) -> list[Any]:
        if poison in payloads:
            raise ValueError("poison")
        return [("done", payload) for payload in payloads]

    async def scenario() -> None:
        engine = Engine(work)
        scheduler = Scheduler(engine.make, max_batch=32)
        plug = await occupy(scheduler, engine)
        waiting = [await queued(scheduler, n) for n in range(32)]
        engine.open()
        await plug
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert len(engine.batches[1]) == 32
        assert isinstance(answers[poison], ValueError)
        assert [a for n, a in enumerate(answers) if n != poison] == [("done", n) for n in range(32) if n != poison]
        assert len(engine.batches) <= 1 + 1 + 2 * 5  # halving 32 takes five steps
        await scheduler.close()

    run(scenario())


@pytest.mark.parametrize("answer", [lambda p: [], lambda p: [*p, "one too many"]], ids=["too few", "too many"])
def test_a_function_that_gives_another_number_of_results_fails_the_item(answer: Callable[[Any], Any]) -> None:
    async def scenario() -> None:
        scheduler = Scheduler(Engine(answer).make, max_batch=8)
        with pytest.raises(RuntimeError, match="results for 1 items"):
            await scheduler.submit("x")
        await scheduler.close()

    run(scenario())


@pytest.mark.parametrize("rows", [0, -1, 9])
def test_rows_out_of_range_are_refused(rows: int) -> None:
    async def scenario() -> None:
        scheduler = Scheduler(Engine().make, max_batch=8)
        with pytest.raises(ValueError, match=f"rows is {rows}; it must be from 1 to max_batch, 8"):
            await scheduler.submit("x", rows=rows)
        await scheduler.close()

    run(scenario())


class Mortal:
    """Makes functions that die (`InstanceDead`) on the payloads of `deadly`, each as often as it says.

    After the first `instances`, a function is made only while `restart` is set, and `failing_makes` times it fails.
    """

    def __init__(self, deadly: dict[Any, int], instances: int = 1, failing_makes: int = 0) -> None:
        self.deadly = dict(deadly)
        self.instances = instances
        self.failing_makes = failing_makes
        self.makes = 0
        self.restart = threading.Event()
        self.restart.set()

    def make(self) -> Callable[[list[Any]], list[Any]]:
        self.makes += 1
        if self.makes > self.instances:
            assert self.restart.wait(SOON_S)
            if self.failing_makes:
                self.failing_makes -= 1
                raise OSError("still broken")
        return self._run

    def _run(self, payloads: list[Any]) -> list[Any]:
        for payload in payloads:
            if self.deadly.get(payload):
                self.deadly[payload] -= 1
                raise InstanceDead(f"killed by {payload}")
        return [("done", payload) for payload in payloads]


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), SOON_S)


def test_a_dead_instance_makes_the_scheduler_unhealthy_until_it_is_restarted_and_its_items_are_answered() -> None:
    async def scenario() -> None:
        engine = Mortal({"x": 1})
        scheduler = Scheduler(engine.make, max_batch=8)
        assert scheduler.healthy
        engine.restart.clear()
        waiting = await queued(scheduler, "x")
        await until(lambda: not scheduler.healthy)
        assert not waiting.done()
        engine.restart.set()
        assert await waiting == ("done", "x")
        assert scheduler.healthy
        assert engine.makes == 2
        await scheduler.close()

    run(scenario())


def test_a_restart_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "_BACKOFF_S", (0.0, 0.01))

    async def scenario() -> None:
        engine = Mortal({"x": 1}, failing_makes=3)
        scheduler = Scheduler(engine.make, max_batch=8)
        assert await scheduler.submit("x") == ("done", "x")
        assert engine.makes == 1 + 3 + 1
        assert scheduler.healthy
        await scheduler.close()

    run(scenario())


def test_while_one_of_two_instances_is_dead_the_other_answers_also_what_the_dead_one_held() -> None:
    async def scenario() -> None:
        engine = Mortal({"x": 1}, instances=2)
        scheduler = Scheduler(engine.make, max_batch=8, instances=2)
        engine.restart.clear()
        try:
            assert await asyncio.wait_for(scheduler.submit("x"), 2) == ("done", "x")
            assert not scheduler.healthy
            assert await asyncio.wait_for(scheduler.submit("y"), 2) == ("done", "y")
        finally:
            engine.restart.set()
        await until(lambda: scheduler.healthy)
        await scheduler.close()

    run(scenario())


def test_an_item_that_kills_two_instances_fails_and_the_scheduler_recovers() -> None:
    async def scenario() -> None:
        engine = Mortal({"x": 99})
        scheduler = Scheduler(engine.make, max_batch=8)
        with pytest.raises(InstanceDead, match="killed by x"):
            await scheduler.submit("x")
        assert await scheduler.submit("y") == ("done", "y")
        assert scheduler.healthy
        await scheduler.close()

    run(scenario())


def test_an_item_that_kills_instances_does_not_take_those_it_was_batched_with_down() -> None:
    async def scenario() -> None:
        engine = Mortal({3: 99})
        gate = Engine(engine.make())
        scheduler = Scheduler(gate.make, max_batch=8)
        plug = await occupy(scheduler, gate)
        waiting = [await queued(scheduler, n) for n in range(8)]
        gate.open()
        await plug
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(answers[3], InstanceDead)
        assert [a for n, a in enumerate(answers) if n != 3] == [("done", n) for n in range(8) if n != 3]
        await scheduler.close()

    run(scenario())


def test_closing_finishes_what_was_taken_and_refuses_what_comes_later() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=2, max_delay_ms=60_000)
        plug = await occupy(scheduler, engine)
        waiting = [await queued(scheduler, n) for n in range(5)]
        closing = asyncio.ensure_future(scheduler.close())
        await asyncio.sleep(0)
        assert not scheduler.healthy
        with pytest.raises(Closed):
            await scheduler.submit("too late")
        engine.open()
        await closing
        assert await asyncio.gather(plug, *waiting) == [("done", "plug"), *[("done", n) for n in range(5)]]

    run(scenario())


@pytest.mark.parametrize("instances", [1, 2])
def test_closing_ends_though_a_dead_instance_cannot_be_restarted(instances: int) -> None:
    async def scenario() -> None:
        engine = Mortal({"x": 1}, instances=instances, failing_makes=10**6)
        scheduler = Scheduler(engine.make, max_batch=8, instances=instances)
        waiting = await queued(scheduler, "x")
        await until(lambda: engine.failing_makes < 10**6)
        await asyncio.wait_for(scheduler.close(), 2)
        answers = await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 1)
        if instances == 1:
            assert isinstance(answers[0], Closed)
        else:
            assert answers == [("done", "x")]

    run(scenario())


class Recorder:
    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.reasons: list[str] = []

    def batch(self, rows: int, waits_s: list[float], compute_s: float) -> None:
        assert all(wait >= 0 for wait in waits_s)
        assert compute_s >= 0
        self.batches.append((rows, len(waits_s)))

    def closed(self, reason: str) -> None:
        self.reasons.append(reason)


def test_the_observer_is_told_of_each_batch_and_the_rows_that_wait_are_counted() -> None:
    async def scenario() -> None:
        engine, recorder = Engine(), Recorder()
        scheduler = Scheduler(engine.make, max_batch=8, observer=recorder)
        plug = await occupy(scheduler, engine)
        waiting = [await queued(scheduler, n, rows=2) for n in range(3)]
        assert scheduler.pending_rows == 6
        engine.open()
        await asyncio.gather(plug, *waiting)
        assert recorder.batches == [(1, 1), (6, 3)]
        assert recorder.reasons == ["idle", "free"]
        assert scheduler.pending_rows == 0
        await scheduler.close()

    run(scenario())


def test_an_instance_is_given_its_next_batch_before_the_last_one_s_answers_are_told() -> None:
    class Looks:
        """A reply that looks what the instances do when it is told."""

        def __init__(self, scheduler: Scheduler) -> None:
            self.scheduler, self.seen = scheduler, asyncio.get_running_loop().create_future()

        def done(self) -> bool:
            return bool(self.seen.done())

        def set_result(self, result: Any, /) -> None:
            self.seen.set_result(self.scheduler.states["busy"])

        def set_exception(self, error: Exception, /) -> None:
            self.seen.set_exception(error)

    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=1)
        replies = [Looks(scheduler) for _ in range(3)]
        for number, reply in enumerate(replies):
            scheduler.enter(number, reply)
        engine.open()
        assert [await reply.seen for reply in replies] == [1, 1, 0]
        await scheduler.close()

    run(scenario())


def test_a_request_s_times_are_its_wait_and_its_batch_s_computing() -> None:
    async def scenario() -> None:
        engine, plug_times, times = Engine(), Times(), Times()
        scheduler = Scheduler(engine.make, max_batch=8)
        engine.shut()
        plug = await queued(scheduler, "plug", times=plug_times)
        await engine.begun()
        waiting = await queued(scheduler, "late", times=times)
        await asyncio.sleep(0.3)
        assert times == Times(started=times.started)  # nothing is told before there is an answer
        engine.open()
        await asyncio.gather(plug, waiting)
        assert plug_times.queue_s < 0.2
        assert plug_times.compute_s >= 0.29
        assert times.queue_s >= 0.29
        assert times.compute_s < 0.2
        await scheduler.close()

    run(scenario())


def test_times_are_finer_than_the_event_loop_s_clock_may_be() -> None:
    class Coarse(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return float(int(super().time()))

    loop = Coarse()
    times = Times()
    scheduler = Scheduler(lambda: lambda payloads: payloads, max_batch=8)
    try:
        loop.run_until_complete(scheduler.submit("x", times=times))
        loop.run_until_complete(scheduler.close())
    finally:
        loop.close()
    assert 0 < times.compute_s < 0.5
    assert 0 <= times.queue_s < 0.5


def test_a_failed_request_s_times_stay_empty_and_those_of_its_batch_are_of_their_own_run() -> None:
    def work(payloads: list[Any]) -> list[Any]:
        if "bad" in payloads:
            raise ValueError("bad")
        return payloads

    async def scenario() -> None:
        engine = Engine(work)
        scheduler = Scheduler(engine.make, max_batch=8)
        plug = await occupy(scheduler, engine)
        bad, good = Times(), Times()
        waiting = [await queued(scheduler, "bad", times=bad), await queued(scheduler, "good", times=good)]
        engine.open()
        await asyncio.gather(plug, *waiting, return_exceptions=True)
        assert (bad.queue_s, bad.compute_s) == (0, 0)
        assert good.queue_s > 0
        assert good.compute_s > 0
        await scheduler.close()

    run(scenario())


arrivals = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 4),
        "key": st.sampled_from("ab"),
        "priority": st.integers(0, 1),
        "poisoned": st.integers(0, 5).map(lambda n: n == 0),
        "ticks_before": st.integers(0, 3),
        "cancelled_after": st.none() | st.integers(0, 5),
    }
)


class Judge:
    """A batch function that checks each batch it is given, fails on poisoned items and dies once.

    One that is light is called on the event loop too, as soon as it was quick.
    """

    def __init__(self, max_batch: int, death_at: int | None, light: bool) -> None:
        self.max_batch = max_batch
        self.steady = self.light = light
        self.death_at = death_at
        self.calls = 0
        self.answered: list[int] = []
        self.problems: list[str] = []
        self._lock = threading.Lock()

    def make(self) -> Callable[[list[Any]], list[Any]]:
        return self

    def __call__(self, payloads: list[Any]) -> list[Any]:
        with self._lock:
            self.calls += 1
            if self.calls == self.death_at:
                raise InstanceDead("once")
            if len({given["key"] for _, given in payloads}) != 1:
                self.problems.append(f"keys were mixed: {payloads}")
            if sum(given["rows"] for _, given in payloads) > self.max_batch:
                self.problems.append(f"more than {self.max_batch} rows: {payloads}")
            if any(given["poisoned"] for _, given in payloads):
                raise ValueError("poison")
            self.answered.extend(number for number, _ in payloads)
            return [("own", number) for number, _ in payloads]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(arrivals, min_size=1, max_size=25),
    st.integers(1, 2),
    st.sampled_from([0.0, 1.0]),
    st.none() | st.integers(1, 4),
    st.booleans(),
)
def test_whatever_is_interleaved_each_caller_gets_its_own_answer_exactly_once(
    given_arrivals: list[dict[str, Any]], instances: int, max_delay_ms: float, death_at: int | None, light: bool
) -> None:
    judge = Judge(6, death_at, light)

    async def caller(scheduler: Scheduler, number: int, how: dict[str, Any]) -> Any:
        return await scheduler.submit(
            (number, how), rows=how["rows"], key=how["key"], priority=how["priority"], timeout_s=SOON_S, kind=how["key"]
        )

    async def canceller(task: asyncio.Task[Any], ticks: int) -> None:
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()

    async def scenario() -> None:
        scheduler = Scheduler(judge.make, max_batch=6, instances=instances, max_delay_ms=max_delay_ms)
        tasks, cancels = [], []
        for number, how in enumerate(given_arrivals):
            for _ in range(how["ticks_before"]):
                await asyncio.sleep(0)
            tasks.append(asyncio.ensure_future(caller(scheduler, number, how)))
            if how["cancelled_after"] is not None:
                cancels.append(asyncio.ensure_future(canceller(tasks[-1], how["cancelled_after"])))
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*cancels)
        for number, (how, answer) in enumerate(zip(given_arrivals, answers, strict=True)):
            if isinstance(answer, asyncio.CancelledError):
                assert how["cancelled_after"] is not None
            elif how["poisoned"]:
                assert isinstance(answer, ValueError)
            else:
                assert answer == ("own", number)
                assert judge.answered.count(number) == 1
        assert scheduler.pending_rows == 0
        await until(lambda: scheduler.healthy)
        await scheduler.close()

    run(scenario())
    assert judge.problems == []
    assert len(judge.answered) == len(set(judge.answered))  # nothing is computed twice


# --- batches that are sooner done than a thread wakes ------------------------------------------------------------


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is quick takes as long as it may on a machine that does much else."""
    monkeypatch.setattr("penstock.serve.quick._QUICK_S", 0.1)
    monkeypatch.setattr("penstock.serve.quick._SLOW_S", 1.0)


class Steady:
    """A batch function that says in which thread it is called, and takes as long as it is told to."""

    def __init__(self, *, steady: bool = True, light: bool = True) -> None:
        self.steady, self.light = steady, light
        self.takes_s = 0.0
        self.wrong: Any = None

    def __call__(self, payloads: list[Any]) -> list[Any]:
        time.sleep(self.takes_s)
        if self.wrong in payloads:
            raise ValueError(f"{self.wrong} is wrong")
        return [(payload, threading.current_thread() is threading.main_thread()) for payload in payloads]


async def here(scheduler: Scheduler, payload: Any = "x", kind: Any = "k") -> bool:
    """Whether an item is run on the event loop."""
    answered, on_loop = await scheduler.submit(payload, kind=kind)
    assert answered == payload
    return bool(on_loop)


@pytest.mark.usefixtures("unhurried")
def test_a_kind_of_batch_that_was_quick_is_run_on_the_event_loop() -> None:
    async def scenario() -> None:
        scheduler = Scheduler(Steady, max_batch=8)
        assert not await here(scheduler)
        assert await here(scheduler)
        assert not await here(scheduler, kind="other")
        assert not await here(scheduler, kind=None)
        assert not await here(scheduler, kind=None)
        await scheduler.close()

    run(scenario())


class Timed(Steady):
    """The same, in a millisecond: too long for any but a batch that comes alone."""

    def __init__(self, *, lone: bool = True) -> None:
        super().__init__(light=False)
        self.lone, self.takes_s = lone, 1e-3


async def alone(scheduler: Scheduler, count: int = 20) -> list[bool]:
    """Whether items are run on the event loop that come one after the other."""
    found = []
    for _ in range(count):
        found.append(await here(scheduler))
        await asyncio.sleep(1e-3)
    return found


@pytest.mark.parametrize(
    ("lone", "busy_poll_s", "on_loop"),
    [
        pytest.param(True, 1e-3, True, id="it may be"),
        pytest.param(True, 0.0, False, id="nobody asks for it"),
        pytest.param(False, 1e-3, False, id="it may not be"),
    ],
)
def test_a_short_batch_that_comes_alone_is_run_on_the_event_loop(lone: bool, busy_poll_s: float, on_loop: bool) -> None:
    async def scenario() -> None:
        scheduler = Scheduler(lambda: Timed(lone=lone), max_batch=8, busy_poll_s=busy_poll_s, company=Company())
        # Some may take longer than 2 ms on a busy machine.
        assert any((await alone(scheduler))[1:]) is on_loop
        await scheduler.close()

    run(scenario())


def test_short_batches_of_several_who_ask_at_once_are_run_in_threads() -> None:
    async def scenario() -> None:
        scheduler = Scheduler(Timed, max_batch=1, instances=2, busy_poll_s=1e-3)
        assert any(await alone(scheduler))
        for _ in range(10):
            assert not any(await asyncio.gather(here(scheduler, 1), here(scheduler, 2)))
        await scheduler.close()

    run(scenario())


def test_a_model_s_short_batches_are_run_in_threads_while_another_model_computes() -> None:
    async def scenario() -> None:
        company = Company()
        one, other = (Scheduler(Timed, max_batch=8, busy_poll_s=1e-3, company=company) for _ in range(2))
        assert any(await alone(one))
        slow = Timed()
        slow.takes_s = 0.2
        third = Scheduler(lambda: slow, max_batch=8, company=company)
        computing = asyncio.ensure_future(here(third))
        await asyncio.sleep(0.05)
        assert not any(await alone(one))
        assert not any(await alone(other))
        await computing
        for scheduler in (one, other, third):
            await scheduler.close()

    run(scenario())


def test_a_death_on_the_event_loop_has_its_own_words_and_the_batch_is_run_again_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[bool] = []

    class Mortal(Timed):
        def __call__(self, payloads: list[Any]) -> list[Any]:
            calls.append(threading.current_thread() is threading.main_thread())
            if "die" in payloads and not deaths:
                deaths.append(1)
                raise InstanceDead("CUDA: of this")
            return super().__call__(payloads)

    deaths: list[int] = []

    async def scenario() -> None:
        scheduler = Scheduler(Mortal, max_batch=8, busy_poll_s=1e-3)
        while not (await alone(scheduler, 2))[-1]:
            pass
        calls.clear()
        await here(scheduler, "die")
        assert scheduler.restarts == 1
        assert len(calls) == 2
        await until(lambda: scheduler.states == {"busy": 0, "idle": 1, "dead": 0})
        await scheduler.close()

    run(scenario())
    assert calls[0]
    assert "CUDA: of this" in caplog.text


def test_what_is_not_light_is_never_run_on_the_event_loop() -> None:
    async def scenario() -> None:
        scheduler = Scheduler(lambda: Steady(light=False), max_batch=8)
        assert not any([await here(scheduler) for _ in range(5)])
        await scheduler.close()

    run(scenario())


def test_a_kind_of_batch_that_turns_slow_goes_back_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.serve.quick._QUICK_S", 0.1)
    monkeypatch.setattr("penstock.serve.quick._SLOW_S", 0.2)

    async def scenario() -> None:
        function = Steady()
        scheduler = Scheduler(lambda: function, max_batch=8)
        await here(scheduler)
        function.takes_s = 0.3
        assert await here(scheduler)  # which nobody could know
        assert not await here(scheduler)
        function.takes_s = 0.0
        await here(scheduler)
        assert not await here(scheduler)  # for a while, none is
        await scheduler.close()

    run(scenario())


@pytest.mark.usefixtures("unhurried")
def test_a_quick_batch_with_a_bad_row_fails_its_sender_alone() -> None:
    async def scenario() -> None:
        function = Steady()
        scheduler = Scheduler(lambda: function, max_batch=8)
        for count in (1, 4):
            await asyncio.gather(*(here(scheduler, n) for n in range(count)))
        function.wrong = 2
        found = await asyncio.gather(*(here(scheduler, n) for n in range(4)), return_exceptions=True)
        assert [isinstance(answer, ValueError) for answer in found] == [False, False, True, False]
        assert await here(scheduler)
        assert scheduler.healthy
        await scheduler.close()

    run(scenario())


@pytest.mark.usefixtures("unhurried")
def test_quick_batches_leave_the_event_loop_to_others_between_them() -> None:
    async def scenario() -> None:
        scheduler = Scheduler(Steady, max_batch=1)
        await here(scheduler)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        assert all(await asyncio.gather(*(here(scheduler, n) for n in range(100))))
        assert turns >= 100
        task.cancel()
        await scheduler.close()

    run(scenario())


def test_items_that_come_together_are_shared_among_idle_instances() -> None:
    async def scenario() -> None:
        engines = [Engine(), Engine(), Engine()]
        waiting = iter(engines)
        scheduler = Scheduler(lambda: next(waiting), max_batch=8, instances=3)
        await asyncio.gather(*(scheduler.submit(n) for n in range(7)))
        assert sorted(len(batch) for engine in engines for batch in engine.batches) == [2, 2, 3]
        assert sorted(payload for engine in engines for payload in engine.computed) == list(range(7))
        await scheduler.close()

    run(scenario())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 5))
def test_a_share_is_the_first_items_and_no_idle_instance_is_left_with_more(rows: list[int], instances: int) -> None:
    items = [item(number, count) for number, count in enumerate(rows)]
    taken = share(items, instances)
    assert taken == items[: len(taken)]
    assert sum(rows[: len(taken)]) * instances >= sum(rows) > 0
    assert sum(rows[: len(taken) - 1]) * instances < sum(rows)


# --- batches that do not come back -------------------------------------------------------------------------------


class Hanging:
    """Makes functions of which the first hangs on "hang" until it is let go, and any that is made again works."""

    def __init__(self) -> None:
        self.made, self.closed = 0, 0
        self.free = threading.Event()
        self.may_restart = threading.Event()

    def make(self) -> Any:
        self.made += 1
        if self.made > 1:
            assert self.may_restart.wait(SOON_S)
        return self._run

    def _run(self, payloads: list[Any]) -> list[Any]:
        if "hang" in payloads:
            self.free.wait(3 * SOON_S)
        return payloads


def test_a_batch_that_hangs_fails_within_the_limit_and_its_instance_is_replaced() -> None:
    async def scenario() -> None:
        function = Hanging()
        scheduler = Scheduler(function.make, max_batch=8, run_limit_s=0.2)
        assert await scheduler.submit("first") == "first"
        started = time.monotonic()
        found = await asyncio.gather(scheduler.submit("hang"), scheduler.submit("beside"), return_exceptions=True)
        assert time.monotonic() - started < 2
        assert [type(answer) for answer in found] == [Hung, Hung]
        assert not scheduler.healthy
        waiting = await queued(scheduler, "later")
        function.may_restart.set()
        assert await waiting == "later"
        assert scheduler.healthy
        function.free.set()  # what comes back at last is nobody's
        assert await scheduler.submit("last") == "last"
        await scheduler.close()

    run(scenario())


def test_another_instance_goes_on_while_one_hangs() -> None:
    async def scenario() -> None:
        function = Hanging()
        function.may_restart.set()
        scheduler = Scheduler(function.make, max_batch=1, instances=2, run_limit_s=0.3)
        hanging = await queued(scheduler, "hang")
        for number in range(20):
            assert await scheduler.submit(number) == number
        assert not hanging.done()
        with pytest.raises(Hung):
            await hanging
        function.free.set()
        await scheduler.close()

    run(scenario())


def test_a_scheduler_closes_though_a_batch_hangs() -> None:
    async def scenario() -> None:
        function = Hanging()
        scheduler = Scheduler(function.make, max_batch=8, run_limit_s=0.2)
        hanging = await queued(scheduler, "hang")
        await asyncio.sleep(0.05)
        started = time.monotonic()
        closing = asyncio.ensure_future(scheduler.close())
        with pytest.raises(Hung):
            await hanging
        function.may_restart.set()
        await closing
        assert time.monotonic() - started < 5
        function.free.set()

    run(scenario())


def test_what_an_idle_instance_is_about_to_take_does_not_fill_the_queue() -> None:
    async def scenario() -> None:
        engine = Engine()
        scheduler = Scheduler(engine.make, max_batch=2, max_queue_rows=1)
        engine.shut()
        first = [asyncio.ensure_future(scheduler.submit(number)) for number in range(4)]
        await engine.begun()
        await asyncio.sleep(0.01)
        assert scheduler.pending_rows == 1
        engine.open()
        found = await asyncio.gather(*first, return_exceptions=True)
        assert [isinstance(answer, QueueFull) for answer in found] == [False, False, False, True]
        await scheduler.close()

    run(scenario())


# --- deadlines that cannot be met --------------------------------------------------------------------------------


def test_a_deadline_that_batches_are_too_slow_for_is_refused_at_once() -> None:
    async def scenario() -> None:
        function = Steady(light=False)
        function.takes_s = 0.1
        scheduler = Scheduler(lambda: function, max_batch=8)
        for _ in range(3):
            await scheduler.submit("x", kind="k", timeout_s=SOON_S)
        started = time.perf_counter()
        with pytest.raises(Unmeetable, match=r"within the timeout of 0.05 s: 0 rows wait .* takes 0.1"):
            await scheduler.submit("x", kind="k", timeout_s=0.05)
        assert time.perf_counter() - started < 0.05
        assert (await scheduler.submit("x", kind="k", timeout_s=SOON_S))[0] == "x"
        await scheduler.close()

    run(scenario())


def test_what_waits_before_it_counts_for_a_deadline_and_what_goes_after_it_does_not() -> None:
    async def scenario() -> None:
        function = Steady(light=False)
        function.takes_s = 0.1
        scheduler = Scheduler(lambda: function, max_batch=1)
        for _ in range(3):
            await scheduler.submit("x", kind="k")
        before = [asyncio.ensure_future(scheduler.submit(n, kind="k", priority=1)) for n in range(6)]
        await asyncio.sleep(0.01)  # one is under way, five wait
        with pytest.raises(Unmeetable, match="5 rows wait before it"):
            await scheduler.submit("late", kind="k", priority=1, timeout_s=0.4)
        assert (await scheduler.submit("first", kind="k", priority=0, timeout_s=0.4))[0] == "first"
        await asyncio.gather(*before)
        await scheduler.close()

    run(scenario())


def test_where_nothing_is_known_of_its_own_batch_those_before_it_are_told() -> None:
    async def scenario() -> None:
        function = Steady(light=False)
        function.takes_s = 0.1
        scheduler = Scheduler(lambda: function, max_batch=1)
        for _ in range(3):
            await scheduler.submit("x", kind="k")
        before = [asyncio.ensure_future(scheduler.submit(n, kind="k")) for n in range(6)]
        await asyncio.sleep(0.01)  # one is under way, five wait
        with pytest.raises(Unmeetable, match=r"0.4 s: 5 rows wait before it, and those take 0.5\d? s at the least"):
            await scheduler.submit("new", kind="unknown", timeout_s=0.4)
        await asyncio.gather(*before)
        await scheduler.close()

    run(scenario())


def test_nobody_is_refused_for_how_long_it_took_where_the_values_may_tell() -> None:
    async def scenario() -> None:
        function = Steady(steady=False, light=False)
        function.takes_s = 0.1
        scheduler = Scheduler(lambda: function, max_batch=8)
        for _ in range(3):
            await scheduler.submit("x", kind="k")
        function.takes_s = 0.0
        assert (await scheduler.submit("y", kind="k", timeout_s=0.09))[0] == "y"
        await scheduler.close()

    run(scenario())


def test_a_split_of_many_rows_is_refused_for_its_last_part() -> None:
    async def scenario() -> None:
        function = Steady(light=False)
        function.takes_s = 0.05
        scheduler = Scheduler(lambda: function, max_batch=2)
        for _ in range(3):
            await scheduler.submit("x", rows=2, kind="k")
        parts = [asyncio.ensure_future(scheduler.submit(n, rows=2, kind="k", timeout_s=0.17)) for n in range(6)]
        refused = [
            answer for answer in await asyncio.gather(*parts, return_exceptions=True) if isinstance(answer, Unmeetable)
        ]
        assert len(refused) >= 2
        await scheduler.close()

    run(scenario())


@pytest.mark.usefixtures("unhurried")
def test_closing_finishes_what_waits_behind_batches_that_are_run_on_the_event_loop() -> None:
    async def scenario() -> None:
        scheduler = Scheduler(Steady, max_batch=1)
        await here(scheduler)
        assert await here(scheduler)
        waiting = [asyncio.ensure_future(scheduler.submit(number, kind="k")) for number in range(20)]
        await asyncio.sleep(0)
        await scheduler.close()
        assert scheduler.pending_items == 0
        assert [(await answer)[0] for answer in waiting] == list(range(20))

    run(scenario())


def test_one_that_hung_and_comes_back_late_is_closed_and_its_end_is_no_unheard_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    come_back, closed = threading.Event(), threading.Event()

    class Hanging:
        def __call__(self, payloads: list[Any]) -> list[Any]:
            come_back.wait(10)
            raise InstanceDead("it was ended")

        def close(self) -> None:
            closed.set()

    async def scenario() -> None:
        made: Any = iter([Hanging(), Steady()])
        scheduler = Scheduler(lambda: next(made), max_batch=1, run_limit_s=0.05, name="m")
        with pytest.raises(Hung):
            await scheduler.submit("x")
        come_back.set()
        assert await asyncio.to_thread(closed.wait, 10)
        while not scheduler.healthy:
            await asyncio.sleep(0.01)
        assert scheduler.restarts == 1
        await scheduler.close()

    run(scenario())
    assert "never retrieved" not in caplog.text
    assert "m: an instance hangs" in caplog.text
    assert "m: the instance is back after" in caplog.text


class Ended:
    """A reply that remembers how it ended, and what its batch looked at then."""

    def __init__(self) -> None:
        self.item: Any = None
        self.said: list[str] = []

    def done(self) -> bool:
        return bool(self.said)

    def set_result(self, result: Any, /) -> None:
        self.said.append("result")

    def set_exception(self, error: Exception, /) -> None:
        self.said.append(f"{type(error).__name__}{', kept' if self.item.running else ''}")

    def left(self) -> None:
        self.said.append("left")


def test_closing_ends_though_nobody_takes_out_of_the_queue_what_can_be_run_no_more() -> None:
    made = 0

    def make() -> Any:
        nonlocal made
        made += 1
        if made > 1:
            raise RuntimeError("no other")

        def die(items: list[Any]) -> list[Any]:
            raise InstanceDead("dead")

        return die

    async def scenario() -> None:
        scheduler = Scheduler(make, max_batch=1)
        replies = [Ended(), Ended()]
        for reply in replies:
            reply.item = scheduler.enter("x", reply, timeout_s=30)
        await asyncio.sleep(0.05)
        await scheduler.close()
        assert [reply.said for reply in replies] == [["Closed"], ["Closed"]]

    run(scenario())


def test_whoever_waits_for_the_other_half_of_a_failed_batch_keeps_nothing_when_the_first_one_hangs() -> None:
    gate = threading.Event()

    def function(items: list[Any]) -> list[Any]:
        if len(items) > 1:
            raise RuntimeError("not together")
        gate.wait(10)
        return items

    async def scenario() -> None:
        scheduler = Scheduler(lambda: function, max_batch=2, run_limit_s=0.05)
        first, second = Ended(), Ended()
        for reply in (first, second):
            reply.item = scheduler.enter("x", reply, timeout_s=30)
        while not (first.said and second.said):
            await asyncio.sleep(0.01)
        assert (first.said, second.said) == (["Hung, kept"], ["Hung"])
        gate.set()
        while len(first.said) < 2:
            await asyncio.sleep(0.01)
        assert (first.said, second.said) == (["Hung, kept", "left"], ["Hung"])
        await scheduler.close()

    run(scenario())
