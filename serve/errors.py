"""What goes wrong with a request, as a status and one sentence."""

from __future__ import annotations

from penstock.errors import PenstockError


class RequestError(PenstockError):
    """A request that cannot be answered; `status` is the HTTP status of the answer."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
