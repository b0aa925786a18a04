"""Synthetic inputs that fit a signature, for when there are no real ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.datasets import Rows
from penstock.signature import Signature


def synthesize(signature: Signature, sizes: dict[str, int], seed: int = 0) -> Rows:
    """Random inputs of the signature's dtypes: normal floats, integers 0 or 1, which every vocabulary holds.

    Args:
        signature: what to fill.
        sizes: the size of each dynamic dimension.
        seed: same seed, same numbers.
    """
    generator = np.random.default_rng(seed)
    inputs: dict[str, Any] = {}
    for tensor in signature.inputs:
        shape = [sizes[size] if isinstance(size, str) else size for size in tensor.shape]
        if np.issubdtype(np.dtype(tensor.dtype), np.floating):
            inputs[tensor.name] = generator.standard_normal(shape).astype(tensor.dtype)
        else:
            inputs[tensor.name] = generator.integers(0, 2, shape).astype(tensor.dtype)
    return Rows(inputs, None)
