"""Array files behind `--data`: .npy and .npz of plain numbers, read strictly, large arrays into spools."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.spool import LEAST, spooled

# Rows read at a time.
_CHUNK = 16
_MAGIC = np.lib.format.MAGIC_PREFIX


def read_npy(file: Path) -> NDArray[np.generic]:
    """The array of a .npy file.

    Raises:
        PenstockError: it is missing, no such file, or holds pickled objects.
    """
    with _reading(file, ".npy file of one plain array"), file.open("rb") as opened:
        return np.asarray(np.lib.format.read_array(opened, allow_pickle=False))


def read_npz(path: Path, option: str = "--data") -> dict[str, Any]:
    """The arrays of an .npz file by name; large ones are spools.

    Args:
        path: the file.
        option: what the user gave it with, for errors.

    Raises:
        PenstockError: it is missing, no such file, damaged, or holds pickled objects.
    """
    with _reading(path, ".npz file of plain arrays", option), np.load(path, allow_pickle=False) as archive:
        return {name: _array(archive, name) for name in archive.files}


def _array(archive: Any, name: str) -> Any:
    """An array of an .npz file; a large one goes to a spool without ever being whole in memory."""
    entry = f"{name}.npy"
    if entry not in archive.zip.namelist():
        return np.asarray(archive[name])
    with archive.zip.open(entry) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return np.asarray(archive[name])
    with archive.zip.open(entry) as file:
        shape, by_columns, dtype = npy_header(file)
        if not shape or by_columns or dtype.hasobject or math.prod(shape) * dtype.itemsize < LEAST:
            return np.asarray(archive[name])
        return spooled(_parts(file, shape, dtype), shape[0], dtype, shape[1:])


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape of a .npy file's array, whether it lies by columns, and its dtype; the file is read up to its numbers.

    Raises:
        ValueError: it is no such file.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def _parts(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    row = math.prod(shape[1:]) * dtype.itemsize
    for start in range(0, shape[0], _CHUNK):
        count = min(_CHUNK, shape[0] - start)
        data = file.read(count * row)
        if len(data) < count * row:
            raise EOFError("it ends before its last row")
        yield np.frombuffer(data, dtype).reshape(count, *shape[1:])


@contextmanager
def _reading(path: Path, kind: str, option: str = "--data") -> Iterator[None]:
    """Turn numpy's refusal of a file into one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise PenstockError(f"{option} {path}: no such file") from None
    except (OSError, ValueError, EOFError, AttributeError, TypeError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise  # a spool's, not the file's
        # numpy takes anything for pickled objects, and says how to load them, which nobody should.
        reason = "" if "pickle" in str(error) else f" ({error})"
        raise PenstockError(f"{option} {path}: not an {kind}{reason}") from None
    except MemoryError:
        raise
    except Exception as error:  # zipfile.BadZipFile, zlib.error: a damaged archive
        raise PenstockError(f"{option} {path}: damaged {kind.split()[0]} file ({error})") from None
