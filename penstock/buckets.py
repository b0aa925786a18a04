"""Buckets: the batch sizes for which an engine's launch is captured, and which of them a batch is best run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

# From this size on a doubling is too far: what a padded batch wastes is no longer hidden by launching it.
_FINE = 16
# Launching kernel by kernel takes the processor's time, which others of the process want, besides what it takes itself.
_WORTH = 0.85


def sizes(least: int, usual: int, most: int) -> tuple[int, ...]:
    """Powers of two between the ends, the ends, and the usual size, in ascending order."""
    powers = [1 << power for power in range(most.bit_length())]
    return tuple(sorted({least, usual, most, *(size for size in powers if least < size < most)}))


def finer(sizes: Sequence[int]) -> dict[int, int]:
    """Three more between each two neighbours of ascending sizes, from 16 on; each with the larger of the two."""
    steps = {
        low + (high - low) * part // 4: high for low, high in pairwise(sizes) if low >= _FINE for part in (1, 2, 3)
    }
    return {size: high for size, high in steps.items() if size not in sizes}


def best(rows: int, captured: Mapping[int, float], plain: Mapping[int, float]) -> int | None:
    """The bucket to pad a batch to, or None where it is clearly quicker to launch it as it is.

    Args:
        rows: of the batch.
        captured: seconds that each captured bucket takes.
        plain: seconds that each of those takes without its capture; what lies between is interpolated.
    """
    fits = [size for size in captured if size >= rows]
    if not fits:
        return None
    bucket = min(fits, key=lambda size: captured[size])
    return bucket if bucket == rows or _WORTH * captured[bucket] <= _between(rows, plain) else None


def _between(rows: int, plain: Mapping[int, float]) -> float:
    """The seconds of a plain launch of so many rows."""
    known: Sequence[int] = sorted(plain)
    low = max((size for size in known if size <= rows), default=known[0])
    high = min((size for size in known if size >= rows), default=known[-1])
    if high == low:
        return plain[low]
    return plain[low] + (plain[high] - plain[low]) * (rows - low) / (high - low)
