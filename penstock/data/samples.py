"""Samples: the items of a part of a data set as they are read, and what is to be told of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["image", "text", "row", "arrays"]


@dataclass(frozen=True)
class Samples:
    """The items of one part, and their labels.

    `items[i]` is, by `kind`: image, uint8 `[height, width]` or `[height, width, 3]`, or the bytes of an encoded
    picture; text, a string; row, a dict of the columns' values; arrays, a dict of one row of each input.
    `labels` are class numbers int64 `[n]`, or numbers float32 `[n]` or `[n, k]`. `classes` are the classes' names in
    the order of their numbers, None where there are none. `places` say where each item came from, "train.csv line 12".
    """

    items: Sequence[Any]
    labels: NDArray[Any]
    kind: Kind = "image"
    classes: tuple[str, ...] | None = None
    places: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> Samples:
        """The first few."""
        items, places = self.items, self.places
        few = range(min(count, len(self)))
        held = items[:count] if isinstance(items, np.ndarray) else [items[index] for index in few]
        return replace(self, items=held, labels=self.labels[:count], places=places and [places[index] for index in few])

    def place(self, index: int) -> str:
        """Where an item came from, in words."""
        return f"item {index}" if self.places is None else self.places[index]
