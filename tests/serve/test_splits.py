"""Requests of more rows than a batch: their own rows in order, one answer, and no work for nobody."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.serve.errors import RequestError
from penstock.serve.outcomes import Expired
from penstock.serve.scheduler import Scheduler
from penstock.serve.splits import Split

MOST = 4


class Engine:
    """Doubles rows, of which -1 is poison, while it is open; `rows` are those that it computed."""

    def __init__(self, *, opened: bool = True) -> None:
        self.rows: list[float] = []
        self.begun, self._open = threading.Event(), threading.Event()
        if opened:
            self._open.set()

    def open(self) -> None:
        self._open.set()

    def __call__(self, items: list[Any]) -> list[Any]:
        self.begun.set()
        assert self._open.wait(10)
        rows = np.concatenate([item["x"] for item in items])
        if (rows == -1).any():
            raise ValueError("poison")
        self.rows += rows.tolist()
        return [{"y": 2 * item["x"]} for item in items]


class Told:
    """A reply that remembers."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self.times_left = 0
        self.over = asyncio.Event()

    def done(self) -> bool:
        return self.over.is_set()

    def set_result(self, result: Any, /) -> None:
        assert not self.done()
        self.result = result
        self.over.set()

    def set_exception(self, error: Exception, /) -> None:
        assert not self.done()
        self.error = error
        self.over.set()

    def left(self) -> None:
        self.times_left += 1


def begun(scheduler: Scheduler, rows: list[float], told: Told, **about: Any) -> Split:
    parts = [{"x": np.array(rows[start : start + MOST])} for start in range(0, len(rows), MOST)]
    return Split(scheduler, parts, len(rows), told, {"key": "k", **about})


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.sampled_from([1.0, 2.0, 3.0, -1.0]), min_size=5, max_size=15), min_size=1, max_size=5))
def test_each_has_its_own_rows_in_order_or_fails_if_one_of_them_does(requests: list[list[float]]) -> None:
    async def scenario() -> None:
        scheduler = Scheduler(lambda: Engine(), max_batch=MOST, max_queue_rows=1000)
        told = [Told() for _ in requests]
        for rows, reply in zip(requests, told, strict=True):
            begun(scheduler, rows, reply)
        for rows, reply in zip(requests, told, strict=True):
            await asyncio.wait_for(reply.over.wait(), 10)
            if -1.0 in rows:
                assert isinstance(reply.error, ValueError)
            else:
                assert reply.result["y"].tolist() == [2 * row for row in rows]
        await scheduler.close()

    asyncio.run(scenario())


def test_what_is_given_up_leaves_the_queue_and_is_told_once_its_batch_is_over() -> None:
    async def scenario() -> None:
        engine, told = Engine(opened=False), Told()
        scheduler = Scheduler(lambda: engine, max_batch=MOST)
        split = begun(scheduler, [float(row) for row in range(12)], told)
        await asyncio.to_thread(engine.begun.wait, 10)
        split.give_up()
        assert (split.running, scheduler.pending_rows, told.done()) == (True, 0, False)
        engine.open()
        await asyncio.wait_for(told.over.wait(), 10)
        assert isinstance(told.error, RequestError)
        assert (engine.rows, split.running, told.times_left) == ([0.0, 1.0, 2.0, 3.0], False, 0)
        await scheduler.close()

    asyncio.run(scenario())


def test_one_that_expires_over_a_batch_is_told_at_once_and_again_when_the_batch_has_let_go() -> None:
    async def scenario() -> None:
        engine, told = Engine(opened=False), Told()
        scheduler = Scheduler(lambda: engine, max_batch=MOST)
        split = begun(scheduler, [float(row) for row in range(12)], told, timeout_s=0.02)
        await asyncio.wait_for(told.over.wait(), 10)
        assert isinstance(told.error, Expired)
        assert (split.running, told.times_left, scheduler.pending_rows) == (True, 0, 0)
        engine.open()
        await scheduler.close()
        assert (split.running, told.times_left) == (False, 1)

    asyncio.run(scenario())


def test_one_that_does_not_fit_the_queue_takes_no_place_in_it() -> None:
    async def scenario() -> None:
        engine = Engine(opened=False)
        scheduler = Scheduler(lambda: engine, max_batch=MOST, max_queue_rows=6)
        plug = asyncio.ensure_future(scheduler.submit({"x": np.zeros(1)}, key="k"))
        await asyncio.to_thread(engine.begun.wait, 10)
        try:
            begun(scheduler, [1.0] * 8, Told())
        except Exception as error:
            assert "the queue holds 6" in str(error)  # noqa: PT017
        else:
            raise AssertionError("it was taken")
        assert scheduler.pending_rows == 0
        engine.open()
        await plug
        await scheduler.close()
        assert engine.rows == [0.0]

    asyncio.run(scenario())


def test_the_rows_of_one_that_is_over_are_held_by_nobody() -> None:
    async def scenario() -> None:
        scheduler, told = Scheduler(lambda: Engine(), max_batch=MOST), Told()
        rows = np.arange(12.0)
        gone = weakref.ref(rows)
        parts = [{"x": rows[start : start + MOST]} for start in range(0, 12, MOST)]
        split = Split(scheduler, parts, 12, told, {"key": "k"})
        del parts, rows, split
        await asyncio.wait_for(told.over.wait(), 10)
        await scheduler.submit({"x": np.zeros(1)}, key="k")  # and the thread has been given something else
        assert gone() is None
        await scheduler.close()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
