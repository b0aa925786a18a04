"""A request of more rows than a batch holds: several items in the queue, and one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.arrays import join, take
from penstock.runtimes import rows_of
from penstock.serve.batches import Item, Reply
from penstock.serve.errors import RequestError
from penstock.signature import Arrays

if TYPE_CHECKING:
    from penstock.serve.scheduler import Scheduler


class Split:
    """One request as the several items that it takes. Once all have ended `reply` is told, of the first failure if any.

    Args:
        scheduler: whose items they are.
        parts: of the request's rows, in order.
        rows: how many of them are the request's; what is behind fills up the last part.
        reply: see `Scheduler.enter`, and `about` too, but for the rows.

    Raises:
        As `Scheduler.enter`.
    """

    def __init__(
        self, scheduler: Scheduler, parts: Sequence[Arrays], rows: int, reply: Reply, about: Mapping[str, Any]
    ) -> None:
        self._scheduler, self._rows, self._reply = scheduler, rows, reply
        self._failure: Exception | None = None
        self._pieces: list[_Piece] = []
        self._left = len(parts)
        try:
            for part in parts:
                piece = _Piece(self._ended, self._let_go)
                piece.item = scheduler.enter(part, piece, **{**about, "rows": rows_of(part)})
                self._pieces.append(piece)
        except BaseException:
            self._left = 0  # nobody is told: whoever asked sees what was raised
            self._withdraw()
            raise

    @property
    def running(self) -> bool:
        """Whether a batch looks at some of its rows."""
        return any(piece.item.running for piece in self._pieces)

    def give_up(self) -> None:
        """Nobody waits for it: what is queued leaves, and `reply` is told once no batch is left with the rest."""
        self._failure = self._failure or RequestError("nobody waits for it", 499)
        self._withdraw()

    def _withdraw(self) -> None:
        for piece in [piece for piece in self._pieces if not piece.over and self._scheduler.waits(piece.item)]:
            self._scheduler.withdraw(piece.item)
            piece.over = True
            self._ended(None)

    def _ended(self, failure: Exception | None) -> None:
        if self._left == 0:
            return
        self._left -= 1
        if failure is not None and self._failure is None:
            self._failure = failure
            self._withdraw()
        if self._left:
            return
        if not self._reply.done():
            whole = self._joined()
            if self._failure is not None:
                self._reply.set_exception(self._failure)
            else:
                self._reply.set_result(whole)
        self._forget()

    def _joined(self) -> dict[str, Any] | None:
        """The answers of all parts as one; None, and a failure, if they are none."""
        if self._failure is None:
            try:
                return take(join([piece.answer for piece in self._pieces]), slice(self._rows))
            except Exception as error:  # such as shapes that do not fit one another
                self._failure = error
        return None

    def _forget(self) -> None:
        """Let go of the rows: they and this hold one another."""
        if not self._left and not self.running:
            for piece in self._pieces:
                del piece.item
            self._pieces = []

    def _let_go(self) -> None:
        """A batch has let go of rows that were given up before."""
        left = getattr(self._reply, "left", None)
        if left is not None and self._reply.done() and not self.running:
            left()
        self._forget()


class _Piece:
    """The `Reply` of one item of a split request."""

    item: Item
    answer: dict[str, Any]

    def __init__(self, ended: Callable[[Exception | None], None], let_go: Callable[[], None]) -> None:
        self.over, self.left, self._ended = False, let_go, ended

    def done(self) -> bool:
        return self.over

    def set_result(self, result: dict[str, Any], /) -> None:
        self.over, self.answer = True, result
        self._ended(None)

    def set_exception(self, exception: Exception, /) -> None:
        self.over = True
        self._ended(exception)
