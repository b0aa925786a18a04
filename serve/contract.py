"""What a model takes of a request, held against its signature once for each form that requests have."""

from __future__ import annotations

from typing import Any

from penstock.runtimes import rows_of
from penstock.serve.errors import RequestError
from penstock.serve.times import Times
from penstock.signature import Arrays, Signature

_MOST_FORMS = 4096


class Contract:
    """A signature, and the forms of requests that were found to keep it."""

    def __init__(self, signature: Signature) -> None:
        self._signature, self._batched = signature, signature.batch is not None
        self._checked: set[tuple[Any, ...]] = set()

    def rows(self, inputs: Arrays, most: int, times: Times | None) -> int:
        """How many rows a request has, which `times` is told; 1 where the model knows no batches.

        Args:
            inputs: every input of the signature, rows first.
            most: rows that its queue holds.
            times: of the request.

        Raises:
            SignatureMismatch: the inputs are not the signature's. RequestError: they have more rows than `most`.
        """
        self._check(inputs)
        rows = rows_of(inputs) if self._batched else 1
        if times is not None:
            times.rows = rows
        if rows > most:
            raise RequestError(f"the request has {rows} rows and the queue holds {most} (--max-queue-rows); send fewer")
        return rows

    def _check(self, inputs: Arrays) -> None:
        """See that the inputs are the signature's; others of the same names, dtypes and shapes are then too."""
        forms = tuple((name, array.dtype, array.shape) for name, array in inputs.items())
        if forms in self._checked:
            return
        self._signature.check(inputs, limit_batch=False)
        if len(self._checked) < _MOST_FORMS:
            self._checked.add(forms)
