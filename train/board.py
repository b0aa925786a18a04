"""What TensorBoard shows beside the figures: the network, its weights' histograms, pictures, the confusion matrix."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_SHOWN, _MOST_CLASSES = 32, 100


class Board(Callback):  # type: ignore[misc]
    """Writes them on the first rank: the graph and a batch's pictures once, the others after every epoch."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        writer = _writer(trainer)
        if writer is None or batch_idx or trainer.current_epoch:
            return
        with torch.no_grad():
            inputs, _ = pl_module.ready(batch, learning=True)
            few = {name: held[:_SHOWN] for name, held in inputs.items()}
            for name, held in few.items():
                if held.ndim == 4 and held.shape[1] in (1, 3):
                    writer.add_images(f"{name} as it is learnt from", _spread(held), 0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of tracing, by which the graph is found
                net = pl_module.net
                net.eval()
                try:
                    writer.add_graph(net, tuple(held[:2] for held in few.values()))
                except Exception as error:  # what cannot be traced has no graph to be shown
                    writer.add_text("graph", f"not shown: {error}", 0)
                finally:
                    net.train()

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        writer = _writer(trainer)
        if writer is None:
            return
        step = trainer.global_step
        for name, held in pl_module.net.named_parameters():
            if torch.isfinite(held).all():
                writer.add_histogram(f"weights/{name}", held.detach().float().cpu(), step)
        confusion = pl_module.confusion
        if confusion is not None and len(confusion) <= _MOST_CLASSES:
            shares = confusion.float() / confusion.sum(1, keepdim=True).clamp(min=1)
            side = max(1, 320 // len(shares))
            figure = shares.repeat_interleave(side, 0).repeat_interleave(side, 1)
            writer.add_image("confusion, true by row", 1 - figure.cpu(), step, dataformats="HW")


def _writer(trainer: Any) -> SummaryWriter | None:
    if not trainer.is_global_zero:
        return None
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            found: SummaryWriter = logger.experiment
            return found
    return None


def _spread(images: torch.Tensor) -> torch.Tensor:
    """Numbers of any range as those of pictures, 0 to 1."""
    least, most = images.min(), images.max()
    return ((images - least) / (most - least).clamp(min=1e-6)).float().cpu()
