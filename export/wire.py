"""The wire: what artifacts take, which may be uint8 pictures where their source takes the numbers made of them.

The float road stays the source: samples, calibration, plans and limits are those of the float32 model, and its answers
are to the numbers that the recorded preprocessing makes of the same pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.arrays import take
from penstock.card import Card
from penstock.checkpoint import Checkpoint
from penstock.datasets import Rows
from penstock.decoding import before
from penstock.errors import PenstockError
from penstock.export import noise
from penstock.export.limits import Budget
from penstock.export.quiet import quiet
from penstock.export.reference import Extreme, Reference
from penstock.preprocess import ImagePreprocess
from penstock.preprocessing import ITEMS
from penstock.runtimes.torch import TorchRunner
from penstock.spool import spooled
from penstock.synthetic import synthesize

# Pictures that are converted at a time.
_CHUNK = 16
_FEWEST, _FEW = 32, 4
_ENDS = (("black pictures", 0), ("white pictures", 255))


@dataclass(frozen=True)
class Wire:
    """What artifacts are told to take. `image`: how the pixels become numbers in their graphs; None where none do."""

    card: Card
    image: ImagePreprocess | None = None

    def numbers(self, rows: Rows) -> Rows:
        """Rows as the source takes them, of rows as artifacts do."""
        if self.image is None:
            return rows
        return _converted(rows, self.image.model_copy(update={"dtype": "float32"}), self.image.normalize)

    def pixels(self, rows: Rows, what: str) -> Rows:
        """Rows as artifacts take them, of rows as the source does.

        Raises:
            PenstockError: numbers that come of no pixels; `what` says whose.
        """
        if self.image is None:
            return rows
        try:
            return _converted(rows, self.image, self.image.pixels)
        except ValueError as error:
            raise PenstockError(
                f"--input uint8: {what} are no pictures, {error} (mean {self.image.mean}, std {self.image.std}); give "
                "pictures with --data, or leave --input uint8 out"
            ) from None

    def drawn(self, rows: int) -> Rows:
        """So many rows drawn at random, as the source takes them: of pixels where artifacts take those."""
        signature = self.card.signature
        sizes = {name: dim.opt for name, dim in signature.dims.items()}
        return self.numbers(synthesize(signature, {**sizes, str(signature.batch): rows}))

    def samples(self, origin: Checkpoint, given: Rows | None) -> Rows | None:
        """What the source is run on in place of numbers drawn at random, which come of no pixels."""
        if self.image is None or any(rows is not None for rows in (given, origin.golden, origin.calibration)):
            return given
        return self.drawn(max(_FEWEST, self.card.signature.max_batch))

    def reference(self, source: Reference) -> Reference:
        """A source and its answers, with the samples as artifacts take them."""
        if self.image is None:
            return source
        return replace(
            source,
            module=before(source.module, source.signature, self.image),
            signature=self.card.signature,
            rows=self.pixels(source.rows, "the samples"),
            fresh=None,
            extremes=tuple(_extremes(source, self.image)),
        )

    def budget(self, budget: Budget) -> Budget:
        """A budget whose labelled rows are as artifacts take them."""
        if budget.accuracy is None:
            return budget
        rows = self.pixels(budget.accuracy.rows, "the labelled samples")
        return replace(budget, accuracy=replace(budget.accuracy, rows=rows))


def of(path: Path, card: Card, *, pixels: bool) -> Wire:
    """What artifacts of a checkpoint take: what it takes itself, or pixels where it records how they become that.

    Args:
        path: the checkpoint's.
        card: what it says of itself.
        pixels: uint8 pictures are asked for.

    Raises:
        PenstockError: it records no preprocessing of pictures.
    """
    if not pixels:
        return Wire(card)
    if not isinstance(card.preprocess, ImagePreprocess):
        if card.preprocess is not None:
            raise PenstockError(f"--input uint8: {path} takes {ITEMS[card.preprocess.kind]}; it is of pictures alone")
        raise PenstockError(
            f"--input uint8: {path} records no preprocessing of pictures (checkpoints of `penstock train`, and image "
            "classifiers of torchvision and timm do), so that nothing tells how pixels become the model's numbers; "
            f"leave it out, and artifacts take {', '.join(map(str, card.signature.inputs))}"
        )
    image = card.preprocess.model_copy(update={"dtype": "uint8"})
    signature = image.contract(card.signature)
    # Versions of one model keep one contract, so that this is another model, with a name of its own.
    named = {"name": f"{card.name}-uint8", "signature": signature, "preprocess": image}
    return Wire(card.model_copy(update=named), image)


def _converted(rows: Rows, image: ImagePreprocess, convert: Callable[[Any], Any]) -> Rows:
    """Rows with their pictures of the dtype and shape that `image` says, a few at a time."""
    held = rows.inputs[image.input]
    parts = (convert(held[start : start + _CHUNK]) for start in range(0, len(held), _CHUNK))
    array = spooled(parts, len(held), np.dtype(image.dtype), image.shape)
    return replace(rows, inputs={**rows.inputs, image.input: array})


def _extremes(source: Reference, image: ImagePreprocess) -> Iterator[Extreme]:
    """A few rows with the darkest and the brightest pictures there are, as far as the source has answers there."""
    batch = max(source.signature.min_batch, min(_FEW, source.signature.max_batch))
    few = take(source.rows.inputs, np.arange(batch) % len(source.rows))
    for what, level in _ENDS:
        pixels = np.full((len(few[image.input]), *image.shape), level, np.uint8)
        rows = Rows({**few, image.input: image.normalize(pixels)}, None)
        outputs: dict[str, Any] = {}
        with quiet(), suppress(Exception):  # the module's own code, on inputs that it need not take
            outputs = TorchRunner(source.module, source.signature).run(rows.inputs)
        if outputs and all(np.isfinite(array).all() for array in outputs.values()):
            measured = noise.measure(source.module, source.signature, rows)
            yield Extreme(what, Rows({**few, image.input: pixels}, None), outputs, measured)
