"""Packing: pictures in folders, or of a list, written as one RecordIO file."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from penstock import irheader
from penstock.data.ahead import ahead
from penstock.data.records import names_path
from penstock.datasets import PICTURES
from penstock.errors import PenstockError
from penstock.files import write_whole
from penstock.preprocess import BadImage, decode_image
from penstock.progress import bar
from penstock.recordio import Writer
from penstock.recordparts import LONGEST

if TYPE_CHECKING:
    from PIL.Image import Image

# JPEG's quality where a picture must be encoded again and none is asked for.
_QUALITY = 95
_KEY = re.compile(r"[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True)
class Picture:
    """A picture's file, its labels (one is written as a scalar, more as an array), and its key in the index."""

    file: Path
    labels: tuple[float, ...]
    key: int


@dataclass(frozen=True)
class Recoding:
    """What becomes of a picture: its bytes as they are or, where it must be, encoded anew.

    Args:
        size: pixels that a longer shorter side is resized to (bicubic), the other in proportion; None is any size.
        quality: encodes all pictures as JPEG of this quality, 1 to 100. None encodes those that are resized, JPEG as
            JPEG and all others, without loss, as PNG.
    """

    size: int | None = None
    quality: int | None = None

    def apply(self, data: bytes) -> bytes:
        """An encoded picture -> an encoded picture.

        Raises:
            BadImage: it cannot be decoded, which is tried also where its bytes stay.
        """
        image = decode_image(data)
        lossy = image.format == "JPEG" or self.quality is not None
        shorter = min(image.size)
        if self.size is not None and shorter > self.size:
            sides = (max(1, round(side * self.size / shorter)) for side in image.size)
            image = _plain(image).resize((next(sides), next(sides)))
        elif self.quality is None:
            return data
        encoded = io.BytesIO()
        if lossy:
            _plain(image).save(encoded, "JPEG", quality=self.quality or _QUALITY)
        else:
            image.save(encoded, "PNG")
        return encoded.getvalue()


def _plain(image: Image) -> Image:
    """A picture as grey or RGB, as `penstock.preprocess` would see it."""
    from PIL import Image as Pillow

    if image.mode.startswith("I"):  # 16-bit grey: its high byte
        return Pillow.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


@dataclass(frozen=True)
class Packed:
    """What was written: records, the file's bytes, and the pictures that were left out, with the reason."""

    records: int
    size: int
    left_out: tuple[str, ...]


def of_folder(folder: Path) -> tuple[list[Picture], tuple[str, ...]]:
    """The pictures of a folder for each class, `folder/cat/7.jpg`, in the order of their paths, and the classes' names.

    Classes are numbered in the order of their names. Hidden files are passed over, and those that are no pictures by
    their names' ends.

    Raises:
        PenstockError: a class has no picture or holds folders, pictures lie outside of classes, or there is no class.
    """
    if not folder.is_dir():
        raise PenstockError(f"{folder}: is no folder; give one that holds a folder of pictures for each class")
    stray = next(iter(_pictures(folder)), None)
    if stray is not None:
        raise PenstockError(f"{stray}: lies in no class's folder; pictures of a class lie in {folder}/CLASS")
    classes = sorted(inside for inside in _visible(folder) if inside.is_dir())
    if not classes:
        raise PenstockError(f"{folder}: holds no folders; each class has a folder of pictures in it")
    found: list[Picture] = []
    for number, inside in enumerate(classes):
        deeper = next((place for place in _visible(inside) if place.is_dir()), None)
        if deeper is not None:
            raise PenstockError(
                f"{deeper}: is a folder in one of a class; parts are packed each by itself: penstock data pack {inside}"
            )
        files = _pictures(inside)
        if not files:
            raise PenstockError(f"{inside}: holds no pictures ({', '.join(PICTURES)}); take the folder away")
        found += [Picture(file, (float(number),), len(found) + place) for place, file in enumerate(files)]
    return found, tuple(_name(inside) for inside in classes)


def _visible(folder: Path) -> list[Path]:
    return [place for place in folder.iterdir() if not place.name.startswith(".")]


def _pictures(folder: Path) -> list[Path]:
    return sorted(file for file in _visible(folder) if file.suffix.lower() in PICTURES and file.is_file())


