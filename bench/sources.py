"""Where a server's payloads come from: files, an artifact's golden rows, or the model's own metadata."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock import artifact, datasets
from penstock.arrays import join
from penstock.bench import datafiles, payloads
from penstock.bench.answers import NUMPY, Expected
from penstock.bench.payloads import BINARY, FORMS, GRPC, IMAGE, JSON, Payload
from penstock.bench.target import Target
from penstock.errors import PenstockError, require
from penstock.preprocess import ImagePreprocess, decode_image
from penstock.receipt import Receipt
from penstock.signature import Arrays

# So many requests are made, and so many bytes of them at most; runs take them in turns.
MOST, MOST_BYTES = 64, 256 << 20
# The size of a dimension of which the metadata says none.
UNSAID = 8
_WIDEST = 0.1
_SHAPE = re.compile(r"([^=]+)=(\d+(?:[,x]\d+)*)")


@dataclass(frozen=True)
class Wanted:
    """What the command line says of payloads. `rows` is how many go in a request."""

    form: str | None = None
    data: Path | None = None
    artifact: Path | None = None
    rows: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class Payloads:
    """Requests of one form, where they are from, the answers that are due where they are known, and notes.

    `left_over` rows fill no request.
    """

    form: str
    source: str
    requests: list[Payload]
    expected: list[Expected] | None = None
    tolerance: float | None = None
    notes: list[str] = field(default_factory=list)
    left_over: int = 0


def shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`input=1,3,224,224` as the shape of an input, for each.

    Raises:
        PenstockError: one is not of that form.
    """
    found = {}
    for text in texts:
        match = _SHAPE.fullmatch(text.strip())
        if match is None:
            raise PenstockError(f"--shape {text[:80]!r}: must read INPUT=SIZE,…, rows first, as in tokens=1,128")
        found[match[1].strip()] = tuple(int(size) for size in re.split("[,x]", match[2]))
    return found


def prepare(target: Target, wanted: Wanted) -> Payloads:
    """What is to be sent.

    Raises:
        PenstockError: the files hold nothing that can be sent, or not in that form, or the metadata is not enough.
    """
    if wanted.form is not None and wanted.form not in FORMS:
        raise PenstockError(f"--form {wanted.form!r}: must be one of {', '.join(FORMS)}")
    files = [] if wanted.data is None else datafiles.listed(wanted.data)
    kinds = {datafiles.kind(file) for file in files}
    if len(kinds) > 1:
        raise PenstockError(f"--data {wanted.data}: holds {' and '.join(sorted(kinds))}; give a folder of one of them")
    kind = kinds.pop() if kinds else "golden" if wanted.artifact is not None else "made"
    found = _MADE[kind](target, wanted, files)
    if not found.requests:
        raise PenstockError(f"--rows {wanted.rows}: {found.source} has fewer rows")
    if found.left_over:
        found.notes.append(f"of {found.source}, rows left over from --rows {wanted.rows}, not sent: {found.left_over}")
    return found


def _form(target: Target, wanted: Wanted, notes: list[str]) -> str:
    """The form in which tensors go: the one that is asked for, else the quickest that the server takes."""
    if target.place is None:
        if wanted.form not in (None, GRPC):
            raise PenstockError(f"--form {wanted.form}: goes over HTTP; give the server's http:// URL")
        return GRPC
    form = wanted.form or BINARY
    if form == BINARY and not target.binary:
        notes.append(
            f"{target.name or 'the server'} has no binary extension (its /v2 names no binary_tensor_data): asked in "
            f"JSON"
        )
        return JSON
    return form


def _made_up(target: Target, wanted: Wanted, files: list[Path]) -> Payloads:
    """Random rows of the shapes and datatypes that the model's metadata has."""
    notes: list[str] = []
    if not target.inputs:
        raise PenstockError(
            f"{target.url}: says nothing of the inputs of {target.model}; give what to send with --data FILE "
            "(.npz with an array for each input, .json with a whole request, pictures)"
        )
    unknown = set(wanted.shapes) - {each.name for each in target.inputs}
    if unknown:
        names = ", ".join(each.name for each in target.inputs)
        raise PenstockError(f"--shape {sorted(unknown)[0]}: is no input of {target.model}; those are {names}")
    if wanted.form == IMAGE:
        return _made_up_pictures(target, wanted)
    form = _form(target, wanted, notes)
    generator, requests, open_ = np.random.default_rng(0), list[Payload](), set[str]()
    total = 0
    while len(requests) < MOST and total < MOST_BYTES:
        arrays = {}
        for each in target.inputs:
            shape, unsaid = _shape(each.shape, wanted.rows, wanted.shapes.get(each.name))
            open_ |= {each.name} if unsaid else set()
            arrays[each.name] = _values(generator, each.datatype, shape)
        requests.append(payloads.of_arrays(target, arrays, form))
        total += len(requests[-1].body)
        if len(requests[-1].body) > MOST_BYTES // MOST and len(requests) >= 4:
            break
    if open_:
        names = ", ".join(sorted(open_))
        notes.append(f"sizes that the metadata of {names} leaves open are {UNSAID}; --shape INPUT=SIZE,… sets them")
    return Payloads(form, "random numbers of the metadata's shapes", requests, notes=notes)


