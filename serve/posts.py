"""A post: a batch function, and the thread that calls it; held to a limit, given another function, let go.

Behind the batch that it is at, a post may be given the next one, which its thread begins without asking anybody: until
the event loop has heard of the first one's end and woken the thread again, what computes would have nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.laid import Memory
from penstock.serve.batches import Item
from penstock.serve.outcomes import Hung
from penstock.serve.threads import CallThread

log = logging.getLogger(__name__)
BatchFunction = Callable[[list[Any]], list[Any]]


class Ran(NamedTuple):
    """A batch that was run: its items, their results, when it began, of `time.perf_counter`, and its seconds."""

    items: Sequence[Item]
    results: list[Any]
    began: float
    compute_s: float


class Next:
    """The batch behind the one that a post is at. It is taken once: by the thread to run it, or by the loop, back."""

    call: asyncio.Future[Ran | None]

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self._there, self._back = [True], False

    def take(self) -> bool:
        """Take it, for the thread; whether it was there."""
        try:
            return self._there.pop()  # whoever comes second finds nothing
        except IndexError:
            return False

    def take_back(self) -> bool:
        """Take it, for the loop; whether it is the loop's."""
        self._back = self._back or self.take()
        return self._back


class Post:
    """One batch function and the single thread that calls it, while the event loop does not.

    What a function says of itself (`well`, `gone`, `steady`, `light`, `lone`, `inside`) and can do beside (`settled`,
    `kill`, `close`) is asked of it where it has it; see `penstock.serve.instances`.
    """

    def __init__(self, function: BatchFunction) -> None:
        self.function = function
        # When its call under way began, of `time.monotonic`, and when the last one did.
        self.busy_since: float | None = None
        self.began = 0.0
        self.next: Next | None = None
        self._followed = False
        # The thread whose last batch has not come to an end, or not to a good one. One that was left may come back.
        self._failed: CallThread | None = None
        self._call: asyncio.Future[Any] | None = None
        self._thread = CallThread("penstock-instance")

    def says(self, name: str, otherwise: bool) -> bool:
        """What the function says of itself."""
        return bool(getattr(self.function, name, otherwise))

    @property
    def takes_next(self) -> bool:
        """Whether it is at a batch that another may follow, and none does yet."""
        return self._followed and self.next is None and self._call is not None and not self._call.done()

    def overtaken_by(self, began: float) -> bool:
        """Told that a batch has ended which began then; whether its own began before, which no other follows then."""
        overtaken = self._call is not None and self.began < began
        self._followed = self._followed and not overtaken
        return overtaken

    def run_here(self, items: Sequence[Item]) -> Ran:
        """Run a batch in the thread of whoever calls."""
        began = time.perf_counter()
        results = self.function([item.payload for item in items])
        if len(results) != len(items):
            raise RuntimeError(f"the batch function gave {len(results)} results for {len(items)} items")
        return Ran(items, results, began, time.perf_counter() - began)

    def begin(self, items: Sequence[Item], limit_s: float | None, *, followed: bool = False) -> asyncio.Future[Any]:
        """The same in its own thread, begun now.

        Args:
            items: of the batch.
            limit_s: seconds that it may take.
            followed: whether it may be given the next one before it is done.

        Raises:
            Hung: from what is awaited: it takes longer than the limit. The function is ended if it can be, and left to
                its thread.
        """
        call: asyncio.Future[Any] = self._thread.call(self._run_there, items, self._thread)
        self._followed = followed
        self._watch(call, items, limit_s)
        return call

    def follow(self, items: Sequence[Item]) -> None:
        """Have a batch run right behind the one that it is at, if that comes to an end; else it is to be taken back."""
        self.next = Next(items)
        self.next.call = self._thread.call(self._run_next, self.next, self._thread)

    def take_back(self) -> Sequence[Item]:
        """The items of the next batch, which is not run then; none if there is no such batch, or it has begun."""
        if self.next is None or not self.next.take_back():
            return ()
        held, self.next = self.next, None
        items, held.items = held.items, ()  # the thread comes to it only after what it is at
        return items

    def go_on(self, limit_s: float | None) -> Next | None:
        """The next batch, now that the one before it is done; its limit counts from now."""
        held, self.next = self.next, None
        if held is not None:
            self._watch(held.call, held.items, limit_s)
        return held

    def _run_there(self, items: Sequence[Item], thread: CallThread) -> Ran:
        self._failed = thread
        ran = self.run_here(items)
        if self._failed is thread:
            self._failed = None
        return ran

    def _run_next(self, held: Next, thread: CallThread) -> Ran | None:
        if self._failed is thread or not held.take():
            return None
        wanted = [item for item in held.items if not item.reply.done()]
        return self._run_there(wanted, thread) if wanted else Ran((), [], time.perf_counter(), 0.0)

    def _watch(self, call: asyncio.Future[Any], items: Sequence[Item], limit_s: float | None) -> None:
        self._call, self.busy_since = call, time.monotonic()
        self.began = self.busy_since
        call.add_done_callback(self._note_end)
        if limit_s is not None:
            timer = asyncio.get_running_loop().call_later(limit_s, self._hang, call, items, limit_s)
            call.add_done_callback(lambda _: timer.cancel())

    def _note_end(self, call: asyncio.Future[Any]) -> None:
        if call is self._call:  # it may be told late, when the next has begun
            self.busy_since = self._call = None

    def _hang(self, call: asyncio.Future[Any], items: Sequence[Item], limit_s: float) -> None:
        if call.done() or (self.next is not None and not self.next.take_back()):  # its end is about to be told
            return
        if (kill := getattr(self.function, "kill", None)) is not None:
            kill()
        back = self._thread.call(_close, self.function)  # should the call come back after all
        back.add_done_callback(lambda _: _leave(items))
        self._thread.abandon()
        self.function, self._thread = _nothing, CallThread("penstock-instance")
        call.set_exception(Hung(f"a batch did not come back within {limit_s:g} s (--run-limit-s)"))

    def prepare(self, memory: Memory) -> None:
        """Tell the function of memory that requests will lie in, where it wants to know."""
        prepare = getattr(self.function, "prepare", None)
        if prepare is not None:
            prepare(memory)

    def settled(self, timeout_s: float) -> bool:
        """Wait until what the function still prepares in the background is done; False if that takes longer."""
        wait = getattr(self.function, "settled", None)
        return wait is None or bool(wait(max(0.0, timeout_s)))

    def release(self) -> asyncio.Future[Any]:
        """Give back what the function holds, once the thread has come to it."""
        return self._thread.call(self._let_go)

    def replace(self, make: Callable[[], BatchFunction]) -> asyncio.Future[Any]:
        """Give it a new function, made in its thread; also if nobody waits any more: it is let go in the end."""
        return self._thread.call(self._take, make)

    def end(self) -> None:
        """Let the thread end after what it has been given."""
        self._thread.end()

    def _take(self, make: Callable[[], BatchFunction]) -> None:
        self.function = make()

    def _let_go(self) -> None:
        _close(self.function)


def _leave(items: Sequence[Item]) -> None:
    for item in items:
        item.leave()


def _close(function: BatchFunction) -> None:
    close = getattr(function, "close", None)
    if close is not None:
        try:
            close()
        except Exception as error:  # what is dead may not close well either
            log.warning("a batch function could not be closed: %s", error)


def _nothing(payloads: list[Any]) -> list[Any]:
    """In the place of a function that hangs."""
    raise RuntimeError("the instance is being replaced")
