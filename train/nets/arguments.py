"""Networks' arguments, refused in words: what torch and Python say of them names no argument."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any


def see_counts(least: int = 1, **given: Any) -> None:
    """See that arguments are whole numbers.

    Raises:
        ValueError: one is none, or under `least`.
    """
    for name, value in given.items():
        if not _counts(value, least):
            raise ValueError(f"{name} is {value!r:.60}; it must be a whole number, at least {least}")


def see_lists(least: int = 1, *, empty: bool = False, **given: Any) -> None:
    """See that arguments are lists of whole numbers.

    Args:
        least: that a number may be.
        empty: whether a list may be.
        given: the arguments.

    Raises:
        ValueError: one is no such list.
    """
    for name, value in given.items():
        held = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        if not held or not all(_counts(each, least) for each in value) or not (value or empty):
            raise ValueError(
                f"{name} is {value!r:.60}; it must be a list of whole numbers, at least {least} each, as in [8, 16]"
            )


def see_share(**given: Any) -> None:
    """See that arguments are from 0 to 1.

    Raises:
        ValueError: one is not.
    """
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
            raise ValueError(f"{name} is {value!r:.60}; it must be a number from 0 to 1")


def _counts(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
