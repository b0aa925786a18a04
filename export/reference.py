"""References: what every export of a model is compared with: samples, and its float32 source's answers for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from penstock import evaluation
from penstock.arrays import join, take
from penstock.checkpoint import Checkpoint
from penstock.datasets import Rows
from penstock.errors import PenstockError, last_line
from penstock.export import noise
from penstock.export.noise import Noise
from penstock.export.quiet import quiet
from penstock.runtimes.torch import TorchRunner
from penstock.signature import Signature
from penstock.synthetic import synthesize


@dataclass(frozen=True)
class Reference:
    """The float32 source as its signature calls it, samples, its answers for them, and how exact those are.

    `rows` and `outputs` are the samples over again until they fill a whole number of largest batches; `samples` is how
    many different ones there are, and `real` says that they were not drawn at random.
    """

    module: nn.Module
    signature: Signature
    rows: Rows
    outputs: dict[str, Any]
    samples: int
    real: bool
    noise: Noise

    def resized(self, part: slice, name: str, size: int) -> dict[str, Any]:
        """Some rows with every axis that bears a dimension's name cut, or repeated, to `size`.

        An input whose values depend on that size, as the lengths of a padded text do, is drawn anew.
        """
        resized = take(self.rows.inputs, part)
        count = len(next(iter(resized.values())))
        sizes = {dim: held.opt for dim, held in self.signature.dims.items()}
        drawn = synthesize(self.signature, {**sizes, str(self.signature.batch): count, name: size}).inputs
        for tensor in self.signature.inputs:
            held = self.signature.ranges.get(tensor.name)
            if held is not None and name in (held.low, held.high):
                resized[tensor.name] = drawn[tensor.name]
                continue
            for axis, declared in enumerate(tensor.shape):
                if declared == name:
                    array = resized[tensor.name]
                    resized[tensor.name] = np.take(array, np.arange(size) % array.shape[axis], axis)
        return resized


def refer(origin: Checkpoint, given: Rows | None) -> Reference:
    """Run the source on the samples there are, real ones first.

    Args:
        origin: the checkpoint, whose signature has a batch dimension.
        given: the user's own samples.

    Raises:
        PenstockError: the source fails on them.
    """
    signature = origin.card.signature
    rows, real = _samples(given, origin, signature)
    samples, rows = len(rows), _whole_batches(rows, signature.max_batch)
    module = origin.adapted()
    try:
        with quiet():
            outputs = evaluation.outputs(TorchRunner(module, signature), rows, signature.max_batch)
    except Exception as error:  # the module's own code runs here
        raise PenstockError(
            f"the source model itself fails at batch {signature.max_batch}: {last_line(error)}; narrow the range with "
            "--batch or --dim, or give the range of its inputs (--range NAME=LOW,HIGH)"
        ) from None
    return Reference(
        module, signature, rows, outputs, samples, real, noise.measure(module, signature, rows.take(samples))
    )


def _samples(given: Rows | None, origin: Checkpoint, signature: Signature) -> tuple[Rows, bool]:
    """The samples that every variant is compared on: real ones where there are any."""
    held = [rows for rows in (origin.golden, origin.calibration) if rows is not None]
    if given is not None:
        if all((array == array[:1]).all() for array in given.inputs.values()):
            rows = "one row proves" if len(given) == 1 else "rows that are all alike prove"
            raise PenstockError(
                f"--data: {rows} nothing: an export that always gives the same answer would pass; give more, or leave "
                "--data out"
            )
        return given, True
    if held:
        return Rows(join([rows.inputs for rows in held]), None), True
    sizes = {name: dim.opt for name, dim in signature.dims.items()}
    return synthesize(signature, {**sizes, str(signature.batch): max(32, signature.max_batch)}), False


def _whole_batches(rows: Rows, batch: int) -> Rows:
    """The rows, the first of them over again until they fill a whole number of batches."""
    index = np.arange(-(-len(rows) // batch) * batch) % len(rows)
    return Rows(take(rows.inputs, index), None)
