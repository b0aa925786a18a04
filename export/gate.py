"""The gate: an export is run by its runtime against the float32 source, or it is not published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock import evaluation
from penstock.arrays import take
from penstock.datasets import Rows
from penstock.errors import GateError, PenstockError, last_line
from penstock.export import noise as noises
from penstock.export.noise import Noise
from penstock.export.reference import Reference
from penstock.parity import Columns, Distance, Limits, compare, worst
from penstock.runtimes import Runner
from penstock.runtimes.torch import TorchRunner
from penstock.signature import Dim, first_message

# What each precision may cost beyond the source's own noise: float16 keeps 11 bits; int8 has 256 steps a tensor.
LIMITS = {
    "fp32": Limits(max_error=0, min_agreement=0.995),
    "fp16": Limits(max_error=1e-2, min_agreement=0.99),
    "int8": Limits(max_error=0.15, min_agreement=0.97),
}
STOPPED = "the gate stopped it"
# What columns that an output's norm hides may be off, by their own norm: float32 kernels may approximate the tails of a
# sigmoid; in less, small numbers may lose most of what they say, but not all of it.
_HIDDEN, _HIDDEN_LOWER = 1e-3, 0.5
_FEW = 8
_DRAWN = 8
# Beyond the samples kernels may approximate the tails of a sigmoid; what is looked for there is off by far more.
_BEYOND = 1e-3
# The same inputs again, in the same batch and process: nothing rounds otherwise.
_AGAIN = Limits(max_error=noises.FACTOR * noises.FLOOR, min_agreement=0)


def limits(
    precision: str, noise: Noise, max_error: float | None = None, min_agreement: float | None = None
) -> dict[str, Limits]:
    """What each output of a variant must keep: from its source's noise and its precision, or as the user says.

    Raises:
        PenstockError: a figure is out of range, or the noise is so large that nothing would be proven.
    """
    base = LIMITS[precision]
    try:
        if min_agreement is not None:
            base = Limits(max_error=base.max_error, min_agreement=min_agreement)
        if max_error is not None:
            asked = Limits(max_error=max_error, min_agreement=base.min_agreement)
            return dict.fromkeys(noise.values, asked)
    except ValueError as error:
        raise PenstockError(f"--max-error, --min-agreement: {first_message(error)}") from None
    return noises.limits(noise, base)


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
) -> tuple[Distance, ...]:
    """Compare a runner with the source's outputs at each of `sizes(batch)`.

    At the smaller sizes the first and the last rows are run; at the largest, all of them.

    Args:
        runner: the export.
        rows: the inputs, a whole number of largest batches.
        expected: the source's outputs for them, by name.
        limits: what each output must keep. Top-1 agreement is held over all rows together: one row of two that
            flips is no half.
        batch: the signature's range of batch sizes.
        columns: those that an output's norm hides, with the limit of their own; judged over all rows.

    Returns:
        The worst distance of each output.

    Raises:
        GateError: a limit is passed, or the runner fails; it names the output, the batch and the figure.
    """
    seen: list[Distance] = []
    for size in sizes(batch)[:-1]:
        for start in sorted({0, len(rows) - size}):
            part = slice(start, start + size)
            inputs = take(rows.inputs, part)
            found = _distances(runner, inputs, take(expected, part), size, f"batch {size}")
            found = [item.without_agreement() for item in found]
            _judge(found, limits, f"batch {size}")
            seen.extend(found)
    got, whole = _compared_run(runner, rows.inputs, expected, batch.max, f"batch {batch.max}")
    _judge(whole, limits, f"batch {batch.max}")
    for group, limit in columns:
        _judge_columns(group, limit, expected[group.output], got[group.output])
    return tuple(worst([*seen, *whole]))


def column_limits(precision: str, reference: Reference, accepted: float | None = None) -> list[tuple[Columns, float]]:
    """What the columns that an output's norm hides must keep, by their own norm.

    Below float32 an output within -1 and 1 is left out: its columns share that scale, as probabilities do.

    Args:
        precision: the export's.
        reference: the float32 source.
        accepted: the error that the user accepts, if they said so.
    """
    lower = precision != "fp32"
    least = max(_HIDDEN_LOWER if lower else _HIDDEN, accepted or 0)
    return [
        (group, max(noises.FACTOR * noise, least))
        for group, noise in reference.noise.columns
        if not (lower and np.abs(reference.outputs[group.output]).max() <= 1)
    ]


def _judge_columns(columns: Columns, limit: float, expected: Any, got: Any) -> None:
    error = columns.error(expected, got)
    if error is not None and not error <= limit:
        raise GateError(
            f"{STOPPED}: {columns}, small beside the others: relative L2 error {error:.3g} of their own is over the "
            f"limit of {limit:.3g}; nothing was published under its name (--max-error {_up(error)} accepts that)"
        )


def _up(error: float) -> float:
    """The figure rounded up to two digits."""
    unit = 10.0 ** (np.floor(np.log10(error)) - 1)
    return float(f"{np.ceil(error / unit) * unit:.2g}")


def verify_dims(runner: Runner, reference: Reference, limits: dict[str, Limits]) -> list[Distance]:
    """Compare a runner with its source at many sizes of each dimension but the batch, and where all are at their ends.

    Args:
        runner: the export.
        reference: the float32 source, and samples; the first few are cut, or repeated along the dimensions.
        limits: what each output must keep; agreement is not judged over so few rows.

    Raises:
        GateError: a limit is passed, or one of the two fails.
    """
    signature = reference.signature
    others = {name: dim for name, dim in signature.dims.items() if name != signature.batch}
    ends = [{name: getattr(dim, end) for name, dim in others.items()} for end in ("min", "max")]
    wanted = [*({name: size} for name, dim in others.items() for size in _tried(dim)), *(ends if others else [])]
    batch = min(signature.max_batch, max(signature.min_batch, _FEW))
    source = TorchRunner(reference.module, signature)
    seen: list[Distance] = []
    for place in wanted:
        where = ", ".join(f"{name} = {size}" for name, size in place.items())
        inputs = reference.resized(slice(batch), place)
        expected = _answer(source, inputs, where)
        found = [item.without_agreement() for item in _distances(runner, inputs, expected, batch, where)]
        _judge(found, limits, where)
        seen.extend(found)
    return seen


def _tried(dim: Dim) -> list[int]:
    """The sizes of a dimension to try: its ends, an odd one, and others drawn between them; all where they are few."""
    middle = (dim.min + dim.max) // 2
    drawn = np.random.default_rng(0).integers(dim.min, dim.max + 1, _DRAWN).tolist()
    every = range(dim.min, dim.max + 1) if dim.max - dim.min <= _DRAWN else ()
    return sorted({dim.min, min(dim.max, middle + 1 - middle % 2), dim.max, *drawn, *every})


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
    usual = {name: _norm(array) / np.sqrt(array.size) for name, array in reference.outputs.items()}
    for extreme in reference.extremes:
        limits = source_limits(reference.noise.larger(extreme.noise), max(accepted or 0, _BEYOND))
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


def source_limits(noise: Noise, accepted: float | None = None) -> dict[str, Limits]:
    """What the source's own answers may differ by: by its rounding, or by what the user accepts where that is more."""
    errors = {
        name: max(noises.FACTOR * max(value, noises.FLOOR), accepted or 0) for name, value in noise.values.items()
    }
    return {name: Limits(max_error=error, min_agreement=0.5) for name, error in errors.items()}


