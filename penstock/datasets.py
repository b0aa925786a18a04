"""Rows: samples as a model takes them, of a data set's parts (`penstock.data`) or from what `--data` names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import arrayfiles, sheets
from penstock.data.samples import Kind, Samples
from penstock.data.specs import DatasetSpec
from penstock.errors import PenstockError
from penstock.files import nearby
from penstock.preprocess import BadImage, ImagePreprocess
from penstock.preprocessing import ITEMS, Preprocess
from penstock.progress import bar
from penstock.spool import pick, spooled
from penstock.tabular import BadRow
from penstock.textual import BadText

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
# Rows read at a time.
_CHUNK = 16
# The preprocessing that takes items of each kind.
_TAKEN_BY: dict[Kind, str | None] = {"image": "image", "text": "text", "row": "table", "arrays": None}


@dataclass(frozen=True)
class Rows:
    """Model-ready inputs by name, each `[n, …]`, with labels where they are known.

    Labels are class numbers int64 `[n]` or, of a regression and of several labels a row, float32 `[n]` or `[n, k]`.
    Inputs are arrays or, where they are large, spools. `real` is False where they were drawn at random.
    """

    inputs: dict[str, NDArray[np.generic]]
    labels: NDArray[Any] | None
    real: bool = True

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def take(self, n: int) -> Rows:
        """The first `n` rows."""
        labels = None if self.labels is None else self.labels[:n]
        return Rows({name: pick(array, slice(n)) for name, array in self.inputs.items()}, labels, self.real)

    def alike(self) -> bool:
        """Whether all rows are the same."""
        return all(
            (np.asarray(array[start : start + _CHUNK]) == array[:1]).all()
            for array in self.inputs.values()
            for start in range(0, len(array), _CHUNK)
        )


def rows(samples: Samples, preprocess: Preprocess | None) -> Rows:
    """Samples as the model takes them: pictures in a spool where they are large, all else in memory.

    Args:
        samples: of any kind.
        preprocess: of that kind; None for arrays, which are what the model takes.

    Raises:
        PenstockError: samples are of another kind than the model takes, or one cannot be read; with its place.
    """
    kind = None if preprocess is None else preprocess.kind
    if _TAKEN_BY[samples.kind] != kind:
        takes = "the arrays that it is given" if kind is None else ITEMS[kind]
        given = ITEMS.get(_TAKEN_BY[samples.kind] or "", "arrays")
        raise PenstockError(f"the data set holds {given}; the model's preprocessing takes {takes}")
    if preprocess is None:
        names = samples.items[0] if len(samples) else ()
        return Rows({name: np.stack([item[name] for item in samples.items]) for name in names}, samples.labels)
    if isinstance(preprocess, ImagePreprocess):
        return Rows({preprocess.input: _images(samples, preprocess)}, samples.labels)
    try:
        return Rows(dict(preprocess.rows(list(samples.items))), samples.labels)
    except BadText as error:
        raise PenstockError(f"{samples.place(error.index)} {error.why}") from None
    except BadRow as error:
        raise PenstockError(f"{samples.place(error.index)}, column {error.column!r} {error.why}") from None


def _images(samples: Samples, preprocess: ImagePreprocess) -> Any:
    items = samples.items
    as_they_are = preprocess.mode == "L" and preprocess.resize_shorter is None
    if isinstance(items, np.ndarray) and as_they_are and items.shape[1:] == (preprocess.height, preprocess.width):
        return preprocess.rows(items)
    parts = (_image(samples, index, preprocess) for index in range(len(samples)))
    return spooled(parts, len(samples), np.dtype(preprocess.dtype), preprocess.shape)


def _image(samples: Samples, index: int, preprocess: ImagePreprocess) -> NDArray[Any]:
    from PIL import Image

    item = samples.items[index]
    try:
        if isinstance(item, bytes):
            return preprocess.read(item)
        return preprocess.apply(Image.fromarray(item))
    except BadImage as error:
        raise PenstockError(f"{samples.place(index)}: {error}") from None


def read(
    path: Path,
    preprocess: Preprocess | None,
    labels: tuple[str, ...] | None,
    limit: int = 2048,
    *,
    task: str | None = None,
    dataset: DatasetSpec | None = None,
) -> Rows:
    """The rows behind `--data PATH`: .npz, a folder of .npy files or of pictures, a CSV or Parquet file.

    Arrays are one for each input, named after it, and class numbers under `labels` if they are known; a regression's
    are numbers, and those of several labels a row numbers for each. Pictures are PNG, JPEG, WebP, BMP or GIF files, in
    the folder or in folders inside it, read in the order of their paths; of more than `limit`, only so many, evenly
    spread. A picture's class is its folder's name: the label of that name or, where all such names are digits, the
    class of that number; the classes are not known if the names are neither. CSV files are `penstock.sheets`'s.

    Args:
        path: the file or folder.
        preprocess: how a picture, a text or a row becomes the model's input, if that is recorded.
        labels: the names of the model's classes, if they are known.
        limit: the most pictures.
        task: the model's.
        dataset: that it was trained on, which names a table's columns.

    Raises:
        PenstockError: there is nothing to read, a file cannot be read, arrays are no rows, or files are of another kind
            than the recorded preprocessing, or there is none.
    """
    if not path.is_dir():
        if path.suffix.lower() in sheets.SUFFIXES:
            return _from_sheet(path, preprocess, labels, task, dataset)
        return read_npz(path, task)
    pictures, arrays = pictures_in(path), sorted(path.glob("[!.]*.npy"))
    if pictures and arrays:
        raise PenstockError(f"--data {path}: holds pictures and .npy files; give a folder of the one or the other")
    if pictures:
        if preprocess is not None and not isinstance(preprocess, ImagePreprocess):
            raise PenstockError(f"--data {path}: holds pictures; {_takes(preprocess)}")
        return _from_pictures(path, pictures, preprocess, labels, limit)
    if arrays:
        return _checked(path, {file.stem: arrayfiles.read_npy(file) for file in arrays}, task)
    raise PenstockError(f"--data {path}: holds no .npy files, and no pictures ({', '.join(PICTURES)})")


def _takes(preprocess: Preprocess) -> str:
    """What a model takes, for the sentence that refuses something else."""
    if isinstance(preprocess, ImagePreprocess):
        return "the model takes pictures: give a folder of them"
    columns = (
        "with a column 'text'" if preprocess.kind == "text" else f"with the columns {sheets.some(preprocess.names)}"
    )
    return f"the model takes {ITEMS[preprocess.kind]}: give a CSV or Parquet file {columns}"


def _from_sheet(
    path: Path,
    preprocess: Preprocess | None,
    labels: tuple[str, ...] | None,
    task: str | None,
    dataset: DatasetSpec | None,
) -> Rows:
    if preprocess is None:
        raise PenstockError(
            f"--data {path}: how texts or table rows become this model's numbers is not recorded; give those, an .npz "
            "file with an array for each input, by name"
        )
    if isinstance(preprocess, ImagePreprocess):
        raise PenstockError(f"--data {path}: is a table; {_takes(preprocess)}")
    inputs, answers = sheets.read(path, preprocess, labels, task, dataset)
    return Rows(dict(inputs), answers)


def see_there(path: Path | None) -> None:
    """See that what `--data` names is there, if anything, before a model is read for it.

    Raises:
        PenstockError: it is not.
    """
    if path is not None and not path.exists():
        raise PenstockError(f"--data {path}: no such file or folder{nearby(path)}")


def pictures_in(folder: Path) -> list[Path]:
    """The pictures in a folder and the folders in it, but for hidden ones, in the order of their paths."""
    places = [folder, *(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))]
    return sorted(
        file
        for place in places
        for file in place.iterdir()
        if file.suffix.lower() in PICTURES and not file.name.startswith(".") and file.is_file()
    )


def _from_pictures(
    path: Path, pictures: Sequence[Path], preprocess: ImagePreprocess | None, labels: Sequence[str] | None, limit: int
) -> Rows:
    if preprocess is None:
        raise PenstockError(
            f"--data {path}: holds pictures, and how this model wants them is not recorded (--input in place of "
            "what a library's model brings leaves it out); give the numbers it takes, an .npz file with an array for "
            "each input, by name"
        )
    chosen = [pictures[row * len(pictures) // limit] for row in range(limit)] if len(pictures) > limit else pictures
    with bar("reading pictures", len(chosen)) as advance:
        parts = _decoded(chosen, preprocess, advance)
        images = spooled(parts, len(chosen), np.dtype(preprocess.dtype), preprocess.shape)
    numbers = _class_numbers(path, pictures, labels)
    known = None if numbers is None else np.array([numbers[file.parent] for file in chosen], np.int64)
    return Rows({preprocess.input: images}, known)


def _decoded(files: Sequence[Path], preprocess: ImagePreprocess, advance: Callable[[], None]) -> Iterator[NDArray[Any]]:
    for file in files:
        yield _picture(file, preprocess)
        advance()


def _picture(file: Path, preprocess: ImagePreprocess) -> NDArray[Any]:
    try:
        return preprocess.read(file.read_bytes())
    except BadImage as error:
        raise PenstockError(f"--data {file}: {error}") from None
    except OSError as error:
        raise PenstockError(f"--data {file}: cannot be read: {error.strerror}") from None


def _class_numbers(path: Path, pictures: Sequence[Path], labels: Sequence[str] | None) -> dict[Path, int] | None:
    """The class of each folder of pictures, or None if the name of one is no class."""
    folders = {file.parent for file in pictures}
    if path in folders:
        return None
    if labels is not None and all(labels.count(folder.name) == 1 for folder in folders):
        return {folder: labels.index(folder.name) for folder in folders}
    if sheets.may_be_numbers(labels or ()) and all(re.fullmatch(r"[0-9]{1,9}", folder.name) for folder in folders):
        numbers = {folder: int(folder.name) for folder in folders}
        return numbers if labels is None or max(numbers.values()) < len(labels) else None
    return None


def read_npz(path: Path, task: str | None = None) -> Rows:
    """Rows from an .npz file with one array for each input, by name, and labels of the task, if known.

    Raises:
        PenstockError: the file is missing, not an .npz, holds pickled objects or arrays of different lengths.
    """
    return _checked(path, arrayfiles.read_npz(path), task)


def _checked(path: Path, arrays: dict[str, Any], task: str | None = None) -> Rows:
    """Arrays as rows: of numbers, and all of one length."""
    given = arrays.get("labels")
    labels = None if given is None else _labels(path, given, task)
    see_rows(f"--data {path}", arrays)
    return Rows({name: array for name, array in arrays.items() if name != "labels"}, labels)


def see_rows(where: str, arrays: Mapping[str, Any]) -> None:
    """See that arrays, by name, are rows: numbers, at least one beside `labels`, all of one length.

    Raises:
        PenstockError: they are not; the error begins with `where`.
    """
    unread = [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]
    if unread:
        raise PenstockError(f"{where}: {unread[0]!r} holds no numbers")
    if not arrays.keys() - {"labels"}:
        raise PenstockError(f"{where}: holds no input arrays; name each after an input of the model")
    lengths = {name: len(array) if array.ndim else -1 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or min(lengths.values()) < 1:
        raise PenstockError(f"{where}: arrays must have the same number of rows, at least 1, not {lengths}")


def _labels(path: Path, given: NDArray[np.generic], task: str | None) -> NDArray[Any]:
    """Class numbers int64 `[n]`; of a regression float32 `[n]` or `[n, k]`, of several labels a row `[n, k]`."""
    ranks = {"regression": (1, 2), "multilabel": (2,)}.get(task or "", (1,))
    if given.dtype.kind not in "biuf":
        raise PenstockError(f"--data {path}: 'labels' holds no numbers")
    if given.ndim not in ranks:
        rule = "one for each label of each row" if task == "multilabel" else "one for each row"
        raise PenstockError(f"--data {path}: labels have shape {list(given.shape)}; they must be {rule}")
    if task in ("regression", "multilabel"):
        numbers = np.asarray(given).astype(np.float32)
        if not np.isfinite(numbers).all():
            raise PenstockError(f"--data {path}: labels hold NaN or infinity; they must be numbers")
        return numbers
    if not np.issubdtype(given.dtype, np.integer):
        raise PenstockError(f"--data {path}: labels have dtype {given.dtype}; they must be integers")
    return np.asarray(given).astype(np.int64)
