"""Faults of a run's own processes, in a sentence; others are left as they are."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from penstock import data
from penstock.data.specs import Digits
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess
from penstock.train import faults, loaders, recipe
from penstock.train.loaders import Order


def test_a_picture_that_a_process_cannot_read_is_named_in_a_sentence() -> None:
    samples = data.load(Digits())["val"]
    damaged = replace(samples, items=[b"no picture"] * len(samples), places=["a.jpg"] * len(samples))
    preprocess = recipe.load("digits").preprocess
    assert isinstance(preprocess, ImagePreprocess)
    read = loaders.dataset(damaged, preprocess)
    batches = loaders.loader(read, Order(len(samples), 64, None), recipe.Loader(workers=1), on_gpu=False, seed=0)
    with pytest.raises(PenstockError) as failed:
        next(iter(batches))
    told = faults.told(failed.value)
    assert str(told).startswith("a.jpg: the 10 bytes sent are not an image; send a PNG, JPEG, WebP, BMP or GIF file; ")
    assert str(told).endswith("--set dataset.unreadable=skip")
    assert faults.told(PenstockError("a.jpg: is damaged")) is None


def test_a_reading_process_that_is_killed_is_told_in_a_sentence() -> None:
    class Killed(Dataset[Any]):
        def __getitem__(self, index: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    batches = loaders.loader(Killed(), Order(8, 4, 0), recipe.Loader(workers=1), on_gpu=False, seed=0)
    with pytest.raises(RuntimeError) as failed:
        next(iter(batches))
    assert "has ended: RuntimeError: DataLoader worker" in str(faults.told(failed.value))
    assert faults.told(RuntimeError("out of memory")) is None


def test_parameters_that_torch_tells_by_their_places_are_named() -> None:
    net = torch.nn.ModuleDict({"frozen": torch.nn.Linear(2, 2), "first": torch.nn.Linear(2, 2)})
    net["frozen"].requires_grad_(False)
    said = (
        "Expected to have finished reduction in the prior iteration before starting a new one. …\n"
        "Parameter indices which did not receive grad for rank 1: 0 1\n In addition, you can set …"
    )
    told = str(faults.of_unused(RuntimeError(said), net))
    assert told.startswith("model.target: the network, ModuleDict, uses first.weight, first.bias in some batches and")
    assert told.endswith("or --set machine.devices=1")
    assert faults.of_unused(RuntimeError("out of memory"), net) is None


def test_another_rank_that_is_gone_is_told_in_a_sentence() -> None:
    lost = torch.distributed.DistNetworkError("The client socket has timed out")
    assert "another of the run's processes is gone" in str(faults.told(lost))
    reset = RuntimeError(
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer"
    )
    assert "another of the run's processes is gone" in str(faults.told(reset))
