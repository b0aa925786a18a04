"""What goes wrong with a request, as a status and one sentence."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.preprocess import BadImage
from penstock.runtimes import InstanceDead, RejectedInput
from penstock.serve.outcomes import Closed, Expired, Hung, QueueFull, Unmeetable
from penstock.signature import SignatureMismatch
from penstock.tables import BadTable

log = logging.getLogger(__name__)


class RequestError(PenstockError):
    """A request that cannot be answered; `status` is the HTTP status of the answer."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


_STATUS: dict[type[PenstockError], int] = {
    SignatureMismatch: 400,
    RejectedInput: 400,
    BadImage: 400,
    BadTable: 400,
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
