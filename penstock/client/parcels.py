"""Files as what is sent of them: pieces that get one prediction each, several to a request."""

from __future__ import annotations

import csv
import io
import json
import secrets
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from penstock import tables
from penstock.data import parquet
from penstock.datasets import PICTURES
from penstock.errors import PenstockError
from penstock.files import nearby
from penstock.signature import V2_DTYPES

_PATTERN = frozenset("*?[")
_BY_SUFFIX = {
    **{".npz": "npz", ".npy": "npy", ".csv": "table", ".txt": "text", ".json": "json"},
    **dict.fromkeys(parquet.SUFFIXES, "parquet"),
}
_MAGIC = {b"\x93NUMPY": "npy", b"PK\x03\x04": "npz", b"{": "json"}
_FLOATS = {v2: dtype for dtype, v2 in V2_DTYPES.items() if dtype.startswith("float")}
# Name, datatype and shape of each of the model's inputs.
Inputs = list[dict[str, Any]]


@dataclass(frozen=True)
class Source:
    """A file, or standard input where `path` is None; `within` is its path inside the folder that was named."""

    name: str
    path: Path | None
    within: PurePath

    def read(self) -> bytes:
        return sys.stdin.buffer.read() if self.path is None else self.path.read_bytes()


@dataclass(frozen=True)
class Piece:
    """What gets one prediction, the `row`-th of a file, from 1 on; a whole file where `row` is None.

    `line` is where the row of a table ends in its file.
    """

    source: Source
    row: int | None
    content: Any
    line: int | None = None


@dataclass(frozen=True)
class Parcel:
    """One request's pieces. `ends` are the files that it ends."""

    kind: str
    pieces: tuple[Piece, ...]
    ends: int = field(default=0, compare=False)

    def halves(self) -> tuple[Parcel, Parcel]:
        middle = len(self.pieces) // 2
        return Parcel(self.kind, self.pieces[:middle]), Parcel(self.kind, self.pieces[middle:])

    def packed(self) -> tuple[bytes, dict[str, str]]:
        """The body, and its headers. Pictures are read now.

        Raises:
            OSError: one cannot be.
        """
        return _PACKED[self.kind]([piece.content for piece in self.pieces])


def sources(words: Sequence[str]) -> list[Source]:
    """The files that the command line names: files, pictures in folders and theirs, patterns, `-` for standard input.

    Raises:
        PenstockError: there is no such file, or no picture in a folder.
    """
    found: list[Source] = []
    for word in words:
        if word == "-":
            found.append(Source("-", None, PurePath("stdin")))
        elif not Path(word).exists() and _PATTERN & set(word):
            matches = sorted(glob(word, recursive=True))  # noqa: PTH207  # Path.glob takes no absolute pattern
            if not matches:
                raise PenstockError(f"{word}: no file fits this pattern")
            for match in matches:
                found += _folder(Path(match), empty=True) if Path(match).is_dir() else [_file(Path(match))]
        elif Path(word).is_dir():
            found += _folder(Path(word))
        elif Path(word).is_file():
            found.append(_file(Path(word)))
        else:
            raise PenstockError(f"{word}: there is no such file, folder or pattern{nearby(Path(word))}")
    if not found:
        raise PenstockError(f"{' '.join(words)}: only folders without pictures fit")
    return found


def _file(path: Path) -> Source:
    return Source(str(path), path, PurePath(path.name))


def _folder(folder: Path, *, empty: bool = False) -> list[Source]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES and path.is_file())
    if not paths and not empty:
        raise PenstockError(
            f"{folder}: holds no picture ({', '.join(PICTURES)}); name its other files, '{folder}/*.npz'"
        )
    return [Source(str(path), path, path.relative_to(folder)) for path in paths]


def parcels(files: Sequence[Source], most: int, inputs: Inputs) -> Iterator[Parcel]:
    """What is to be sent of files, in their order, at most so many pieces at a time; read as it is asked for.

    Args:
        files: the files.
        most: pieces in one parcel.
        inputs: the model's, for files of arrays.
    """
    pictures: list[Piece] = []
    pieces: list[Piece]
    for source in files:
        try:
            kind, data = _opened(source)
            if kind == "image":
                pictures.append(Piece(source, None, source.path if data is None else data))
                if len(pictures) < most:
                    continue
                kind, pieces = "image", []
            else:
                kind, pieces = _CUT[kind](source, data or b"", inputs)
        except (PenstockError, OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            kind, pieces = "failed", [Piece(source, None, getattr(error, "strerror", None) or str(error))]
        if pictures:
            yield Parcel("image", tuple(pictures), len(pictures))
            pictures = []
        for start in range(0, len(pieces), most):
            yield Parcel(kind, tuple(pieces[start : start + most]), int(start + most >= len(pieces)))
    if pictures:
        yield Parcel("image", tuple(pictures), len(pictures))


def _opened(source: Source) -> tuple[str, bytes | None]:
    """A file's kind, by its suffix or else by how it begins, and its bytes; a picture's are read when it is sent."""
    suffix = source.within.suffix.lower() if source.path is not None else ""
    if suffix in PICTURES:
        return "image", None
    if suffix in parquet.SUFFIXES:
        return "parquet", None
    data = source.read()
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix], data
    for magic, kind in _MAGIC.items():
        if data[:64].lstrip().startswith(magic):
            return kind, data
    if source.path is None and data and b"\0" not in data:
        try:
            data.decode()
        except UnicodeDecodeError:
            return "image", data
        return "text", data
    return "image", data


