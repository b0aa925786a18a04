"""Parity: how far two sets of named outputs are from each other, and whether that is near enough."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from penstock.signature import Arrays

_BAND = 1e3
# Half of the rows may be off by no more than this share of their own size: one error over a whole batch says nothing of
# rows that are small beside others.
_TYPICAL, _ROWS = 0.5, 16

# An error of their own that columns which an output's norm hides may have in lower precision.
HIDDEN_LOWER = 0.5


class Limits(BaseModel):
    """What a comparison must keep: relative L2 error at most, top-1 agreement at least."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    max_error: float = Field(ge=0)
    min_agreement: float = Field(ge=0, le=1)


class Columns(BaseModel):
    """Columns of an output that are alike in size and far smaller than its largest: an axis, and places along it.

    One error over a whole output says nothing of them: a score of 0 to 1 beside a box in pixels, or beside a time.
    """

    model_config = ConfigDict(frozen=True)
    output: str
    axis: int
    places: tuple[int, ...]

    def error(self, reference: NDArray[np.generic], actual: NDArray[np.generic]) -> float | None:
        """Their own relative L2 error, or None where the reference is 0 in all of them."""
        expected, got = (np.take(array, self.places, self.axis).astype(np.float64) for array in (reference, actual))
        norm = float(np.linalg.norm(expected))
        return float(np.linalg.norm(got - expected)) / norm if norm > 0 else None

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.places[:3])) + (", …" if len(self.places) > 3 else "")
        return f"output {self.output!r}, column{'s' * (len(self.places) > 1)} {shown} of axis {self.axis}"


class Distance(BaseModel):
    """How far one output is from the reference.

    `max_abs` is the largest absolute difference, `rel_l2` is ‖actual − reference‖₂ / ‖reference‖₂ and `cosine` the
    cosine of the angle between the two, all over the flattened output in float64. `agreement` is the share of rows
    whose largest entry is the same one, for outputs of rank 2 with at least two columns; None elsewhere.
    A NaN or an Inf anywhere, in the reference too, makes the distance infinite and the agreement 0.
    Whole numbers, as classes are, are right or wrong: `entries` is how many there are (0 for floats), and `rel_l2` the
    share of them that differ. `typical` is the median of the rows' own relative errors, where there are rows enough.
    """

    output: str
    max_abs: float
    rel_l2: float
    cosine: float
    agreement: float | None = None
    entries: int = 0
    typical: float | None = None

    def without_agreement(self) -> Distance:
        """The same distance for rows too few for a share of them to say anything."""
        return self.model_copy(update={"agreement": None, "typical": None})

    def failure(self, limits: Limits) -> str | None:
        """The figure that leaves `limits`, in words, or None. NaN is never within a limit."""
        if self.entries:  # one of few says nothing
            allowed = max(1 - limits.min_agreement, 1.5 / self.entries)
            return None if self.rel_l2 <= allowed else f"{self.rel_l2:.2%} of its whole numbers differ"
        if not self.rel_l2 <= limits.max_error:  # limits are finite: Inf never passes either
            return f"relative L2 error {self.rel_l2:.3g} is over the limit of {limits.max_error:.3g}"
        if self.typical is not None and not self.typical <= max(_TYPICAL, limits.max_error):
            return (
                f"half of the rows are off by {self.typical:.0%} of their own size or more, though the error over all "
                f"is {self.rel_l2:.3g}: the samples differ too much in size for one scale"
            )
        if self.agreement is not None and not self.agreement >= limits.min_agreement:
            return f"top-1 agreement {self.agreement:.2%} is under the limit of {limits.min_agreement:.2%}"
        return None


def compare(reference: Arrays, actual: Arrays) -> list[Distance]:
    """The distance of each output of `actual` from the one of the same name in `reference`.

    Raises:
        ValueError: the names differ, or under one name the dtypes or shapes.
    """
    if list(reference) != list(actual):
        raise ValueError(f"outputs are {', '.join(actual)}; they must be {', '.join(reference)}, in that order")
    for name, array in reference.items():
        if array.dtype != actual[name].dtype:
            raise ValueError(f"output {name!r} has dtype {actual[name].dtype}; it must be {array.dtype}")
    return [distance(name, reference[name], actual[name]) for name in reference]


