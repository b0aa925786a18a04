"""Staying awake: for as long as something is awaited, and no longer than that is allowed."""

from __future__ import annotations

import asyncio
import time

from penstock.serve.awake import Awake


class Counted(Awake):
    """Counts the loop's turns that it has brought about."""

    turns = 0

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self.turns += 1
        super()._turn(loop)


async def turns_later(most_s: float, *awaited_s: float) -> int:
    """How often the loop turns in the second half of 0.2 s from which it is kept awake for something, in turn."""
    awake, loop = Counted(most_s), asyncio.get_running_loop()
    for after in awaited_s:
        awaited = loop.create_future()
        loop.call_later(after, awaited.set_result, None)
        awake.until(awaited)
    await asyncio.sleep(0.1)
    before = awake.turns
    await asyncio.sleep(0.1)
    return awake.turns - before


def test_a_loop_looks_for_what_is_awaited_until_it_is_there() -> None:
    assert asyncio.run(turns_later(10.0, 0.3)) > 50
    assert asyncio.run(turns_later(10.0, 0.01)) == 0


def test_it_sleeps_again_after_the_time_that_is_allowed() -> None:
    assert asyncio.run(turns_later(0.01, 0.3)) == 0


def test_it_sleeps_where_nothing_is_allowed() -> None:
    assert asyncio.run(turns_later(0.0, 0.3)) == 0


def test_what_is_awaited_later_takes_the_place_of_what_was() -> None:
    assert asyncio.run(turns_later(10.0, 0.01, 0.3)) > 50
    assert asyncio.run(turns_later(10.0, 0.3, 0.01)) == 0


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

    assert asyncio.run(run()) > 5


def test_a_loop_that_is_told_to_sleep_does_and_stays_awake_again_when_asked() -> None:
    async def run() -> tuple[int, int]:
        awake, loop = Counted(10.0), asyncio.get_running_loop()
        awake.until(loop.create_future())
        awake.end()
        await asyncio.sleep(0.05)
        asleep = awake.turns
        awake.until(loop.create_future())
        await asyncio.sleep(0.05)
        return asleep, awake.turns - asleep

    asleep, again = asyncio.run(run())
    assert asleep <= 2
    assert again > 50
