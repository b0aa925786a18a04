"""Leases: a lane is one caller's at a time, none is lost, and the one that is asked for by name goes there first."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.leases import Free


class Lane:
    """Anything that is itself."""


def filled(count: int) -> tuple[Free, list[Any]]:
    free = Free()
    lanes: list[Any] = [Lane() for _ in range(count)]
    for lane in lanes:
        free.give(lane)
    return free, lanes


def drained(free: Free) -> list[Any]:
    """Whatever nobody has, taken."""
    found: list[Any] = []
    with suppress(queue.Empty):
        while True:
            found.append(free.take(0))
    return found


def until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 10
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.001)


def test_the_lane_used_last_is_handed_out_first() -> None:
    free, (first, second) = filled(2)
    assert free.take() is second
    free.give(second)
    assert free.take() is second
    assert free.take() is first


def test_whoever_waits_no_longer_than_so_long_is_told_that_there_is_none() -> None:
    free, _ = filled(1)
    free.take()
    with pytest.raises(queue.Empty):
        free.take(0.01)


def test_a_certain_lane_that_is_free_is_taken_at_once_and_no_other() -> None:
    free, (first, second) = filled(2)
    assert free.take_this(first, 0)
    assert drained(free) == [second]


def test_a_certain_lane_that_stays_in_use_is_not_had_and_not_lost() -> None:
    free, (first, second) = filled(2)
    assert free.take_this(first, 0)
    assert not free.take_this(first, 0.01)
    free.give(first)
    assert drained(free) == [first, second]


def test_a_certain_lane_goes_to_whoever_asked_for_it_before_all_who_wait() -> None:
    free, (lane,) = filled(1)
    free.take()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(free.take, 10) for _ in range(3)]
        asked = pool.submit(free.take_this, lane, 10)
        until(lambda: free._wanted is lane)
        free.give(lane)
        assert asked.result(10)
        assert not any(other.done() for other in waiting)
        free.give(lane)
        for served in as_completed(waiting):  # and then it goes round
            free.give(served.result())
        assert drained(free) == [lane]


def test_another_lane_is_not_kept_from_those_who_wait() -> None:
    free, (first, second) = filled(2)
    assert drained(free) == [second, first]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(free.take_this, first, 10)
        until(lambda: free._wanted is first)
        free.give(second)
        assert free.take(10) is second
        free.give(first)
        assert asked.result(10)


def test_whoever_asked_for_a_lane_is_hurried() -> None:
    free, (lane,) = filled(1)
    free.take()
    with ThreadPoolExecutor(1) as pool:
        started = time.monotonic()
        asked = pool.submit(free.take_this, lane, 60)
        until(lambda: free._wanted is lane)
        free.hurry()
        assert not asked.result(10)
        assert time.monotonic() - started < 10
    free.give(lane)
    assert drained(free) == [lane]


def test_all_who_wait_are_told_when_there_will_be_none() -> None:
    free, _ = filled(1)
    free.take()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(free.take, 10) for _ in range(3)]
        free.close()
        for other in waiting:
            with pytest.raises(RuntimeError, match="closed"):
                other.result(10)


@given(st.lists(st.tuples(st.sampled_from(["take", "ask", "give"]), st.integers(0, 3)), max_size=60))
def test_whatever_is_done_one_after_another_each_lane_is_free_or_held(steps: list[tuple[str, int]]) -> None:
    free, lanes = filled(4)
    held: list[Any] = []
    for what, place in steps:
        if what == "take" and len(held) < 4:
            held.append(free.take(0))
        elif what == "ask":
            wanted = lanes[place]
            assert free.take_this(wanted, 0) == (wanted not in held)
            held += [wanted] if wanted not in held else []
        elif what == "give" and held:
            free.give(held.pop(place % len(held)))
        assert len(set(held)) == len(held)
    assert set(drained(free)) == set(lanes) - set(held)


@pytest.fixture
def often(take_turns: Callable[[float], None]) -> None:
    """Threads take turns a thousand times as often."""
    take_turns(5e-6)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_among_threads_no_lane_is_lost_or_held_twice(count: int) -> None:
    free, lanes = filled(count)
    held: set[Any] = set()
    twice: list[Any] = []
    done = threading.Event()

    def use(lane: Any) -> None:
        if lane in held:
            twice.append(lane)
        held.add(lane)
        if random.random() < 0.1:
            time.sleep(0)
        held.discard(lane)
        free.give(lane)

    def caller() -> int:
        runs = 0
        while not done.is_set():
            use(free.take(10))
            runs += 1
        return runs

    def asker() -> int:
        """There is one alone, as in a runner."""
        had = 0
        while not done.is_set():
            lane = random.choice(lanes)
            if free.take_this(lane, random.choice([0, 1e-6, 1e-4, 1e-2])):
                use(lane)
                had += 1
        return had

    with ThreadPoolExecutor(5) as pool:
        runs = [pool.submit(work) for work in (*[caller] * 4, asker)]
        time.sleep(0.7)
        done.set()
        assert all(run.result(20) > 0 for run in runs)
    assert not twice
    assert sorted(map(id, drained(free))) == sorted(map(id, lanes))


def test_a_lane_that_nobody_asks_for_any_more_is_free() -> None:
    """Whoever asked gave up when it was just to be handed over."""
    free, (lane,) = filled(1)
    free.take()
    free._wanted = lane

    @contextmanager
    def locked() -> Iterator[None]:
        free._wanted = None
        yield

    free._lock = locked()  # type: ignore[assignment]
    free.give(lane)
    assert drained(free) == [lane]


class Late(queue.SimpleQueue):  # type: ignore[type-arg]
    """What is handed over comes just after the wait for it was given up."""

    def __init__(self, *happenings: Callable[[], None]) -> None:
        self.happenings = happenings

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if timeout is None:
            return super().get(block)
        for happening in self.happenings:
            happening()
        raise queue.Empty


@pytest.mark.parametrize(
    "hurried",
    [
        False,
        True,
    ],
)
def test_a_lane_that_is_handed_over_just_too_late_is_had_all_the_same(hurried: bool) -> None:
    free, (lane,) = filled(1)
    free.take()
    free._handed = Late(*([free.hurry] if hurried else []), lambda: free.give(lane))
    assert free.take_this(lane, 0.01)
    free.give(lane)
    assert drained(free) == [lane]
