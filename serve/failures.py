"""Failures that cross between the server and the processes beside it, as JSON: named, described, raised again."""

from __future__ import annotations

import traceback
from typing import Any

from penstock.errors import PenstockError
from penstock.preprocess import BadImage
from penstock.runtimes import InstanceDead, InstanceLost, RejectedInput
from penstock.serve.errors import RequestError
from penstock.serve.outcomes import Closed, Expired, Hung, QueueFull, Unmeetable
from penstock.signature import SignatureMismatch
from penstock.tables import BadTable

_SAME: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        *(RequestError, BadImage, BadTable, SignatureMismatch, PenstockError),
        *(RejectedInput, InstanceDead, InstanceLost),
        *(QueueFull, Expired, Unmeetable, Closed, Hung),
    )
}
"""Errors that are the same on both sides, as which more particular ones go too; any other is a RuntimeError there, and
its traceback stays here."""


def described(error: Exception) -> dict[str, Any]:
    """A failure as JSON has it."""
    message = str(error)
    kind = next((kind.__name__ for kind in type(error).__mro__ if _SAME.get(kind.__name__) is kind), "")
    if not kind:
        traceback.print_exception(error)
        message = f"{type(error).__name__}: {message}"
    written = message.encode("utf-8", "backslashreplace").decode()  # it may quote halves of surrogate pairs
    return {"error": kind, "message": written, "status": getattr(error, "status", 500)}


def raised(told: dict[str, Any]) -> Exception:
    """A failure that the other side has described."""
    kind = _SAME.get(told["error"], RuntimeError)
    return RequestError(told["message"], told["status"]) if kind is RequestError else kind(told["message"])
