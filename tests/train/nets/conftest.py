"""What tests of networks share: real data that fits each, and short real trainings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from penstock import architecture, checkpoint, data, probe
from penstock.architecture import Architecture
from penstock.card import Card
from penstock.data.specs import Digits
from penstock.datasets import Rows
from penstock.signature import Dim, Signature, Tensor

_LENGTH = 16
_THINGS = ("the soup", "our room", "the view", "this film", "the plot", "the old band", "her speech", "the bread")
_GOOD = ("great", "lovely", "superb", "fresh", "charming", "clever")
_BAD = ("awful", "stale", "dull", "boring", "rotten", "clumsy")
_ENDS = ("", " indeed", " for once", " as always", " in every way I can think of")


@dataclass(frozen=True)
class Samples:
    """Inputs by name, rows first, and what is to be told of each row: int64 classes, or float32 numbers `[n, k]`."""

    inputs: dict[str, NDArray[Any]]
    labels: NDArray[Any]

    def take(self, rows: slice) -> Samples:
        return Samples({name: array[rows] for name, array in self.inputs.items()}, self.labels[rows])

    def tensors(self) -> list[torch.Tensor]:
        return [torch.from_numpy(array) for array in self.inputs.values()]


@dataclass(frozen=True)
class Learned:
    """A network after a few steps on real data, the loss of each, and the checkpoint that was saved of it."""

    architecture: Architecture
    net: nn.Module
    losses: list[float]
    held_out: Samples
    checkpoint: Path


def _sentences() -> tuple[list[str], NDArray[np.int64]]:
    """Sentences that praise (1) or blame (0)."""
    words = (*_GOOD, *_BAD)
    told = [(f"{thing} was {word}{end}", int(word in _GOOD)) for thing in _THINGS for word in words for end in _ENDS]
    order = np.random.default_rng(0).permutation(len(told))
    return [told[i][0] for i in order], np.array([told[i][1] for i in order], np.int64)


@pytest.fixture(scope="session")
def samples() -> dict[str, Samples]:
    """Digits as `images` and as `rows`, `patients` with a number, `ids` of sentences' words, and with a `mask`."""
    scikit = pytest.importorskip("sklearn.datasets")
    scans = data.load(Digits())["train"]
    images = (np.asarray(scans.items, np.float32)[:, None] / 255 - 0.3) / 0.37
    sick = scikit.load_diabetes()
    sentences, opinions = _sentences()
    words = {word: number for number, word in enumerate(sorted({w for text in sentences for w in text.split()}), 1)}
    ids = np.zeros((len(sentences), _LENGTH), np.int64)
    for row, text in zip(ids, sentences, strict=True):
        numbers = [words[word] for word in text.split()]
        row[: len(numbers)] = numbers
    patients = ((sick.data - sick.data.mean(0)) / sick.data.std(0)).astype(np.float32)
    return {
        "images": Samples({"image": images}, scans.labels),
        "rows": Samples({"row": images.reshape(len(images), -1)}, scans.labels),
        "patients": Samples({"row": patients}, sick.target.astype(np.float32)[:, None]),
        "ids": Samples({"ids": ids}, opinions),
        "mask": Samples({"ids": ids, "mask": (ids != 0).astype(np.int64)}, opinions),
    }


@pytest.fixture(scope="session")
def learn(samples: dict[str, Samples], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Learned]:
    """Trains an architecture on the first rows of some samples, in train mode with AdamW, and saves it."""

    def make(target: str, kwargs: dict[str, Any], kind: str, steps: int = 40, lr: float = 0.01) -> Learned:
        made = Architecture(target=target, kwargs=kwargs)
        held = samples[kind]
        torch.manual_seed(0)
        net = architecture.build(made).train()
        optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
        losses = []
        for step in range(steps):
            begin = 64 * step % (len(held.labels) - 128)  # the last 64 rows are held out
            part = held.take(slice(begin, begin + 64))
            answers, wanted = net(*part.tensors()), torch.from_numpy(part.labels)
            loss = functional.cross_entropy(answers, wanted)
            if wanted.is_floating_point():
                loss = functional.mse_loss(answers, wanted) / wanted.var()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        path = tmp_path_factory.mktemp("learned") / "net.pth"
        _save(path, made, net.eval(), held)
        return Learned(made, net, losses, held.take(slice(-64, None)), path)

    return make


def _save(path: Path, made: Architecture, net: nn.Module, held: Samples) -> None:
    """A checkpoint as training leaves it. Texts are of any length."""
    shapes = {name: array.shape[1:] if array.dtype != np.int64 else ("length",) for name, array in held.inputs.items()}
    inputs = tuple(
        Tensor(name=name, dtype=str(array.dtype), shape=("batch", *shapes[name])) for name, array in held.inputs.items()
    )
    dims = {"batch": Dim(opt=8, max=64)}
    if ("length",) in shapes.values():
        dims["length"] = Dim(opt=_LENGTH, max=24)
    signature, _ = probe.complete(net, Signature(inputs=inputs, outputs=(), dims=dims))
    task = "regression" if held.labels.dtype == np.float32 else "classification"
    parts = [held.take(slice(0, 128)), held.take(slice(-64, None))]
    rows = [Rows(part.inputs, part.labels if task == "classification" else None) for part in parts]
    checkpoint.save(path, Card(name="net", architecture=made, signature=signature, task=task), net.state_dict(), *rows)
