"""What a front end does as its engine says: which models and routes there are, which regions of shared memory, what is
traced, shadowed and logged."""

from __future__ import annotations

import logging
from typing import Any, cast

from penstock import preprocessing
from penstock.errors import PenstockError
from penstock.serve import control, frames
from penstock.serve.remote import AWAY, EngineLink, RemoteModel
from penstock.serve.repository import Repository
from penstock.serve.routes import Route, Weights
from penstock.serve.shadow import Shadow
from penstock.serve.sharedmemory import Regions
from penstock.serve.times import Times
from penstock.serve.tracing import Tracer
from penstock.signature import Arrays

log = logging.getLogger(__name__)


class Mirror:
    """A front end's image of its engine.

    Args:
        regions: kept as the engine's are.
    """

    def __init__(self, regions: Regions) -> None:
        self.repository, self.tracer = Repository(away=AWAY), RemoteTracer()
        self._regions = regions
        self._link: EngineLink | None = None

    @property
    def link(self) -> EngineLink | None:
        """The way to the engine, while there is one."""
        return self._link

    def ended(self, link: EngineLink) -> bool:
        """Told that a way to an engine has ended; whether it was the one in use."""
        if self._link is not link:
            return False
        self._link = self.tracer.link = None
        return True

    def follow(self, link: EngineLink, state: dict[str, Any]) -> None:
        """Be as the engine at the other end of a way says that it is."""
        known = self._link is link
        self._link = self.tracer.link = link
        self._follow_models(state["models"], known=known)
        repository = self.repository
        repository.away, repository.mode = "", state["mode"]
        repository.failures, repository.unloaded = state["failures"], set(state["unloaded"])
        routes = repository.routes.held
        repository.routes.held = {
            name: routes[name]
            if name in routes and routes[name].weights == weights
            else _route(weights, routes.get(name))
            for name, weights in state["routes"].items()
        }
        shadows = RemoteShadows(link, state["shadows"])
        if not shadows.like(repository.shadows):
            repository.shadows = cast("Any", shadows if state["shadows"] else None)
        self.tracer.wanted = state["traced"]
        control.set_logging(state["logging"])
        self._follow_regions(state["regions"])

    def _follow_models(self, told: list[dict[str, Any]], *, known: bool) -> None:
        assert self._link is not None
        before = cast("dict[str, RemoteModel]", self.repository.models)
        old = {model.id: model for model in before.values()} if known else {}
        found = [old.get(model["id"]) or RemoteModel(model, self._link) for model in told]
        for model in found if not known else ():  # later others are being answered
            _warm(model)
        for model in before.values():
            model.scheduler.closed = all(model is not other for other in found)
        self.repository.models = cast("dict[str, Any]", {model.name: model for model in found})

    def _follow_regions(self, told: list[dict[str, Any]]) -> None:
        held = {region["name"]: region for region in self._regions.status()} if self._regions.allowed else {}
        wanted = {region["name"]: region for region in told}
        for name in [name for name, region in held.items() if wanted.get(name) != region]:
            self._regions.unregister(name)
        for name, region in wanted.items():
            if held.get(name) != region:
                try:
                    self._regions.register(**region)
                except PenstockError as error:  # the segment is gone again
                    log.warning("shared memory region %r: %s", name, error)


def _warm(model: RemoteModel) -> None:
    """Have the first picture or text be kept waiting by nothing."""
    if model.receipt is None or model.receipt.preprocess is None:
        return
    try:
        preprocessing.warm(model.receipt.preprocess)
    except PenstockError as error:  # who sends some is told, too
        log.warning("%s: what clients send cannot be read: %s", model.name, error)


def _route(weights: Weights, before: Route | None) -> Route:
    """A route that goes on counting where the one before it was."""
    return Route(weights, None if before is None else before.counts)


class RemoteTracer(Tracer):
    """Tells the engine of each answered request, while anything is traced there."""

    wanted = False
    link: EngineLink | None = None

    def answered(self, model: str, version: int, request: str | None, times: Times) -> None:
        if self.wanted and self.link is not None:
            told = {"model": model, "version": version, "request": request, "stamps": times.stamps()}
            self.link.tell(frames.told(frames.TRACED, told))


class RemoteShadows:
    """Gives the engine the share of the answered requests that its shadows want.

    Args:
        link: the way to the engine.
        told: name, model and share of each.
    """

    def __init__(self, link: EngineLink, told: list[tuple[str, str, float]]) -> None:
        self._link, self._told = link, [tuple(each) for each in told]
        self._held = {name: Shadow(name, target, share) for name, target, share in told}

    def like(self, other: Any) -> bool:
        """Whether another gives the same."""
        return isinstance(other, RemoteShadows) and other._link is self._link and other._told == self._told

    def offer(self, name: str, model: Any, id: str | None, inputs: Arrays, outputs: Arrays) -> None:
        """As `Shadows.offer`."""
        shadow = self._held.get(name) or self._held.get(model.name)
        if shadow is None or shadow.target == model.name or not shadow.due():
            return
        told = {"shadow": shadow.name, "model": model.id, "id": id, "inputs": len(inputs)}
        # An input may bear an output's name.
        both = {f"{number} {name}": array for number, (name, array) in enumerate([*inputs.items(), *outputs.items()])}
        self._link.tell(frames.told_with(frames.SHADOWED, told, both))
