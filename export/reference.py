"""References: what every export of a model is compared with: samples, and its float32 source's answers for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from penstock import evaluation
from penstock.arrays import join, take
from penstock.checkpoint import Checkpoint
from penstock.datasets import Rows
from penstock.errors import GateError, PenstockError, last_line
from penstock.evidence import Place, whole_batches
from penstock.export import noise
from penstock.export.noise import Noise
from penstock.export.quiet import quiet
from penstock.modules import copied
from penstock.runtimes import Runner
from penstock.runtimes.torch import TorchRunner
from penstock.signature import Dim, Signature
from penstock.spool import pick
from penstock.synthetic import synthesize

# What inputs are tried beyond the samples: operators written out otherwise overflow there, and branches turn.
_BEYOND = (("inputs of zeros", 0.0), ("inputs 10 times the samples", 10.0), ("inputs 100 times the samples", 100.0))
_FEW = 4
_PLACE_ROWS, _DRAWN = 8, 8


@dataclass(frozen=True)
class Extreme:
    """Inputs beyond the samples: what they are in words, the source's finite answers, and how exact those are."""

    what: str
    rows: Rows
    outputs: dict[str, Any]
    noise: Noise


@dataclass(frozen=True)
class Reference:
    """The float32 source as its signature calls it, samples, its answers for them, and how exact those are.

    `rows` and `outputs` are the samples over again until they fill a whole number of largest batches; `samples` is how
    many different ones there are, and `real` says that they were not drawn at random. `fresh` is a copy of the module
    that has not run yet, where it can be copied; `extremes` are inputs beyond the samples.
    """

    module: nn.Module
    signature: Signature
    rows: Rows
    outputs: dict[str, Any]
    samples: int
    real: bool
    noise: Noise
    fresh: nn.Module | None = None
    extremes: tuple[Extreme, ...] = ()

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The source's answers at many sizes of each dimension but the batch, and where all are at their ends.

        Raises:
            GateError: the source fails at one of them.
        """
        signature = self.signature
        others = {name: dim for name, dim in signature.dims.items() if name != signature.batch}
        ends = [{name: getattr(dim, end) for name, dim in others.items()} for end in ("min", "max")]
        wanted = [*({name: size} for name, dim in others.items() for size in _tried(dim)), *(ends if others else [])]
        batch = min(signature.max_batch, max(signature.min_batch, _PLACE_ROWS))
        source = TorchRunner(self.module, signature)
        found = []
        for sizes in wanted:
            what = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            inputs = self.resized(slice(batch), sizes)
            found.append(Place(what, batch, inputs, answer_of(source, inputs, what)))
        return tuple(found)

    def resized(self, part: slice, sizes: dict[str, int]) -> dict[str, Any]:
        """Some rows with every axis that bears a dimension's name cut, or repeated, to its size in `sizes`.

        An input whose values depend on such a size, as the lengths of a padded text do, is drawn anew.
        """
        resized = take(self.rows.inputs, part)
        count = len(next(iter(resized.values())))
        usual = {dim: held.opt for dim, held in self.signature.dims.items()}
        drawn = synthesize(self.signature, {**usual, str(self.signature.batch): count, **sizes}).inputs
        for tensor in self.signature.inputs:
            held = self.signature.ranges.get(tensor.name)
            if held is not None and {held.low, held.high} & sizes.keys():
                resized[tensor.name] = drawn[tensor.name]
                continue
            for axis, declared in enumerate(tensor.shape):
                if declared in sizes:
                    array = resized[tensor.name]
                    resized[tensor.name] = np.take(array, np.arange(sizes[str(declared)]) % array.shape[axis], axis)
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
    fresh = copied(module)
    try:
        with quiet():
            outputs = evaluation.outputs(TorchRunner(module, signature), rows, signature.max_batch)
    except Exception as error:  # the module's own code runs here
        raise PenstockError(
            f"the source model itself fails at batch {signature.max_batch}: {last_line(error)}; narrow the range with "
            "--batch or --dim, or give the range of its inputs (--range NAME=LOW,HIGH)"
        ) from None
    measured = noise.measure(module, signature, rows.take(samples), outputs)
    extremes = tuple(_extremes(module, signature, rows))
    return Reference(module, signature, rows, outputs, samples, real, measured, fresh, extremes)


def answer_of(source: Runner, inputs: dict[str, Any], where: str) -> dict[str, Any]:
    """The source's answer.

    Raises:
        GateError: it fails.
    """
    try:
        return source.run(inputs)
    except Exception as error:
        raise GateError(
            f"the source model itself fails at {where}: {last_line(error)}; narrow the range with --batch or --dim"
        ) from error


def _tried(dim: Dim) -> list[int]:
    """The sizes of a dimension to try: its ends, an odd one, and others drawn between them; all where they are few."""
    middle = (dim.min + dim.max) // 2
    drawn = np.random.default_rng(0).integers(dim.min, dim.max + 1, _DRAWN).tolist()
    every = range(dim.min, dim.max + 1) if dim.max - dim.min <= _DRAWN else ()
    return sorted({dim.min, min(dim.max, middle + 1 - middle % 2), dim.max, *drawn, *every})


def _extremes(module: nn.Module, signature: Signature, rows: Rows) -> Iterator[Extreme]:
    """A few rows with their float inputs at zero and far beyond the samples, as far as the source has answers there.

    Inputs whose range is stated stay as they are.
    """
    open_ends = [t.name for t in signature.inputs if t.dtype.startswith("float") and t.name not in signature.ranges]
    batch = max(signature.min_batch, min(_FEW, signature.max_batch))
    for what, factor in _BEYOND if open_ends else ():
        few = take(rows.inputs, np.arange(batch) % len(rows))
        scaled = Rows({**few, **{name: (few[name] * factor).astype(few[name].dtype) for name in open_ends}}, None)
        outputs: dict[str, Any] = {}
        with quiet(), suppress(Exception):  # the module's own code, on inputs that it need not take
            outputs = TorchRunner(module, signature).run(scaled.inputs)
        if outputs and all(np.isfinite(array).all() for array in outputs.values()):
            yield Extreme(what, scaled, outputs, noise.measure(module, signature, scaled))


def _samples(given: Rows | None, origin: Checkpoint, signature: Signature) -> tuple[Rows, bool]:
    """The samples that every variant is compared on: real ones where there are any."""
    held = [rows for rows in (origin.golden, origin.calibration) if rows is not None]
    if given is not None:
        if given.alike():
            rows = "one row proves" if len(given) == 1 else "rows that are all alike prove"
            raise PenstockError(
                f"--data: {rows} nothing: an export that always gives the same answer would pass; give more, or leave "
                "--data out"
            )
        return given, given.real
    if held:
        return Rows(join([rows.inputs for rows in held]), None), True
    sizes = {name: dim.opt for name, dim in signature.dims.items()}
    return synthesize(signature, {**sizes, str(signature.batch): max(32, signature.max_batch)}), False


def _whole_batches(rows: Rows, batch: int) -> Rows:
    """The rows, the first of them over again until they fill a whole number of batches."""
    index = whole_batches(len(rows), batch)
    return Rows({name: pick(array, index) for name, array in rows.inputs.items()}, None)
