"""Fashion-MNIST, in the IDX files that it comes in.

Xiao, Rasul, Vollgraf, "Fashion-MNIST", 2017; the format is described at the end of LeCun's page of MNIST.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from penstock.data.samples import Samples
from penstock.data.specs import FashionMnist, Part
from penstock.data.split import split
from penstock.data.views import Chosen, Lines
from penstock.errors import PenstockError

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
# Where Debian's package puts the files, and torchvision for the root that its examples give.
FOLDERS = ("/usr/share/datasets/fashion-mnist", "data/FashionMNIST/raw")
_SIDE = 28
_NAMES = {
    "train-images": "train-images-idx3-ubyte",
    "train-labels": "train-labels-idx1-ubyte",
    "test-images": "t10k-images-idx3-ubyte",
    "test-labels": "t10k-labels-idx1-ubyte",
}
_UNSIGNED_BYTES, _MOST_DIMS = 0x08, 3
# Bytes in a file that is read: five times the 60,000 pictures.
_MOST = 1 << 28


def load(spec: FashionMnist) -> dict[Part, Samples]:
    """The three parts: grey pictures, uint8 `[28, 28]`; test is the files' own.

    Raises:
        PenstockError: the files are not there, or one is no such file.
    """
    found = files(spec)
    images, labels = _pair(found["train-images"], found["train-labels"])
    parts: dict[Part, Samples] = {}
    indices = split(spec.name, len(labels), spec.seed, {"val": spec.val}, labels, CLASSES)
    places = Lines(found["train-images"].name, np.arange(len(labels)), "picture")
    for part, index in indices.items():
        parts[part] = Samples(images[index], labels[index], classes=CLASSES, places=Chosen(places, index))
    images, labels = _pair(found["test-images"], found["test-labels"])
    places = Lines(found["test-images"].name, np.arange(len(labels)), "picture")
    parts["test"] = Samples(images, labels, classes=CLASSES, places=places)
    return parts


def files(spec: FashionMnist) -> dict[str, Path]:
    """The four files, gzipped or not, by what they hold: `train-images`, `train-labels`, `test-images`, `test-labels`.

    Raises:
        PenstockError: one is not there.
    """
    if spec.path is None:
        folders = [Path(folder) for folder in FOLDERS]
    else:  # torchvision is given the folder above its own
        folders = [Path(spec.path), Path(spec.path) / "FashionMNIST/raw"]
    folder = next((folder for folder in folders if _file(folder, "train-images")), None)
    if folder is None:
        tried = " nor in ".join(map(str, folders))
        raise PenstockError(
            f"dataset fashion-mnist: {_NAMES['train-images']}, gzipped or not, is not in {tried}; install Debian's "
            "package (apt install dataset-fashion-mnist), or set dataset.path to the folder of its four files"
        )
    found = {key: _file(folder, key) for key in _NAMES}
    missing = [_NAMES[key] for key, file in found.items() if file is None]
    if missing:
        raise PenstockError(f"dataset fashion-mnist: {folder} lacks {missing[0]}, gzipped or not")
    return {key: file for key, file in found.items() if file is not None}


def _file(folder: Path, key: str) -> Path | None:
    stems = (_NAMES[key], _NAMES[key].replace("-idx", ".idx"))  # as some unpack them
    return next((folder / name for stem in stems for name in (stem, f"{stem}.gz") if (folder / name).is_file()), None)


def _pair(images_file: Path, labels_file: Path) -> tuple[Any, NDArray[np.int64]]:
    """The pictures of one file, uint8 `[n, 28, 28]`, and their classes in another, int64 `[n]`."""
    images, labels = read(images_file), read(labels_file)
    if images.ndim != 3 or images.shape[1:] != (_SIDE, _SIDE) or not len(images):
        raise PenstockError(
            f"dataset fashion-mnist: {images_file} holds bytes of shape {list(images.shape)}; it must be "
            f"[n, {_SIDE}, {_SIDE}], of at least one picture"
        )
    if labels.shape != images.shape[:1]:
        raise PenstockError(
            f"dataset fashion-mnist: {labels_file} holds labels of shape {list(labels.shape)} for the {len(images)} "
            f"pictures of {images_file.name}; it must hold one for each"
        )
    if labels.max() >= len(CLASSES):
        row = int(labels.argmax())
        raise PenstockError(
            f"dataset fashion-mnist: {labels_file}: label {row} is {labels[row]}; classes are 0 to {len(CLASSES) - 1}"
        )
    return images, labels.astype(np.int64)


def read(path: Path) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes, gzipped or not.

    Raises:
        PenstockError: it cannot be read, or is no such file.
    """
    try:
        with path.open("rb") as file:
            gzipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not gzipped:
                return parse(file)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return parse(unpacked)
    except ValueError as error:
        raise PenstockError(f"dataset fashion-mnist: {path} is no IDX file: {error}") from None
    except (EOFError, zlib.error, OSError) as error:  # gzip.BadGzipFile is an OSError
        raise PenstockError(f"dataset fashion-mnist: {path} cannot be read: {error}") from None


def parse(file: IO[bytes] | Any) -> NDArray[np.uint8]:
    """The array in IDX bytes: two zeros, a type, the number of dimensions, their sizes (big-endian), the numbers.

    No more is read than the sizes say, and one byte.

    Raises:
        ValueError: they are no IDX of unsigned bytes, of one to three dimensions and at most 256 MiB; or they end
            before the last number, or do not end there.
    """
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0":
        raise ValueError(f"it begins with {head.hex() or 'nothing'}, which must be 0000, a type and a number of sizes")
    if head[2] != _UNSIGNED_BYTES:
        raise ValueError(
            f"its numbers are of type {head[2]:#04x}; only unsigned bytes, {_UNSIGNED_BYTES:#04x}, are read"
        )
    if not 1 <= head[3] <= _MOST_DIMS:
        raise ValueError(f"it has {head[3]} dimensions; 1 to {_MOST_DIMS} are read")
    raw = file.read(4 * head[3])
    if len(raw) < 4 * head[3]:
        raise ValueError("it ends within its sizes")
    sizes = struct.unpack(f">{head[3]}I", raw)
    count = math.prod(sizes)
    if count > _MOST:
        raise ValueError(f"its sizes {list(sizes)} are of {count} bytes; at most {_MOST} are read")
    data = file.read(count + 1)
    if len(data) != count:
        what = f"ends after {len(data)}" if len(data) < count else "goes on after them"
        raise ValueError(f"its sizes {list(sizes)} are of {count} bytes, and it {what}")
    return np.frombuffer(data, np.uint8).reshape(sizes)