def _shape(declared: tuple[int, ...], rows: int, given: tuple[int, ...] | None) -> tuple[list[int], bool]:
    """The shape to send, and whether a size of it is a guess."""
    if given is not None:
        return list(given), False
    first = declared[:1]
    sizes = [rows if place == 0 and size < 0 else UNSAID if size < 0 else size for place, size in enumerate(declared)]
    if rows > 1 and first and first[0] >= 0 and first[0] != rows:
        raise PenstockError(f"--rows {rows}: the model's inputs have shape {list(declared)}, whose rows are not open")
    return sizes, any(size < 0 for size in declared[1:])


def _values(generator: np.random.Generator, datatype: str, shape: Sequence[int]) -> Any:
    if math.prod(shape) > MOST_BYTES:
        raise PenstockError(f"an input has shape {list(shape)}, which is too large to be made up; --shape sets another")
    if datatype == "BYTES":
        words = [f"word {number}" for number in generator.integers(0, 1000, int(np.prod(shape)))]
        return np.array(words, object).reshape(shape)
    if datatype == "BF16":  # the upper half of a float32
        return (generator.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if datatype not in NUMPY:
        raise PenstockError(f"an input is of {datatype}, which cannot be made up; give what to send with --data FILE")
    dtype = np.dtype(NUMPY[datatype])
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    return generator.integers(0, 256 if dtype == np.uint8 else 2, shape).astype(dtype)


def _made_up_pictures(target: Target, wanted: Wanted) -> Payloads:
    """Random pictures as PNG, of the size of the model's input where that tells."""
    _see_predict(target)
    require("PIL", "serve", "making up pictures")
    from PIL import Image

    sizes = [size for size in target.inputs[0].shape[1:] if size > 4]
    height, width = (sizes[-2], sizes[-1]) if len(sizes) >= 2 else (224, 224)
    generator, requests = np.random.default_rng(0), list[Payload]()
    for _ in range(MOST // 4):
        pictures = []
        for number in range(wanted.rows):
            coarse = Image.fromarray(generator.integers(0, 256, (8, 8, 3), np.uint8))
            held = io.BytesIO()
            coarse.resize((width, height)).save(held, "PNG")
            pictures.append((f"{number}.png", held.getvalue()))
        requests.append(payloads.of_pictures(target, pictures))
    return Payloads(IMAGE, f"made-up pictures of {width}x{height}, PNG", requests)


def _see_predict(target: Target) -> None:
    if target.place is None or not target.is_penstock:
        raise PenstockError(
            f"--form {IMAGE}: uploads go to penstock's POST /predict over HTTP; {target.url} is "
            f"{target.name or 'another server'}. Give --artifact DIR, whose receipt says how pictures become numbers"
        )


def _of_pictures(target: Target, wanted: Wanted, files: list[Path]) -> Payloads:
    """Pictures as they are, or as the numbers that an artifact's receipt makes of them."""
    source = f"{len(files)} pictures of {wanted.data}"
    if wanted.form in (None, IMAGE) and (wanted.form == IMAGE or wanted.artifact is None):
        _see_predict(target)
        held = [(file.name, file.read_bytes()) for file in files[: MOST * wanted.rows]]
        groups = [held[at : at + wanted.rows] for at in range(0, len(held) - wanted.rows + 1, wanted.rows)]
        requests = _bounded(payloads.of_pictures(target, group) for group in groups)
        return Payloads(IMAGE, source, requests, left_over=len(held) % wanted.rows)
    if wanted.artifact is None:
        raise PenstockError(
            f"--form {wanted.form}: pictures become numbers as a receipt says; give --artifact DIR, or --form {IMAGE}"
        )
    preprocess = _receipt(wanted.artifact).preprocess
    if not isinstance(preprocess, ImagePreprocess):
        raise PenstockError(f"--artifact {wanted.artifact}: its receipt does not say how pictures become numbers")
    rows = [preprocess.apply(decode_image(file.read_bytes())) for file in files[: MOST * wanted.rows]]
    return _of_rows(target, wanted, {preprocess.input: np.concatenate(rows)}, source)


def _of_tables(target: Target, wanted: Wanted, files: list[Path]) -> Payloads:
    """Texts or table rows of CSV files, as the numbers that an artifact's receipt makes of them."""
    if wanted.artifact is None:
        raise PenstockError(
            f"--data {wanted.data}: texts and table rows become numbers as a receipt says; give --artifact DIR"
        )
    receipt = _receipt(wanted.artifact)
    told = (receipt.preprocess, receipt.labels)
    read = [datasets.read(file, *told, task=receipt.task, dataset=receipt.dataset) for file in files[:MOST]]
    return _of_rows(target, wanted, join([rows.inputs for rows in read]), str(wanted.data))


def _of_arrays(target: Target, wanted: Wanted, files: list[Path]) -> Payloads:
    """Rows of .npz and .npy files, `rows` of them to a request."""
    source = str(wanted.data)
    groups = [_of_rows(target, wanted, datafiles.read(target, file), source) for file in files[:MOST]]
    requests = _bounded(request for group in groups for request in group.requests)
    left_over = sum(group.left_over for group in groups)
    return Payloads(groups[0].form, source, requests, notes=groups[0].notes, left_over=left_over)


def _of_rows(target: Target, wanted: Wanted, arrays: Arrays, source: str) -> Payloads:
    notes: list[str] = []
    if wanted.form == IMAGE:
        raise PenstockError(f"--form {IMAGE}: sends pictures; these are arrays")
    form = _form(target, wanted, notes)
    batched = _batched(target, arrays)
    made = (payloads.of_arrays(target, part, form) for part in cut(arrays, wanted.rows, batched))
    left_over = min(map(len, arrays.values())) % wanted.rows if batched else 0
    return Payloads(form, source, _bounded(made), notes=notes, left_over=left_over)


def _batched(target: Target, arrays: Arrays) -> bool:
    """Whether rows may be taken apart: the model's inputs have open rows, or nothing is known of them."""
    known = {each.name: each.shape for each in target.inputs}
    return all(array.ndim > 0 and known.get(name, (-1,))[:1] == (-1,) for name, array in arrays.items())


def cut(arrays: Arrays, rows: int, batched: bool) -> Iterator[dict[str, Any]]:
    """Arrays in parts of so many rows; whole, where rows hang together."""
    if not batched:
        yield dict(arrays)
        return
    count = min(len(array) for array in arrays.values())
    for start in range(0, count - rows + 1, rows):
        yield {name: array[start : start + rows] for name, array in arrays.items()}


def _bounded(made: Iterator[Payload]) -> list[Payload]:
    found: list[Payload] = []
    total = 0
    for payload in made:
        total += len(payload.body)
        if len(found) == MOST or (found and total > MOST_BYTES):
            break
        found.append(payload)
    return found


def _of_json(target: Target, wanted: Wanted, files: list[Path]) -> Payloads:
    if wanted.form not in (None, JSON) or target.place is None:
        raise PenstockError(f"--data {wanted.data}: a whole request in JSON goes as {JSON}, over HTTP")
    found = _bounded(payloads.of_json(target, file.read_bytes(), str(file)) for file in files)
    forms = {payload.form for payload in found}
    return Payloads(forms.pop() if len(forms) == 1 else JSON, str(wanted.data), found)


def _golden(target: Target, wanted: Wanted, files: list[Path]) -> Payloads:
    """An artifact's golden inputs; its source model's answers are what is due."""
    assert wanted.artifact is not None
    found = artifact.read(_version(wanted.artifact))
    inputs, outputs = found.golden()
    signature = found.receipt.signature
    made = _of_rows(target, wanted, inputs, f"golden rows of {wanted.artifact}")
    parts = list(cut(outputs, wanted.rows, signature.batch is not None))
    limits = found.receipt.verification.limits.values()
    made.expected = [payloads.answer_of(part, made.form) for part in parts[: len(made.requests)]]
    # A budget of accuracy leaves outputs free; another row's answer is wrong all the same, and further off than this.
    made.tolerance = min(_WIDEST, max((limit.max_error for limit in limits), default=_WIDEST))
    return made


def _version(path: Path) -> Path:
    found = artifact.find([path])
    if len(found) != 1 or found[0].is_file():
        raise PenstockError(f"--artifact {path}: must be one artifact, a folder that penstock export wrote")
    return found[0]


def _receipt(path: Path) -> Receipt:
    return artifact.read(_version(path)).receipt


_MADE = {
    "pictures": _of_pictures,
    "arrays": _of_arrays,
    "tables": _of_tables,
    "JSON": _of_json,
    "golden": _golden,
    "made": _made_up,
}
