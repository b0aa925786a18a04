"""Models that another process runs: a front end's end of the way to its engine.

A request's arrays are in a slot of memory that both processes have, mostly since their bytes were received there; what
crosses are its number and place. A slot is free again once neither process needs it: here it is kept until the engine
has answered, also where nobody waits for the answer any more.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock.errors import PenstockError
from penstock.laid import Place
from penstock.receipt import Receipt
from penstock.serve import failures, frames
from penstock.serve.awake import Awake
from penstock.serve.contract import Contract
from penstock.serve.errors import RequestError
from penstock.serve.frames import Frames
from penstock.serve.layouts import Layouts
from penstock.serve.slots import Slots
from penstock.serve.times import Times
from penstock.signature import Arrays, Signature, served

_MOST_FORMS, _LET_GO_S = 4096, 5.0
AWAY = "the engine is being restarted; try again soon"


@dataclass(frozen=True)
class RemoteLimits:
    """What a front end has to know of a model's limits."""

    timeout_s: float
    max_queue_rows: int
    max_batch: int


@dataclass
class RemoteScheduler:
    """Of the scheduler, which is the engine's, what those who read requests ask."""

    max_queue_rows: int
    max_batch: int
    closed: bool = False


@dataclass
class _Asked:
    """A request under way: who waits, and what holds its slots."""

    future: asyncio.Future[dict[str, Any]]
    held: tuple[Any, ...]
    times: Times | None = None
    outputs: tuple[Place, ...] = ()
    room: memoryview | None = None


@dataclass(frozen=True)
class _Form:
    """What all requests of a kind have in common."""

    number: int
    outputs: tuple[Place, ...]
    room: int


