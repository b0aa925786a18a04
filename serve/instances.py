"""Instances: what the scheduler calls with a batch, one runner each, or several over one runner that takes them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from penstock.laid import Memory
from penstock.runtimes import InstanceDead, InstanceLost, Runner


class RunnerBatches:
    """A runner as the scheduler wants it: the rows of its items are run as one batch; `shared` if others use it too.

    One that is `steady` takes as long whatever the values are; one that is `light` too may be called on an event loop;
    and one that is `inside` computes in this process.
    """

    def __init__(self, runner: Runner, shared: Shared | None = None) -> None:
        self._runner, self._shared, self._closed = runner, shared, False
        self.left: Callable[[], None] | None = None
        self.steady, self.light, self.inside = runner.steady, runner.steady and runner.light, runner.inside
        self.threads = runner.threads

    def __call__(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        try:
            return self._runner.run_together(items)
        except InstanceDead:
            if self._shared is not None:
                self._shared.retire(self._runner)
            raise
        except RuntimeError:
            if self._shared is not None and not self._shared.holds(self._runner):
                raise InstanceLost("its engine died under another instance") from None
            raise

    @property
    def lone(self) -> bool:
        """Whether an event loop may call it with a short batch that comes alone."""
        return self._runner.lone

    @property
    def well(self) -> bool:
        """Whether its runner could answer now, as far as can be seen from outside."""
        return self._runner.well

    @property
    def gone(self) -> bool:
        """Whether its runner will never answer again."""
        return self._runner.gone

    def kill(self) -> None:
        """End what its runner does, if that can be ended; its place is another's from now on."""
        self._leave()
        self._runner.kill()

    def prepare(self, memory: Memory) -> None:
        """Told of memory that requests will lie in, before they do."""
        self._runner.prepare(memory)

    def settled(self, timeout_s: float) -> bool:
        """Wait for what the runner still prepares; False if that takes longer."""
        return self._runner.settled(timeout_s)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._leave()
        if self._shared is None:
            self._runner.close()
        else:
            self._shared.leave(self._runner)

    def _leave(self) -> None:
        """Give its place on a device to another, once."""
        left, self.left = self.left, None
        if left is not None:
            left()


class Spread:
    """Instances on several devices: each that is made goes where there are the fewest, as one that replaces another."""

    def __init__(self, makers: Sequence[Callable[[], RunnerBatches]]) -> None:
        self._makers, self._counts = makers, [0] * len(makers)
        self._lock = threading.Lock()

    def make(self) -> RunnerBatches:
        with self._lock:
            number = self._counts.index(min(self._counts))
            self._counts[number] += 1
        try:
            batches = self._makers[number]()
        except BaseException:
            self._leave(number)
            raise
        batches.left = functools.partial(self._leave, number)
        return batches

    def _leave(self, number: int) -> None:
        with self._lock:
            self._counts[number] -= 1


class Shared:
    """One runner for several instances: loaded for the first, closed with the last.

    One that died is closed at once, so that there is room for the next, which whoever comes then is given.
    """

    def __init__(self, load: Callable[[], Runner]) -> None:
        self._load, self._lock = load, threading.Lock()
        self._runner: Runner | None = None
        self._users = 0

    def make(self) -> RunnerBatches:
        with self._lock:
            if self._runner is None:
                self._runner, self._users = self._load(), 0
            self._users += 1
            return RunnerBatches(self._runner, self)

    def holds(self, runner: Runner) -> bool:
        """Whether it is the one in use."""
        return self._runner is runner

    def leave(self, runner: Runner) -> None:
        with self._lock:
            if self._runner is not runner:
                return
            self._users -= 1
            if self._users:
                return
            self._runner = None
        runner.close()

    def retire(self, runner: Runner) -> None:
        with self._lock:
            if self._runner is not runner:
                return
            self._runner = None
        runner.close()
