"""A request of a front end's within the engine: where it lies, its times, and how it ended, which its way is told."""

from __future__ import annotations

import time
from typing import Any, Protocol

from penstock.laid import GIVEN, Laid
from penstock.serve import failures, frames
from penstock.serve.batches import Item
from penstock.serve.errors import RequestError
from penstock.serve.model import Model, Terms
from penstock.serve.outcomes import Closed
from penstock.serve.splits import Split
from penstock.serve.times import Times
from penstock.signature import Arrays

GONE = "another version took the model's place"


class Link(Protocol):
    """The way to the front end."""

    def answered(self, ticket: Ticket, /) -> None:
        """Its answer is laid where it was wanted; it is to be counted."""

    def ended(self, number: int, data: bytes, /) -> None: ...

    def say(self, data: bytes, /) -> None: ...


class Ticket(Times):
    """Tells a front end how a request of it ended; a `Reply` of the scheduler's, and its times.

    Args:
        link: the way to the front end.
        number: of the request, there.
        model: that it is for; None if it is gone.
    """

    __slots__ = ("_inputs", "_link", "_over", "item", "model", "number")

    item: Item | Split | None
    _inputs: Laid | None

    def __init__(self, link: Link, number: int, model: Model | None) -> None:
        self._link, self.number, self.model = link, number, model
        self._inputs, self.item, self._over = None, None, False
        self.started = time.perf_counter()
        self.queue_s = self.compute_s = 0.0

    @property
    def wanted(self) -> Model:
        """The model.

        Raises:
            Closed: it is gone.
        """
        if self.model is None:
            raise Closed(GONE)
        return self.model

    def begin(self, inputs: Arrays, terms: Terms, timeout_s: float, priority: int) -> None:
        """Have the model asked.

        Raises:
            As `Model.begin`.
        """
        if type(inputs) is Laid:
            self._inputs = inputs
        self.item = self.wanted.begin(inputs, terms, self, timeout_s=timeout_s, priority=priority, times=self)

    def ran(self, queue_s: float, compute_s: float) -> None:
        if queue_s > self.queue_s:
            self.queue_s = queue_s
        if compute_s > self.compute_s:
            self.compute_s = compute_s

    def done(self) -> bool:
        return self._over

    def give_up(self) -> None:
        """Nobody waits there: what is computed by now ends as it will, as its memory is in use until then."""
        if isinstance(self.item, Split):
            self.item.give_up()
        elif self.item is not None and self.model is not None and self.model.scheduler.waits(self.item):
            self.model.scheduler.withdraw(self.item)
            self.set_exception(RequestError("nobody waits for it", 499))

    def set_result(self, answer: dict[str, Any], /) -> None:
        self._over, self.item = True, None
        if answer is GIVEN or (self._inputs is not None and self._inputs.given(answer)):
            self._link.answered(self)
        else:
            self.wanted.statistics.request(time.perf_counter() - self.started, self, answered=True)
            about = {"number": self.number, "queue_s": self.queue_s, "compute_s": self.compute_s}
            try:
                data = frames.told_with(frames.ANSWER_HERE, about, answer)
            except Exception as error:  # told it must be, or whoever waits there waits for ever
                data = frames.told(frames.FAILURE, self._failed(error))
            self._link.ended(self.number, data)

    def left(self) -> None:
        """Nobody looks at its slot any more, of which the front end was told that somebody did."""
        self._link.say(frames.frame(frames.LEFT, frames.NUMBER.pack(self.number)))

    def set_exception(self, error: Exception, /) -> None:
        item, self.item, self._over = self.item, None, True
        if self.model is not None:
            self.model.statistics.request(time.perf_counter() - self.started, answered=False)
        kept = item is not None and item.running
        self._link.ended(self.number, frames.told(frames.FAILURE, {**self._failed(error), "kept": kept}))

    def _failed(self, error: Exception) -> dict[str, Any]:
        return {**failures.described(error), "number": self.number, "times": [self.queue_s, self.compute_s]}
