"""Shadows: a share of the live requests is also given to another model, and its answers compared with those that the
clients had.

A client's answer is sent before anything of it begins. The work goes behind all other work of its model: it shares no
batch, waits in no queue that others want (see `Scheduler`), and is dropped wherever something is busy. A model works on
one such request at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import Metric

from penstock.artifact import MODEL_NAME
from penstock.errors import PenstockError
from penstock.serve import drift
from penstock.serve.drift import Drift
from penstock.serve.errors import nearest_first
from penstock.serve.model import Model
from penstock.serve.outcomes import Closed, Expired, QueueFull
from penstock.serve.routes import Routes, difference
from penstock.signature import Arrays

log = logging.getLogger(__name__)
# An answer is on its way to the client by then, also by gRPC, whose sending takes some turns of the event loop.
_AFTER_S = 0.005
# Requests under way at once, their bytes, and the seconds that one may take.
_MOST, _MOST_BYTES, _TIMEOUT_S = 8, 64 * 2**20, 10.0
_LONGEST_ID = 128
Models = Mapping[str, Model]


@dataclass
class Shadow:
    """A model that is given a share of the requests for a name, and what came of it."""

    name: str
    target: str
    share: float
    drift: Drift = field(default_factory=Drift)
    _seen: int = 0

    def due(self) -> bool:
        """Whether the next request is one of its share, which is exact over any stretch of them."""
        before, self._seen = self._seen, self._seen + 1
        return _floor(self._seen * self.share) > _floor(before * self.share)


def _floor(value: float) -> int:
    return int(value + 1e-9)  # ten times 0.1 is 1


def parse(texts: Iterable[str]) -> tuple[tuple[str, str, float], ...]:
    """`digits=digits-onnx-int8:0.1` as a name, a model and a share, for each.

    Raises:
        PenstockError: naming the option, its text and the rule.
    """
    found: dict[str, tuple[str, str, float]] = {}
    for text in texts:
        shown = f"--shadow {text[:200]}"
        name, _, rest = text.partition("=")
        target, _, share = rest.partition(":")
        if not (MODEL_NAME.fullmatch(name) and MODEL_NAME.fullmatch(target)):
            raise PenstockError(f"{shown}: must read NAME=MODEL:SHARE, as in digits=digits-onnx-int8:0.1")
        try:
            number = float(share)
        except ValueError:
            number = 0.0
        if not 0 < number <= 1:
            raise PenstockError(f"{shown}: the share must be over 0 and at most 1, as in 0.1 for every tenth request")
        if name == target:
            raise PenstockError(f"{shown}: a model is no shadow of its own")
        if name in found:
            raise PenstockError(f"{shown}: {name!r} has a shadow; it can have one")
        found[name] = name, target, number
    return tuple(found.values())


class Shadows:
    """The shadows of one server.

    Args:
        models: those that are served.
        wanted: name, model and share of each, as `parse` gives them.
    """

    def __init__(self, models: Models, wanted: Iterable[tuple[str, str, float]]) -> None:
        self._models = models
        self._held = {name: Shadow(name, target, share) for name, target, share in wanted}
        self._under_way = self._bytes = 0
        self._at_work: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def check(self, known: Collection[str], routes: Routes, *, may_come: bool = False) -> None:
        """See that each shadow's names are there, and that its model takes and gives what those that answer do.

        Args:
            known: the names of the models, served or not.
            routes: the other names that there are.
            may_come: whether models that are not there may be later.

        Raises:
            PenstockError: naming the option and the rule.
        """
        for shadow in self._held.values():
            shown = f"--shadow {shadow.name}={shadow.target}:{shadow.share:g}"
            route = routes.held.get(shadow.name)
            if not may_come and shadow.target not in known:
                raise PenstockError(
                    f"{shown}: no model is named {shadow.target!r}; {nearest_first(shadow.target, known)}"
                )
            if not may_come and route is None and shadow.name not in known:
                there = nearest_first(shadow.name, {*known, *routes.held})
                raise PenstockError(f"{shown}: no model or route is named {shadow.name!r}; {there}")
            names = [shadow.name] if route is None else route.weights
            for name in names:
                if name in self._models and shadow.target in self._models:
                    try:
                        _see_alike(self._models[name], self._models[shadow.target])
                    except PenstockError as error:
                        raise PenstockError(f"{shown}: {error}") from None

    async def start(self) -> Callable[[float], Awaitable[None]]:
        """What stops it, as the application wants it."""

        async def stop(within_s: float) -> None:
            self._stopped = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        return stop

    def offer(self, name: str, model: Model, id: str | None, inputs: Arrays, outputs: Arrays) -> None:
        """Told of each request that was answered: the name it was for, the model that answered, and what was said."""
        shadow = self._held.get(name) or self._held.get(model.name)
        if shadow is not None and shadow.target != model.name and shadow.due():
            self.give(shadow.name, model, id, inputs, outputs)

    @property
    def wanted(self) -> list[tuple[str, str, float]]:
        """Name, model and share of each."""
        return [(shadow.name, shadow.target, shadow.share) for shadow in self._held.values()]

    def give(self, name: str, model: Model, id: str | None, inputs: Arrays, outputs: Arrays) -> None:
        """Have the shadow of that name compare what was answered, unless something is busy."""
        shadow = self._held[name]
        size = sum(array.nbytes for held in (inputs, outputs) for array in held.values())
        if self._under_way >= _MOST or self._bytes + size > _MOST_BYTES:
            shadow.drift.counts["dropped"] += 1
            return
        self._under_way += 1
        self._bytes += size
        asyncio.get_running_loop().call_later(_AFTER_S, self._begin, shadow, model, id, inputs, outputs, size)

    def _begin(self, shadow: Shadow, model: Model, id: str | None, inputs: Arrays, outputs: Arrays, size: int) -> None:
        def over(task: Any = None) -> None:
            self._under_way -= 1
            self._bytes -= size
            if task is not None:
                self._at_work.discard(shadow.target)

        target = self._models.get(shadow.target)
        busy = shadow.target in self._at_work or (target is not None and not target.scheduler.idle)
        if self._stopped or busy or model.scheduler.pending_items:
            shadow.drift.counts["dropped"] += 1
            over()
            return
        if target is None:
            self._note_failure(shadow, f"model {shadow.target!r} is not served")
            over()
            return
        self._at_work.add(shadow.target)
        task = asyncio.ensure_future(self._run(shadow, model, target, id, inputs, outputs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(over)

    async def _run(
        self, shadow: Shadow, model: Model, target: Model, id: str | None, inputs: Arrays, outputs: Arrays
    ) -> None:
        try:
            _see_alike(model, target)
            answer = await target.infer_last(inputs, _TIMEOUT_S)
            limits = drift.limits_between(model, target)
            found = await asyncio.to_thread(drift.compare, outputs, answer, limits)
        except (QueueFull, Expired, Closed):
            shadow.drift.counts["dropped"] += 1
        except Exception as error:
            self._note_failure(shadow, f"{type(error).__name__}: {error}"[:300])
        else:
            case = {
                "id": id[:_LONGEST_ID] if id else None,
                "answered_by": f"{model.name}/{model.version}",
                "compared_with": f"{target.name}/{target.version}",
            }
            shadow.drift.found(found, case)

    def _note_failure(self, shadow: Shadow, why: str) -> None:
        if why != shadow.drift.last_failure:
            log.warning("the shadow %s of %s fails: %s", shadow.target, shadow.name, why)
        shadow.drift.failed(why)

    def families(self) -> Iterator[Metric]:
        """Figures of them all."""
        return drift.families((shadow.name, shadow.target, shadow.drift) for shadow in self._held.values())

    def as_dict(self) -> dict[str, Any]:
        """What each shadow has found, and how many requests are under way; no payloads."""
        listed = [
            {"name": shadow.name, "model": shadow.target, "share": shadow.share, **shadow.drift.as_dict()}
            for shadow in self._held.values()
        ]
        return {"shadows": listed, "under_way": self._under_way, "most_under_way": _MOST}


def _see_alike(model: Model, other: Model) -> None:
    """See that one model's answers can be compared with another's.

    Raises:
        PenstockError: they cannot.
    """
    why = difference(model.signature, other.signature, model.name, other.name)
    if why is not None:
        raise PenstockError(f"the models must take and give the same: {why}")
