"""A model that is run here, by its runtime: the same files, answered as a server answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock import evaluation, predictions
from penstock.client import results
from penstock.client.desk import Desk, Wishes, progress
from penstock.client.parcels import Parcel, parcels, sources
from penstock.client.results import Row
from penstock.datasets import Rows
from penstock.errors import PenstockError, Say
from penstock.preprocess import ImagePreprocess
from penstock.runtimes import Runner
from penstock.signature import Signature
from penstock.tables import is_number

Inputs = dict[str, NDArray[Any]]
# A text's column in a table of several.
_TEXT = "text"


class About(Protocol):
    """What a checkpoint's card and an artifact's receipt say alike."""

    signature: Signature
    labels: tuple[str, ...] | None
    task: str | None
    preprocess: Any


class NotTaken(PenstockError):
    """A kind of file that the model takes none of, however few are given."""


@dataclass(frozen=True)
class Model:
    """A runner, and what its checkpoint or artifact says of it."""

    runner: Runner
    about: Any

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Name and shape of each input as the protocol tells them, −1 for what is dynamic."""
        return [
            {"name": tensor.name, "shape": [size if isinstance(size, int) else -1 for size in tensor.shape]}
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
    inputs = _READ[parcel.kind](about, [piece.content for piece in parcel.pieces])
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


def _kind(about: About) -> str | None:
    return None if about.preprocess is None else about.preprocess.kind


def _images(about: About, contents: list[Any]) -> Inputs:
    preprocess = about.preprocess
    if not isinstance(preprocess, ImagePreprocess):
        raise NotTaken(f"the model records no preprocessing of pictures; {_takes(about)}")
    found = [preprocess.read(data if isinstance(data, bytes) else Path(data).read_bytes()) for data in contents]
    return {preprocess.input: np.concatenate(found)}


def _tensors(about: About, contents: list[Any]) -> Inputs:
    return {name: np.concatenate([content[name] for content in contents]) for name in contents[0]}


def _texts(about: About, contents: list[Any]) -> Inputs:
    if _kind(about) == "text":
        return dict(about.preprocess.rows(contents))
    (first, *others) = about.signature.inputs
    if others or first.dtype != "object":
        raise NotTaken(f"the model takes no text: it records no tokenizer; {_takes(about)}")
    return {first.name: np.array(contents, object).reshape(len(contents), *[1] * (len(first.shape) - 1))}


def _table(about: About, contents: list[Any]) -> Inputs:
    header, _ = contents[0]
    rows = [row for _, row in contents]
    if _kind(about) == "table":
        names = list(header or (column.name for column in about.preprocess.columns))
        return dict(about.preprocess.rows([_record(names, row) for row in rows]))
    if _kind(about) == "text" or about.signature.inputs[0].dtype == "object":
        place = _text_column(header, len(rows[0]))
        return _texts(about, [row[place] for row in rows])
    if _kind(about) == "image":
        raise NotTaken(f"the model takes no table rows; {_takes(about)}")
    return _numbers(about, header, rows)


def _record(names: list[str], row: list[str]) -> dict[str, str]:
    if len(row) != len(names):
        raise PenstockError(f"the row has {len(row)} values; the table has {len(names)} columns")
    return dict(zip(names, row, strict=True))


def _text_column(header: list[str] | None, width: int) -> int:
    if header and _TEXT in header:
        return header.index(_TEXT)
    if width != 1:
        raise NotTaken(f"the table has no column {_TEXT!r}; its columns are {', '.join(header or []) or 'not named'}")
    return 0


def _numbers(about: About, header: list[str] | None, rows: list[list[str]]) -> Inputs:
    """Rows of numbers for a model whose one input is a row, or each of whose inputs is a column."""
    tensors = about.signature.inputs
    if header and all(tensor.name in header and len(tensor.shape) <= 2 for tensor in tensors):
        return {
            tensor.name: _column(tensor.dtype, [_cell(_record(header, row)[tensor.name]) for row in rows], tensor.shape)
            for tensor in tensors
        }
    if len(tensors) != 1 or len(tensors[0].shape) != 2:
        raise NotTaken(f"the model takes no table rows; {_takes(about)}")
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        raise PenstockError(f"rows have {' and '.join(map(str, sorted(widths)))} values")
    return {tensors[0].name: np.array([[_cell(cell) for cell in row] for row in rows]).astype(tensors[0].dtype)}


def _column(dtype: str, values: list[float], shape: tuple[Any, ...]) -> NDArray[Any]:
    return np.array(values).astype(dtype).reshape(len(values), *[1] * (len(shape) - 1))


def _cell(text: str) -> float:
    if not is_number(text):
        raise PenstockError(f"a value is {text[:40]!r}; it must be a number")
    return float(text)


def _request(about: About, contents: list[Any]) -> Inputs:
    raise NotTaken("a .json file is a request to a server; to a model that is run here give arrays, an .npz file")


def _takes(about: About) -> str:
    """What the model takes, in words."""
    words = {"image": "pictures", "text": "texts: .txt, or .csv with a column text", "table": "table rows: .csv"}
    names = ", ".join(tensor.name for tensor in about.signature.inputs)
    return f"it takes {words.get(_kind(about) or '', f'arrays: an .npz file with {names}')}"


_READ = {"image": _images, "tensors": _tensors, "text": _texts, "table": _table, "json": _request}
