"""What clients have changed of a server, and which versions answer: told to the head of a family for the next engine.

It lies in memory that the engine makes and the head holds, so that it may be of any length, and is whole or not there.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from penstock.errors import PenstockError
from penstock.serve import control, wire
from penstock.serve.repository import Repository
from penstock.serve.routes import Weights
from penstock.serve.sharedmemory import Regions
from penstock.serve.supervised import Control
from penstock.serve.tracing import Tracer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kept:
    """What an engine was when it last said so.

    `versions` are of the models that answered, by name, and None of those that were to; `tracing` are the settings that
    clients changed, by model, and `traces` how many there were. All else is as its module has it.
    """

    versions: dict[str, int | None]
    unloaded: list[str]
    held_back: dict[str, str]
    routes: dict[str, Weights]
    logging: dict[str, Any]
    tracing: dict[str, dict[str, Any]]
    traces: int
    regions: list[dict[str, Any]]

    def place(self, name: str, path: Path) -> Path:
        """Where the version of a model lies that answered, if that is there; else its path."""
        folder = path / str(self.versions.get(name))
        return folder if folder.is_dir() else path

    def set_again(self, regions: Regions) -> None:
        """Log as clients had set it, and register the regions of shared memory that they had."""
        control.set_logging(self.logging)
        for region in self.regions:
            try:
                regions.register(**region)
            except PenstockError as error:
                log.error("shared memory region %r cannot be registered again: %s", region["name"], error)


_ADAPTER = TypeAdapter(Kept)


class Keeper:
    """Tells the head of a family what is to be kept, whenever that is another.

    Args:
        control: the way to the head.
        repository: the models.
        tracer: whose settings clients change.
        regions: of shared memory.
    """

    def __init__(self, control: Control, repository: Repository, tracer: Tracer, regions: Regions) -> None:
        self._control, self._repository, self._tracer, self._regions = control, repository, tracer, regions
        self._told = b""

    def keep(self) -> None:
        """Tell it now."""
        repository = self._repository
        found = Kept(
            {**dict.fromkeys(repository.failures), **{m.name: m.version for m in repository.models.values()}},
            sorted(repository.unloaded),
            {name: wire.told(why) for name, why in repository.held_back.items()},
            repository.routes.as_dict(),
            control.log_settings(),
            self._tracer.changed,
            self._tracer.written,
            self._regions.status(),
        )
        text = _ADAPTER.dump_json(found)
        if text == self._told:
            return
        with os.fdopen(os.memfd_create("penstock-kept", os.MFD_CLOEXEC), "wb") as memory:
            memory.write(text)
            memory.flush()
            if self._control.tell("kept", [memory.fileno()]):
                self._told = text


def read(fd: int) -> Kept:
    """What was kept in memory that a head holds."""
    return _ADAPTER.validate_json(os.pread(fd, os.fstat(fd).st_size, 0))
