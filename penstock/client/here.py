"""A model that is run here, by its runtime: the same files, answered as a server answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import evaluation, predictions
from penstock.client import feeds, results
from penstock.client.desk import Desk, Wishes, progress
from penstock.client.feeds import About, NotTaken
from penstock.client.parcels import Parcel, parcels, sources
from penstock.client.results import Row
from penstock.datasets import Rows
from penstock.errors import PenstockError, Say
from penstock.runtimes import Runner
from penstock.signature import SERVED_DTYPES


@dataclass(frozen=True)
class Model:
    """A runner, and what its checkpoint or artifact says of it."""

    runner: Runner
    about: About

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Name, datatype and shape of each input as the protocol tells them, −1 for what is dynamic."""
        return [
            {
                "name": tensor.name,
                "datatype": SERVED_DTYPES[tensor.dtype],
                "shape": [size if isinstance(size, int) else -1 for size in tensor.shape],
            }
            for tensor in self.about.signature.inputs
        ]


def predict(model: Model, words: Sequence[str], wishes: Wishes, complain: Say) -> int:
    """Run files through a model, print or write what it answers, and return how many had no answer.

    Args:
        model: closed by who opened it.
        words: files, folders, patterns.
        wishes: the rest.
        complain: told why a file has no answer, and in the end how many had one.

    Raises:
        PenstockError: there is no such file, or what was asked for cannot be written.
    """
    files, desk = sources(words), Desk(wishes, complain)
    try:
        with progress(len(files), printing=desk.prints) as step:
            for parcel in parcels(files, wishes.batch, model.inputs):
                for row in _rows(model, parcel, wishes.top_k):
                    desk.take(row)
                for _ in range(parcel.ends):
                    step()
    finally:
        desk.clear()
    complain(f"{desk.answered} answered, {desk.failed} failed")
    return desk.failed


def _rows(model: Model, parcel: Parcel, top_k: int) -> list[Row]:
    """The rows of a parcel; one that is refused is run in halves, until what is at fault stands alone."""
    if parcel.kind == "failed":
        return [Row(piece, piece.row, error=str(piece.content)) for piece in parcel.pieces]
    try:
        return results.rows(parcel, _answer(model, parcel, top_k))
    except (PenstockError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if len(parcel.pieces) == 1 or isinstance(error, NotTaken):
            return [Row(piece, piece.row, error=reason) for piece in parcel.pieces]
    return [row for half in parcel.halves() for row in _rows(model, half, top_k)]


def _answer(model: Model, parcel: Parcel, top_k: int) -> Mapping[str, Any]:
    """What a server would say to the parcel."""
    about, signature = model.about, model.about.signature
    inputs = feeds.inputs(about, parcel)
    signature.check(inputs, limit_batch=False)
    if isinstance(signature.inputs[0].shape[0], str):
        outputs = evaluation.outputs(model.runner, Rows(inputs, None), signature.max_batch, signature.min_batch)
    else:
        outputs = model.runner.run(inputs)
    for name, array in outputs.items():
        if array.dtype.kind in "fV" and not np.isfinite(array.astype(np.float32)).all():
            raise PenstockError(f"the model answers NaN or Inf in output {name!r} for these inputs")
    answers = predictions.kind(about.task, signature)
    if answers == "outputs":
        return {"outputs": {name: _listed(array) for name, array in outputs.items()}}
    return predictions.of(answers, outputs[signature.outputs[0].name], about.labels, top_k)


def _listed(array: NDArray[Any]) -> Any:
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32).tolist()
    if array.dtype == object:
        texts = [
            text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text) for text in array.reshape(-1)
        ]
        return np.array(texts, object).reshape(array.shape).tolist()
    return array.tolist()
