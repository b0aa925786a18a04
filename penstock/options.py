"""Options: what the command line's texts mean, or one sentence on why they mean nothing."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.signature import Dim, first_message


def commas(text: str, option: str) -> tuple[str, ...]:
    """The parts of a list with commas, each once."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise PenstockError(f"{option} {text!r}: must name at least one")
    return parts


def precisions(precision: str | None, fp16: bool, int8: bool) -> tuple[str, ...]:
    """What --precision and its short forms ask for together."""
    short = [name for name, asked in (("fp16", fp16), ("int8", int8)) if asked]
    if precision is not None and short:
        raise PenstockError(f"--precision {precision} and --{short[0]}: give one or the other")
    if len(short) > 1:
        raise PenstockError("--fp16 and --int8: one variant has one precision; give --precision fp16,int8 for both")
    return tuple(short) or commas("fp32" if precision is None else precision, "--precision")


def size_range(text: str, option: str) -> Dim:
    """`64` or `1,8,64` as the range of a dimension; the first stands for from 1 to it."""
    sizes = [positive(part.strip(), option) for part in text.split(",")]
    if len(sizes) not in (1, 3):
        raise PenstockError(f"{option} {text!r}: must be MAX, or MIN,OPT,MAX, as in 1,8,64")
    low, usual, high = sizes if len(sizes) == 3 else (1, min(8, sizes[0]), sizes[0])
    try:
        return Dim(min=low, opt=usual, max=high)
    except ValueError as error:
        raise PenstockError(f"{option} {text!r}: {first_message(error)}") from None


def positive(text: str, option: str) -> int:
    """A whole number from 1 to 999999."""
    if not text.isascii() or not text.isdigit() or len(text) > 6 or int(text) < 1:
        raise PenstockError(f"{option} {text[:20]!r}: must be a whole number from 1 to 999999")
    return int(text)
