"""What penstock raises when the caller, not penstock, has something to put right."""

from __future__ import annotations

import errno
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_UNWRITABLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
    *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG),
)


class PenstockError(Exception):
    """One sentence that names the field, the value and the rule, and where it helps the next command.

    The command line prints it after `error:` and exits with code 2.
    """


class GateError(PenstockError):
    """An export whose outputs left their limits; nothing was published."""


@contextmanager
def writing(option: str, path: Path, outcome: str) -> Iterator[None]:
    """Turn the system's refusal to write into one sentence: a full disk, a folder that may not be written to.

    Args:
        option: what the user gave the path with, `--output`.
        path: where the block writes.
        outcome: what is there now, `nothing was published`.

    Raises:
        PenstockError: the block was refused a write.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise PenstockError(f"{option} {path}: cannot be written: {error.strerror}; {outcome}") from None


def require(module: str, extra: str, why: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it.

    Args:
        module: dotted import name, `onnxruntime`.
        extra: the extra of penstock that declares it, `serve`.
        why: what needs it, the subject of the error's sentence: `serving an ONNX model`.

    Raises:
        PenstockError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise PenstockError(
            f"{why} needs {module.split('.')[0]}, which is not installed: pip install 'penstock[{extra}]'"
        ) from None
