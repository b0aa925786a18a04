"""Steadiness: the source must answer a row alike again, in whatever batch it comes, or nothing can be proven."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.arrays import take
from penstock.errors import PenstockError
from penstock.export import noise as noises
from penstock.export.gate import sizes
from penstock.export.reference import Reference, answer_of
from penstock.parity import Distance, Limits, compare
from penstock.runtimes.torch import TorchRunner

# The same inputs again, in the same batch and process: nothing rounds otherwise.
_AGAIN = Limits(max_error=noises.FACTOR * noises.FLOOR, min_agreement=0)


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
    again = answer_of(source, take(reference.rows.inputs, first), f"batch {batch.max}")
    found = _compared(take(reference.outputs, first), again)
    if any(item.without_agreement().failure(_AGAIN) for item in found):
        raise PenstockError("the model answers the same inputs differently each time; an export of it cannot be proven")
    for size in sizes(batch)[:-1]:
        for start in sorted({0, len(reference.rows) - size}):
            part = slice(start, start + size)
            answer = answer_of(source, take(reference.rows.inputs, part), f"batch {size}")
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
    answer = answer_of(TorchRunner(reference.fresh, signature), take(reference.rows.inputs, last), "its first run")
    for item in _compared(take(reference.outputs, last), answer):
        if item.without_agreement().failure(limits[item.output]):
            raise PenstockError(
                f"the model keeps something of what it was run on before: output {item.output!r} is {item.rel_l2:.2g} "
                "off where a fresh copy gets the same inputs; an export keeps nothing from run to run (a module that "
                "initialises itself on its first batch must be saved after that, with what says so)"
            )


def _refuse_nan_inputs(reference: Reference) -> None:
    """Refuse samples that hold NaN: what comes of them is no fault of the model's."""
    for name, array in reference.rows.inputs.items():
        if array.dtype.kind == "f":
            held = np.isnan(array[: reference.samples]).reshape(reference.samples, -1).any(axis=1)
            if held.any():
                raise PenstockError(
                    f"--data: input {name!r} holds NaN in {held.sum()} of {len(held)} samples, the first of which is "
                    f"number {held.argmax()}; leave them out"
                )


def _refuse_unprovable(reference: Reference) -> None:
    """Refuse a source whose answers any wrong export could give too."""
    for name, array in reference.outputs.items():
        if not np.isfinite(array).all():
            _refuse_nan_inputs(reference)
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