def check_source(reference: Reference, limits: dict[str, Limits]) -> None:
    """See that the source itself answers a row alike again, and in whatever batch it comes.

    Args:
        reference: the source, samples, and its answers.
        limits: how far a row's answers may be apart from batch to batch. The same batch run again is held to a fixed
            limit: a source that is random has moved its own noise, and with it these.

    Raises:
        PenstockError: it does not: an export could not be proven, and a server that batches would change answers.
    """
    _refuse_unprovable(reference)
    signature = reference.signature
    source, batch = TorchRunner(reference.module, signature), signature.dims[str(signature.batch)]
    first = slice(signature.max_batch)
    again = _answer(source, take(reference.rows.inputs, first), f"batch {batch.max}")
    found = _compared(take(reference.outputs, first), again)
    if any(item.without_agreement().failure(_AGAIN) for item in found):
        raise PenstockError("the model answers the same inputs differently each time; an export of it cannot be proven")
    for size in sizes(batch)[:-1]:
        for start in sorted({0, len(reference.rows) - size}):
            part = slice(start, start + size)
            answer = _answer(source, take(reference.rows.inputs, part), f"batch {size}")
            for item in _compared(take(reference.outputs, part), answer):
                if item.without_agreement().failure(limits[item.output]):
                    raise PenstockError(
                        f"the model's answer for a row depends on its batch: at batch {size} output {item.output!r} is "
                        f"{item.rel_l2:.2g} off what it is at {batch.max}, and a server that batches would change "
                        "answers: --batch 1 exports it for single rows"
                    )
    _refuse_memory(reference, limits)


