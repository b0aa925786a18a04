"""Arrays of an .npz file: one for each of a model's inputs, and `labels`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from penstock import arrayfiles, datasets
from penstock.data.samples import Samples
from penstock.data.specs import Arrays, Part
from penstock.data.split import split_off
from penstock.data.views import Lines
from penstock.errors import PenstockError, listed, printable
from penstock.spool import pick, spooled

# Rows that are converted at a time.
_CHUNK = 256


class Inputs(Sequence[dict[str, Any]]):
    """Rows of several arrays, by name, as one: `arrays` are them, each `[n, …]`, or spools where they are large."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = dict(arrays)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Inputs: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | Inputs:
        if isinstance(index, slice):
            return self.pick(index)
        return {name: array[index] for name, array in self.arrays.items()}

    def pick(self, rows: Any) -> Inputs:
        """Those rows of each array; of spools unread."""
        return Inputs({name: pick(array, rows) for name, array in self.arrays.items()})


def load(spec: Arrays, task: str | None = None) -> dict[Part, Samples]:
    """The parts. Labels of whole numbers are classes, from 0 on; others are numbers, `[n]` or `[n, k]`.

    Of task multilabel whole numbers and truths `[n, k]` are numbers, too, 0 or 1 for each label.
    Inputs of floats, of whichever width, become float32.

    Raises:
        PenstockError: the file cannot be read, holds no rows or no labels, or an input that is NaN or beyond float32,
            lacks a class amid others, or a part would be too small.
    """
    path = Path(spec.path)
    where = f"dataset.path {printable(spec.path)}"
    arrays = arrayfiles.read_npz(path, "dataset.path")
    datasets.see_rows(where, arrays)
    if "labels" not in arrays:
        raise PenstockError(f"{where}: holds no `labels`, but {listed(arrays)}; add the classes' numbers, or numbers")
    labels, classes = _labels(where, np.asarray(arrays.pop("labels")), task)
    items = Inputs({name: _narrow(array) for name, array in arrays.items()})
    for name, array in items.arrays.items():
        _see_finite(where, name, array)
    index = split_off(spec, (), len(labels), None if classes is None else labels, classes)
    return {
        part: Samples(items.pick(rows), labels[rows], "arrays", classes, Lines(path.name, rows, "row"))
        for part, rows in index.items()
    }


def _narrow(array: Any) -> Any:
    """Floats of any width as float32, in which networks compute; whole numbers stay, since they may be indices."""
    if array.dtype.kind != "f" or array.dtype == np.float32:
        return array
    with np.errstate(over="ignore"):
        parts = (array[start : start + _CHUNK].astype(np.float32) for start in range(0, len(array), _CHUNK))
        return spooled(parts, len(array), np.dtype(np.float32), tuple(array.shape[1:]))


def _see_finite(where: str, name: str, array: Any) -> None:
    """Refuse an input of floats that are no numbers, of which nothing can be learnt."""
    for start in range(0, len(array) if array.dtype.kind == "f" else 0, _CHUNK):
        unfit = np.argwhere(~np.isfinite(part := array[start : start + _CHUNK]))
        if unfit.size:
            at = tuple(unfit[0].tolist())
            raise PenstockError(
                f"{where}: row {start + at[0]} of {name!r} holds {part[at]}, which is no finite float32 number; "
                "correct it, or leave the row out"
            )


def _labels(where: str, labels: NDArray[Any], task: str | None) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """Labels as class numbers int64 `[n]`, with the classes' names, or as numbers float32."""
    if task == "multilabel" and labels.ndim == 2 and labels.dtype.kind in "biu" and _are_held_or_not(labels):
        labels = labels.astype(np.float32)
    return _classes(where, labels) if labels.dtype.kind in "iu" else (_numbers(where, labels), None)


def _are_held_or_not(labels: NDArray[Any]) -> bool:
    return bool(((labels == 0) | (labels == 1)).all())


def _classes(where: str, labels: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if labels.ndim != 1:
        raise PenstockError(
            f"{where}: labels are whole numbers of shape {list(labels.shape)}; class numbers are one for each row, and "
            "several labels for a row must be floats or, of task multilabel, 0 and 1"
        )
    held = np.unique(labels)
    if held[0] < 0:
        row = int(np.flatnonzero(labels == held[0])[0])
        raise PenstockError(f"{where}: the label of row {row} is {held[0]}; class numbers are 0 and more")
    count = len(held)
    if held[-1] != count - 1:
        known = set(held.tolist())
        gaps = [str(number) for number in range(min(int(held[-1]), count + 8)) if number not in known]
        raise PenstockError(
            f"{where}: no row is of class {listed(gaps)}, though labels go up to {held[-1]}; number the classes from 0 "
            "on without a gap, or give floats if they are no classes"
        )
    if count < 2:
        raise PenstockError(f"{where}: holds only class 0; there must be two to tell apart")
    return labels.astype(np.int64), tuple(map(str, range(count)))


def _numbers(where: str, labels: NDArray[Any]) -> NDArray[np.float32]:
    if labels.dtype.kind != "f":
        raise PenstockError(f"{where}: labels have dtype {labels.dtype}; classes must be integers, numbers floats")
    if labels.ndim > 2 or labels.size == 0:
        raise PenstockError(f"{where}: labels have shape {list(labels.shape)}; numbers must be [n] or [n, k]")
    with np.errstate(over="ignore"):
        numbers = labels.astype(np.float32)
    unfit = np.argwhere(~np.isfinite(numbers))
    if unfit.size:
        at = tuple(unfit[0].tolist())
        raise PenstockError(f"{where}: the label of row {at[0]} is {labels[at]}, which is no finite float32 number")
    return numbers
