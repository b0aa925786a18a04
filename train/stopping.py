"""Stopping: signals end a run between two batches, of several processes all after the same one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch.distributed import ReduceOp, all_reduce

from penstock.errors import PenstockError
from penstock.train.device import Later

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# After which a process that reads batches ends by itself, once it has heard a signal.
_READER_S = 20


class Stopping(Callback):  # type: ignore[misc]
    """Leaves between two batches, once a signal has come: an epoch that is not whole leaves nothing.

    Of several processes, each says with every batch which signal it has heard, and all leave over what the first of
    them had heard by the batch before. One that left by itself would have the others wait for it.

    Args:
        came: the signals that this process has heard; where another has heard one, it is put there.
    """

    def __init__(self, came: list[int]) -> None:
        self._came = came
        self._asked: Later | None = None
        self._common = 0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._leave(trainer)

    def on_validation_start(self, trainer: Any, _: Any) -> None:
        """Find how many batches all ranks have: some may have one more, at which the others say nothing."""
        fewest = torch.full((), trainer.num_val_batches[0], device=trainer.strategy.root_device)
        if trainer.world_size > 1:
            all_reduce(fewest, ReduceOp.MIN)
        self._common = int(fewest)

    def on_validation_batch_end(self, trainer: Any, _: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx < self._common:
            self._leave(trainer)

    def _leave(self, trainer: Any) -> None:
        heard = max(self._came, default=0)
        if trainer.world_size > 1:
            # Filled there: what is copied from here has the GPU waited for, which then has nothing to do meanwhile.
            said = torch.full((), heard, dtype=torch.int32, device=trainer.strategy.root_device)
            heard = 0 if self._asked is None else int(self._asked.read())
            all_reduce(said, ReduceOp.MAX)
            self._asked = Later(said)
        if heard:
            self._came.append(heard)
            raise KeyboardInterrupt


@contextmanager
def between_batches(trainer: Any) -> Iterator[None]:
    """Have the first signal stop the trainer's loop after its batch, and take its course when the loop has ended.

    Raised in the middle of a logger's write it may leave a lock behind, for which Lightning's own shutdown, deaf to ^C
    by then, waits for ever. A second one is raised where it strikes, if the run has but this process; of several,
    torchrun tells each what the terminal has told it before.

    Raises:
        KeyboardInterrupt: a signal has come, whose own handler did not end the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    came: list[int] = []
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    heard = [number for number in SIGNALS if before[number] not in (signal.SIG_IGN, None)]
    mine = os.getpid()

    def hear(number: int, _: FrameType | None) -> None:
        if os.getpid() != mine:  # one that reads batches, which are wanted until the loop ends
            signal.alarm(_READER_S)
            return
        if came and trainer.world_size == 1:
            signal.signal(number, before[number])
            signal.raise_signal(number)
        came.append(number)

    # Lightning's own handler has ranks wait for one another where the signal strikes, which may be for ever; and it
    # has the GPU waited for before each batch, to ask the first rank.
    trainer._signal_connector.register_signal_handlers = lambda: None
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    trainer.callbacks.append(Stopping(came))
    try:
        for number in heard:
            signal.signal(number, hear)
        yield
    except SystemExit:  # how Lightning ends on KeyboardInterrupt
        pass
    except (PenstockError, RuntimeError):
        if not came:  # else one of several processes has left before the others
            raise
    finally:
        for number in heard:
            signal.signal(number, before[number])
    if came:
        signal.raise_signal(max(came))
    if came or trainer.interrupted:
        raise KeyboardInterrupt
