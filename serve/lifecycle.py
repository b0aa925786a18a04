"""What the operator says of the models' coming and going, and the repository that keeps to it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError
from penstock.serve import declared, loading, memory
from penstock.serve.errors import nearest_first
from penstock.serve.kept import Kept
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, load
from penstock.serve.polling import Poll
from penstock.serve.repository import MODES, Repository
from penstock.serve.routes import Routes, Weights
from penstock.serve.shadow import Shadows

log = logging.getLogger(__name__)
POLL_S = 15.0
# A server that says that it is ready is as fast as it will be, unless that takes longer.
_SETTLE_S = 10.0
# Starts something in the server's event loop, and gives what stops it within seconds.
Beside = Callable[[], Awaitable[Callable[[float], Awaitable[None]]]]


@dataclass(frozen=True)
class Lifecycle:
    """Which models are loaded, when, and who may change it.

    `mode` is Triton's model control mode; `poll_s` are the seconds between two looks at the folders, where it is poll;
    `only` names the models to begin with, where it is explicit: none named are all. `routes` are weights by target, by
    route, as `routes.parse` reads them, and `shadows` as `shadow.parse` does.
    """

    mode: str = "explicit"
    poll_s: float | None = None
    only: tuple[str, ...] = ()
    routes: dict[str, Weights] = field(default_factory=dict)
    shadows: tuple[tuple[str, str, float], ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PenstockError(f"--mode {self.mode[:40]!r}: must be one of {', '.join(MODES)}")
        if self.poll_s is not None and self.mode != "poll":
            raise PenstockError(f"--poll-s {self.poll_s:g}: says how often folders are looked at: add --mode poll")
        if self.only and self.mode != "explicit":
            raise PenstockError(
                f"--load {self.only[0][:128]}: goes with --mode explicit alone, in which clients may load the others; "
                f"by --mode {self.mode} nobody could"
            )


def open_with(
    paths: list[Path], limits: Limits, metrics: Metrics, lifecycle: Lifecycle, before: Kept | None = None
) -> tuple[Repository, list[Beside]]:
    """The repository, and what is to run beside the server that answers for it; as it was `before`, if it was.

    Raises:
        PenstockError: as by `open_repository`, or a route or shadow cannot be.
    """
    beside: list[Beside] = []
    if before is None and lifecycle.mode != "poll" and (lifecycle.routes or lifecycle.shadows):
        _check_names(declared.by_name(paths), lifecycle)
    poll = Poll(paths) if lifecycle.mode == "poll" else None
    repository = open_repository(paths, limits, metrics, lifecycle.mode, lifecycle.only, before)
    may_come = lifecycle.mode == "poll"
    known, routes = repository.names, repository.routes
    if before is None:
        routes.change(lifecycle.routes, known, repository.models, called="--route", may_come=may_come)
    else:
        _route_again(repository, before)
    for target in sorted(routes.targets - known):
        log.warning("--route leads to %r, which is still to come: %s", target, nearest_first(target, known))
    if lifecycle.shadows:
        repository.shadows = Shadows(repository.models, lifecycle.shadows)
        repository.shadows.check(known, routes, may_come=may_come)
        beside.append(repository.shadows.start)
    if poll is not None:
        beside.append(functools.partial(poll.start, repository, lifecycle.poll_s or POLL_S))
    return repository, beside


def settle(repository: Repository, is_over: Callable[[], bool]) -> None:
    """Give models a while for what they still prepare in the background, as batches for a GPU, unless all is over."""
    loading.settle(list(repository.models.values()), _SETTLE_S, is_over)


def _check_names(known: Collection[str], lifecycle: Lifecycle) -> None:
    """See that routes and shadows lead to models that there are, before those are loaded for nothing.

    Raises:
        PenstockError: one does not, or cannot be.
    """
    routes = Routes()
    routes.change(lifecycle.routes, known, {}, called="--route")
    Shadows({}, lifecycle.shadows).check(known, routes)


def _route_again(repository: Repository, before: Kept) -> None:
    """Have the routes that there were, but for those that cannot be any more."""
    routes = repository.routes
    for name, weights in before.routes.items():
        try:
            routes.change({**routes.as_dict(), name: weights}, repository.names, repository.models, may_come=True)
        except PenstockError as error:
            log.error("a route is gone that there was before the engine was restarted: %s", error)


def open_repository(
    paths: list[Path],
    limits: Limits,
    metrics: Metrics,
    mode: str = "explicit",
    only: Collection[str] = (),
    before: Kept | None = None,
) -> Repository:
    """Load every model under `paths`, or `only` those. One that fails is listed with its reason; the others serve.

    After an engine that ended, those that answered `before`, in the versions that did; by `--mode poll` the folders say
    what is served, and such a version answers where a newer one cannot.

    Raises:
        PenstockError: a path is missing or holds no models, two models have one name, or one of `only` is not there.
    """
    repository = Repository(paths=paths, open=lambda path: load(path, limits, metrics), mode=mode)
    named = declared.by_name(paths, none_yet=mode == "poll")
    for name in only:
        if name not in named:
            raise PenstockError(f"--load {name[:128]}: no such model; the models are {', '.join(sorted(named))}")
    memory.keep_together()
    places = {name: [path] for name, path in named.items() if not only or name in only}
    repository.unloaded.update(named.keys() - places.keys())
    if before is not None and mode == "poll":
        places = {name: list(dict.fromkeys((path, before.place(name, path)))) for name, path in named.items()}
    elif before is not None:
        places = {name: [before.place(name, named[name])] if name in named else [] for name in before.versions}
        repository.unloaded, repository.held_back = set(before.unloaded), dict(before.held_back)
    for name, held in places.items():
        _open_first(repository, name, held)
        metrics.ready(name, is_ready=name in repository.models)
    memory.give_back()
    return repository


def _open_first(repository: Repository, name: str, places: list[Path]) -> None:
    """Have the first model of a name that can be loaded; why the one before it cannot is kept."""
    assert repository.open is not None
    failure: PenstockError | None = None if places else PenstockError("it is not in the repository any more")
    for path in places:
        try:
            repository.models[name] = declared.opened(repository.open, path, name)
            break
        except PenstockError as error:
            failure = failure or error
        except Exception as error:  # one model must not keep the others from serving
            log.exception("%s cannot be loaded", path)
            failure = failure or PenstockError(f"{type(error).__name__}: {error}")
    if failure is not None:
        repository.note_failure(name, failure)


def together(besides: list[Beside]) -> Beside:
    """Several things beside the server as one; they are stopped in the order in which they were started."""

    async def start() -> Callable[[float], Awaitable[None]]:
        stops = [await beside() for beside in besides]

        async def stop(within_s: float) -> None:
            for each in stops:
                await each(within_s)

        return stop

    return start
