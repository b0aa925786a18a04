"""Proving: what a variant must keep, and a model file run by its runtime until it is shown to keep it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock import cache, evaluation, runtimes
from penstock.datasets import Rows
from penstock.errors import GateError, PenstockError, Say
from penstock.export import gate, limits
from penstock.export.judging import Judge
from penstock.export.limits import Accuracy, Budget
from penstock.export.lowering import Wish
from penstock.export.precision.calibration import digest
from penstock.export.reference import Reference
from penstock.parity import worst
from penstock.receipt import AccuracyKept, Verification
from penstock.runtimes.torch import TorchRunner


@dataclass(frozen=True)
class Terms:
    """The float32 source that variants are compared with, and what the user says of how near they must be.

    `lowered`: a lower precision was asked for, too; what the user says is of that, and not of fp32 beside it.
    """

    reference: Reference
    max_error: float | None = None
    min_agreement: float | None = None
    accuracy: Accuracy | None = None
    lowered: bool = False

    def accepted(self, precision: str) -> float | None:
        """The error that the user accepts of a precision, if they said so."""
        return None if self._beside(precision) else self.max_error

    def _beside(self, precision: str) -> bool:
        return self.lowered and precision == "fp32"

    def budget(self, precision: str) -> Budget:
        """What a variant of a precision must keep.

        Raises:
            PenstockError: the source is so noisy that nothing would be proven.
        """
        accuracy = None if precision == "fp32" else self.accuracy
        accepted, agreement = self.accepted(precision), None if self._beside(precision) else self.min_agreement
        kept = limits.of_variant(precision, self.reference.noise, accepted, agreement, labelled=accuracy is not None)
        return Budget(kept, limits.of_columns(precision, self.reference, accepted), accuracy)

    def wish(self, precision: str, method: str, say: Say) -> Wish | None:
        """What the lowering to a precision is to be, and who judges it; None where the graph stays float32."""
        if precision in limits.WHOLE:
            return None
        budget = self.budget(precision)
        judge = Judge(self.reference, budget, precision)
        quick = Judge(self.reference, budget, precision, few=True)
        # What is not int8 then is fp16: the engine's builder sees to that.
        return Wish(precision.removesuffix("-fp16"), method, judge, quick, str(budget), budget.ranking(), say)


def accuracy(reference: Reference, labelled: Rows, most_lost: float) -> Accuracy:
    """What the source itself scores on labelled rows, of which so many points may be lost.

    Raises:
        PenstockError: there are no labels, or the first output is no row of scores.
    """
    if labelled.labels is None:
        raise PenstockError(
            "--accuracy-drop needs labels: an array `labels` of class numbers in the --data file, or a folder of "
            "pictures for each class, which bears its number or the label that the model has for it; --max-error sets "
            "a budget that needs none"
        )
    source = evaluation.evaluate(TorchRunner(reference.module, reference.signature), labelled, reference.signature)
    classes = reference.signature.outputs[0].shape[-1]
    if isinstance(classes, int) and classes > 1 and source.accuracy <= 1 / classes:
        raise PenstockError(
            f"--accuracy-drop: the source itself is right on {source.accuracy:.2%} of {source.samples} labelled "
            f"samples, no more than guessing one of {classes} classes: are the labels this model's, counted from 0?"
        )
    data = cache.key(digest(labelled), np.ascontiguousarray(labelled.labels).tobytes())
    return Accuracy(labelled, source, most_lost, data)


def prove(
    reference: Reference,
    runtime: str,
    path: Path,
    budget: Budget,
    precision: str,
    *,
    engine_run: bool = True,
    device: str = "cpu",
    max_error: float | None = None,
    careful: bool = False,
) -> Verification:
    """Run a model file at the ends and odd sizes of every range that its signature promises, and compare its answers.

    Args:
        reference: the source and its answers.
        runtime: what runs the file.
        path: the file.
        budget: what it must keep.
        precision: float32 exports are held to their source beyond the samples too.
        engine_run: whether the file is the artifact's own model, and not a stand-in for an engine.
        device: what it runs on.
        max_error: what the user accepts.
        careful: as `trial.needs_care` says; it is asked before, since the file may end the process.

    Raises:
        GateError: a limit is passed.
        PenstockError: the runtime refuses the file.
    """
    signature = reference.signature
    batch = signature.dims[str(signature.batch)]
    with runtimes.load(runtime, path, signature, device=device, careful=careful) as runner:
        distances = gate.verify(
            *(runner, reference.rows, reference.outputs, budget.limits, batch, budget.columns),
            samples=reference.samples,
        )
        others = gate.verify_places(runner, reference.places, budget.limits)
        if precision == "fp32":
            gate.verify_extremes(runner, reference, max_error)
        kept = None if budget.accuracy is None else _kept(runner, budget.accuracy, reference)
    return Verification(
        runtime=runtime,
        engine_run=engine_run,
        samples=reference.samples,
        real=reference.real,
        batches=gate.sizes(batch),
        distances=tuple(worst([*distances, *others])),
        limits=budget.limits,
        noise=reference.noise.values,
        noise_by=reference.noise.by,
        accuracy=kept,
        passed=True,
    )


def _kept(runner: runtimes.Runner, accuracy: Accuracy, reference: Reference) -> AccuracyKept:
    score = evaluation.evaluate(runner, accuracy.rows, reference.signature)
    if (failure := accuracy.failure(accuracy.lost(score))) is not None:
        raise GateError(f"{gate.STOPPED}: {failure}; nothing was published under its name")
    return AccuracyKept(
        source=accuracy.source.accuracy, export=score.accuracy, samples=score.samples, most_lost=accuracy.most_lost
    )
