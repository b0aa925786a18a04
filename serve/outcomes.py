"""How work ends that has no answer; each is raised to whoever waits for it."""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.runtimes import InstanceDead


class QueueFull(PenstockError):
    """The queue has no room for the rows; try again later."""


class Expired(PenstockError):
    """The deadline passed before the answer was there."""


class Unmeetable(Expired):
    """The deadline would pass before there could be an answer, by how long batches take."""


class Hung(InstanceDead):
    """A batch did not come back within the limit. Its thread cannot be ended, and is left to itself."""


class Closed(PenstockError):
    """The scheduler takes no more work."""
