"""Whether the rows of a bare model are independent, so that clients may share a batch: tried, since no receipt says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from penstock.arrays import take
from penstock.errors import PenstockError
from penstock.runtimes import Runner
from penstock.runtimes.onnxruntime import OPEN_ENDED_INNER
from penstock.signature import Signature
from penstock.synthetic import synthesize

_ROWS = 3
# For every other dynamic dimension: the first size that the model takes.
_SIZES = (16, 1, 224, 128)
# Kernels for other batch sizes round otherwise; scales that rows share, as in dynamic int8, move them by more.
_MOST_ERROR = 5e-3


def independent(runner: Runner, signature: Signature) -> bool:
    """Whether each of a few rows is answered alone as it is beside the others.

    Args:
        runner: the model.
        signature: with a batch dimension.

    Returns:
        False too where no such rows could be run.
    """
    for rows in drawn(signature, _ROWS):
        with suppress(Exception):  # what a runtime refuses at one size it may take at another
            together = runner.run(rows)
            alone = [runner.run(take(rows, slice(row, row + 1))) for row in range(_ROWS)]
            return all(_alike(array, [answer[name] for answer in alone]) for name, array in together.items())
    return False


def drawn(signature: Signature, rows: int) -> Iterator[dict[str, Any]]:
    """So many rows that differ, once for each size that the other dimensions may be tried at."""
    for size in _SIZES:
        sizes = {name: min(max(size, dim.min), dim.max) for name, dim in signature.dims.items()}
        if signature.batch is not None:
            sizes[signature.batch] = rows
        with suppress(PenstockError):  # a range may be empty at that size
            yield _rows(signature, sizes)


def unbatched(signature: Signature) -> Signature:
    """The same for a model whose first dimension is none of rows: requests are not put together, nor cut."""
    first = str(signature.batch)
    outputs = tuple(
        tensor.model_copy(update={"shape": (f"{first}_out", *tensor.shape[1:])}) for tensor in signature.outputs
    )
    return signature.model_copy(update={"outputs": outputs, "dims": {**signature.dims, first: OPEN_ENDED_INNER}})


def _rows(signature: Signature, sizes: dict[str, int]) -> dict[str, Any]:
    """Rows that differ, of any dtype that is served."""
    plain = {"object": "uint8", "bfloat16": "float32"}
    tensors = tuple(
        tensor.model_copy(update={"dtype": plain.get(tensor.dtype, tensor.dtype)}) for tensor in signature.inputs
    )
    found = synthesize(signature.model_copy(update={"inputs": tensors}), sizes).inputs
    for tensor in signature.inputs:
        if tensor.dtype == "object":
            texts = [str(number).encode() for number in found[tensor.name].flat]
            found[tensor.name] = np.array(texts, object).reshape(found[tensor.name].shape)
        elif tensor.dtype == "bfloat16":
            found[tensor.name] = found[tensor.name].astype("bfloat16")
    return found


def _alike(together: Any, alone: list[Any]) -> bool:
    if len(together) != _ROWS or any(array.shape != (1, *together.shape[1:]) for array in alone):
        return False
    found, expected = together, np.concatenate(alone)
    if found.dtype.kind not in "fV":
        return bool(np.array_equal(found, expected))
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return False
    held = np.isfinite(found)
    off = np.where(held, found, 0) - np.where(held, expected, 0)
    return float(np.linalg.norm(off)) <= _MOST_ERROR * float(np.linalg.norm(np.where(held, expected, 0))) + 1e-6
