"""The engine's end of the way to its front ends: requests come as places in memory, and answers are laid there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import orjson
from prometheus_client.core import GaugeMetricFamily, Metric

from penstock import laid
from penstock.laid import Memory
from penstock.serve import control, frames
from penstock.serve.frames import Frames
from penstock.serve.model import Model, Terms
from penstock.serve.outcomes import Closed
from penstock.serve.repository import Repository
from penstock.serve.sharedmemory import Regions
from penstock.serve.tickets import GONE, Ticket
from penstock.serve.tracing import Tracer

log = logging.getLogger(__name__)
Figures = Any
ASGI = Callable[[Any, Any, Any], Awaitable[None]]
# Front ends that have not heard of a change by then are left to hear of it later.
_HEARD_S = 0.5


@dataclass
class _Form:
    """What requests of a kind have in common: the model, where their arrays lie, and once one has come, its terms."""

    model: int
    arrays: laid.Form
    terms: Terms | None = None


class Fronts:
    """All front ends of one engine, and the models that they may ask for.

    Args:
        repository: the models.
        counted: told what a front end has counted since it last said so.
    """

    def __init__(
        self, repository: Repository, counted: Callable[[Figures], None], tracer: Tracer, regions: Regions
    ) -> None:
        self.repository, self.counted, self.tracer, self._regions = repository, counted, tracer, regions
        self.links: set[FrontLink] = set()
        self.models: dict[int, Model] = {}
        repository.changed = self.tell
        self.keep: Callable[[], None] = lambda: None
        self.state = self._state()

    def tell(self) -> None:
        """Tell all front ends what holds now, if it is not what held before; `keep` is called first."""
        self.keep()
        state = self._state()
        if state != self.state:
            self.state = state
            for link in self.links:
                link.forget()
                link.write(state)

    def telling(self, app: ASGI) -> ASGI:
        """An application after whose changes all front ends have heard of them, before the client does."""

        async def told(scope: Any, receive: Any, send: Any) -> None:
            async def send_after(message: Any) -> None:
                if message["type"] == "http.response.start":
                    self.tell()
                    await self.gather(_HEARD_S)
                await send(message)

            changes = scope["type"] == "http" and scope["method"] not in ("GET", "HEAD")
            await app(scope, receive, send_after if changes else send)

        return told

    def _state(self) -> bytes:
        """What front ends have to know, as a frame."""
        repository = self.repository
        self.models = {model.id: model for model in repository.models.values()}
        return frames.told(
            frames.STATE,
            {
                "models": [_described(model) for model in repository.models.values()],
                "mode": repository.mode,
                "failures": repository.failures,
                "unloaded": sorted(repository.unloaded),
                "routes": repository.routes.as_dict(),
                "shadows": [] if repository.shadows is None else repository.shadows.wanted,
                "regions": self._regions.status(),
                "traced": self.tracer.on,
                "logging": control.log_settings(),
            },
        )

    def families(self) -> Iterator[Metric]:
        """How many front ends there are, and their slots, by what they have said last."""
        yield GaugeMetricFamily("penstock_front_ends", "Front ends that ask this engine.", len(self.links))
        taken, free = (sum(link.slots[place] for link in self.links) for place in (0, 1))
        yield GaugeMetricFamily("penstock_slots_taken", "Slots of front ends that requests are in.", taken)
        yield GaugeMetricFamily("penstock_slots_free_bytes", "Memory of front ends that no slot is in.", free)

    async def gather(self, within_s: float) -> None:
        """Have all front ends say what they have counted; those that do not in time are left out."""
        asked = [asyncio.ensure_future(link.figures()) for link in self.links]
        if asked:
            _, late = await asyncio.wait(asked, timeout=within_s)
            for each in late:
                each.cancel()


def _described(model: Model) -> dict[str, Any]:
    return {
        "id": model.id,
        "name": model.name,
        "version": model.version,
        "signature": model.signature.model_dump(mode="json"),
        "receipt": None if model.receipt is None else model.receipt.model_dump_json(by_alias=True),
        "timeout_s": model.limits.timeout_s,
        "max_queue_rows": model.scheduler.max_queue_rows,
        "max_batch": model.scheduler.max_batch,
    }


class FrontLink(asyncio.Protocol):
    """The way to one front end.

    Args:
        fronts: all of them.
        memory: that its requests lie in.
    """

    def __init__(self, fronts: Fronts, memory: Memory) -> None:
        self._fronts, self.memory = fronts, memory
        self._frames, self._forms = Frames(), dict[int, _Form]()
        self._asked: dict[int, Ticket] = {}
        self._transport: Any = None
        self._told: list[asyncio.Future[None]] = []
        # Of this turn of the event loop: answers, as many as there are in one frame, and other frames.
        self._answers: list[Ticket] = []
        self._others: list[bytes] = []
        self.slots: tuple[int, int] = 0, 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._fronts.links.add(self)
        self.write(self._fronts.state)

    def connection_lost(self, exc: Exception | None) -> None:
        """The front end has ended, and all who waited there are gone."""
        self._fronts.links.discard(self)
        for ticket in list(self._asked.values()):
            ticket.give_up()
        for future in self._told:
            future.cancel()

    def data_received(self, data: bytes) -> None:
        for kind, content in self._frames.feed(data):
            if kind == frames.ASKS:
                for asked in frames.ASKED.iter_unpack(content):
                    self._ask(*asked)
            elif kind == frames.GIVE_UP:
                ticket = self._asked.get(*frames.NUMBER.unpack(content))
                if ticket is not None:
                    ticket.give_up()
            elif kind == frames.FORM:
                self._note_form(orjson.loads(content))
            elif kind == frames.ASK_ALONE:
                self._ask_alone(content)
            elif kind == frames.FIGURES:
                self._note(orjson.loads(content))
            elif kind == frames.REFUSED:
                refused = self._fronts.models.get(*frames.NUMBER.unpack(content))
                if refused is not None:
                    refused.statistics.request(0.0, answered=False)
            elif kind == frames.TRACED:
                self._fronts.tracer.traced(**orjson.loads(content))
            elif kind == frames.SHADOWED:
                self._shadow(content)

    def _note(self, figures: dict[str, Any]) -> None:
        """What was counted there since it was last asked."""
        told = self._told.pop(0)  # of this question, not of those after it
        try:
            self.slots = tuple(figures["slots"])
            self._fronts.counted(figures)
        except Exception:  # figures are not worth the way
            log.exception("figures of a front end are lost")
        if not told.done():
            told.set_result(None)

    async def figures(self) -> None:
        """Ask what was counted there, and wait until it was told."""
        told = asyncio.get_running_loop().create_future()
        self._told.append(told)
        self.write(frames.frame(frames.TELL, b""))
        with contextlib.suppress(asyncio.CancelledError):
            await told

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def answered(self, ticket: Ticket) -> None:
        if not self._answers:
            self._soon()
        self._answers.append(ticket)
        del self._asked[ticket.number]

    def ended(self, number: int, data: bytes) -> None:
        """A request has ended otherwise, as a frame says."""
        self.say(data)
        del self._asked[number]

    def say(self, data: bytes) -> None:
        """Send a frame behind those that are to be sent by now."""
        self._soon()
        self._others.append(data)

    def _soon(self) -> None:
        """What has ended is told with all else of the same turn of the event loop."""
        if not self._answers and not self._others:
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        answers, others = self._answers, self._others
        self._answers, self._others = [], []
        if answers:
            now, pack = time.perf_counter(), frames.ANSWERED.pack
            for _, alike in itertools.groupby(answers, attrgetter("model")):
                held = list(alike)
                held[0].wanted.statistics.answered(held, now)
            packed = [pack(ticket.number, ticket.queue_s, ticket.compute_s) for ticket in answers]
            others.append(frames.frame(frames.ANSWERS, b"".join(packed)))
        self.write(b"".join(others))

    def forget(self) -> None:
        """Drop the forms of models that are gone."""
        self._forms = {number: form for number, form in self._forms.items() if form.model in self._fronts.models}

    def _note_form(self, told: dict[str, Any]) -> None:
        arrays = laid.Form(self.memory, frames.read(told["inputs"]), frames.read(told["outputs"]))
        self._forms[told["form"]] = _Form(told["model"], arrays)

    def _ask(self, number: int, form_number: int, begin: int, room: int, timeout_s: float, priority: int) -> None:
        form = self._forms.get(form_number)
        model = None if form is None else self._fronts.models.get(form.model)
        ticket = self._asked[number] = Ticket(self, number, model)
        try:
            if form is None:  # its model is gone
                raise Closed(GONE)
            inputs = laid.Laid(form.arrays, begin, None if room == frames.NOWHERE else room)
            if form.terms is None:
                form.terms = ticket.wanted.terms(inputs)
            ticket.begin(inputs, form.terms, timeout_s, priority)
        except Exception as error:
            ticket.set_exception(error)

    def _ask_alone(self, content: memoryview) -> None:
        told, inputs = frames.read_with(content)
        ticket = self._asked[told["number"]] = Ticket(self, told["number"], self._fronts.models.get(told["model"]))
        try:
            ticket.begin(inputs, ticket.wanted.terms(inputs), told["timeout_s"], told["priority"])
        except Exception as error:
            ticket.set_exception(error)

    def _shadow(self, content: memoryview) -> None:
        told, arrays = frames.read_with(content)
        model, shadows = self._fronts.models.get(told["model"]), self._fronts.repository.shadows
        if model is not None and shadows is not None:
            named = [(key.partition(" ")[2], array) for key, array in arrays.items()]
            inputs, outputs = dict(named[: told["inputs"]]), dict(named[told["inputs"] :])
            shadows.give(told["shadow"], model, told["id"], inputs, outputs)