def _refuse_memory(reference: Reference, limits: dict[str, Limits]) -> None:
    """Refuse a source that answers otherwise once it has run: a copy that has not is given other rows first."""
    if reference.fresh is None:
        return
    signature = reference.signature
    last = np.arange(len(reference.rows))[::-1][: max(signature.min_batch, signature.max_batch // 2)]
    answer = _answer(TorchRunner(reference.fresh, signature), take(reference.rows.inputs, last), "its first run")
    for item in _compared(take(reference.outputs, last), answer):
        if item.without_agreement().failure(limits[item.output]):
            raise PenstockError(
                f"the model keeps something of what it was run on before: output {item.output!r} is {item.rel_l2:.2g} "
                "off where a fresh copy gets the same inputs; an export keeps nothing from run to run (a module that "
                "initialises itself on its first batch must be saved after that, with what says so)"
            )


def _refuse_unprovable(reference: Reference) -> None:
    """Refuse a source whose answers any wrong export could give too."""
    for name, array in reference.outputs.items():
        if not np.isfinite(array).all():
            once = np.isfinite(array[: reference.samples])
            bad = int(np.sum(~once.reshape(len(once), -1).all(axis=1)))
            raise PenstockError(
                f"the source model itself answers NaN or Inf in output {name!r} for {bad} of {len(once)} samples; "
                "give samples that it is made for (--data), or the range of its inputs (--range NAME=LOW,HIGH)"
            )
    if reference.samples > 1 and all((array == array[:1]).all() for array in reference.outputs.values()):
        raise PenstockError(
            f"the model gives one answer for all {reference.samples} samples, so that an export which heeds no input "
            "would pass; give samples that differ (--data), or the range of its inputs (--range NAME=LOW,HIGH)"
        )


def _compared(expected: dict[str, Any], answer: dict[str, Any]) -> list[Distance]:
    """The source's answers compared with its own of another batch."""
    try:
        return compare(expected, answer)
    except ValueError as error:
        raise PenstockError(
            f"the model's answer for a row depends on its batch: {error} (pad_packed_sequence needs total_length=, and "
            "what is cut to the longest row must not be)"
        ) from None


def _answer(source: Runner, inputs: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        return source.run(inputs)
    except Exception as error:
        raise GateError(
            f"the source model itself fails at {where}: {last_line(error)}; narrow the range with --batch or --dim"
        ) from error


def _distances(
    runner: Runner, inputs: dict[str, Any], reference: dict[str, Any], batch: int, where: str
) -> list[Distance]:
    return _compared_run(runner, inputs, reference, batch, where)[1]


def _compared_run(
    runner: Runner, inputs: dict[str, Any], reference: dict[str, Any], batch: int, where: str
) -> tuple[dict[str, Any], list[Distance]]:
    """A runner's answers, and how far each is from the reference."""
    try:
        got = evaluation.outputs(runner, Rows(inputs, None), batch)
        return got, compare(reference, got)
    except Exception as error:  # a comparison that crashes is a failure, never a pass
        raise GateError(f"{STOPPED} at {where}: {type(error).__name__}: {last_line(error)}") from error


def _judge(found: list[Distance], limits: dict[str, Limits], where: str) -> None:
    for item in found:
        failure = item.failure(limits[item.output])
        if failure is not None:
            raise GateError(
                f"{STOPPED}: output {item.output!r} at {where}: {failure}; nothing was published "
                "under its name (--max-error and --min-agreement widen the limits)"
            )
