"""Deadlines on one timer: each is told at its moment, in order, unless it was over before."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.serve.deadlines import Deadlines, over


class Held:
    """What a deadline is of."""


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=40))
def test_whoever_is_late_is_told_in_order_and_whoever_is_over_is_not(asked: list[tuple[int, bool]]) -> None:
    async def run() -> list[tuple[int, float]]:
        loop, told = asyncio.get_running_loop(), []
        began = loop.time()
        deadlines = Deadlines(lambda number: told.append((number, loop.time() - began)))
        entries = [deadlines.add(began + ms / 1000, number, number) for number, (ms, _) in enumerate(asked)]
        for entry, (_, ends) in zip(entries, asked, strict=True):
            if ends:
                over(entry)
        await asyncio.sleep(0.04)
        return told

    told = asyncio.run(run())
    late = [(ms, number) for number, (ms, ends) in enumerate(asked) if not ends]
    assert [number for number, _ in told] == [number for _, number in sorted(late)]
    assert all(at >= asked[number][0] / 1000 for number, at in told)


def test_what_is_over_is_not_kept_and_what_is_past_is_not_gathered() -> None:
    async def run() -> None:
        deadlines = Deadlines(lambda _: None)
        held = Held()
        gone = weakref.ref(held)
        over(deadlines.add(time.monotonic() + 30, 0, held))
        del held
        gc.collect()
        assert gone() is None
        for number in range(10_000):
            over(deadlines.add(time.monotonic() + 30, number, number))
        assert len(deadlines._heap) < 1000

    asyncio.run(run())


def test_one_that_is_earlier_than_all_others_does_not_wait_for_them() -> None:
    async def run() -> list[int]:
        loop, told = asyncio.get_running_loop(), []
        deadlines = Deadlines(told.append)
        deadlines.add(loop.time() + 60, 0, 0)
        deadlines.add(loop.time() + 0.01, 1, 1)
        await asyncio.sleep(0.03)
        return told

    assert asyncio.run(run()) == [1]


def test_nobody_is_told_after_the_end() -> None:
    async def run() -> list[int]:
        told: list[int] = []
        deadlines = Deadlines(told.append)
        deadlines.add(asyncio.get_running_loop().time() + 0.01, 0, 0)
        deadlines.close()
        await asyncio.sleep(0.03)
        return told

    assert asyncio.run(run()) == []
