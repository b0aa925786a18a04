"""The processes that train a sweep's trials, as its head sees them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from penstock import parents
from penstock.trial import python_command

Message = dict[str, Any]
_LAST_S = 10  # that a process takes to end after it has hung up


class Worker:
    """A process that trains one trial at a time. It ends with this one, and hears no ^C."""

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self._line, theirs = Pipe()
        with parents.deaf(), theirs, log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 (this Python, and words of ours)
                python_command("penstock.train.worker", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                env={**parents.environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Tell it something; where it is gone, hearing it will say so."""
        try:
            self._line.send_bytes(json.dumps(message).encode())
        except BrokenPipeError:
            return

    def hear(self) -> Message | None:
        """What it says, or None if it is gone."""
        try:
            heard: Message = json.loads(self._line.recv_bytes())
        except (EOFError, ConnectionResetError):
            return None
        return heard

    def end(self) -> None:
        """End it, if it has not."""
        self._line.close()
        self._process.kill()
        self._process.wait()

    def gone(self) -> str:
        """How one ended that can no longer be heard."""
        try:
            code = self._process.wait(_LAST_S)
        except subprocess.TimeoutExpired:
            code = 0
        self.end()
        return parents.fate(code)

    @staticmethod
    def ready(workers: Sequence[Worker]) -> list[Worker]:
        """Those that have something to say, or are gone; waits for one."""
        lines = {worker._line: worker for worker in workers}
        return [lines[line] for line in wait(list(lines))]  # type: ignore[index]


def environment(place: int, workers: int, device: str) -> dict[str, str]:
    """What the worker in a place is begun with: its share of the cores, and a GPU of its own if there are several."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, cores // workers)
    told = os.environ.get("OMP_NUM_THREADS", "")
    found = {"OMP_NUM_THREADS": str(min(share, int(told)) if told.isdigit() and int(told) else share)}
    gpus = _gpus() if device != "cpu" else []
    if len(gpus) > 1:
        found["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
    return found


def _gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls the GPUs that PyTorch sees."""
    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]
