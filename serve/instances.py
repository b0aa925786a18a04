"""Instances: what the scheduler calls with a batch, one runner each, or several over one runner that takes them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock.runtimes import InstanceDead, Runner


class RunnerBatches:
    """A runner as the scheduler wants it: the rows of its items are run as one batch.

    Args:
        runner: it.
        close: gives it back, where others use it too.
        died: told that it will not answer again.
    """

    def __init__(
        self, runner: Runner, close: Callable[[], None] | None = None, died: Callable[[], None] | None = None
    ) -> None:
        self._runner, self._close, self._died = runner, close or runner.close, died

    def __call__(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        try:
            return self._runner.run_together(items)
        except InstanceDead:
            if self._died is not None:
                self._died()
            raise

    def close(self) -> None:
        self._close()


class Shared:
    """One runner for several instances: loaded for the first, closed with the last.

    One that died is out of use: whoever comes next is given another.
    """

    def __init__(self, load: Callable[[], Runner]) -> None:
        self._load, self._lock = load, threading.Lock()
        self._runner: Runner | None = None
        self._users: dict[Runner, int] = {}

    def make(self) -> RunnerBatches:
        with self._lock:
            runner = self._runner = self._load() if self._runner is None else self._runner
            self._users[runner] = self._users.get(runner, 0) + 1
        return RunnerBatches(runner, lambda: self._leave(runner), lambda: self._retire(runner))

    def _retire(self, runner: Runner) -> None:
        with self._lock:
            if self._runner is runner:
                self._runner = None

    def _leave(self, runner: Runner) -> None:
        with self._lock:
            self._users[runner] -= 1
            last = not self._users[runner]
            if last:
                del self._users[runner]
                self._runner = None if self._runner is runner else self._runner
        if last:
            runner.close()