def _name(folder: Path) -> str:
    """A class's name, which must be a line of its own."""
    if not folder.name.isprintable() or not folder.name.strip():
        raise PenstockError(f"{folder.parent}: the name of the folder {folder.name!r} cannot be printed; rename it")
    return folder.name


def of_list(path: Path, folder: Path) -> list[Picture]:
    """The pictures of one of MXNet's lists (`.lst`): lines of a key, labels, and a path in a folder, with tabs between.

    Raises:
        PenstockError: it cannot be read, or a line breaks the rule or has another number of labels than the first.
    """
    try:
        lines = path.read_text("utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PenstockError(f"--list {path}: cannot be read: {error}") from None
    found: list[Picture] = []
    for number, line in enumerate(lines, 1):
        key, *labels, file = line.split("\t") if line.count("\t") >= 2 else ("", "", "")
        numbers = tuple(map(_number, labels))
        if not _KEY.fullmatch(key) or not all(map(math.isfinite, numbers)) or not file:
            raise PenstockError(
                f"--list {path}: line {number}: {line[:80]!r}; must be a whole number, labels that are numbers, and a "
                "path, with tabs between"
            )
        if found and len(numbers) != len(found[0].labels):
            raise PenstockError(
                f"--list {path}: line {number}: has {len(numbers)} labels; line 1 has {len(found[0].labels)}"
            )
        found.append(Picture(folder / file, numbers, int(key)))
    return found


def _number(text: str) -> float:
    """A label's value in float32; NaN where it is no number."""
    try:
        with np.errstate(over="ignore"):
            return float(np.float32(text))
    except ValueError:
        return math.nan


def shuffled(pictures: Sequence[Picture], seed: int) -> list[Picture]:
    """The pictures in the order that a seed gives; they keep their keys."""
    return [pictures[place] for place in np.random.default_rng(seed).permutation(len(pictures))]


def pack(
    pictures: Sequence[Picture],
    output: Path,
    classes: Sequence[str] = (),
    recoding: Recoding | None = None,
    skip_unreadable: bool = False,
) -> Packed:
    """Write pictures as a .rec file, its index and, beside them, the names of the classes; all or none of them.

    Every picture is decoded, so that none that cannot be is in the file.

    Args:
        pictures: in the order of the records.
        output: the .rec file.
        classes: names in the order of their numbers; without any, names that are there are taken away.
        recoding: None leaves the pictures' bytes as they are.
        skip_unreadable: a picture that cannot be read is left out; else it ends this.

    Raises:
        PenstockError: a picture cannot be read or is too large, two have the same key, or none is left.
        OSError: the system refused to write.
    """
    names = names_path(output)
    left_out: list[str] = []
    before = names.exists()
    try:
        with Writer(output) as writer, bar("packing pictures", len(pictures)) as advance:
            for entry, read in zip(pictures, ahead(_reader(recoding or Recoding()), pictures), strict=True):
                if isinstance(read, BadImage):
                    if not skip_unreadable:
                        raise PenstockError(f"{read}; --skip-unreadable leaves such pictures out")
                    left_out.append(str(read))
                else:
                    label = entry.labels[0] if len(entry.labels) == 1 else entry.labels
                    writer.write(irheader.pack(label, read, id=entry.key), entry.key)
                advance()
            if len(left_out) == len(pictures):
                raise PenstockError(f"none of {len(pictures)} pictures can be read, the first since {left_out[0]}")
            if classes:
                write_whole(names, "".join(f"{name}\n" for name in classes).encode())
    except BaseException:
        if not before:
            names.unlink(missing_ok=True)
        raise
    if not classes:
        names.unlink(missing_ok=True)
    return Packed(len(pictures) - len(left_out), writer.end, tuple(left_out))


def _reader(recoding: Recoding) -> Callable[[Picture], bytes | BadImage]:
    """What reads a picture for its record, or tells why it cannot be."""

    def read(entry: Picture) -> bytes | BadImage:
        try:
            if entry.file.stat().st_size > LONGEST // 2:
                return BadImage(f"{entry.file}: has over {LONGEST // 2} bytes, more than a record should hold")
            return recoding.apply(entry.file.read_bytes())
        except BadImage as error:
            return BadImage(f"{entry.file}: {error}")
        except OSError as error:
            return BadImage(f"{entry.file}: cannot be read: {error.strerror}")

    return read
