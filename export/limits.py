"""Limits: what a variant may be off its source, by the source's noise, its precision, and what the user says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.evaluation import Score
from penstock.export import noise as noises
from penstock.export.noise import Noise
from penstock.export.reference import Reference
from penstock.parity import HIDDEN_LOWER, Columns, Limits
from penstock.signature import first_message

# What each precision may cost beyond the source's own noise: TF32 and float16 keep 11 bits, bfloat16 8 and E4M3 4; int8
# has 256 steps a tensor.
LIMITS = {
    "fp32": Limits(max_error=0, min_agreement=0.995),
    "tf32": Limits(max_error=1e-2, min_agreement=0.99),
    "fp16": Limits(max_error=1e-2, min_agreement=0.99),
    "bf16": Limits(max_error=5e-2, min_agreement=0.98),
    "int8": Limits(max_error=0.15, min_agreement=0.97),
    "int8-fp16": Limits(max_error=0.15, min_agreement=0.97),
    "fp8": Limits(max_error=0.15, min_agreement=0.97),
}
# Precisions whose graph is the float32 one.
WHOLE = ("fp32", "tf32")
# Where accuracy on labels is what is asked, these only catch what is broken.
_LABELLED = Limits(max_error=1.0, min_agreement=0.5)
# What columns that an output's norm hides may be off, by their own norm: float32 kernels may approximate the tails of a
# sigmoid; in less, small numbers may lose most of what they say, but not all of it.
_HIDDEN = 1e-3


@dataclass(frozen=True)
class Budget:
    """What a variant must keep: limits for each output, limits for its small columns, and accuracy where asked."""

    limits: dict[str, Limits]
    columns: Sequence[tuple[Columns, float]] = ()
    accuracy: Accuracy | None = None

    def ranking(self) -> str:
        """What the ranking of nodes by it hangs on."""
        return repr((sorted(self.limits.items()), list(self.columns)))

    def __str__(self) -> str:
        """All that judgements by it hang on."""
        lost = None if self.accuracy is None else (self.accuracy.most_lost, self.accuracy.source, self.accuracy.digest)
        return f"{self.ranking()} {lost}"


@dataclass(frozen=True)
class Accuracy:
    """Labelled rows and their digest, the source's own score on them, and how many points of it may be lost."""

    rows: Rows
    source: Score
    most_lost: float
    digest: str = ""

    def lost(self, score: Score) -> float:
        """The points that a score is under the source's; less than 0 where it is over."""
        return 100 * (self.source.accuracy - score.accuracy)

    def failure(self, lost: float) -> str | None:
        """Why that is too much, in words, or None."""
        if lost <= self.most_lost:
            return None
        return (
            f"top-1 accuracy falls by {lost:.2f} points from {self.source.accuracy:.2%}, over --accuracy-drop "
            f"{self.most_lost:g} ({self.source.samples} labelled samples)"
        )


def of_variant(
    precision: str,
    noise: Noise,
    max_error: float | None = None,
    min_agreement: float | None = None,
    *,
    labelled: bool = False,
) -> dict[str, Limits]:
    """What each output of a variant must keep: from its source's noise and its precision, or as the user says.

    Args:
        precision: the variant's.
        noise: of the source.
        max_error: the relative L2 error that the user accepts.
        min_agreement: the top-1 agreement that the user asks for.
        labelled: a lower precision is judged by its accuracy on labels instead.

    Raises:
        PenstockError: a figure is out of range, or the noise is so large that nothing would be proven.
    """
    base = _LABELLED if labelled and precision != "fp32" else LIMITS[precision]
    try:
        if min_agreement is not None:
            base = Limits(max_error=base.max_error, min_agreement=min_agreement)
        if max_error is not None:
            asked = Limits(max_error=max_error, min_agreement=base.min_agreement)
            return dict.fromkeys(noise.values, asked)
    except ValueError as error:
        raise PenstockError(f"--max-error, --min-agreement: {first_message(error)}") from None
    return noises.limits(noise, base)


def of_columns(precision: str, reference: Reference, accepted: float | None = None) -> list[tuple[Columns, float]]:
    """What the columns that an output's norm hides must keep, by their own norm.

    Below float32 an output within -1 and 1 is left out: its columns share that scale, as probabilities do.

    Args:
        precision: the export's.
        reference: the float32 source.
        accepted: the error that the user accepts, if they said so.
    """
    lower = precision != "fp32"
    least = max(HIDDEN_LOWER if lower else _HIDDEN, accepted or 0)
    return [
        (group, max(noises.FACTOR * noise, least))
        for group, noise in reference.noise.columns
        if not (lower and np.abs(reference.outputs[group.output]).max() <= 1)
    ]


def of_source(noise: Noise, accepted: float | None = None) -> dict[str, Limits]:
    """What the source's own answers may differ by: by its rounding, or by what the user accepts where that is more."""
    errors = {
        name: max(noises.FACTOR * max(value, noises.FLOOR), accepted or 0) for name, value in noise.values.items()
    }
    return {name: Limits(max_error=error, min_agreement=0.5) for name, error in errors.items()}
