"""The reader of MXNet's RecordIO: pictures of a .rec file, read as they are asked for, and their labels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock import irheader
from penstock.data.ahead import ahead
from penstock.data.samples import Samples
from penstock.data.specs import Part, Records
from penstock.data.split import split
from penstock.preprocess import FORMATS, BadImage, decode_image
from penstock.progress import bar
from penstock.recordio import Reader
from penstock.recordparts import BadRecords

log = logging.getLogger(__name__)
Result = TypeVar("Result")
# What pictures of FORMATS begin with; of WebP's 12 bytes the four in the middle are a length.
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", b"GIF87a", b"GIF89a")
_LONGEST_BEGINNING = 12
# So many of a record's first bytes hold the header, some labels, and what tells a picture.
_FEW = irheader.SIZE + 64
# So many pictures that were left out are named; the others are counted.
_NAMED = 10


def load(spec: Records) -> dict[Part, Samples]:
    """The three parts: encoded pictures, which are read from the file when they are asked for.

    Scalar labels are class numbers, and an array of one label is one; arrays of more are float32 `[n, k]`, without
    classes. The classes' names are the lines of `FILE.classes.txt`, which `penstock data pack` writes, or the numbers.

    Every record's labels are read, and with `unreadable` fail it is seen that what follows begins like a picture:
    whether it can be decoded shows when it is. With skip each picture is decoded once, since nothing less tells.

    Raises:
        PenstockError: a file is missing or damaged, its index is not its own, labels break their rule, test_file has
            other labels or classes than path, there is no picture, or a part would be too small.
    """
    found = _find(Path(spec.path), spec.unreadable)
    classes = _classes(found)
    whole = found.samples(classes)
    shares: dict[Part, float] = {"val": spec.val} if spec.test_file else {"val": spec.val, "test": spec.test}
    by = None if classes is None else whole.labels
    parts = {
        part: found.samples(classes, index)
        for part, index in split(spec.name, len(whole), spec.seed, shares, by).items()
    }
    if spec.test_file:
        held_out = _find(Path(spec.test_file), spec.unreadable)
        _see_alike(found, held_out, classes)
        parts["test"] = held_out.samples(classes)
    return parts


class Each(Sequence[Any]):
    """What a function makes of each of some numbers, when it is asked for; slices and arrays of indices give another.

    Args:
        make: called with a number; a function that can be pickled, for processes that are sent this.
        numbers: int64 `[n]`.
    """

    def __init__(self, make: Callable[[int], Any], numbers: NDArray[np.int64]) -> None:
        self._make, self._numbers = make, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        numbers = self._numbers[index]
        return Each(self._make, numbers) if np.ndim(numbers) else self._make(int(numbers))


def names_path(path: Path) -> Path:
    """Where the names of a .rec file's classes are looked for, and written: a line each, in the numbers' order."""
    return path.with_suffix(".classes.txt")


@dataclass(frozen=True)
class _Found:
    """The records of a file: labels float32 `[n]` or `[n, k]` of all, and the numbers, int64 `[m]`, of those to use."""

    reader: Reader
    labels: NDArray[np.float32]
    numbers: NDArray[np.int64]

    def samples(self, classes: tuple[str, ...] | None, index: NDArray[np.int64] | None = None) -> Samples:
        """Those to use, or some of them."""
        numbers = self.numbers if index is None else self.numbers[index]
        labels: NDArray[Any] = self.labels[numbers]
        return Samples(
            Each(partial(picture, self.reader), numbers),
            labels if classes is None else labels.astype(np.int64),
            classes=classes,
            places=Each(self.reader.place, numbers),
        )


def picture(reader: Reader, number: int) -> bytes:
    """The encoded picture in a record."""
    return _placed(reader, number, irheader.unpack, reader[number])[1]


def _find(path: Path, unreadable: Literal["fail", "skip"]) -> _Found:
    reader = Reader(path)
    reader.check_index()
    if not len(reader):
        raise BadRecords(f"{path}: holds no records")
    labels = _labels(reader, sniff=unreadable == "fail")
    if unreadable == "fail":
        return _Found(reader, labels, np.arange(len(reader)))
    kept = np.flatnonzero(_decoded(reader))
    if not len(kept):
        raise BadRecords(f"{path}: holds {len(reader)} records, and in none a picture that can be decoded")
    return _Found(reader, labels, kept)


def _labels(reader: Reader, sniff: bool) -> NDArray[np.float32]:
    """The labels of all records, `[n]` or `[n, k]`; with `sniff` it is seen that pictures follow them."""
    found: list[Any] = []
    with bar("reading labels", len(reader)) as advance:
        for number in range(len(reader)):
            beginning = reader.beginning(number, _FEW)
            wanted = _placed(reader, number, irheader.size, beginning) + _LONGEST_BEGINNING
            if wanted > len(beginning):
                beginning = reader.beginning(number, wanted)
            header = _placed(reader, number, irheader.read, beginning)
            if sniff and not _is_picture(beginning[header.size :]):
                raise BadRecords(
                    f"{reader.place(number)}: what follows its labels is no picture ({', '.join(FORMATS)}); with "
                    "unreadable = 'skip' such records are left out"
                )
            if np.shape(header.label) != np.shape(found[0] if found else header.label):
                raise BadRecords(
                    f"{reader.place(number)}: has {_counted(header.label)}, and record 0 has {_counted(found[0])}; all "
                    "must have as many"
                )
            found.append(header.label)
            advance()
    labels = np.array(found, np.float32)
    for number in np.flatnonzero(~np.isfinite(labels).reshape(len(labels), -1).all(1))[:1]:
        raise BadRecords(f"{reader.place(number)}: has label {labels[number]}; labels must be finite")
    return labels[:, 0] if labels.shape[1:] == (1,) else labels


def _placed(reader: Reader, number: int, read: Callable[[bytes], Result], data: bytes) -> Result:
    """What `read` makes of a record's bytes; of its refusal, a sentence with the place."""
    try:
        return read(data)
    except irheader.BadHeader as error:
        raise BadRecords(f"{reader.place(number)}: {error}") from None


