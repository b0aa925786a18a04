"""What goes wrong with a request, as a status and one sentence."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable

from penstock.errors import PenstockError
from penstock.predictions import NoMap
from penstock.preprocess import BadImage
from penstock.runtimes import InstanceDead, RejectedInput
from penstock.serve.outcomes import Closed, Expired, Hung, QueueFull, Unmeetable
from penstock.signature import SignatureMismatch
from penstock.tables import BadTable

log = logging.getLogger(__name__)
_MOST_NAMES = 10


class RequestError(PenstockError):
    """A request that cannot be answered; `status` is the HTTP status of the answer."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def nearest_first(name: str, names: Iterable[str]) -> str:
    """What could have been meant by a name that there is not: `the models are b, a`, the most alike first."""
    # By pairs of letters that both have in order: digits-int8 is nearer to digits-onnx-int8 than to digits-onnx-fp32.
    listed = sorted(sorted(names), key=lambda other: -difflib.SequenceMatcher(None, name[:128], other).ratio())
    if not listed:
        return "there are none yet"
    more = f" and {len(listed) - _MOST_NAMES} more" if len(listed) > _MOST_NAMES else ""
    return f"the models are {', '.join(listed[:_MOST_NAMES])}{more}"


_STATUS: dict[type[PenstockError], int] = {
    SignatureMismatch: 400,
    RejectedInput: 400,
    BadImage: 400,
    BadTable: 400,
    NoMap: 422,
    QueueFull: 503,
    Closed: 503,
    Unmeetable: 503,
    Expired: 503,  # as Triton has it: what timed out is UNAVAILABLE there
}


def explained(error: Exception, name: Callable[[], str] | None = None) -> tuple[int, str]:
    """HTTP's status for a failure, and what the caller is told; what nobody expected is told to the log alone.

    `name` gives the request's id, for the log.
    """
    if isinstance(error, Hung):
        error = RequestError(f"the model's runner hangs: {error}; it is being replaced", 503)
    elif isinstance(error, InstanceDead):
        error = RequestError("the model's runner died over this request; it is being restarted", 503)
    status = error.status if isinstance(error, RequestError) else _STATUS.get(type(error), 500)  # type: ignore[arg-type]
    if status >= 500 and not isinstance(error, PenstockError):
        fields = {} if name is None else {"request_id": name()}
        log.error("unexpected failure", exc_info=error, extra={"fields": fields})
        return 500, "the server failed to answer; its log says why"
    return status, str(error)
