"""Dynamic batching. The scheduler knows nothing of models or HTTP: it is given a function over a list of items.

Deciding is `choose`, a pure function over the queue; doing is `Scheduler`. An idle instance is given what the event
loop has received by then, so a lone request never waits. With `max_delay_ms`, items that came while every instance was
busy may wait that long for a fuller batch even after one falls free; at its default of 0 they are taken as soon as one
does. Batches run in a thread of their instance, but for those that are done sooner than a thread wakes, and short ones
that come alone: see `penstock.serve.quick`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, Protocol

from penstock.laid import Memory
from penstock.runtimes import InstanceDead, InstanceLost
from penstock.serve.awake import Awake
from penstock.serve.batches import LAST, Item, Reply, choose, share
from penstock.serve.curves import Curve
from penstock.serve.deadlines import Deadlines
from penstock.serve.outcomes import Closed, Expired, Hung
from penstock.serve.posts import BatchFunction, Next, Post, Ran
from penstock.serve.queues import Queue
from penstock.serve.quick import Company, Lone, Quick
from penstock.serve.times import Times

log = logging.getLogger(__name__)

_LOOK_S = 0.25
# A runner that takes longer to close is left to itself.
_RELEASE_S = 30.0
_BACKOFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class Observer(Protocol):
    """Told what the scheduler does; every call comes on the event loop."""

    def batch(self, rows: int, waits_s: list[float], compute_s: float) -> None: ...

    def closed(self, reason: str) -> None: ...


class Scheduler:
    """Collects items from many callers into batches for one or more instances of a function.

    Args:
        make: makes a batch function, ready to be called; called for each instance now, and again when one dies.
        max_batch: rows in one batch at most.
        max_queue_rows: rows that may wait; more are refused.
        max_delay_ms: see the module's text.
        instances: how many batches may be under way at once.
        run_limit_s: seconds after which a batch is held to hang, and its instance is replaced; None waits for ever.
        stall_s: seconds after which an instance that is still at its batch counts as unhealthy; None waits for ever.
        observer: told of batches and of the queue.
        name: what the log calls it.
        busy_poll_s: seconds for which the event loop stays awake at most for a batch that runs alone in another
            process. One that is short, of a function that is `lone`, it then runs itself, and stays awake for the next:
            to be asked for where somebody ends a process that does not answer, as a device may hang.
        company: of all schedulers of the event loop; without it there is no other.
    """

    def __init__(
        self,
        make: Callable[[], BatchFunction],
        *,
        max_batch: int,
        max_queue_rows: int = 1024,
        max_delay_ms: float = 0.0,
        instances: int = 1,
        run_limit_s: float | None = None,
        stall_s: float | None = None,
        observer: Observer | None = None,
        name: str = "",
        busy_poll_s: float = 0.0,
        company: Company | None = None,
    ) -> None:
        self._name = f"{name}: " if name else ""
        self.restarts = 0
        self._run_limit_s, self._stall_s = run_limit_s, stall_s
        self.max_batch = max_batch
        self._make = make
        self._max_delay_s = max_delay_ms / 1000
        self._observer = observer
        self._instances = [Post(make()) for _ in range(instances)]
        self._free = list(self._instances)
        self._queue = Queue(max_queue_rows, max_batch)
        # Instances that were given the batch behind theirs, and who of it goes last.
        self._handed: dict[Post, int] = {}
        self._dead = 0
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._called = False
        self._company = company or Company()
        self._quick, self._lone = Quick(), Lone(self._company)
        self._curve, self._awake, self._busy_polls = Curve(), Awake(busy_poll_s), busy_poll_s > 0
        self._deadlines = Deadlines(self._expire)
        self._closed = False

    @property
    def healthy(self) -> bool:
        """Whether every instance is there to work, and none has been at one batch for too long."""
        well = all(instance.says("well", otherwise=True) for instance in self._instances)
        return well and self._dead == 0 and not self._closed and not self._stalled

    @property
    def _stalled(self) -> bool:
        began = [held.busy_since for held in self._instances if held.busy_since is not None]
        return self._stall_s is not None and bool(began) and time.monotonic() - min(began) > self._stall_s

    @property
    def instances(self) -> int:
        """How many batches may be under way at once."""
        return len(self._instances)

    @property
    def threads(self) -> int | None:
        """Threads of the first instance, where it says."""
        found: int | None = getattr(self._instances[0].function, "threads", None) if self._instances else None
        return found

    @property
    def closed(self) -> bool:
        """Whether no more work is taken."""
        return self._closed

    @property
    def idle(self) -> bool:
        """Whether an instance is free, and nothing waits for one."""
        return bool(self._free) and not self._queue.items

    @property
    def max_queue_rows(self) -> int:
        """Rows that may wait."""
        return self._queue.max_rows

    @property
    def pending_rows(self) -> int:
        """Rows that wait for an instance."""
        return self._queue.rows

    @property
    def pending_items(self) -> int:
        """Items that wait for an instance."""
        return len(self._queue.items) + sum(len(post.next.items) for post in self._handed if post.next is not None)

    @property
    def states(self) -> dict[str, int]:
        """How many instances compute, wait for work, and are dead and being replaced."""
        idle, dead = len(self._free), self._dead
        return {"busy": len(self._instances) - idle - dead, "idle": idle, "dead": dead}

    def start(self) -> None:
        """See to instances that die while they are idle too, from now on; to be called on the event loop."""
        for instance in [instance for instance in self._free if instance.says("gone", otherwise=False)]:
            log.error("%san instance died while it was idle; it is restarted", self._name)
            self._free.remove(instance)
            self._keep(self._revive(instance))
        self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self.start)

    async def submit(self, payload: Any, **about: Any) -> Any:
        """Queue an item and wait for its own result. Cancelling the wait takes the item out of the queue.

        Args:
            payload: what the batch function is given for this item.
            about: as `enter` has it.

        Raises:
            As `enter`; Expired: too late; Closed: shut down meanwhile; or what the batch function raised for it.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        item = self.enter(payload, future, **about)
        try:
            return await future
        finally:
            self.withdraw(item)
            # What failed is held by the future and holds this frame: a ring, which would keep what was sent.
            del future, item

    def enter(
        self,
        payload: Any,
        reply: Reply,
        *,
        rows: int = 1,
        key: Hashable = None,
        priority: int = 0,
        timeout_s: float | None = None,
        times: Times | None = None,
        kind: Hashable = None,
    ) -> Item:
        """Queue an item, whose end is told to `reply`; to be called on the event loop.

        Args:
            payload: what the batch function is given for this item.
            reply: told the item's own result, or the error that it met.
            rows: how many rows it counts for, 1 to `max_batch`.
            key: items share a batch only with items of an equal key.
            priority: lower goes first; first come, first served within one. From `LAST` on it gives way to
                others, shares no batch, and is never run on the event loop.
            timeout_s: seconds until the answer is of no more use.
            times: told how long the item waited, and how long its batch was computed, once there is an answer.
            kind: what batches of as many rows take alike long by, if anything.

        Raises:
            QueueFull: no room; Unmeetable: it would be too late; Closed: shutting down.
        """
        if not 1 <= rows <= self.max_batch:
            raise ValueError(f"rows is {rows}; it must be from 1 to max_batch, {self.max_batch}")
        if self._closed:
            raise Closed("the server is shutting down; send the request elsewhere")
        if self._queue.rows + rows > self._queue.max_rows:
            self._queue.admit(rows, len(self._free) * self.max_batch if self._timer is None else 0)
        if priority >= LAST:
            key, kind = object(), None
        now, urgent, number = asyncio.get_running_loop().time(), bool(self._free), next(self._numbers)
        item = Item(payload, rows, key, priority, now, urgent, reply, number, times, kind)
        if timeout_s is not None:
            self._queue.meet(item, timeout_s, self._curve, len(self._instances))
            item.deadline, item.timeout_s = self._deadlines.add(now + timeout_s, number, item), timeout_s
        if self._handed and priority < max(self._handed.values()):
            self._recall()
        if self._busy_polls:
            self._company.entered(waiting=bool(self._queue.items))
        self._queue.enter(item)
        if self._free or self._queue.rows >= self.max_batch:  # under load most come where there is nothing to do
            self._soon()
        return item

    def withdraw(self, item: Item) -> None:
        """Take an item out that nobody waits for any more; one that is computed by now is not stopped."""
        item.withdraw()
        if self.waits(item):
            self._queue.discard(item)

    def waits(self, item: Item) -> bool:
        """Whether no batch with it has begun; it is in the queue then, from which it may be taken out."""
        if item.running and any(post.next is not None and item in post.next.items for post in self._handed):
            self._recall()
            self._soon()
        return item.queued

    def _expire(self, item: Item) -> None:
        waits = self.waits(item)
        if item.times is not None:
            item.times.late(time.perf_counter() - item.entered, queued=waits)
        self._queue.discard(item)
        item.fail(Expired(f"no answer within the timeout of {item.timeout_s:g} s"))

    def _soon(self) -> None:
        """Dispatch once the event loop has taken in what has come by now: it may fill one batch."""
        if not self._called and (self._free or self._next_post is not None):
            self._called = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    @property
    def _next_post(self) -> Post | None:
        """Of the instances that may be given the batch behind theirs the one that began first; None if none is full."""
        if self._queue.rows - self._queue.handed < self.max_batch or len(self._handed) == len(self._instances):
            return None
        return min((post for post in self._instances if post.takes_next), key=lambda post: post.began, default=None)

    def _hand(self) -> None:
        """Give instances the batch behind theirs, where it is full by now: they need not wait for the loop then."""
        while (post := self._next_post) is not None:
            choice = choose(self._queue.items, self.max_batch, asyncio.get_running_loop().time(), self._max_delay_s)
            if choice.reason != "full" or (last := max(item.priority for item in choice.items)) >= LAST:
                return
            self._queue.hand(choice.items)
            for item in choice.items:
                item.running = True
            self._handed[post] = last
            post.follow(choice.items)

    def _recall(self) -> None:
        """Put the batches back that instances have not begun: one is free for them, or somebody goes before them."""
        for post in list(self._handed):
            items = post.take_back()
            if post.next is None:
                del self._handed[post]
            self._queue.begun(items)
            for item in _wanted(items):
                item.running = False
                self._queue.enter(item)

    def _dispatch(self) -> None:
        """Give every free instance a batch, as long as there is one to give."""
        self._called = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        if self._free:
            self._recall()
        while self._free and self._queue.items:
            choice = choose(self._queue.items, self.max_batch, loop.time(), self._max_delay_s)
            if not choice.items:
                assert choice.look_again is not None
                self._timer = loop.call_at(choice.look_again, self._dispatch)
                return
            items = share(choice.items, len(self._free))
            if self._observer is not None:
                self._observer.closed(choice.reason if len(items) == len(choice.items) else "shared")
            self._queue.leave(items)
            for item in items:
                item.running = True
            instance = self._free.pop()
            call = self._begun(instance, items)
            if call is None:
                self._free.append(instance)
                self._soon()  # others on the loop go between
                return
            self._keep(self._work(instance, items, call))
            # A loop that looks for the end of what is run beside it would take the interpreter from that.
            if len(self._tasks) == 1 and not instance.says("inside", otherwise=True):
                self._awake.until(call)
        self._hand()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done, which closing waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        self._company.begun()
        task.add_done_callback(self._kept)

    def _kept(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._company.ended()

    def _begun(self, instance: Post, items: list[Item]) -> asyncio.Future[Any] | None:
        """A batch that an instance has begun; None if it was run on the event loop and is over."""
        known = self._quick if self._quick.holds(items) else None
        if known is None and self._lone.holds(items) and instance.says("lone", otherwise=False):
            known = self._lone
        if known is not None:
            started = time.perf_counter()
            try:
                ran = instance.run_here(items)
            except Exception as error:
                known.failed(items, time.perf_counter() - started)
                if isinstance(error, InstanceDead):
                    died: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                    died.set_exception(error)
                    return died
            else:
                self._settle(instance, ran)
                known.held_up(items, ran.compute_s)
                if known is self._lone:
                    self._awake.until(self._company.begins())
                return None
        return instance.begin(items, self._run_limit_s, followed=True)

    async def _work(self, instance: Post, items: Sequence[Item], call: asyncio.Future[Any]) -> None:
        """See to a batch of an instance's, and to those that it goes on with."""
        while (held := await self._worked(instance, items, call)) is not None:
            items, call = held.items, held.call

    async def _worked(self, instance: Post, items: Sequence[Item], call: asyncio.Future[Any]) -> Next | None:
        """See to one batch; the one that its instance goes on with."""
        try:
            ended = await self._ended(instance, items, call)
        except Hung as error:
            log.error("%san instance hangs: %s; it is replaced", self._name, error)
            for item in items:
                item.fail(error)
            self._dispatch()
            await self._revive(instance)
        except InstanceDead as error:
            log.error("%san instance died: %s; it is restarted", self._name, error)
            self._return(items, error)
            self._dispatch()  # another instance may be idle
            await self._revive(instance)
        else:
            return self._go_on(instance, items, ended)
        return None

    def _go_on(self, instance: Post, items: Sequence[Item], ended: Ran | None) -> Next | None:
        """Tell of a batch that is over; the one that its instance goes on with, else it is free."""
        began = instance.began
        held = instance.go_on(self._run_limit_s)
        self._handed.pop(instance, None)
        if held is None:
            self._free.append(instance)
        else:
            self._queue.begun(held.items)
        # What waits behind a batch that takes longer than others would see those overtake it.
        others = [post for post in self._instances if post is not instance]
        if any(post in self._handed for post in others if post.overtaken_by(began)):
            self._recall()
        try:
            if held is not None and self._observer is not None:
                self._observer.closed("full")
            self._dispatch()  # it need not wait until all have been told
            self._tell(instance, items, ended)
        except Exception:  # the instance goes on
            log.exception("%sthe end of a batch could not be told", self._name)
        return held

    async def _revive(self, instance: Post) -> None:
        """Have a dead instance work again."""
        began = time.monotonic()
        await self._restart(instance)
        self.restarts += 1
        log.warning("%sthe instance is back after %.2f s", self._name, time.monotonic() - began)
        self._free.append(instance)
        self._dispatch()

    async def _run(self, instance: Post, items: Sequence[Item]) -> None:
        """Run as one batch those of the items that somebody still waits for."""
        items = _wanted(items)
        if items:
            for item in items:
                item.running = True
            call = instance.begin(items, self._run_limit_s)
            self._tell(instance, items, await self._ended(instance, items, call))

    async def _ended(self, instance: Post, items: Sequence[Item], call: asyncio.Future[Any]) -> Ran | None:
        """What a batch came to. One that fails is run in halves, until the item at fault is alone, and all are told."""
        try:
            ran: Ran = await call
        except Exception as error:
            self._recall()  # what stands behind it is not run
            self._soon()
            if isinstance(error, InstanceDead):
                raise
            if len(items) == 1:
                items[0].leave()
                items[0].fail(error)
                return None
            for item in items:
                item.leave()  # until its half is run
            middle = len(items) // 2
            await self._run(instance, items[:middle])
            await self._run(instance, items[middle:])
            return None
        return ran

    def _tell(self, instance: Post, items: Sequence[Item], ran: Ran | None) -> None:
        if ran is None:
            return
        if ran.items:
            self._settle(instance, ran)
        for item in items:
            if item.running:  # nobody waited for it any more when its batch began
                item.leave()
        if not ran.items:
            return
        if instance.says("light", otherwise=False):
            self._quick.told(ran.items, ran.compute_s)
        if self._busy_polls and instance.says("lone", otherwise=False):
            self._lone.told(ran.items, ran.compute_s)

    def _settle(self, instance: Post, ran: Ran) -> None:
        """Give each item its result."""
        items, rows = ran.items, sum(item.rows for item in ran.items)
        if instance.says("steady", otherwise=False):
            self._curve.told(items[0].kind, rows, ran.compute_s, asyncio.get_running_loop().time())
        if self._observer is not None:
            self._observer.batch(rows, [ran.began - item.entered for item in items], ran.compute_s)
        for item, result in zip(items, ran.results, strict=True):
            if item.reply.done():  # it expired meanwhile
                item.leave()
                continue
            item.running = False
            if item.times is not None:
                item.times.ran(ran.began - item.entered, ran.compute_s)
            try:
                item.succeed(result)
            except Exception:  # the others are to be told all the same
                log.exception("%san answer could not be told", self._name)

    def _return(self, items: Sequence[Item], error: InstanceDead) -> None:
        """Put a dead instance's items back in their places.

        Those that meet a second death run alone from then on, and one that was alone at it is what kills: it fails.
        """
        for item in _wanted(items):
            item.running = False
            if not isinstance(error, InstanceLost):
                if item.returned and len(items) == 1:
                    item.fail(error)
                    continue
                if item.returned:
                    item.key = object()
                item.returned = True
            self._queue.enter(item)

    async def _restart(self, instance: Post) -> None:
        self._dead += 1
        await instance.release()
        for attempt in itertools.count():
            await asyncio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
            try:
                await instance.replace(self._make)
            except Exception as error:
                log.error("%sthe instance cannot be restarted: %s", self._name, error)
                continue
            self._dead -= 1
            return

    def prepare(self, memory: Memory) -> None:
        """Tell the instances of memory that requests will lie in; it may take a while."""
        for instance in list(self._instances):
            instance.prepare(memory)

    def settled(self, timeout_s: float) -> bool:
        """Wait until what the instances still prepare in the background is done; False if that takes longer."""
        until = time.monotonic() + timeout_s
        return all(instance.settled(until - time.monotonic()) for instance in self._instances)

    async def close(self) -> None:
        """Take no more work, finish what was taken, give back what the instances hold, and end the threads."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        self._max_delay_s = 0.0
        while self._tasks or self._queue.items:
            if self._dead and self._dead == len(self._tasks):  # nobody is left who could finish anything
                for task in self._tasks:
                    task.cancel()
                for item in list(self._queue.items):
                    self._queue.discard(item)
                    item.fail(Closed("the server is shutting down and its instances are dead"))
            self._dispatch()
            # What was run on the event loop left no task, and others of the queue to be run.
            await (asyncio.wait(self._tasks, timeout=0.1) if self._tasks else asyncio.sleep(0))
        self._deadlines.close()
        released = []
        for instance in self._instances:
            released.append(instance.release())
            instance.end()
        self._instances.clear()
        self._free.clear()
        stuck = (await asyncio.wait(released, timeout=_RELEASE_S))[1] if released else ()
        if stuck:
            log.warning("%d instances did not give back what they hold within %g s", len(stuck), _RELEASE_S)


def _wanted(items: Sequence[Item]) -> list[Item]:
    """Those that somebody still waits for; the others are let go of."""
    for item in items:
        if item.reply.done():
            item.leave()
    return [item for item in items if not item.reply.done()]
