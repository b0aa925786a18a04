"""A worker of a sweep: a process that trains one trial after another, and tells the head of each epoch.

python -m penstock.train.worker HANDLE
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from penstock import parents
from penstock.errors import PenstockError, first_line
from penstock.train import loop
from penstock.train import recipe as recipes
from penstock.train.facts import Facts

Message = dict[str, Any]
# Tells the head the epoch and the metric; it answers whether the trial is to end.
Tell = Callable[[int, float], bool]


class NoSuchMetric(Exception):
    """The loop logs no such figure."""

    def __init__(self, there: list[str]) -> None:
        super().__init__()
        self.there = there


class Watch(Callback):  # type: ignore[misc]
    """Tells the metric after every epoch, and ends training where the head says so."""

    def __init__(self, metric: str, tell: Tell) -> None:
        self.metric, self.tell = metric, tell

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
        epoch = trainer.current_epoch + 1
        if self.metric not in figures:
            raise NoSuchMetric(sorted(figures))
        for name, value in figures.items():
            if not math.isfinite(value) and (name == self.metric or "loss" in name):
                raise PenstockError(f"{name} is {value:g} after epoch {epoch}")
        if self.tell(epoch, figures[self.metric]):
            trainer.should_stop = True


def run(order: Message, tell: Tell) -> Message:
    """Train one trial: what became of it, and the seconds that it took."""
    began = time.monotonic()
    return {**_trained(order, tell), "seconds": time.monotonic() - began}


def _trained(order: Message, tell: Tell) -> Message:
    folder = Path(order["folder"])
    try:
        recipe = recipes.make(order["recipe"], (), {}, "its values", "penstock train")
        facts = Facts.model_validate(order["facts"]) if order["facts"] else None
        loop.train(recipe, folder, progress=False, facts=facts, callbacks=[Watch(order["metric"], tell)])
    except NoSuchMetric as error:
        return {"kind": "no metric", "there": error.there}
    except Exception as error:
        if _no_room(error):
            return {"kind": "no room", "reason": f"{folder}: {os.strerror(errno.ENOSPC)}"}
        if isinstance(error, PenstockError):
            return {"kind": "failed", "reason": str(error)}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "error.txt").write_text(traceback.format_exc())
        return {"kind": "failed", "reason": first_line(error)}
    return {"kind": "finished"}


def _no_room(error: BaseException | None) -> bool:
    """Whether the disk was full, also where something else was made of it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _work(head: Connection) -> None:
    def tell(epoch: int, value: float) -> bool:
        _send(head, {"kind": "epoch", "epoch": epoch, "value": value})
        return bool(json.loads(head.recv_bytes())["stop"])

    while True:
        try:
            order = json.loads(head.recv_bytes())
        except EOFError:
            return
        _send(head, run(order, tell))


def _send(head: Connection, message: Message) -> None:
    head.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    parents.end_with_parent()
    _work(Connection(int(sys.argv[1])))
