"""Several generators, started, told what to send, watched, and their tallies put together."""

from __future__ import annotations

import selectors
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock import parents
from penstock.bench import frames
from penstock.bench.answers import Expected
from penstock.bench.generator import LOST_S, Order
from penstock.bench.tally import Tally, together
from penstock.errors import PenstockError
from penstock.trial import python_command

# For how long a process is waited for after the moment at which it must be done.
_GRACE_S = 5.0
_BEGIN_S = 0.1


@dataclass(frozen=True)
class Goal:
    """Where requests go: over HTTP to a host and port, or over gRPC to `target` with `metadata`.

    `roots` are the certificates to trust over gRPC; `ca` the file of them over HTTPS. `timed`: answers say how long
    their stages took.
    """

    host: str
    port: int
    tls: bool = False
    ca: Path | None = None
    grpc: bool = False
    metadata: tuple[tuple[str, str], ...] = ()
    roots: bytes = b""
    timed: bool = False

    @property
    def target(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Progress:
    """How a run goes: right answers and failures so far, and the latest latencies in seconds."""

    answered: int
    failed: int
    latencies_s: Any


class Fleet:
    """Generators for one server and its payloads; a context manager that ends them.

    Args:
        goal: where requests go.
        requests: whole requests.
        expected: what is due to each.
        processes: how many generators there are.
        timeout_s: seconds for one answer.
        tolerance: the largest relative L2 error of an output.
    """

    def __init__(
        self,
        goal: Goal,
        requests: Sequence[bytes],
        expected: Sequence[Expected],
        processes: int,
        timeout_s: float,
        tolerance: float,
    ) -> None:
        self.processes, self._runs = processes, 0
        told = {
            **{"host": goal.host, "port": goal.port, "tls": goal.tls, "ca": goal.ca and str(goal.ca)},
            **{"grpc": goal.grpc, "target": goal.target, "metadata": goal.metadata, "timed": goal.timed},
            **{"timeout_s": timeout_s, "tolerance": tolerance, "lengths": [each.json_length for each in expected]},
        }
        parts = [*requests, *(each.body for each in expected), goal.roots]
        self._started: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(processes):
                self._started.append(_start())
            for process in self._started:
                frames.write(_stdin(process), told, parts)
            for process in self._started:
                frames.read(_stdout(process))
        except (BrokenPipeError, frames.Ended):
            self.close()
            raise PenstockError("a generator did not start; what it said stands above") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self._started:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        for process in self._started:
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(self, order: Order, watch: Callable[[Progress], None] = lambda progress: None) -> tuple[Tally, bool]:
        """Carry out an order, shared among all: its tally, and whether the user ended it with ^C.

        Where a generator dies the others are asked for what there is; the tally says how many said nothing.

        Args:
            order: for all together; its begin is set here.
            watch: told now and then how it goes.
        """
        self._runs += 1
        begin, ended = time.monotonic() + _BEGIN_S, False
        shares = shared(replace(order, begin=begin), self.processes)
        answers = _Answers(self._started[: len(shares)], self._runs, watch)
        try:
            for process, share in zip(self._started, shares, strict=False):
                frames.write(_stdin(process), {"order": share.as_dict(), "run": self._runs})
            answers.collect(begin + order.warmup_s + order.seconds + order.timeout_s + LOST_S + _GRACE_S)
        except KeyboardInterrupt:
            ended = True
        except BrokenPipeError:  # one had died before
            pass
        limit = time.monotonic() + _GRACE_S
        for process in answers.waiting.values():
            with suppress(BrokenPipeError):
                frames.write(_stdin(process), {"stop": self._runs})
        while answers.waiting and time.monotonic() < limit:
            answers.collect(limit)
        whole = together(answers.found[place] for place in sorted(answers.found))
        whole.missing = len(shares) - len(answers.found)
        return whole, ended


class _Answers:
    """What generators say of a run, by their places: `found` tallies, and who is still `waiting` to tell its own."""

    def __init__(
        self, processes: Sequence[subprocess.Popen[bytes]], number: int, watch: Callable[[Progress], None]
    ) -> None:
        self.found: dict[int, Tally] = {}
        self.waiting = dict(enumerate(processes))
        self._number, self._progress = number, _Gathered(len(processes), watch)

    def collect(self, limit: float) -> None:
        """Read until all have told, the moment `limit` has come, or one has died, who is waited for no more."""
        with selectors.DefaultSelector() as selector:
            for place, process in self.waiting.items():
                selector.register(_stdout(process), selectors.EVENT_READ, place)
            while self.waiting and (left := limit - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    try:
                        frame = frames.read(key.fd, limit)
                    except frames.Ended:
                        del self.waiting[key.data]
                        return
                    if frame[0]["run"] != self._number:  # of one that was given up
                        continue
                    if "progress" in frame[0]:
                        self._progress.told(key.data, frame)
                        continue
                    self.found[key.data] = Tally.of(frame)
                    del self.waiting[key.data]
                    selector.unregister(key.fd)


class _Gathered:
    """What generators tell of a run while it goes on, put together for whoever watches."""

    def __init__(self, count: int, watch: Callable[[Progress], None]) -> None:
        self._watch = watch
        self._told: list[dict[str, int]] = [{} for _ in range(count)]
        self._recent: list[Any] = [np.zeros(0)] * count

    def told(self, place: int, frame: frames.Frame) -> None:
        self._told[place], self._recent[place] = frame[0]["progress"], np.frombuffer(frame[1][0])
        arrived, failed = (sum(each.get(name, 0) for each in self._told) for name in ("arrived", "failed"))
        self._watch(Progress(arrived, failed, np.concatenate(self._recent)))


def shared(order: Order, processes: int) -> list[Order]:
    """An order's shares, one for each process that has a connection at least.

    Connections are dealt out; in an open loop the processes take turns at a constant rate, and each has a Poisson
    process of its own.
    """
    count = max(1, min(processes, order.slots))
    return [
        replace(
            order,
            part=part,
            parts=count,
            slots=order.slots // count + (part < order.slots % count),
            most=max(1, order.most // count),
            hopeless=order.hopeless // count,
        )
        for part in range(count)
    ]


def _start() -> subprocess.Popen[bytes]:
    with parents.deaf():  # ^C is the bench's, which asks for what there is
        return subprocess.Popen(  # noqa: S603 (this Python, and words of ours)
            python_command("penstock.bench.generator"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=parents.environment(),
        )


def _stdin(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    return process.stdin.fileno()


def _stdout(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return process.stdout.fileno()
