"""Loaders: batches of a part in an order that its epoch alone decides, read by as many processes as the recipe says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from penstock import datasets
from penstock.data.samples import Samples
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.preprocess import BadImage, ImagePreprocess
from penstock.preprocessing import Preprocess
from penstock.train import augment, features
from penstock.train.recipe import Augment, Loader

_UNCHANGED = Augment()
Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


class Order(Sampler[list[int]]):
    """Which samples are in which batch: drawn anew in each epoch by seed and epoch, the same on every machine.

    Of several ranks each has every so manieth; where they do not come out even, the first are drawn once more, so that
    all ranks have as many batches. Of what is learnt from, one sample that would be left over is in the batch before:
    BatchNorm has nothing to tell from one.

    Args:
        count: of samples.
        batch: rows of one.
        seed: of the draws; None goes through them in order, none of them twice.
        weights: float64 `[count]`, of each sample's chance to be drawn, with replacement; None draws each once.
        rank, ranks: whose batches these are, of how many.
    """

    def __init__(
        self,
        count: int,
        batch: int,
        seed: int | None,
        weights: NDArray[np.float64] | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self._count, self._batch, self._seed, self._weights = count, batch, seed, weights
        self._rank, self._ranks, self._epoch = rank, ranks, 0
        self.told: list[Callable[[int], object]] = []

    def set_epoch(self, epoch: int) -> None:
        """Told by Lightning before each epoch."""
        self._epoch = epoch
        for told in self.told:
            told(epoch)

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def _starts(self) -> range:
        """Where in what is drawn each batch begins."""
        alone = self._seed is not None and self._mine % self._batch == 1 and 1 < self._batch < self._mine
        return range(0, self._mine - alone, self._batch)

    @property
    def _mine(self) -> int:
        if self._seed is None:
            return len(range(self._rank, self._count, self._ranks))
        return -(-self._count // self._ranks)

    def __iter__(self) -> Iterator[list[int]]:
        mine = self._drawn()[self._rank :: self._ranks]
        for start, end in pairwise([*self._starts, len(mine)]):
            yield mine[start:end].tolist()

    def _drawn(self) -> NDArray[np.int64]:
        if self._seed is None:
            return np.arange(self._count)
        draws = np.random.default_rng((self._seed, self._epoch))
        if self._weights is None:
            order = draws.permutation(self._count)
        else:
            order = draws.choice(self._count, self._count, p=self._weights / self._weights.sum())
        return np.resize(order, self._mine * self._ranks)


class Held(Dataset[Batch]):
    """Rows that are there, fetched a batch at a time."""

    def __init__(self, rows: Rows) -> None:
        assert rows.labels is not None
        self._inputs, self._labels = rows.inputs, rows.labels

    def __getitem__(self, indices: Any) -> Batch:
        inputs = {name: torch.from_numpy(np.ascontiguousarray(array[indices])) for name, array in self._inputs.items()}
        return inputs, torch.from_numpy(self._labels[indices])


class Pictures(Dataset[Batch]):
    """Encoded pictures, decoded when they are wanted: uint8 `[batch, height, width, channels]`."""

    def __init__(self, samples: Samples, preprocess: ImagePreprocess) -> None:
        self._samples, self._name = samples, preprocess.input
        self._preprocess = pixels(preprocess)

    def __getitem__(self, indices: Any) -> Batch:
        read = torch.from_numpy(np.concatenate([self._read(index) for index in indices]))
        return {self._name: read}, torch.from_numpy(self._samples.labels[indices])

    def _read(self, index: int) -> NDArray[np.uint8]:
        try:
            return self._preprocess.read(self._samples.items[index])
        except BadImage as error:
            raise PenstockError(
                f"{self._samples.place(index)}: {error}; repair or remove it, or leave out what cannot be read: "
                "--set dataset.unreadable=skip"
            ) from None


def pixels(preprocess: ImagePreprocess) -> ImagePreprocess:
    """The same up to the numbers: what it makes are the resized pixels."""
    return preprocess.model_copy(update={"dtype": "uint8"})


def dataset(
    samples: Samples, preprocess: Preprocess | None, changes: Augment = _UNCHANGED, seed: int = 0
) -> Dataset[Batch]:
    """The samples of a part, by lists of indices: pictures as pixels, all else as the model takes it.

    Args:
        samples: of the part.
        preprocess: what becomes of one.
        changes: what is to be changed at random of each picture as it is read.
        seed: of those changes.
    """
    if isinstance(preprocess, ImagePreprocess):
        if augment.by_picture(changes):
            return augment.Changed(samples, preprocess, changes, seed)
        if isinstance(samples.items[0], bytes):
            return Pictures(samples, preprocess)
        return Held(datasets.rows(samples, pixels(preprocess)))
    return Held(features.rows(samples, preprocess))


def loader(read: Dataset[Batch], order: Order, how: Loader, *, on_gpu: bool, seed: int) -> DataLoader[Batch]:
    """Batches of a data set in an order."""
    return DataLoader(
        read,
        batch_size=None,  # whole batches are fetched
        sampler=order,
        num_workers=how.workers,
        pin_memory=how.pin and on_gpu,
        persistent_workers=how.workers > 0,
        generator=torch.Generator().manual_seed(seed),
    )


def weights(labels: NDArray[Any]) -> NDArray[np.float64]:
    """Chances that give each class as many samples as the others: float64 `[n]`."""
    counts = np.bincount(labels)
    found: NDArray[np.float64] = 1.0 / counts[labels]
    return found