def _counted(label: Any) -> str:
    return f"an array of {len(label)} labels" if np.ndim(label) else "one label"


def _is_picture(beginning: bytes) -> bool:
    return beginning.startswith(_BEGINNINGS) or (beginning[:4], beginning[8:12]) == (b"RIFF", b"WEBP")


def _decoded(reader: Reader) -> NDArray[np.bool_]:
    """Which records hold pictures that can be decoded, by decoding them; the others are logged."""

    def fault(number: int) -> str | None:
        try:
            decode_image(picture(reader, number))
        except BadImage as error:
            return str(error)
        return None

    fine = np.ones(len(reader), np.bool_)
    with bar("decoding pictures", len(reader)) as advance:
        for number, reason in enumerate(ahead(fault, range(len(reader)))):
            if reason is not None:
                fine[number] = False
                if len(reader) - np.count_nonzero(fine) <= _NAMED:
                    log.warning("%s: left out: %s", reader.place(number), reason)
            advance()
    left_out = len(reader) - np.count_nonzero(fine)
    if left_out:
        log.warning("%s: %d of %d records are left out", reader.path, left_out, len(reader))
    return fine


def _classes(found: _Found) -> tuple[str, ...] | None:
    """The names of the classes that labels are numbers of; None where they are arrays."""
    if found.labels.ndim == 2:
        return None
    path = names_path(found.reader.path)
    names = read_names(path)
    if names is None:
        rule = f"there are {len(found.labels)} records; more classes than records need their names in {path}"
        _see_class_numbers(found, len(found.labels), rule)
        return tuple(str(number) for number in range(int(found.labels.max()) + 1))
    _see_class_numbers(found, len(names), f"{path} names {len(names)} classes")
    return names


def read_names(path: Path) -> tuple[str, ...] | None:
    """The lines of a file of classes' names; None if there is no such file.

    Raises:
        BadRecords: it cannot be read as UTF-8, is empty, or has a name twice or an empty one.
    """
    try:
        names = tuple(path.read_text("utf-8").removesuffix("\n").split("\n"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRecords(f"{path}: cannot be read: {error}") from None
    for number, name in enumerate(names):
        if not name.strip() or names.index(name) < number:
            raise BadRecords(f"{path}: line {number + 1}: {name!r}; names of classes must differ, and not be empty")
    return names


def _see_class_numbers(found: _Found, most: int, rule: str) -> None:
    labels = found.labels
    for number in np.flatnonzero((labels < 0) | (labels != np.rint(labels)))[:1]:
        raise BadRecords(
            f"{found.reader.place(number)}: has label {labels[number]:g}; class numbers are whole, and from 0 on"
        )
    for number in np.flatnonzero(labels >= most)[:1]:
        raise BadRecords(f"{found.reader.place(number)}: has class number {labels[number]:.0f}; {rule}")


def _see_alike(train: _Found, test: _Found, classes: tuple[str, ...] | None) -> None:
    """See that a file that is to be tested with has the training file's kind of labels, and its classes."""
    if train.labels.shape[1:] != test.labels.shape[1:]:
        one, other = (_counted(found.labels[0]) for found in (test, train))
        raise BadRecords(f"{test.reader.path}: each record has {one}; in {train.reader.path} it has {other}")
    if classes is None:
        return
    named = names_path(test.reader.path)
    if read_names(named) not in (None, classes):
        raise BadRecords(f"{named}: names other classes than those of {train.reader.path}, or in another order")
    _see_class_numbers(test, len(classes), f"{train.reader.path} has {len(classes)} classes")
    unseen = ~np.isin(test.labels, train.labels[train.numbers])
    for number in np.flatnonzero(unseen)[:1]:
        raise BadRecords(
            f"{test.reader.place(number)}: is of class {classes[int(test.labels[number])]!r}, of which "
            f"{train.reader.path} has no picture"
        )