class RemoteModel:
    """One model of an engine's; what there is to know of it here, and how it is asked.

    Args:
        told: what the engine says of it, as `described` does.
        link: the way to the engine.
    """

    def __init__(self, told: dict[str, Any], link: EngineLink) -> None:
        self.id: int = told["id"]
        self.name: str = told["name"]
        self.version: int = told["version"]
        self.signature: Signature = served(told["signature"])
        self.receipt = None if told["receipt"] is None else Receipt.model_validate_json(told["receipt"])
        self.limits = RemoteLimits(told["timeout_s"], told["max_queue_rows"], told["max_batch"])
        self.scheduler = RemoteScheduler(self.limits.max_queue_rows, self.limits.max_batch)
        self.layouts = Layouts()
        self.reads_text = any(tensor.dtype == "object" for tensor in self.signature.inputs)
        self._link = link
        self._forms: dict[Any, _Form] = {}
        self._contract = Contract(self.signature)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of its classes, where its receipt has them."""
        return self.receipt.labels if self.receipt else None

    @property
    def ready(self) -> bool:
        """Whether there is an engine to ask."""
        return self._link.there

    async def infer(
        self, inputs: Arrays, *, timeout_s: float | None = None, priority: int = 0, times: Times | None = None
    ) -> dict[str, Any]:
        """As `Model.infer`.

        Raises:
            As there; QueueFull: no slot is free; RequestError: 503, the engine is away, or ended meanwhile.
        """
        rows = self._rows(inputs, times)
        wait = self.limits.timeout_s if timeout_s is None else min(timeout_s, self.limits.timeout_s)
        return await self._link.ask(self, inputs, rows, wait, priority, times)

    def form(self, inputs: Arrays, starts: tuple[int, ...], rows: int) -> tuple[_Form | None, bool]:
        """What a request has in common with others, and whether the engine is still to be told; None if nothing.

        Args:
            inputs: its arrays.
            starts: where each begins, behind the first of them.
            rows: how many it has.
        """
        key = (starts, *((array.dtype, array.shape) for array in inputs.values()), *inputs)
        held = self._forms.get(key)
        if held is not None:
            return held, False
        if len(self._forms) >= _MOST_FORMS:
            return None, False
        outputs, room = frames.places(self._outputs(rows))
        held = self._forms[key] = _Form(next(_form_numbers), outputs, room)
        return held, True

    def _outputs(self, rows: int) -> list[tuple[str, str, tuple[int, ...]]]:
        """The outputs' names, dtypes and shapes, where the inputs' rows tell all of it; else nothing."""
        batch, found = self.signature.batch, []
        for tensor in self.signature.outputs:
            shape = [rows if size == batch else size for size in tensor.shape]
            if tensor.dtype == "object" or not all(isinstance(size, int) for size in shape):
                return []
            found.append((tensor.name, tensor.dtype, tuple(int(size) for size in shape)))
        return found

    def _rows(self, inputs: Arrays, times: Times | None) -> int:
        """How many rows a request has. One that cannot be answered is refused, which the engine counts.

        Raises:
            SignatureMismatch: its inputs are not the signature's. RequestError: its rows are too many.
        """
        try:
            return self._contract.rows(inputs, self.limits.max_queue_rows, times)
        except PenstockError:
            self._link.tell(frames.frame(frames.REFUSED, frames.NUMBER.pack(self.id)))
            raise


_numbers = itertools.count(1)
_form_numbers = itertools.count(1)  # of 32 bits


@dataclass
class EngineLink(asyncio.Protocol):
    """The way to one engine, for as long as that lives.

    Args:
        slots: of the memory that both have.
        changed: told what the engine serves, each time that changes.
        ended: told that it is no more.
        figures: gives what was counted here since it was last asked.
        awake: keeps the loop awake over a request that comes alone, and for the next.
    """

    slots: Slots
    changed: Callable[[EngineLink, dict[str, Any]], None]
    ended: Callable[[EngineLink], None]
    figures: Callable[[], Any]
    awake: Awake = field(default_factory=lambda: Awake(0.0))
    there: bool = False
    _frames: Frames = field(default_factory=Frames)
    _asked: dict[int, _Asked] = field(default_factory=dict)
    _kept: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    # Of this turn of the event loop.
    _asks: list[bytes] = field(default_factory=list)
    _transport: Any = None
    # Whether what was asked last was all that there was to ask.
    _lone: bool = False

    @property
    def under_way(self) -> int:
        """Requests that the engine has not answered."""
        return len(self._asked)

    def tell(self, data: bytes) -> None:
        """Say something to the engine, if it is there, after what it is asked by now."""
        if self.there:
            self._send_asks()
            self._transport.write(data)

    def _send_asks(self) -> None:
        asks, self._asks = self._asks, []
        if asks and self.there:
            self._transport.write(frames.frame(frames.ASKS, b"".join(asks)))
            self._lone = len(self._asked) == 1
            if self._lone:
                self.awake.until(next(iter(self._asked.values())).future)
            else:
                self.awake.end()

    def connection_made(self, transport: Any) -> None:
        self._transport, self.there = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        self.there = False
        asked, self._asked = self._asked, {}
        # A batch under way may still look at its slots, and a GPU lay answers there: another process's end, or its
        # socket's, is not the end of what it does.
        held = [*(request.held for request in asked.values()), *self._kept.values()]
        asyncio.get_running_loop().call_later(_LET_GO_S, held.clear)
        self._kept.clear()
        for request in asked.values():
            if not request.future.done():
                request.future.set_exception(RequestError(f"the engine ended over this request; {AWAY}", 503))
        self.ended(self)

    def data_received(self, data: bytes) -> None:
        waited = bool(self._asked)
        for kind, content in self._frames.feed(data):
            self._receive(kind, content)
        if self._lone and waited and not self._asked:  # who came alone may come again at once
            self.awake.until(asyncio.get_running_loop().create_future())

    async def ask(
        self, model: RemoteModel, inputs: Arrays, rows: int, timeout_s: float, priority: int, times: Times | None
    ) -> dict[str, Any]:
        """A model's answer."""
        if not self.there:
            raise RequestError(AWAY, 503)
        number, future = next(_numbers), asyncio.get_running_loop().create_future()
        request = _Asked(future, (), times)
        self._send(number, model, inputs, rows, timeout_s, priority, request)
        self._asked[number] = request
        try:
            return await future  # type: ignore[no-any-return]
        finally:
            if number in self._asked:
                self.tell(frames.frame(frames.GIVE_UP, frames.NUMBER.pack(number)))
            # What failed is held by the future and holds this frame: a ring, which would keep the request's slots.
            del future, request, inputs

    def _send(
        self,
        number: int,
        model: RemoteModel,
        inputs: Arrays,
        rows: int,
        timeout_s: float,
        priority: int,
        request: _Asked,
    ) -> None:
        form = None
        if not model.reads_text:
            inputs, begin, starts = self._laid(inputs)
            form, new = model.form(inputs, starts, rows)
        if form is None:
            about = {"number": number, "model": model.id, "timeout_s": timeout_s, "priority": priority}
            self.tell(frames.told_with(frames.ASK_ALONE, about, inputs))
            return
        if new:
            self.tell(frames.told(frames.FORM, _described(form, model, inputs, starts)))
        held = self.slots.take_at(form.room) if form.room else None
        at, room = held or (frames.NOWHERE, None)
        request.held, request.outputs, request.room = (inputs, room), form.outputs, room
        if not self._asks:
            asyncio.get_running_loop().call_soon(self._send_asks)
        self._asks.append(frames.ASKED.pack(number, form.number, begin, at, timeout_s, priority))

    def _laid(self, inputs: Arrays) -> tuple[Arrays, int, tuple[int, ...]]:
        """The inputs where both processes see them: themselves, or copies; where they begin; and each behind that.

        Raises:
            QueueFull: no slot is free for copies. RequestError: none is ever as large.
        """
        at = [self.slots.place(array) for array in inputs.values()]
        if None in at:
            held, size = frames.places([(name, array.dtype.name, array.shape) for name, array in inputs.items()])
            slot = self.slots.take(size)
            if slot is None:
                raise self.slots.refusal(size)
            frames.fill(slot, 0, held, inputs)
            inputs = {place.name: place.at(slot, 0) for place in held}
            at = [self.slots.place(array) for array in inputs.values()]
        starts = [start for start in at if start is not None]
        begin = min(starts)
        return inputs, begin, tuple(start - begin for start in starts)

    def _receive(self, kind: int, content: memoryview) -> None:
        if kind == frames.ANSWERS:
            for number, queue_s, compute_s in frames.ANSWERED.iter_unpack(content):
                request = self._asked.pop(number)
                if not request.future.done():
                    if request.times is not None:
                        request.times.ran(queue_s, compute_s)
                    request.future.set_result({place.name: place.at(request.room, 0) for place in request.outputs})
        elif kind == frames.ANSWER_HERE:
            held, arrays = frames.read_with(content)
            request = self._asked.pop(held["number"])
            if not request.future.done():
                if request.times is not None:
                    request.times.ran(held["queue_s"], held["compute_s"])
                request.future.set_result(arrays)
        elif kind == frames.FAILURE:
            self._fail(orjson.loads(content))
        elif kind == frames.LEFT:
            self._kept.pop(frames.NUMBER.unpack(content)[0], None)
        elif kind == frames.STATE:
            self.changed(self, orjson.loads(content))
        elif kind == frames.TELL:
            self.tell(frames.told(frames.FIGURES, self.figures()))

    def _fail(self, held: dict[str, Any]) -> None:
        request = self._asked.pop(held["number"])
        if held.get("kept"):  # its batch still looks at its slot, or writes to it
            self._kept[held["number"]] = request.held
        if not request.future.done():
            if request.times is not None and held["times"] is not None:
                request.times.queue_s, request.times.compute_s = held["times"]
            request.future.set_exception(failures.raised(held))


def _described(form: _Form, model: RemoteModel, inputs: Arrays, starts: tuple[int, ...]) -> dict[str, Any]:
    held = [Place(name, array.dtype, array.shape, at) for (name, array), at in zip(inputs.items(), starts, strict=True)]
    return {
        "form": form.number,
        "model": model.id,
        "inputs": frames.written(tuple(held)),
        "outputs": frames.written(form.outputs),
    }
