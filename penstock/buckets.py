"""Buckets: the batch sizes for which an engine's launch is captured, and which of them a batch is best run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def sizes(least: int, usual: int, most: int) -> tuple[int, ...]:
    """Powers of two between the ends, the ends, and the usual size, in ascending order."""
    powers = [1 << power for power in range(most.bit_length())]
    return tuple(sorted({least, usual, most, *(size for size in powers if least < size < most)}))


def best(rows: int, captured: Mapping[int, float], plain: Mapping[int, float]) -> int | None:
    """The bucket to pad a batch to, or None where it is quicker to launch it as it is.

    Args:
        rows: of the batch.
        captured: seconds that each captured bucket takes.
        plain: seconds that each of those takes without its capture; what lies between is interpolated.
    """
    fits = [size for size in captured if size >= rows]
    if not fits:
        return None
    bucket = min(fits, key=lambda size: captured[size])
    return bucket if bucket == rows or captured[bucket] <= _between(rows, plain) else None


def _between(rows: int, plain: Mapping[int, float]) -> float:
    """The seconds of a plain launch of so many rows."""
    known: Sequence[int] = sorted(plain)
    low = max((size for size in known if size <= rows), default=known[0])
    high = min((size for size in known if size >= rows), default=known[-1])
    if high == low:
        return plain[low]
    return plain[low] + (plain[high] - plain[low]) * (rows - low) / (high - low)
