"""The gate: an export is run by its runtime against the float32 source, or it is not published."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock import evaluation
from penstock.arrays import take
from penstock.datasets import Rows
from penstock.errors import GateError
from penstock.parity import Distance, Limits, compare, worst
from penstock.runtimes import Runner
from penstock.signature import Dim, Signature

# Rounding alone: float32 reorders sums; float16 keeps 11 bits; int8 has 256 steps a tensor.
LIMITS = {
    "fp32": Limits(max_error=1e-4, min_agreement=0.995),
    "fp16": Limits(max_error=1e-2, min_agreement=0.99),
    "int8": Limits(max_error=0.15, min_agreement=0.97),
}

_FEW = 8


def verify(
    runner: Runner,
    rows: Rows,
    reference: dict[str, Any],
    limits: Limits,
    batch: Dim,
    source: Runner | None = None,
) -> tuple[tuple[int, ...], tuple[Distance, ...]]:
    """Compare a runner with the source's outputs at the smallest batch, the next, odd and usual ones, and the largest.

    At the smaller sizes the first and the last rows are run; at the largest, all of them.

    Args:
        runner: the export.
        rows: the inputs, a whole number of largest batches.
        reference: the source's outputs for them, by name.
        limits: what each output must keep. Top-1 agreement is held over all rows together: one row of two that
            flips is no half.
        batch: the signature's range of batch sizes.
        source: run at each smaller size too, since its answers may depend on it; else `reference` is cut.

    Returns:
        The batch sizes run, and the worst distance of each output.

    Raises:
        GateError: a limit is passed, or the runner fails; it names the output, the batch and the figure.
    """
    odd = 7 if batch.min <= 7 <= batch.max else batch.min + 3 - batch.min % 2
    wanted = (batch.min, batch.min + 1, odd, batch.opt, (batch.min + batch.max) // 2, batch.max)
    sizes = tuple(sorted({size for size in wanted if size <= batch.max}))
    seen: list[Distance] = []
    for size in sizes[:-1]:
        for start in sorted({0, len(rows) - size}):
            part = slice(start, start + size)
            inputs = take(rows.inputs, part)
            expected = take(reference, part) if source is None else _answer(source, inputs, f"batch {size}")
            found = _distances(runner, inputs, expected, size, f"batch {size}")
            found = [item.without_agreement() for item in found]
            _judge(found, limits, f"batch {size}")
            seen.extend(found)
    whole = _distances(runner, rows.inputs, reference, batch.max, f"batch {batch.max}")
    _judge(whole, limits, f"batch {batch.max}")
    return sizes, tuple(worst([*seen, *whole]))


def verify_dims(runner: Runner, source: Runner, rows: Rows, signature: Signature, limits: Limits) -> list[Distance]:
    """Compare a runner with its source at the smallest, an odd and the largest size of each dimension but the batch.

    Args:
        runner: the export.
        source: the float32 source.
        rows: samples; the first few are cut, or repeated along the dimension, to each size.
        signature: the contract, with the ranges.
        limits: what each output must keep; agreement is not judged over so few rows.

    Raises:
        GateError: a limit is passed, or one of the two fails.
    """
    batch = min(signature.max_batch, max(signature.min_batch, _FEW))
    seen: list[Distance] = []
    for name, dim in signature.dims.items():
        if name == signature.batch:
            continue
        middle = (dim.min + dim.max) // 2
        odd = min(dim.max, middle + 1 - middle % 2)
        for size in sorted({dim.min, odd, dim.max}):
            inputs = _resized(take(rows.inputs, slice(batch)), signature, name, size)
            reference = _answer(source, inputs, f"{name} = {size}")
            found = _distances(runner, inputs, reference, batch, f"{name} = {size}")
            found = [item.without_agreement() for item in found]
            _judge(found, limits, f"{name} = {size}")
            seen.extend(found)
    return seen


def _answer(source: Runner, inputs: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        return source.run(inputs)
    except Exception as error:
        raise GateError(
            f"the source model itself fails at {where}: {_last_line(error)}; narrow the range with --batch or --dim"
        ) from error


def _resized(inputs: dict[str, Any], signature: Signature, name: str, size: int) -> dict[str, Any]:
    """The inputs with every axis that bears the dimension's name cut, or repeated, to `size`."""
    resized = dict(inputs)
    for tensor in signature.inputs:
        for axis, declared in enumerate(tensor.shape):
            if declared == name:
                array = resized[tensor.name]
                resized[tensor.name] = np.take(array, np.arange(size) % array.shape[axis], axis)
    return resized


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:300]


def _distances(
    runner: Runner, inputs: dict[str, Any], reference: dict[str, Any], batch: int, where: str
) -> list[Distance]:
    try:
        return compare(reference, evaluation.outputs(runner, Rows(inputs, None), batch))
    except Exception as error:  # a comparison that crashes is a failure, never a pass
        raise GateError(f"the gate stopped it at {where}: {type(error).__name__}: {_last_line(error)}") from error


def _judge(found: list[Distance], limits: Limits, where: str) -> None:
    for item in found:
        failure = item.failure(limits)
        if failure is not None:
            raise GateError(
                f"the gate stopped it: output {item.output!r} at {where}: {failure}; nothing was published "
                "under its name (--max-error and --min-agreement widen the limits)"
            )
