"""Sequences that hold no items of their own: some of another's, and where rows stand in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class Chosen(Sequence[T]):
    """Some items of a sequence, in an order of their own; each is read from there when it is asked for."""

    def __init__(self, items: Sequence[T], rows: NDArray[np.int64]) -> None:
        self.items, self.rows = items, rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Chosen[T]: ...

    def __getitem__(self, index: int | slice) -> T | Chosen[T]:
        if isinstance(index, slice):
            return Chosen(self.items, self.rows[index])
        return self.items[int(self.rows[index])]


class Lines(Sequence[str]):
    """Where the rows of a file stand in it, "train.csv line 12", kept as numbers."""

    def __init__(self, file: str, numbers: Sequence[int] | NDArray[np.int64], unit: str = "line") -> None:
        self.file, self.numbers, self.unit = file, np.asarray(numbers, np.int64), unit

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Lines: ...

    def __getitem__(self, index: int | slice) -> str | Lines:
        if isinstance(index, slice):
            return Lines(self.file, self.numbers[index], self.unit)
        return f"{self.file} {self.unit} {self.numbers[index]}"
