"""Ranks: the processes of one run; none of them waits for ever for one that is stopped, hung or gone."""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from penstock import parents
from penstock.train import jobs
from penstock.train.facts import resolve
from penstock.train.faults import AGAIN
from penstock.train.jobs import Job
from penstock.train.stopping import SIGNALS

# How often it is looked, and how long a process has to say itself what has happened to it.
_LOOK_S, _NOTICE_S = 0.5, 5.0
# From a signal to the end of a process that does not come to the end of its batch: 30 s is what torchrun, Slurm and
# Kubernetes give it.
_LEAVE_S = 20.0
_LATER_S = 30.0


def alike(tensors: Iterable[Tensor]) -> None:
    """Have all ranks hold what the first one does."""
    for tensor in tensors:
        torch.distributed.broadcast(tensor, 0)


def strategy(job: Job) -> Any:
    """How Lightning is to spread a run: as it likes, or over processes that give up what takes too long.

    Torch's own limit is the later one: it may only end a process of a GPU's without a sentence.
    """
    machine = job.recipe.machine
    found = resolve(machine)
    if found.devices * found.nodes == 1:
        return "auto"
    # To look for parameters without a gradient costs a walk through the graph with each batch.
    return _Spread(
        timeout=timedelta(seconds=machine.timeout_s + _LATER_S), find_unused_parameters=bool(jobs.unused(job))
    )


class _Spread(DDPStrategy):  # type: ignore[misc]
    """Looks for parameters without a gradient where the first rank does.

    Ranks would wait for one another for ever if a network that draws by a generator of its own had them differ.
    """

    def configure_ddp(self) -> None:
        looks = torch.tensor(int(self._ddp_kwargs["find_unused_parameters"]), device=self.root_device)
        alike([looks])
        self._ddp_kwargs["find_unused_parameters"] = bool(looks)
        super().configure_ddp()

    def on_exception(self, exception: BaseException) -> None:
        """Leave torch's message, which tells the parameters; Lightning would put its own in its place."""


@contextmanager
def watched(trainer: Any, timeout_s: float) -> Iterator[Watch]:
    """Watch over the other ranks while the block runs, and leave them at its end, all together.

    Ranks that are begun in it end with this process, however it ends.
    """
    watch, told = Watch(timeout_s), parents.environment()
    added = told.keys() - os.environ.keys()
    trainer.callbacks.append(watch)
    os.environ.update(told)
    try:
        try:
            yield watch
        except SystemExit:  # how Lightning ends on a signal, which all have agreed on
            _part(trainer)
            raise
        _part(trainer)
    finally:
        watch.close()
        for name in added:
            os.environ.pop(name, None)


def _part(trainer: Any) -> None:
    """Have the ranks leave one another once all have come here.

    One that ends with its connections open may be aborted by its own threads, and torchrun then ends the others.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        trainer.strategy.barrier()
        torch.distributed.destroy_process_group()


class Watch(Callback):  # type: ignore[misc]
    """Ends this process, with a sentence, where it would wait in native code for what no other rank will send.

    That is: a process that this one has begun is gone; no batch has ended for `timeout_s`; or a signal has come, and
    the loop has not ended within 20 s. It is a thread, since neither exceptions nor handlers of signals reach a
    process that waits for a GPU or a connection. What was written before is whole.

    Args:
        timeout_s: after which a batch that has not ended is given up.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._beat = time.monotonic()
        self._signal: tuple[int, float] | None = None
        self._gone: tuple[str, float] | None = None
        self._thread: threading.Thread | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if trainer.world_size == 1:
            return
        # Lightning's own watch ends this process by SIGKILL, without a word.
        begun = getattr(trainer.strategy.launcher, "procs", [])
        self._ranks = list(begun)
        begun.clear()
        self._line, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        if threading.current_thread() is threading.main_thread():
            self._before = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, name="ranks", daemon=True)
        self._thread.start()

    def on_train_start(self, *_: Any) -> None:
        self._beat = time.monotonic()

    on_train_batch_end = on_validation_batch_end = on_train_epoch_end = on_train_start

    def lost(self) -> str | None:
        """Which process that this one has begun has failed, and how; waited for, since connections break first."""
        deadline = time.monotonic() + _NOTICE_S / 2
        while self._ranks:
            for rank, process in enumerate(self._ranks, 1):
                if process.poll():
                    return f"rank {rank}, process {process.pid}, {parents.fate(process.returncode)}"
            if time.monotonic() > deadline:
                return None
            time.sleep(_LOOK_S / 10)
        return None

    def close(self) -> None:
        """End the watch, and the processes that were begun, which have had their time."""
        if self._thread is None:
            return
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._before)
        self._theirs.close()
        self._thread.join()
        self._line.close()
        self._thread = None
        deadline = time.monotonic() + _NOTICE_S
        for process in self._ranks:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _run(self) -> None:
        with selectors.DefaultSelector() as told:
            told.register(self._line, selectors.EVENT_READ)
            while True:
                if told.select(_LOOK_S):
                    heard = self._line.recv(64)
                    if not heard:
                        return
                    number = max((each for each in heard if each in SIGNALS), default=0)
                    if number and self._signal is None:
                        self._signal = number, time.monotonic()
                self._look(time.monotonic())

    def _look(self, now: float) -> None:
        if self._signal is not None and now - self._signal[1] > _LEAVE_S:
            number = self._signal[0]
            _end("terminated" if number == signal.SIGTERM else "interrupted", 128 + number, self._ranks)
        for rank, process in enumerate(self._ranks, 1):
            if process.poll() and self._gone is None:
                self._gone = f"rank {rank}, process {process.pid}, {parents.fate(process.returncode)}", now
        if self._gone is not None and now - self._gone[1] > _NOTICE_S:
            _end(f"error: machine.devices: {self._gone[0]}; {AGAIN}", 2, self._ranks)
        if now - self._beat > self.timeout_s:
            _end(
                f"error: machine.timeout_s: no batch has ended for {self.timeout_s:g} s; {self._stopped()}; {AGAIN}",
                2,
                self._ranks,
            )

    def _stopped(self) -> str:
        for rank, process in enumerate(self._ranks, 1):
            if parents.is_stopped(process.pid):
                return f"rank {rank}, process {process.pid}, is stopped"
        return "another of the run's processes may be stopped, hung or out of reach"


def _end(sentence: str, code: int, others: Iterable[subprocess.Popen[bytes]]) -> NoReturn:
    """End this process at once, and those that it has begun."""
    with suppress(Exception):
        logging.getLogger("penstock.train").error(sentence.removeprefix("error: "))
    with suppress(Exception):
        print(sentence, file=sys.stderr, flush=True)
    for process in others:
        process.kill()
    os._exit(code)
