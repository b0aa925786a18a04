"""Feeds: what parcels hold as a model's inputs, by the preprocessing that its checkpoint or artifact records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock import sheets
from penstock.client.parcels import Parcel
from penstock.data.specs import DatasetSpec
from penstock.errors import PenstockError
from penstock.preprocess import ImagePreprocess
from penstock.preprocessing import Preprocess
from penstock.signature import Signature, Tensor
from penstock.tables import is_number
from penstock.tabular import BadRow, TablePreprocess
from penstock.textual import BadText, TextPreprocess

Inputs = dict[str, NDArray[Any]]


class About(Protocol):
    """What a checkpoint's card and an artifact's receipt both say."""

    @property
    def signature(self) -> Signature: ...

    @property
    def labels(self) -> tuple[str, ...] | None: ...

    @property
    def task(self) -> str | None: ...

    @property
    def preprocess(self) -> Preprocess | None: ...

    @property
    def dataset(self) -> DatasetSpec | None: ...


class NotTaken(PenstockError):
    """A kind of file, or of table, of which the model takes nothing, however little is given."""


def inputs(about: About, parcel: Parcel) -> Inputs:
    """The model's inputs for a parcel, one row for each of its pieces.

    Raises:
        NotTaken: the model takes nothing of this kind. PenstockError: a piece is damaged, or not of the model's.
        OSError: a picture cannot be read.
    """
    try:
        return _READ[parcel.kind](about, [piece.content for piece in parcel.pieces])
    except BadRow as error:
        raise PenstockError(f"column {error.column!r} {error.why}") from None
    except BadText as error:
        raise PenstockError(f"the text {error.why}") from None


def _images(about: About, contents: list[Any]) -> Inputs:
    preprocess = about.preprocess
    if not isinstance(preprocess, ImagePreprocess):
        raise NotTaken(f"the model takes no pictures; {_takes(about)}")
    found = [preprocess.read(data if isinstance(data, bytes) else Path(data).read_bytes()) for data in contents]
    return {preprocess.input: np.concatenate(found)}


def _tensors(about: About, contents: list[Any]) -> Inputs:
    return {name: np.concatenate([content[name] for content in contents]) for name in contents[0]}


def _texts(about: About, contents: list[Any]) -> Inputs:
    if isinstance(about.preprocess, TextPreprocess):
        return {**about.preprocess.rows(contents)}
    (first, *others) = about.signature.inputs
    if others or first.dtype != "object":
        raise NotTaken(f"the model takes no text; {_takes(about)}")
    return {first.name: np.array(contents, object).reshape(len(contents), *[1] * (len(first.shape) - 1))}


def _table(about: About, contents: list[Any]) -> Inputs:
    """Rows of a CSV file: of columns, of numbers, or with a text each."""
    header: list[str] = contents[0][0] or []
    rows: list[list[str]] = [row for _, row in contents]
    if header and any(len(row) != len(header) for row in rows):
        raise PenstockError(f"the row has {len(rows[0])} values; the table's header has {len(header)}")
    preprocess = about.preprocess
    if isinstance(preprocess, TablePreprocess):
        return {**preprocess.rows(_records(preprocess, header, rows))}
    if isinstance(preprocess, TextPreprocess):
        place = _text_column(about, header, len(rows[0]))
        return _texts(about, [row[place] for row in rows])
    if preprocess is not None:
        raise NotTaken(f"the model takes no table rows; {_takes(about)}")
    return _numbers(about, header, rows)


def _records(held: TablePreprocess, header: list[str], rows: list[list[str]]) -> list[dict[str, str]]:
    """Rows by their columns, which stand in the model's own order where the table does not name them."""
    names = header or list(held.names)
    missing = [name for name in held.names if name not in names]
    if missing:
        raise NotTaken(f"the table lacks the column {missing[0]!r}; it has {sheets.some(names)}")
    if any(len(row) != len(names) for row in rows):
        raise PenstockError(f"the row has {len(rows[0])} values; the model takes {len(names)}: {sheets.some(names)}")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _text_column(about: About, header: list[str], width: int) -> int:
    known = sheets.text_columns(about.dataset)
    place = next((header.index(name) for name in known if name in header), None)
    if place is None and width != 1:
        told = " or ".join(map(repr, dict.fromkeys(known)))
        raise NotTaken(f"the table lacks the column {told}; it has {sheets.some(header) if header else 'no header'}")
    return place or 0


def _numbers(about: About, header: list[str], rows: list[list[str]]) -> Inputs:
    """Rows of numbers for a model whose one input is a row, or each of whose inputs is a column."""
    tensors = about.signature.inputs
    if all(tensor.name in header and len(tensor.shape) <= 2 for tensor in tensors):
        places = [header.index(tensor.name) for tensor in tensors]
        columns = [[row[place] for row in rows] for place in places]
        return {
            tensor.name: _values(tensor, cells).reshape(len(rows), *[1] * (len(tensor.shape) - 1))
            for tensor, cells in zip(tensors, columns, strict=True)
        }
    (first, *others) = tensors
    if others or len(first.shape) != 2:
        raise NotTaken(f"the model takes no table rows; {_takes(about)}")
    if len({len(row) for row in rows}) != 1:
        raise PenstockError(f"the row has {len(rows[0])} values; others have more or fewer")
    return {first.name: _values(first, [cell for row in rows for cell in row]).reshape(len(rows), -1)}


def _values(tensor: Tensor, cells: list[str]) -> NDArray[Any]:
    """Cells as the numbers, truths or texts that an input holds."""
    if tensor.dtype == "object":
        return np.array(cells, object)
    kind = np.dtype(tensor.dtype).kind
    rule, right = {
        "b": ("true or false", lambda cell: cell.lower() in ("true", "false")),
        "f": ("a number", is_number),
    }.get(kind, ("a whole number", lambda cell: is_number(cell) and cell.lstrip("+-").isdigit()))
    for cell in cells:
        if not right(cell):
            raise PenstockError(f"a value is {cell[:40]!r}; input {tensor.name!r} takes {rule}")
    try:
        found = [cell.lower() == "true" if kind == "b" else float(cell) if kind == "f" else int(cell) for cell in cells]
        return np.array(found, tensor.dtype)
    except OverflowError:
        raise PenstockError(f"a value is too large for input {tensor.name!r}, {tensor.dtype}") from None


def _request(about: About, contents: list[Any]) -> Inputs:
    raise NotTaken(f"a .json file is a request to a server, and this model is run here; {_takes(about)}")


def _takes(about: About) -> str:
    """What the model takes, in words."""
    if isinstance(about.preprocess, ImagePreprocess):
        return "it takes pictures"
    if isinstance(about.preprocess, TextPreprocess):
        return "it takes texts: a .txt file, or a .csv or .parquet file with a column of them"
    if isinstance(about.preprocess, TablePreprocess):
        return f"it takes table rows: a .csv or .parquet file with the columns {sheets.some(about.preprocess.names)}"
    names = ", ".join(tensor.name for tensor in about.signature.inputs)
    return f"it takes arrays: an .npz file with {names}"


_READ: dict[str, Callable[[About, list[Any]], Inputs]] = {
    **{"image": _images, "tensors": _tensors, "text": _texts, "table": _table, "json": _request}
}
