"""What the operator says of the models' coming and going, and the repository that keeps to it."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import PenstockError
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits
from penstock.serve.polling import Poll
from penstock.serve.repository import MODES, Repository, open_repository
from penstock.serve.routes import Weights
from penstock.serve.shadow import Shadows

POLL_S = 15.0
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
    paths: list[Path], limits: Limits, metrics: Metrics, lifecycle: Lifecycle
) -> tuple[Repository, list[Beside]]:
    """The repository, and what is to run beside the server that answers for it.

    Raises:
        PenstockError: as by `open_repository`, or a route or shadow cannot be.
    """
    beside: list[Beside] = []
    poll = Poll(paths) if lifecycle.mode == "poll" else None
    repository = open_repository(paths, limits, metrics, lifecycle.mode, lifecycle.only)
    may_come = lifecycle.mode == "poll"
    repository.routes.change(lifecycle.routes, repository.knows, repository.models, may_come=may_come)
    if lifecycle.shadows:
        repository.shadows = Shadows(repository.models, lifecycle.shadows)
        repository.shadows.check(repository.knows, repository.routes, may_come=may_come)
        beside.append(repository.shadows.start)
    if poll is not None:
        beside.append(functools.partial(poll.start, repository, lifecycle.poll_s or POLL_S))
    return repository, beside


def together(besides: list[Beside]) -> Beside:
    """Several things beside the server as one; they are stopped in the order in which they were started."""

    async def start() -> Callable[[float], Awaitable[None]]:
        stops = [await beside() for beside in besides]

        async def stop(within_s: float) -> None:
            for each in stops:
                await each(within_s)

        return stop

    return start
