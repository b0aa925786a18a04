"""Threads that an event loop's calls are made in."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from penstock.serve.threads import CallThread, any_stuck


def test_calls_are_made_one_after_the_other_in_one_other_thread() -> None:
    async def scenario() -> None:
        thread, seen = CallThread("x"), []

        def note(number: int) -> int:
            seen.append((number, threading.current_thread().name))
            return number

        assert await asyncio.gather(*(thread.call(note, number) for number in range(20))) == list(range(20))
        assert seen == [(number, "x") for number in range(20)]
        thread.end()

    asyncio.run(scenario())


def test_what_a_call_raises_is_raised_where_it_is_awaited() -> None:
    async def scenario() -> None:
        thread = CallThread("x")
        with pytest.raises(ZeroDivisionError):
            await thread.call(lambda: 1 / 0)
        assert await thread.call(int, "7") == 7
        thread.end()

    asyncio.run(scenario())


def test_the_answer_of_a_call_that_nobody_awaits_any_longer_is_dropped() -> None:
    async def scenario() -> None:
        thread = CallThread("x")
        late = thread.call(time.sleep, 0.05)
        late.cancel()
        assert await thread.call(int, "7") == 7
        thread.end()

    asyncio.run(scenario())


def test_a_process_ends_though_a_call_never_does() -> None:
    code = (
        "import asyncio, threading\nfrom penstock.serve.threads import CallThread\n"
        "async def main():\n    CallThread('x').call(threading.Event().wait)\n    await asyncio.sleep(0.1)\n"
        "asyncio.run(main())\nprint('ended')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_a_thread_that_was_abandoned_is_stuck_until_its_call_returns() -> None:
    async def scenario() -> None:
        thread, over = CallThread("x"), threading.Event()
        thread.call(over.wait)
        assert not any_stuck()
        thread.abandon()
        assert any_stuck()
        over.set()
        until = time.monotonic() + 10
        while any_stuck():
            assert time.monotonic() < until
            await asyncio.sleep(0.01)

    asyncio.run(scenario())
