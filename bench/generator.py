"""One process's share of a load: `python -m penstock.bench.generator`, which bench/fleet.py starts and speaks to.

It is told once what to send and what is due to it, then of one run after another. In a closed loop each connection has
a request under way all the time; in an open loop requests are sent when they are due, whatever became of those before,
and each latency counts from the moment it was due (Tene, "How NOT to measure latency"): a server that stalls is
charged for all who would have come meanwhile.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import resource
import select
import signal
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock import parents
from penstock.bench import frames, schedule
from penstock.bench.answers import Checker, Expected
from penstock.bench.calls import Address, Calls
from penstock.bench.connections import BROKEN, MALFORMED, REFUSED, TRUNCATED, Connections, Endpoint, Event
from penstock.bench.httpanswers import Head
from penstock.bench.tally import Tally

_LOOK_S, _TELL_S = 0.05, 0.25
# Nobody has answered for so long, and connections break: the server is gone.
LOST_S = 3.0
# How long a slot rests after its connection broke, so that a server that is gone is not asked in a tight loop.
_REST_S = 0.02
# For how long those that had no connection when the run ended are still sent.
_GRACE_S = 2.0
_DUE_AT_ONCE = 256
# For how long after the end a generator that had no core meanwhile sends what was due before it.
_CATCH_UP_S = 0.5
_SHOWN = 256
_STAGE = re.compile(rb"(\w+);dur=(\d{1,15}(?:\.\d*)?)(?![\d.])")
_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_clock = time.monotonic


class Road(Protocol):
    """Slots for requests under way: bench/connections.py and bench/calls.py."""

    precise: bool
    opened: int

    def grow(self, slots: int) -> None: ...
    def send(self, slot: int, index: int) -> None: ...
    def wait(self, timeout_s: float) -> Iterator[Event]: ...
    def drop(self, slot: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Order:
    """One run. Moments are of time.monotonic, which all processes of a machine share.

    `slots` are the connections of a closed loop, or those that an open one begins with; it opens up to `most`. With
    `hopeless_s`, the run ends once `hopeless` requests took longer.
    """

    begin: float
    warmup_s: float
    seconds: float
    timeout_s: float
    slots: int
    most: int
    rate_per_s: float | None = None
    poisson: bool = False
    seed: int = 0
    part: int = 0
    parts: int = 1
    hopeless_s: float | None = None
    hopeless: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def due(self) -> Iterator[float]:
        """When requests are due in an open loop, in seconds from the begin."""
        assert self.rate_per_s is not None
        if self.poisson:
            return schedule.poisson(self.rate_per_s, self.part, self.parts, self.seed)
        return schedule.constant(self.rate_per_s, self.part, self.parts)


class Run:
    """An order carried out.

    Args:
        road: what requests go by.
        right: whether an answer to the payload of an index is right.
        payloads: how many there are.
        order: the run.
        timed: whether answers say how long their stages took.
        stop: asked now and then whether to end at once.
        tell: told now and then how it goes.
    """

    def __init__(
        self,
        road: Road,
        right: Callable[[int, Any], bool],
        payloads: int,
        order: Order,
        *,
        timed: bool = False,
        stop: Callable[[], bool] = lambda: False,
        tell: Callable[[Tally], None] = lambda tally: None,
    ) -> None:
        self.tally, self._road, self._right, self._order = Tally(), road, right, order
        self._payloads, self._timed, self._stop, self._tell = payloads, timed, stop, tell
        self._from = order.begin + order.warmup_s
        self._to = self._from + order.seconds
        self._schedule = None if order.rate_per_s is None else order.due()
        self._next_due = order.begin if self._schedule is None else order.begin + next(self._schedule)
        self._due: list[float] = []
        self._sent: list[float] = []
        self._index: list[int] = []
        self._number = order.part * 7  # processes begin at different payloads
        self._free: deque[int] = deque()
        self._resting: deque[tuple[float, int]] = deque()
        self._backlog: deque[float] = deque()
        self._busy: set[int] = set()
        self._sending = True
        self._next_look, self._next_tell = order.begin, order.begin + _TELL_S
        self._last_answer, self._broke, self._late = order.begin, False, 0
        self._usage: tuple[float, float, float] | None = None
        self._ended = self._to

    def go(self) -> Tally:
        """Carry it out; ends with the order's time, once all is answered or its timeout over."""
        road, tally, opened = self._road, self.tally, self._road.opened
        self._add_slots(self._order.slots)
        if (early := self._order.begin - _clock()) > 0:
            time.sleep(early)
        while True:
            now = _clock()
            if now >= self._next_look and not self._look(now):
                break
            if self._schedule is not None:
                self._send_due(now)
            elif self._sending:
                while self._free:
                    self._send(self._free.popleft(), now)
            if not self._sending and not self._busy and not self._backlog:
                break
            polled: float | None = None
            for event in road.wait(self._pause(now)):
                read = _clock()
                polled = polled or read
                self._settle(event, read, read - polled)
        for slot in list(self._busy):
            road.drop(slot)
        self._measure_use()
        tally.seconds = max(0.0, min(self._ended, self._to) - self._from)
        tally.opened = road.opened - opened
        return tally

    def _add_slots(self, slots: int) -> None:
        for slot in range(len(self._due), slots):
            self._due.append(0.0)
            self._sent.append(0.0)
            self._index.append(0)
            self._free.append(slot)
        self._road.grow(slots)

    def _pause(self, now: float) -> float:
        until = self._next_look
        if self._schedule is not None and self._sending and self._next_due < until:
            until = self._next_due
        return max(0.0, until - now)

    def _send(self, slot: int, due: float) -> None:
        index = self._index[slot] = self._number % self._payloads
        self._number += 1
        self._due[slot] = due
        self._busy.add(slot)
        if self._from <= due < self._to:
            self.tally.requests += 1
        self._sent[slot] = _clock()
        self._road.send(slot, index)

    def _send_due(self, now: float) -> None:
        """Send what is due, or put it behind others that had no connection either."""
        schedule_, begin, backlog, free = self._schedule, self._order.begin, self._backlog, self._free
        assert schedule_ is not None
        while backlog and free:
            self._send(free.popleft(), backlog.popleft())
        for _ in range(_DUE_AT_ONCE):  # answers are to be read in between, however many are due
            if not self._sending or self._next_due > now:
                return
            due, self._next_due = self._next_due, begin + next(schedule_)
            if due >= self._to:
                self._sending = False
                return
            if not free and len(self._due) < self._order.most:
                self._add_slots(len(self._due) + 1)
            if free and not backlog:
                slot = free.popleft()
                self._send(slot, due)
                if due >= self._from:
                    self.tally.late.append(self._sent[slot] - due)
            else:
                backlog.append(due)
                self.tally.backlogged += due >= self._from

    def _settle(self, event: Event, read: float, within_s: float) -> None:
        slot, failure, answer = event
        due, sent, index, tally = self._due[slot], self._sent[slot], self._index[slot], self.tally
        self._busy.discard(slot)
        if answer is not None:
            self._last_answer, self._broke = read, False
            if answer.head.status != 200:
                failure = f"status {answer.head.status}"
            if self._schedule is None and self._sending:
                self._send(slot, read)  # first, so that the server does not wait while its answer is looked at
            else:
                self._free.append(slot)
            if failure is None and not self._right(index, answer):
                failure = "wrong"
        else:
            if failure in (TRUNCATED, MALFORMED) or str(failure).startswith("status"):
                self._last_answer, self._broke = read, False  # somebody is there
            self._broke = self._broke or failure in (BROKEN, REFUSED)
            self._resting.append((read + _REST_S, slot))
        measured = self._from <= due < self._to
        if failure is not None:
            if answer is None:
                self._unanswered(due, failure, read)
            elif measured:
                tally.failures[failure] += 1
            return
        tally.arrived += self._from <= read < self._to
        if measured:
            tally.latencies.append(read - due)
            tally.moments.append(due - self._from)
            tally.sums["client_s"] += sent - due + within_s
            tally.sums["waited_s"] += read - within_s - sent
            if self._order.hopeless_s is not None and read - due > self._order.hopeless_s:
                self._late += 1
            if self._timed and answer is not None:
                self._time(answer.head)

    def _unanswered(self, due: float, failure: str, now: float) -> None:
        """Count one that got no answer; also of the warm-up, if it was under way while it was measured.

        Who hangs from the warm-up on would else be counted nowhere, since its slot sends nothing more.
        """
        if due < self._from <= now:
            self.tally.requests += 1
        if due < self._to and now >= self._from:
            self.tally.failures[failure] += 1

    def _time(self, head: Head) -> None:
        """What the server says of its stages (Server-Timing, in milliseconds)."""
        said = {name: float(text) / 1e3 for name, text in _STAGE.findall(head.fields.get(b"server-timing", b""))}
        if b"total" in said:
            self.tally.timed += 1
            sums = self.tally.sums
            sums["server_s"] += said[b"total"]
            sums["queue_s"] += said.get(b"queue", 0.0)
            sums["compute_s"] += said.get(b"compute", 0.0)

    def _look(self, now: float) -> bool:
        """What is seen to every few milliseconds; False ends the run at once."""
        self._next_look = now + _LOOK_S
        if self._usage is None and now >= self._from:
            self._usage = _usage()
        behind = self._schedule is not None and self._next_due < self._to
        if self._sending and now >= self._to + (_CATCH_UP_S if behind else 0.0):
            self._stop_sending(now)
        while self._resting and self._resting[0][0] <= now:
            self._free.append(self._resting.popleft()[1])
        self._give_up_late(now)
        tally = self.tally
        tally.lost = self._broke and now - self._last_answer > LOST_S
        tally.hopeless = self._order.hopeless_s is not None and self._late > self._order.hopeless
        tally.stopped = self._stop()
        if now >= self._next_tell:
            self._next_tell = now + _TELL_S
            self._tell(tally)
        if tally.lost or tally.hopeless or tally.stopped:
            self._ended = self._last_answer if tally.lost else now
            if self._sending:
                self._stop_sending(now)
            return False
        return True

    def _stop_sending(self, now: float) -> None:
        self._sending = False
        if self._schedule is not None:
            self.tally.behind_s = max(0.0, min(now, self._to) - self._next_due)
        self._measure_use()

    def _give_up_late(self, now: float) -> None:
        oldest = now - self._order.timeout_s
        for slot in [slot for slot in self._busy if self._sent[slot] < oldest]:
            self._road.drop(slot)
            self._busy.discard(slot)
            self._resting.append((now, slot))
            self._unanswered(self._due[slot], "timeout", now)
        limit = self._to + min(_GRACE_S, self._order.timeout_s)
        while self._backlog and (self._backlog[0] < oldest or now > limit):
            measured = self._backlog.popleft() >= self._from
            self.tally.requests += measured
            self.tally.failures["unsent"] += measured

    def _measure_use(self) -> None:
        """How much processor this process took while it was measured."""
        if self._usage is None:
            return
        began, usage = self._usage, _usage()
        self._usage = None
        passed = usage[0] - began[0]
        if passed > 0 and not self.tally.cores:
            self.tally.cores = self.tally.busiest = (usage[1] - began[1]) / passed
            self.tally.starved = (usage[2] - began[2]) / passed