def distance(output: str, reference: NDArray[np.generic], actual: NDArray[np.generic]) -> Distance:
    """The distance of one array from its reference; both of the same shape."""
    if reference.shape != actual.shape:
        raise ValueError(f"output {output!r} has shape {list(actual.shape)}; it must be {list(reference.shape)}")
    if reference.dtype.kind != "f" and reference.size:
        share = float(np.mean(reference != actual))
        most = float(np.abs(actual.astype(np.float64) - reference.astype(np.float64)).max())
        return Distance(output=output, max_abs=most, rel_l2=share, cosine=1.0 - share, entries=reference.size)
    expected, got = reference.astype(np.float64), actual.astype(np.float64)
    if not (np.isfinite(expected).all() and np.isfinite(got).all()):
        return Distance(output=output, max_abs=np.inf, rel_l2=np.inf, cosine=-1.0, agreement=0.0)
    difference = got - expected
    norm, norm_got = float(np.linalg.norm(expected)), float(np.linalg.norm(got))
    error = float(np.linalg.norm(difference))
    return Distance(
        output=output,
        max_abs=float(np.abs(difference).max(initial=0.0)),
        # A reference of zeros has no scale to be relative to: the absolute error stands in.
        rel_l2=error / norm if norm > 0 else error,
        cosine=float(np.vdot(expected, got)) / (norm * norm_got) if norm > 0 and norm_got > 0 else float(error == 0),
        agreement=agreement(expected, got),
        typical=_typical(expected, difference),
    )


def _typical(expected: NDArray[np.float64], difference: NDArray[np.float64]) -> float | None:
    """The median over rows of a row's error by its own norm; rows of zeros have none."""
    if expected.ndim == 0 or len(expected) < _ROWS:
        return None
    sizes, errors = (np.linalg.norm(array.reshape(len(array), -1), axis=1) for array in (expected, difference))
    used = sizes > 0
    return float(np.median(errors[used] / sizes[used])) if used.sum() >= _ROWS else None


def small_columns(output: str, reference: NDArray[np.generic]) -> list[Columns]:
    """The columns of a float output that its norm hides, in groups of like size.

    Columns are those of the axis after the batch and of the last. Each group spans a factor of `_BAND` in size, going
    down from the largest column, whose own group the norm of the whole output speaks for.
    """
    found = []
    for axis in sorted({1, reference.ndim - 1}) if reference.ndim > 1 and reference.dtype.kind == "f" else ():
        others = tuple(place for place in range(reference.ndim) if place != axis)
        norms = np.sqrt(np.sum(np.square(reference.astype(np.float64)), axis=others))
        used = np.flatnonzero(norms > 0)
        bands = np.floor(np.log(norms[used].max(initial=0) / norms[used]) / np.log(_BAND)).astype(int)
        for band in np.unique(bands[bands > 0]):
            found.append(Columns(output=output, axis=axis, places=tuple(used[bands == band].tolist())))
    return found


def agreement(expected: NDArray[np.float64], got: NDArray[np.float64]) -> float | None:
    """The share of rows whose largest entry is at the same place, or None where the question has no sense."""
    if expected.ndim != 2 or expected.shape[1] < 2 or len(expected) == 0:
        return None
    return float(np.mean(expected.argmax(axis=1) == got.argmax(axis=1)))


def worst(distances: list[Distance]) -> list[Distance]:
    """One distance for each output, holding the worst of every figure among those given."""
    merged: dict[str, Distance] = {}
    for item in distances:
        held = merged.get(item.output)
        merged[item.output] = item if held is None else _worse(held, item)
    return list(merged.values())


def _worse(a: Distance, b: Distance) -> Distance:
    agreements = [value for value in (a.agreement, b.agreement) if value is not None]
    typical = [value for value in (a.typical, b.typical) if value is not None]
    return Distance(
        output=a.output,
        # numpy's, since Python's own max loses a NaN that comes second.
        max_abs=float(np.maximum(a.max_abs, b.max_abs)),
        rel_l2=float(np.maximum(a.rel_l2, b.rel_l2)),
        cosine=float(np.minimum(a.cosine, b.cosine)),
        agreement=min(agreements, default=None),
        entries=max(a.entries, b.entries),
        typical=max(typical, default=None),
    )
