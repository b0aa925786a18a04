"""Synthetic inputs for a signature, for when there are no real ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.datasets import Rows
from penstock.errors import PenstockError
from penstock.signature import Range, Signature, Tensor


def synthesize(signature: Signature, sizes: dict[str, int], seed: int = 0) -> Rows:
    """Random inputs of the signature's dtypes and ranges.

    Without a range floats are normal, uint8 takes all its values, and other integers are 0 or 1, which every table
    holds: ones and then zeros along the last axis, as the mask of a padded text has.

    Args:
        signature: what to fill.
        sizes: the size of each dynamic dimension.
        seed: same seed, same numbers.

    Raises:
        PenstockError: a range is empty for these sizes, or not of the input's dtype.
    """
    generator = np.random.default_rng(seed)
    inputs: dict[str, Any] = {}
    for tensor in signature.inputs:
        shape = [sizes[size] if isinstance(size, str) else size for size in tensor.shape]
        held = signature.ranges.get(tensor.name)
        bounds = None if held is None else _within(tensor, held, sizes)
        inputs[tensor.name] = _values(generator, tensor, shape, bounds)
    return Rows(inputs, None, real=False)


def _within(tensor: Tensor, held: Range, sizes: dict[str, int]) -> tuple[float, float]:
    low, high = held.at(sizes)
    dtype = np.dtype(tensor.dtype)
    limits = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(np.float64)
    if not limits.min <= low <= high <= float(limits.max):
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise PenstockError(
            f"--range {tensor.name}={held.low},{held.high}: there is no {tensor.dtype} from {low:g} to {high:g}"
            f"{f' (at {shown})' if shown else ''}"
        )
    return low, high


def _values(
    generator: np.random.Generator, tensor: Tensor, shape: list[int], bounds: tuple[float, float] | None
) -> NDArray[np.generic]:
    dtype = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        if bounds is None:
            return generator.standard_normal(shape).astype(dtype)
        share = generator.uniform(size=shape)  # of the way, since the way itself may be over the largest float
        return (bounds[0] * (1 - share) + bounds[1] * share).astype(dtype)
    if bounds is None and dtype == np.uint8:
        bounds = (0, 255)
    if bounds is not None:
        kind = dtype if dtype.kind in "iu" else np.dtype(np.int64)
        most = min(int(bounds[1]), int(np.iinfo(kind).max))  # a float knows no 2**63 - 1
        return generator.integers(int(bounds[0]), most, shape, kind, endpoint=True).astype(dtype)
    if len(shape) < 2 or dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(dtype)
    lengths = generator.integers(1, shape[-1], shape[:-1], endpoint=True)
    return (np.arange(shape[-1]) < lengths[..., None]).astype(dtype)