def _usage() -> tuple[float, float, float]:
    """Now, processor time taken, and time spent ready to run without a core, in seconds."""
    waited = 0.0
    with suppress(OSError, ValueError, IndexError):
        waited = int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    return _clock(), time.process_time(), waited


def _road(told: dict[str, Any], requests: list[bytes], roots: bytes) -> Road:
    if told["grpc"]:
        metadata = tuple((name, value) for name, value in told["metadata"])
        return Calls(Address(told["target"], roots if told["tls"] else None, metadata), requests, told["timeout_s"])
    tls = ssl.create_default_context(cafile=told["ca"]) if told["tls"] else None
    return Connections(Endpoint(told["host"], told["port"], tls), requests)


def serve(source: int, sink: int) -> None:
    """Take the plan, then one order after another, until the pipe ends."""
    told, parts = frames.read(source)
    count = len(told["lengths"])
    requests, bodies, roots = parts[:count], parts[count : 2 * count], parts[-1]
    due = [Expected(body, length, told["grpc"]) for body, length in zip(bodies, told["lengths"], strict=True)]
    road, checker = _road(told, requests, roots), Checker(due, told["tolerance"])
    frames.write(sink, {"ready": True})
    while True:
        try:
            order, _ = frames.read(source)
        except frames.Ended:
            break
        if "stop" in order:  # it was meant for a run that has ended meanwhile
            continue
        run = _done(road, checker, order, told["timed"], (source, sink))
        frames.write(sink, *run)
    road.close()


