"""The gate: an export is run by its runtime against the float32 source, or it is not published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import evaluation
from penstock.arrays import take
from penstock.datasets import Rows
from penstock.errors import GateError, last_line
from penstock.evidence import Place
from penstock.parity import Columns, Distance, Limits, compare, worst
from penstock.runtimes import Runner
from penstock.signature import Dim

if TYPE_CHECKING:
    from penstock.export.limits import Budget
    from penstock.export.reference import Reference

STOPPED = "the gate stopped it"
# Beyond the samples kernels may approximate the tails of a sigmoid; what is looked for there is off by far more.
_BEYOND = 1e-3


def sizes(batch: Dim) -> tuple[int, ...]:
    """The batch sizes to try: the smallest, the next, an odd and the usual one, the middle, and the largest."""
    odd = 7 if batch.min <= 7 <= batch.max else batch.min + 3 - batch.min % 2
    wanted = (batch.min, batch.min + 1, odd, batch.opt, (batch.min + batch.max) // 2, batch.max)
    return tuple(sorted({size for size in wanted if size <= batch.max}))


def verify(
    runner: Runner,
    rows: Rows,
    expected: dict[str, Any],
    limits: dict[str, Limits],
    batch: Dim,
    columns: Sequence[tuple[Columns, float]] = (),
    *,
    samples: int,
) -> tuple[Distance, ...]:
    """Compare a runner with the source's outputs at each of `sizes(batch)`.

    At the smaller sizes the first and the last rows are run; at the largest, all of them, and those that are no others
    over again are judged.

    Args:
        runner: the export.
        rows: the inputs, a whole number of largest batches.
        expected: the source's outputs for them, by name.
        limits: what each output must keep. Top-1 agreement is held over all rows together: one row of two that
            flips is no half.
        batch: the signature's range of batch sizes.
        columns: those that an output's norm hides, with the limit of their own; judged over all samples.
        samples: how many of the rows, the first ones, are not others over again.

    Returns:
        The worst distance of each output.

    Raises:
        GateError: a limit is passed, or the runner fails; it names the output, the batch and the figure.
    """
    runner.settled()  # what is proven is what will be served
    return tuple(worst(_passed(_examined(runner, rows, expected, limits, batch, columns, samples))))


def examine(runner: Runner, reference: Reference, budget: Budget) -> tuple[tuple[Distance, ...], str | None]:
    """The same, and other sizes of dimensions, without an end at the first limit that is passed.

    Args:
        runner: the export.
        reference: the float32 source, samples and its answers.
        budget: what the export must keep.

    Returns:
        The worst distance of each output, and the first failure, in words.

    Raises:
        GateError: the runner fails.
    """
    batch = reference.signature.dims[str(reference.signature.batch)]
    parts = [
        *_examined(
            *(runner, reference.rows, reference.outputs, budget.limits, batch, budget.columns, reference.samples)
        ),
        *_examined_places(runner, reference.places, budget.limits),
    ]
    failures = [failure for _, failure in parts if failure is not None]
    return tuple(worst([item for found, _ in parts for item in found])), next(iter(failures), None)


def _examined(
    runner: Runner,
    rows: Rows,
    expected: dict[str, Any],
    limits: dict[str, Limits],
    batch: Dim,
    columns: Sequence[tuple[Columns, float]],
    samples: int,
) -> Iterator[tuple[list[Distance], str | None]]:
    """For each size of a batch the distances, and what is over its limit."""
    for size in sizes(batch)[:-1]:
        for start in sorted({0, len(rows) - size}):
            part = slice(start, start + size)
            inputs = take(rows.inputs, part)
            found = _distances(runner, inputs, take(expected, part), size, f"batch {size}")
            found = [item.without_agreement() for item in found]
            yield found, _failure(found, limits, f"batch {size}")
    got, whole = _compared_run(runner, rows.inputs, expected, batch.max, f"batch {batch.max}", slice(samples))
    yield whole, _failure(whole, limits, f"batch {batch.max}")
    expected, got = take(expected, slice(samples)), take(got, slice(samples))
    for group, limit in columns:
        yield [], _failure_of_columns(group, limit, expected[group.output], got[group.output])


def _failure_of_columns(columns: Columns, limit: float, expected: Any, got: Any) -> str | None:
    error = columns.error(expected, got)
    if error is None or error <= limit:
        return None
    return (
        f"{columns}, small beside the others: relative L2 error {error:.3g} of their own is over the limit of "
        f"{limit:.3g}; nothing was published under its name (--max-error {_up(error)} accepts that)"
    )


def _up(error: float) -> float:
    """The figure rounded up to two digits."""
    unit = 10.0 ** (np.floor(np.log10(error)) - 1)
    return float(f"{np.ceil(error / unit) * unit:.2g}")


def verify_places(runner: Runner, places: Sequence[Place], limits: dict[str, Limits]) -> list[Distance]:
    """Compare a runner with its source at many sizes of each dimension but the batch, and where all are at their ends.

    Args:
        runner: the export.
        places: the source's answers there; samples are cut, or repeated along the dimensions.
        limits: what each output must keep; agreement is not judged over so few rows.

    Raises:
        GateError: a limit is passed, or one of the two fails.
    """
    return _passed(_examined_places(runner, places, limits))


def _examined_places(
    runner: Runner, places: Sequence[Place], limits: dict[str, Limits]
) -> Iterator[tuple[list[Distance], str | None]]:
    for place in places:
        found = _distances(runner, place.inputs, place.outputs, place.rows, place.what)
        found = [item.without_agreement() for item in found]
        yield found, _failure(found, limits, place.what)


def verify_extremes(runner: Runner, reference: Reference, accepted: float | None = None) -> None:
    """Compare a float32 export with its source on inputs beyond the samples: zeros, and many times as large.

    An error counts in relation to the source's answer there or, where that is smaller, to its usual one.

    Args:
        runner: the export.
        reference: the float32 source; inputs on which its own answers are no numbers are not among its extremes.
        accepted: the error that the user accepts, if they said so.

    Raises:
        GateError: the export is off, or answers no numbers.
    """
    from penstock.export.limits import of_source  # which needs torch, as a float32 source does

    usual = {name: _norm(array) / np.sqrt(array.size) for name, array in reference.outputs.items()}
    for extreme in reference.extremes:
        limits = of_source(reference.noise.larger(extreme.noise), max(accepted or 0, _BEYOND))
        where = extreme.what
        got, _ = _compared_run(runner, extreme.rows.inputs, extreme.outputs, len(extreme.rows), where)
        for name, expected in extreme.outputs.items():
            if expected.dtype.kind != "f" or not expected.size:
                continue
            scale = max(_norm(expected), usual[name] * np.sqrt(expected.size)) or 1.0
            off = _norm(got[name].astype(np.float64) - expected) / scale
            if not off <= limits[name].max_error:
                raise GateError(
                    f"{STOPPED}: output {name!r} at {where}: relative L2 error {off:.3g} is over the limit "
                    f"of {limits[name].max_error:.3g}; nothing was published under its name (if inputs are never like "
                    "that, say what they are: --range NAME=LOW,HIGH)"
                )


def _norm(array: Any) -> float:
    return float(np.linalg.norm(np.asarray(array, np.float64)))


def _distances(
    runner: Runner, inputs: dict[str, Any], reference: dict[str, Any], batch: int, where: str
) -> list[Distance]:
    return _compared_run(runner, inputs, reference, batch, where)[1]


def _compared_run(
    runner: Runner,
    inputs: dict[str, Any],
    reference: dict[str, Any],
    batch: int,
    where: str,
    judged: slice = slice(None),
) -> tuple[dict[str, Any], list[Distance]]:
    """A runner's answers, and how far each is from the reference in the rows that are judged."""
    try:
        got = evaluation.outputs(runner, Rows(inputs, None), batch)
        for name, array in reference.items():
            if name in got and got[name].shape != array.shape:
                raise ValueError(f"output {name!r} has shape {list(got[name].shape)}; it must be {list(array.shape)}")
        return got, compare(take(reference, judged), take(got, judged))
    except Exception as error:  # a comparison that crashes is a failure, never a pass
        raise GateError(f"{STOPPED} at {where}: {type(error).__name__}: {last_line(error)}") from error


def _failure(found: list[Distance], limits: dict[str, Limits], where: str) -> str | None:
    for item in found:
        failure = item.failure(limits[item.output])
        if failure is not None:
            return (
                f"output {item.output!r} at {where}: {failure}; nothing was published "
                "under its name (--max-error and --min-agreement widen the limits)"
            )
    return None


def _passed(parts: Iterator[tuple[list[Distance], str | None]]) -> list[Distance]:
    """All distances; the first failure ends it."""
    seen: list[Distance] = []
    for found, failure in parts:
        if failure is not None:
            raise GateError(f"{STOPPED}: {failure}")
        seen.extend(found)
    return seen
