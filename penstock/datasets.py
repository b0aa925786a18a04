"""Data sets by name: real samples for training, calibration, the gate and the accuracy column.

A checkpoint and its receipts record a `DatasetSpec`; the same spec gives the same split on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from penstock.errors import PenstockError, require
from penstock.preprocess import ImagePreprocess

Part = Literal["train", "val", "test"]


class DatasetSpec(BaseModel):
    """A named data set and its seeded, stratified split; `val` and `test` are shares of the whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: Literal["digits"]
    seed: int = Field(default=0, ge=0, le=2**32 - 1)
    val: float = Field(default=0.1, gt=0, lt=1)
    test: float = Field(default=0.2, gt=0, lt=1)

    @model_validator(mode="after")
    def _leaves_something_to_train_on(self) -> DatasetSpec:
        if self.val + self.test >= 1:
            raise ValueError(f"val + test is {self.val + self.test:g}; it must be under 1, to leave a training part")
        return self


@dataclass(frozen=True)
class Samples:
    """Images uint8 `[n, height, width]` with their class numbers int64 `[n]`."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Model-ready inputs by name, each `[n, …]`, with class numbers int64 `[n]` where they are known."""

    inputs: dict[str, NDArray[np.generic]]
    labels: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def take(self, n: int) -> Rows:
        """The first `n` rows."""
        labels = None if self.labels is None else self.labels[:n]
        return Rows({name: array[:n] for name, array in self.inputs.items()}, labels)


def load(spec: DatasetSpec) -> dict[Part, Samples]:
    """The three parts of a data set.

    Raises:
        PenstockError: the package that ships the data is not installed.
    """
    require("sklearn", "bench", f"data set {spec.name!r}")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    scans = load_digits()
    # The scans hold 0..16 (ink counted in 4x4 blocks); as 8-bit grey they can be saved, uploaded and read back.
    images = np.rint(scans.images * (255 / 16)).astype(np.uint8)
    labels = scans.target.astype(np.int64)
    share = spec.val / (1 - spec.test)
    try:
        rest, test = train_test_split(
            np.arange(len(labels)), test_size=spec.test, random_state=spec.seed, stratify=labels
        )
        train, val = train_test_split(rest, test_size=share, random_state=spec.seed, stratify=labels[rest])
    except ValueError as error:
        raise PenstockError(
            f"dataset {spec.name}: val {spec.val} and test {spec.test} leave too little: {error}"
        ) from None
    parts: dict[Part, NDArray[np.int64]] = {"train": train, "val": val, "test": test}
    return {part: Samples(images[index], labels[index]) for part, index in parts.items()}


def rows(samples: Samples, preprocess: ImagePreprocess) -> Rows:
    """Samples as the model takes them."""
    if samples.images.shape[1:] == (preprocess.height, preprocess.width) and preprocess.mode == "L":
        return Rows({preprocess.input: preprocess.normalize(samples.images)}, samples.labels)
    from PIL import Image

    arrays = [preprocess.apply(Image.fromarray(pixels)) for pixels in samples.images]
    return Rows({preprocess.input: np.concatenate(arrays)}, samples.labels)


def read_npz(path: Path) -> Rows:
    """Rows from an .npz file with one array for each input, by name, and class numbers under `labels`, if known.

    Raises:
        PenstockError: the file is missing, not an .npz, holds pickled objects or arrays of different lengths.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: np.asarray(archive[name]) for name in archive.files}
    except FileNotFoundError:
        raise PenstockError(f"--data {path}: no such file") from None
    except (OSError, ValueError, EOFError, AttributeError, TypeError) as error:
        raise PenstockError(f"--data {path}: not an .npz file of plain arrays ({error})") from None
    except Exception as error:  # zipfile.BadZipFile, zlib.error: a damaged archive
        raise PenstockError(f"--data {path}: damaged .npz file ({error})") from None
    unread = [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]
    if unread:
        raise PenstockError(f"--data {path}: {unread[0]!r} holds no numbers")
    labels = arrays.pop("labels", None)
    if not arrays:
        raise PenstockError(f"--data {path}: holds no input arrays; name each after an input of the model")
    lengths = {name: len(array) if array.ndim else -1 for name, array in arrays.items()}
    if labels is not None:
        lengths["labels"] = len(labels) if labels.ndim == 1 else -1
        if not np.issubdtype(labels.dtype, np.integer):
            raise PenstockError(f"--data {path}: labels have dtype {labels.dtype}; they must be integers")
    if len(set(lengths.values())) != 1 or min(lengths.values()) < 1:
        raise PenstockError(f"--data {path}: arrays must have the same number of rows, at least 1, not {lengths}")
    return Rows(arrays, None if labels is None else labels.astype(np.int64))
