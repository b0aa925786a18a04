"""What a data set holds, in a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.data.samples import Samples
from penstock.data.specs import Part
from penstock.errors import listed


def summary(parts: Mapping[Part, Samples], task: str | None = None) -> str:
    """How many samples the parts hold, and what is to be told of them: how many of each class or label, or numbers.

    `1,257 train, 180 val, 360 test; 10 classes, 121 (8) to 128 (1) of each in train`
    """
    counts = ", ".join(f"{len(part):,} {name}" for name, part in parts.items())
    train = parts["train"]
    if train.classes is not None and train.labels.ndim == 1:
        told = _classes(train.labels, train.classes)
    else:
        told = _labels(train.labels) if task == "multilabel" else _numbers(train.labels)
    return f"{counts}; {told}"


def _classes(labels: NDArray[Any], names: tuple[str, ...]) -> str:
    counts = np.bincount(labels, minlength=len(names))
    if len(names) <= 4:
        told = ", ".join(f"{count:,} {name}" for count, name in zip(counts, names, strict=True))
        return f"{len(names)} classes: {told} in train"
    few, many = int(counts.argmin()), int(counts.argmax())
    if counts[few] == counts[many]:
        return f"{len(names)} classes ({listed(names, 3)}), {counts[few]:,} of each in train"
    return f"{len(names)} classes, {counts[few]:,} ({names[few]}) to {counts[many]:,} ({names[many]}) of each in train"


def _labels(labels: NDArray[Any]) -> str:
    held = (labels > 0.5).sum(0)
    each = held.sum() / len(labels)
    return f"{labels.shape[1]} labels, held by {held.min():,} to {held.max():,} rows, {each:.2g} by each in train"


def _numbers(labels: NDArray[Any]) -> str:
    if labels.ndim == 2 and labels.shape[1] > 1:
        return f"{labels.shape[1]} numbers each, {labels.min():.4g} to {labels.max():.4g} in train"
    mean, std = labels.mean(dtype=np.float64), labels.std(dtype=np.float64)
    return f"numbers, {labels.min():.4g} to {labels.max():.4g}, {mean:.4g} ± {std:.2g} in train"