def _cut_npy(source: Source, data: bytes, inputs: Inputs) -> tuple[str, list[Piece]]:
    names = [str(held["name"]) for held in inputs]
    if len(names) != 1:
        raise PenstockError(f"the model has the inputs {', '.join(names)}; send an .npz file with an array for each")
    return _cut_arrays(source, {names[0]: np.load(io.BytesIO(data), allow_pickle=False)}, inputs)


def _cut_npz(source: Source, data: bytes, inputs: Inputs) -> tuple[str, list[Piece]]:
    known = {str(held["name"]) for held in inputs}
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files if name in known or name != "labels"}
    return _cut_arrays(source, arrays, inputs)


def _cut_arrays(source: Source, arrays: dict[str, Any], inputs: Inputs) -> tuple[str, list[Piece]]:
    """Arrays by the row, where the model takes as many as there are; else whole."""
    for name, array in arrays.items():
        if array.dtype.name not in V2_DTYPES:
            raise PenstockError(f"array {name!r} is of {array.dtype}; it must be one of {', '.join(V2_DTYPES)}")
    for held in inputs:  # floats become as wide as the model takes them, as training has them
        array, wanted = arrays.get(held["name"]), _FLOATS.get(held["datatype"])
        if array is not None and array.dtype.kind == "f" and wanted is not None:
            arrays[held["name"]] = array.astype(wanted)
    counts = {len(array) if array.ndim else -1 for array in arrays.values()}
    if len(counts) != 1 or counts <= {-1, 0} or any(held["shape"][:1] != [-1] for held in inputs):
        return "tensors", [Piece(source, None, arrays)]
    rows = range(counts.pop())
    return "tensors", [
        Piece(source, row + 1, {name: array[row : row + 1] for name, array in arrays.items()}) for row in rows
    ]


def _cut_table(source: Source, data: bytes, inputs: Inputs) -> tuple[str, list[Piece]]:
    rows = list(tables.records(data))
    header = rows.pop(0)[1] if rows and tables.names_columns(rows[0][1]) else None
    if not rows:
        raise PenstockError("the table has no row below its header")
    return "table", [Piece(source, number, (header, row), line) for number, (line, row) in enumerate(rows, 1)]


def _cut_parquet(source: Source, data: bytes, inputs: Inputs) -> tuple[str, list[Piece]]:
    assert source.path is not None
    header, rows = parquet.sheet("file", source.path)
    if not rows:
        raise PenstockError("holds no row")
    return "table", [Piece(source, number, (header, row)) for number, row in enumerate(rows, 1)]


def _cut_text(source: Source, data: bytes, inputs: Inputs) -> tuple[str, list[Piece]]:
    lines = data.decode("utf-8-sig").splitlines()
    pieces = [Piece(source, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not pieces:
        raise PenstockError("holds no line of text")
    return "text", pieces


def _whole(source: Source, data: bytes, inputs: Inputs) -> tuple[str, list[Piece]]:
    return "json", [Piece(source, None, data)]


_CUT = {
    "npy": _cut_npy,
    "npz": _cut_npz,
    "table": _cut_table,
    "parquet": _cut_parquet,
    "text": _cut_text,
    "json": _whole,
}


def _form(contents: list[Any]) -> tuple[bytes, dict[str, str]]:
    edge = secrets.token_hex(16)
    parts = []
    for content in contents:
        data, name = (content, "stdin") if isinstance(content, bytes) else (content.read_bytes(), content.name)
        shown = name.replace("\\", "%5C").replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
        head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="{shown}"\r\n\r\n'
        parts += [head.encode("utf-8", "replace"), data, b"\r\n"]
    return b"".join([*parts, f"--{edge}--\r\n".encode()]), {"Content-Type": f"multipart/form-data; boundary={edge}"}


def _binary(contents: list[Any]) -> tuple[bytes, dict[str, str]]:
    """Tensors as the Open Inference Protocol has them: JSON, and little-endian bytes behind it."""
    listed, tail = [], []
    for name in contents[0]:
        array = np.concatenate([content[name] for content in contents]) if len(contents) > 1 else contents[0][name]
        raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        entry = {"name": name, "datatype": V2_DTYPES[array.dtype.name], "shape": list(array.shape)}
        listed.append({**entry, "parameters": {"binary_data_size": len(raw)}})
        tail.append(raw)
    text = json.dumps({"inputs": listed}).encode()
    return b"".join([text, *tail]), {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(text)),
    }


def _table(contents: list[Any]) -> tuple[bytes, dict[str, str]]:
    out = io.StringIO()
    header, _ = contents[0]
    csv.writer(out).writerows([*([] if header is None else [header]), *(row for _, row in contents)])
    return out.getvalue().encode(), {"Content-Type": "text/csv"}


def _json(contents: list[Any]) -> tuple[bytes, dict[str, str]]:
    return bytes(contents[0]), {"Content-Type": "application/json"}


def _texts(contents: list[Any]) -> tuple[bytes, dict[str, str]]:
    return _json([json.dumps({"texts": contents}).encode()])


_PACKED: dict[str, Callable[[list[Any]], tuple[bytes, dict[str, str]]]] = {
    **{"image": _form, "tensors": _binary, "table": _table, "text": _texts, "json": _json}
}
