"""A runtime without a model, for tests and for writing a client before the model exists.

Each output row is made from the row's own inputs, so that a caller can tell its own answer from another's: every
entry of output number `k` is `k` plus the sum of the row's inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.runtimes import BaseRunner
from penstock.signature import Arrays, Signature


def unavailable(build: Mapping[str, Any], device: str = "cpu") -> str | None:
    """None: it needs nothing."""
    return None


class FakeRunner(BaseRunner):
    """Answers by arithmetic, in the shapes and dtypes that the signature declares."""

    def run(self, feeds: Arrays) -> dict[str, Any]:
        rows = len(feeds[self.inputs[0].name])
        total: Any = sum(feeds[tensor.name].reshape(rows, -1).sum(axis=1, dtype=np.float64) for tensor in self.inputs)
        answer = {}
        for number, tensor in enumerate(self.outputs):
            sizes = [size if isinstance(size, int) else 1 for size in tensor.shape[1:]]
            column = (total + number).reshape(rows, *[1] * len(sizes))
            answer[tensor.name] = np.broadcast_to(column, (rows, *sizes)).astype(tensor.dtype)
        return answer


def load(
    path: Path, signature: Signature, *, device: str = "cpu", threads: int | None = None, careful: bool = False
) -> FakeRunner:
    """Load nothing: `path` need not exist."""
    return FakeRunner(signature)
