"""Evidence: samples and the source's answers to them, kept beside an engine until a machine that can run it has.

evidence.npz holds more than golden.npz does: rows for the largest batch, and others at many sizes of each dimension.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.arrays import take
from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.signature import Signature
from penstock.spool import pick

EVIDENCE = "evidence.npz"
# What evidence may take, of whatever the samples are large; 8 rows are kept all the same.
_MOST_BYTES, _LEAST_ROWS = 96 << 20, 8
_READ_BYTES = 1 << 30


@dataclass(frozen=True)
class Place:
    """Samples at one size of a dimension, or of several: what it is in words, and the source's answers there."""

    what: str
    rows: int
    inputs: dict[str, Any]
    outputs: dict[str, Any]


@dataclass(frozen=True)
class Evidence:
    """Rows that fill a whole number of largest batches, of which `samples` differ, the source's answers, and places."""

    rows: Rows
    outputs: dict[str, Any]
    samples: int
    places: tuple[Place, ...] = ()


def write(
    folder: Path, rows: Rows, outputs: dict[str, Any], samples: int, places: Sequence[Place], most: int = _MOST_BYTES
) -> None:
    """Write evidence.npz: as many different samples as there is room for, and then places.

    Args:
        folder: where to.
        rows: the inputs.
        outputs: the source's answers to them.
        samples: how many of them differ; they come first.
        places: the same at other sizes of dimensions.
        most: the bytes that it may take, unpacked.
    """
    row = _size(take(rows.inputs, slice(1))) + _size(take(outputs, slice(1)))
    kept = slice(min(samples, max(_LEAST_ROWS, most // max(1, row))))
    inputs, answers = take(rows.inputs, kept), take(outputs, kept)
    left = most - _size(inputs) - _size(answers)
    arrays = _named("", inputs, answers)
    words: list[dict[str, Any]] = []
    for place in places:
        left -= _size(place.inputs) + _size(place.outputs)
        if left < 0:
            break
        arrays.update(_named(f"{len(words)}:", place.inputs, place.outputs))
        words.append({"what": place.what, "rows": place.rows})
    arrays["places"] = np.frombuffer(json.dumps(words).encode(), np.uint8)
    np.savez(folder / EVIDENCE, **arrays)


def read(folder: Path, signature: Signature) -> Evidence | None:
    """The evidence in an artifact's folder, or None.

    Raises:
        PenstockError: it is damaged.
    """
    path = folder / EVIDENCE
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _READ_BYTES:
                raise PenstockError(f"{path}: unpacks to more than {_READ_BYTES} bytes")
        with np.load(path, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        places = tuple(_places(arrays, signature))
        inputs, outputs = _of(arrays, "", signature)
        return filled(inputs, outputs, signature, places)
    except PenstockError:
        raise
    except Exception as error:  # zip, zlib, numpy and json have errors of many kinds for a damaged file
        raise PenstockError(f"{path}: cannot be read: {error}") from None


def filled(
    inputs: dict[str, Any], outputs: dict[str, Any], signature: Signature, places: tuple[Place, ...] = ()
) -> Evidence:
    """Rows over again until they fill a whole number of largest batches."""
    count = len(next(iter(inputs.values())))
    index = whole_batches(count, signature.max_batch)
    rows = Rows({name: pick(array, index) for name, array in inputs.items()}, None)
    return Evidence(rows, take(outputs, index), count, places)


def whole_batches(count: int, batch: int) -> Any:
    """The numbers of `count` rows, the first of them over again until they fill a whole number of batches."""
    return np.arange(-(-count // batch) * batch) % count


def _places(arrays: dict[str, Any], signature: Signature) -> Iterator[Place]:
    listed = json.loads(arrays["places"].tobytes())
    if not isinstance(listed, list):
        raise PenstockError(f"{EVIDENCE}: damaged: its places are no list")
    for number, held in enumerate(listed):
        rows = int(held["rows"])
        if rows < 1:
            raise PenstockError(f"{EVIDENCE}: damaged: rows of place {number} are {rows}; they are 1 at least")
        yield Place(str(held["what"]), rows, *_of(arrays, f"{number}:", signature))


def _of(arrays: dict[str, Any], place: str, signature: Signature) -> tuple[dict[str, Any], dict[str, Any]]:
    inputs = {tensor.name: arrays[f"{place}input:{tensor.name}"] for tensor in signature.inputs}
    outputs = {tensor.name: arrays[f"{place}output:{tensor.name}"] for tensor in signature.outputs}
    for tensor, array in zip(
        (*signature.inputs, *signature.outputs), (*inputs.values(), *outputs.values()), strict=True
    ):
        if array.dtype.name != tensor.dtype or array.ndim != len(tensor.shape) or not array.size:
            raise PenstockError(
                f"{EVIDENCE}: damaged: {place}{tensor.name} is {array.dtype.name}{list(array.shape)}; it must be rows "
                f"of {tensor}"
            )
    return inputs, outputs


def _named(place: str, inputs: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    return {
        **{f"{place}input:{name}": array for name, array in inputs.items()},
        **{f"{place}output:{name}": array for name, array in outputs.items()},
    }


def _size(arrays: dict[str, Any]) -> int:
    return sum(array.nbytes for array in arrays.values())