def _done(road: Road, checker: Checker, asked: dict[str, Any], timed: bool, pipes: tuple[int, int]) -> frames.Frame:
    """The run that is asked for, as a frame; all frames have its number, since it may be given up meanwhile."""
    source, sink = pipes
    order, number = Order(**asked["order"]), asked["run"]

    def stop() -> bool:
        if not select.select([source], (), (), 0)[0]:
            return False
        with suppress(frames.Ended):
            return bool(frames.read(source)[0].get("stop") == number)
        return True

    def tell(tally: Tally) -> None:
        recent = tally.latencies[-_SHOWN:]
        told = {"requests": tally.requests, "arrived": tally.arrived, "failed": sum(tally.failures.values())}
        frames.write(sink, {"progress": told, "run": number}, [recent.tobytes()])

    road.precise = order.rate_per_s is not None
    before = checker.compared
    gc.collect()
    gc.disable()
    try:
        run = Run(road, checker.right, len(checker), order, timed=timed, stop=stop, tell=tell)
        tally = run.go()
    finally:
        gc.enable()
    tally.compared, tally.example = checker.compared - before, checker.example
    text, parts = tally.frame()
    return {**text, "run": number}, parts


def main() -> None:
    parents.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is the bench's, which asks for what there is
    with suppress(OSError, ValueError):  # a connection takes a descriptor
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    sink = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints
    with suppress(BrokenPipeError, frames.Ended):
        serve(sys.stdin.fileno(), sink)


if __name__ == "__main__":
    main()
