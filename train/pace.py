"""Pace: how fast a run goes, and what it takes of the machine, as figures of each epoch."""

from __future__ import annotations

import resource
import time
from contextlib import suppress
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

# How often a GPU is asked how busy it is, in steps: NVML averages over a sixth of a second or more by itself.
_ASKED_EVERY = 20


class Pace(Callback):  # type: ignore[misc]
    """Logs `samples_per_s` of all ranks while training, `peak_memory_mb`, and `gpu_busy`, 0 to 1, where NVML tells."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._rows, self._busy = 0, list[float]()
        self._device = pl_module.device
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._began = time.perf_counter()
        self._took = 0.0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._rows += len(batch[1])
        if self._device.type == "cuda" and batch_idx % _ASKED_EVERY == 0:
            with suppress(Exception):  # NVML is not there, or forbidden
                self._busy.append(torch.cuda.utilization(self._device) / 100)
        self._took = time.perf_counter() - self._began

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            peak = torch.cuda.max_memory_allocated(self._device)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        figures = {
            "samples_per_s": self._rows * trainer.world_size / max(self._took, 1e-9),
            "peak_memory_mb": peak / 2**20,
            **({"gpu_busy": sum(self._busy) / len(self._busy)} if self._busy else {}),
        }
        pl_module.log_dict(figures, rank_zero_only=False)
