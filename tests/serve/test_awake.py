"""Staying awake: for as long as something is awaited, and no longer than that is allowed."""

from __future__ import annotations

import asyncio
import time

from penstock.serve.awake import Awake


async def share_of_a_core(most_s: float, *awaited_s: float) -> float:
    """How much of a core the loop takes in the 0.2 s from which it is kept awake for something, in turn."""
    awake, loop = Awake(most_s), asyncio.get_running_loop()
    wall, used = time.perf_counter(), time.thread_time()
    for after in awaited_s:
        awaited = loop.create_future()
        loop.call_later(after, awaited.set_result, None)
        awake.until(awaited)
    await asyncio.sleep(0.2)
    return (time.thread_time() - used) / (time.perf_counter() - wall)


def test_a_loop_looks_for_what_is_awaited_until_it_is_there() -> None:
    assert asyncio.run(share_of_a_core(10.0, 0.2)) > 0.4
    assert asyncio.run(share_of_a_core(10.0, 0.01)) < 0.3


def test_it_sleeps_again_after_the_time_that_is_allowed() -> None:
    assert asyncio.run(share_of_a_core(0.01, 0.2)) < 0.3


def test_it_sleeps_where_nothing_is_allowed() -> None:
    assert asyncio.run(share_of_a_core(0.0, 0.2)) < 0.3


def test_what_is_awaited_later_takes_the_place_of_what_was() -> None:
    assert asyncio.run(share_of_a_core(10.0, 0.01, 0.2)) > 0.4
    assert asyncio.run(share_of_a_core(10.0, 0.2, 0.01)) < 0.3


def test_others_on_the_loop_have_their_turns() -> None:
    async def run() -> int:
        awake, loop, seen = Awake(10.0), asyncio.get_running_loop(), 0
        awaited = loop.create_future()
        awake.until(awaited)
        until = time.perf_counter() + 0.1
        while time.perf_counter() < until:
            await asyncio.sleep(0.001)
            seen += 1
        awaited.cancel()
        return seen

    assert asyncio.run(run()) > 10
