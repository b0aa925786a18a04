"""Answers as rows, and rows as lines, JSON, CSV or pictures."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.client.parcels import Parcel, Piece
from penstock.errors import PenstockError, printable
from penstock.files import write_whole, writing
from penstock.tables import inert

_LINE = re.compile(r"^line \d+, ")


@dataclass(frozen=True)
class Row:
    """What became of a piece: a prediction, or why there is none; and where its class map was written to."""

    piece: Piece
    row: int | None
    prediction: Mapping[str, Any] | None = None
    error: str = ""
    map: Path | None = None

    @property
    def name(self) -> str:
        return self.piece.source.name + (f":{self.row}" if self.row is not None else "")

    @property
    def place(self) -> str:
        """Where to look in the file: the line of a table's row, which its header is not counted in."""
        return self.name if self.piece.line is None else f"{self.piece.source.name}, line {self.piece.line}"

    @property
    def why(self) -> str:
        """Why there is no prediction; a server counts the lines of what it was sent, which is no more than a row."""
        return self.error if self.piece.line is None else _LINE.sub("", self.error)


def rows(parcel: Parcel, answer: Mapping[str, Any]) -> list[Row]:
    """The rows of an answer: one for each piece or, where a piece was a whole file, as many as it has.

    Raises:
        PenstockError: there are fewer or more than pieces.
    """
    found = list(_predictions(answer, len(parcel.pieces)))
    if len(parcel.pieces) == 1:
        (piece,) = parcel.pieces
        if len(found) == 1:
            return [Row(piece, piece.row, found[0])]
        return [Row(piece, number, prediction) for number, prediction in enumerate(found, 1)]
    if len(found) != len(parcel.pieces):
        raise PenstockError(f"the server answers {len(found)} rows to {len(parcel.pieces)}")
    return [Row(piece, piece.row, prediction) for piece, prediction in zip(parcel.pieces, found, strict=True)]


def _predictions(answer: Mapping[str, Any], pieces: int) -> Iterator[dict[str, Any]]:
    """The predictions in an answer, each an object; outputs that are no rows stay together."""
    if "predictions" in answer:
        yield from answer["predictions"]
    elif "values" in answer:
        yield from ({"value": value} for value in answer["values"])
    else:
        outputs = answer["outputs"]
        counts = {len(value) if isinstance(value, list) else -1 for value in outputs.values()}
        if len(counts) == 1 and (pieces > 1 or counts == {1}):
            yield from ({name: value[n] for name, value in outputs.items()} for n in range(counts.pop()))
        else:
            yield dict(outputs)


def _ranked(prediction: Mapping[str, Any]) -> list[tuple[str, float]] | None:
    """Labels with their scores or, in a class map, their shares of the pixels; the first is the first."""
    if "top" in prediction:
        return [(entry["label"], entry["score"]) for entry in prediction["top"]]
    if "map" in prediction:
        return [(entry["label"], entry["share"]) for entry in prediction["labels"]]
    return None


def as_line(row: Row, top_k: int) -> str:
    """A row for a person to read: the file, and what is in it."""
    prediction = row.prediction or {}
    ranked = _ranked(prediction)
    if ranked is not None:
        return "  ".join([row.name, *(f"{printable(label)} {share:.4f}" for label, share in ranked[:top_k])])
    if set(prediction) == {"value"}:
        return f"{row.name}  {json.dumps(prediction['value'])}"
    return "  ".join([row.name, *(f"{printable(name)}={json.dumps(value)}" for name, value in prediction.items())])


def as_json(row: Row) -> str:
    """A row as one line of JSON: the file, its row, and the prediction as the server gave it, or the error.

    A class map that was written to a file is told by its path.
    """
    numbered = {} if row.row is None else {"row": row.row}
    said = {"error": row.error} if row.prediction is None else dict(row.prediction)
    if row.map is not None:
        said["map"] = str(row.map)
    return json.dumps({"file": row.piece.source.name, **numbered, **said}, ensure_ascii=False)


def as_csv(found: Sequence[Row], top_k: int) -> bytes:
    """All rows as CSV: file, row where there are any, label, score, label_2, …, or value, or outputs in JSON; error."""
    records = [_record(row, top_k) for row in found]
    names = dict.fromkeys(name for record in records for name in record)
    ends = ["error"] if any(row.prediction is None for row in found) else []
    out = io.StringIO(newline="")
    fields = [*(name for name in names if name != "error"), *ends] or ["file"]
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writerow({name: inert(name) for name in fields})
    writer.writerows({name: inert(value) for name, value in record.items()} for record in records)
    return out.getvalue().encode("utf-8", "surrogateescape")


def _record(row: Row, top_k: int) -> dict[str, Any]:
    record: dict[str, Any] = {"file": row.piece.source.name}
    if row.row is not None:
        record["row"] = row.row
    if row.prediction is None:
        return {**record, "error": row.error}
    ranked = _ranked(row.prediction)
    if ranked is None:
        plain = (int, float, str)
        return {**record, **{k: v if isinstance(v, plain) else json.dumps(v) for k, v in row.prediction.items()}}
    for number, (label, share) in enumerate(ranked[:top_k], 1):
        end = "" if number == 1 else f"_{number}"
        record |= {f"label{end}": label, f"score{end}": share}
    return record if row.map is None else {**record, "map": str(row.map)}


class Maps:
    """Class maps written as PNG into a folder, by the names of the pictures that they are of."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken: set[Path] = set()

    def write(self, row: Row) -> Path:
        """Write a row's map, and say where to; a name that was written before gets a number.

        Raises:
            PenstockError: the model answers no maps, or the folder cannot be written to.
        """
        if row.prediction is None or "map" not in row.prediction:
            raise PenstockError(
                f"--output {self._folder}: the model answers no class maps; leave it out, or take --csv"
            )
        within = row.piece.source.within
        numbered = "" if row.row is None else f"-{row.row}"
        path, again = self._folder / within.with_name(f"{within.stem}{numbered}.png"), 1
        while path in self._taken:
            again += 1
            path = path.with_name(f"{within.stem}{numbered}-{again}.png")
        self._taken.add(path)
        with writing("--output", path, "the maps before it are there"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, base64.b64decode(row.prediction["map"]))
        return path
