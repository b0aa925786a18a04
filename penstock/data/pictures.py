"""Pictures' files, seen before they are needed: which of them cannot be read, and why.

A file's head tells its format and size, and its last bytes whether it is whole: the files that downloads and copies
leave are cut off, or are something else. Only one whose end is not as its format has it is decoded, to tell. What is
damaged in between, a decoder finds when the picture is needed: libjpeg itself passes over most of it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from penstock import cache
from penstock.data import threads
from penstock.data.digests import stamp
from penstock.errors import require
from penstock.preprocess import FORMATS, MAX_PIXELS, BadImage, decode_image

if TYPE_CHECKING:
    from PIL.Image import Image

_KIND = "pictures"
_ENDS = {
    "JPEG": b"\xff\xd9",
    "PNG": b"\0\0\0\0IEND\xaeB`\x82",
    "GIF": b";",
}


def faults(files: Mapping[str, Path], *, decoded: bool = False) -> dict[str, str]:
    """The files that cannot be read as pictures, and why; what is found is kept in the cache while they stay the same.

    Args:
        files: by their names.
        decoded: decode each, so that what is damaged in between is found as well.

    Raises:
        PenstockError: Pillow is not installed.
    """
    pillow = require("PIL", "serve", "reading pictures")
    require("PIL.Image", "serve", "reading pictures").preinit()
    lying = stamp(files)
    key = None if lying is None else cache.key(pillow.__version__, str(MAX_PIXELS), str(decoded), lying)
    if key is not None and (kept := cache.read(_KIND, key)) is not None:
        return dict(json.loads(kept))
    reasons = threads.each("looking at pictures", partial(_fault, decoded=decoded), list(files.values()))
    found = {name: reason for name, reason in zip(files, reasons, strict=True) if reason is not None}
    if key is not None:
        cache.write(_KIND, key, json.dumps(found).encode())
    return found


def _fault(path: Path, decoded: bool) -> str | None:
    """Why a file is no picture, or None."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "it is no file"
        with path.open("rb") as file:
            if decoded or not _is_whole(file):
                file.seek(0)
                decode_image(file.read())
    except BadImage as error:
        return str(error)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None


def _is_whole(file: IO[bytes]) -> bool:
    """Whether a file begins as a picture that may be decoded, and ends as its format does; it may be one without."""
    from PIL import Image as Pillow

    try:
        image = Pillow.open(file, formats=FORMATS)
    except Exception:  # Pillow's readers raise OSError, SyntaxError, ValueError, struct.error and more
        return False
    return image.width * image.height <= MAX_PIXELS and _ends(image, file)


def _ends(image: Image, file: IO[bytes]) -> bool:
    end = _ENDS.get(str(image.format))
    if end is not None:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - len(end), 0))
        return file.read() == end
    file.seek(0)
    head = file.read(8)
    size = file.seek(0, os.SEEK_END)
    if image.format == "WEBP":  # RIFF, and the bytes that follow
        return int.from_bytes(head[4:], "little") + 8 == size
    return image.format == "BMP" and int.from_bytes(head[2:6], "little") == size
