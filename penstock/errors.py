"""What penstock raises when the caller, not penstock, has something to put right."""

from __future__ import annotations

import importlib
from types import ModuleType


class PenstockError(Exception):
    """One sentence that names the field, the value and the rule, and where it helps the next command.

    The command line prints it after `error:` and exits with code 2.
    """


class GateError(PenstockError):
    """An export whose outputs left their limits; nothing was published."""


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
