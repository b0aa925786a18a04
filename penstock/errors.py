"""What penstock raises when the caller, not penstock, has something to put right, and what errors of others say."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable
from types import ModuleType

# Told each step of long work, in a line.
Say = Callable[[str], None]
_LONGEST = 200


class PenstockError(Exception):
    """One sentence that names the field, the value and the rule, and where it helps the next command.

    The command line prints it after `error:` and exits with code 2.
    """


class GateError(PenstockError):
    """An export whose outputs left their limits; nothing was published."""


def first_line(error: BaseException) -> str:
    """The class of an error of another library's, and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip()[:_LONGEST]}" if lines else type(error).__name__


def last_line(error: BaseException) -> str:
    """What an error of another library says last, where it tells its frames first."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:_LONGEST]


def printable(text: str) -> str:
    """Text of a file's or a server's with whatever would steer a terminal, or be no Unicode, spelt out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def listed(names: Iterable[str], most: int = 8) -> str:
    """Names in a sentence: the first few, and how many more there are."""
    shown = list(names)
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return f"{', '.join(shown[:most])}{more}"


def nearest(name: str, names: Iterable[str]) -> str:
    """What to add to "there is no such name": the nearest that there are, or nothing."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; the nearest is {near[0]!r}" if near else ""


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
