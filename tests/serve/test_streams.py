"""Streams of requests: their order, how many are under way, and that nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.serve.drain import Calls
from penstock.serve.streams import MOST, Stream


class Client:
    """Sends numbers, and has its answers computed once they are let go; `left` ends its reading."""

    def __init__(self, count: int, *, stays: bool = False) -> None:
        self.count, self.stays = count, stays
        self.go, self.counted = asyncio.Event(), Calls()
        self.begun: list[int] = []
        self.stopped: list[int] = []
        self.answers: list[int] = []
        self.left = False
        self.stream = Stream(self.requests(), self.compute, self.take, self.counted)

    async def requests(self) -> AsyncIterator[int]:
        for number in range(self.count):
            yield number
        if self.stays:
            await asyncio.Event().wait()

    async def compute(self, number: int) -> int:
        self.begun.append(number)
        try:
            await self.go.wait()
            await asyncio.sleep(0.001 * (number % 3))
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # as one that has to tidy up
            self.stopped.append(number)
            raise
        return number

    async def take(self, answer: int) -> None:
        if self.left:
            raise ConnectionError
        self.answers.append(answer)

    async def run(self) -> asyncio.Task[None]:
        """The stream, once it has taken what it takes at once."""
        running = asyncio.ensure_future(self.stream.run())
        while len(self.begun) < min(self.count, MOST):
            await asyncio.sleep(0)
        return running


def no_task_is_left() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


def test_all_are_answered_in_their_order_and_so_many_at_once() -> None:
    async def scenario() -> None:
        client = Client(MOST + 40)
        running = await client.run()
        await asyncio.sleep(0.01)
        assert len(client.begun) == MOST
        client.go.set()
        await running
        assert client.answers == list(range(MOST + 40))
        assert client.stream.whole
        assert client.counted == Calls(begun=MOST + 40, answered=MOST + 40)

    asyncio.run(scenario())


@pytest.mark.parametrize("count", [0, 3, MOST + 40])
def test_a_stream_that_is_ended_answers_what_was_read_and_is_not_whole(count: int) -> None:
    async def scenario() -> None:
        client = Client(count, stays=True)
        running = await client.run()
        client.stream.end()
        client.go.set()
        await running
        assert len(client.begun) >= min(count, MOST)
        assert client.answers == client.begun
        assert (client.counted.owed, client.counted.gone, client.stream.whole) == (0, 0, False)
        assert no_task_is_left()

    asyncio.run(scenario())


@pytest.mark.parametrize("count", [3, MOST + 40])
def test_what_a_client_left_is_stopped_to_its_end_before_the_call_is_over(count: int) -> None:
    async def scenario() -> None:
        client = Client(count, stays=True)
        running = await client.run()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert sorted(client.stopped) == client.begun
        assert client.counted.gone == client.counted.begun == len(client.begun)
        assert no_task_is_left()

    asyncio.run(scenario())


def test_a_client_that_takes_no_answer_has_left() -> None:
    async def scenario() -> None:
        client = Client(3, stays=True)
        running = await client.run()
        client.left = True
        client.go.set()
        await running
        assert client.counted == Calls(begun=3, gone=3)
        assert no_task_is_left()

    asyncio.run(scenario())


def test_what_the_server_drops_is_owed() -> None:
    async def scenario() -> None:
        client = Client(2, stays=True)

        async def fails(number: int) -> int:
            raise ArithmeticError

        client.stream = Stream(client.requests(), fails, client.take, client.counted)
        with pytest.raises(ArithmeticError):
            await client.stream.run()
        assert client.counted.gone == 0
        assert client.counted.owed > 0
        assert no_task_is_left()

    asyncio.run(scenario())
