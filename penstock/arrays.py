"""Named arrays, rows first: taken apart and put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def take(arrays: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """The same rows of every array; `rows` is a slice or an array of indices."""
    return {name: array[rows] for name, array in arrays.items()}


def join(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parts of every array, one after the other; all parts have the names of the first."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
