"""The models of one server: those that answer, and those that do not, with the reason; loaded and unloaded by name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import artifact
from penstock.errors import PenstockError
from penstock.serve.errors import RequestError
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model, load

log = logging.getLogger(__name__)
UNLOADED = "unloaded"
ENDING = "the server is shutting down"


@dataclass
class Repository:
    """Models by name, and by name why one is missing.

    `unloaded` are those that were taken out on purpose: nobody misses them while there are others. `open` loads a
    folder or file.
    `ending` is set once the server has been told to end: it is not ready any more, while its models still answer.
    """

    models: dict[str, Model] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    unloaded: set[str] = field(default_factory=set)
    paths: list[Path] = field(default_factory=list)
    open: Callable[[Path], Model] | None = None
    ending: bool = False
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def problems(self) -> list[str]:
        """Why the server is not ready: each declared model that does not answer, or that there is none."""
        if self.ending:
            return [ENDING]
        found = [f"model {name!r} failed to load: {reason}" for name, reason in self.failures.items()]
        found += [
            f"model {name!r} has an instance that is dead, or that no longer comes back"
            for name, model in self.models.items()
            if not model.ready
        ]
        return found or ([] if self.models else ["no model is loaded"])

    def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """Name, version, state and reason of each model, or of those that are ready, as the protocol lists them."""
        rows = [
            {
                "name": model.name,
                "version": str(model.version),
                "state": "READY" if model.ready else "UNAVAILABLE",
                "reason": "" if model.ready else "an instance died and is being restarted",
            }
            for model in self.models.values()
        ]
        missing = {**self.failures, **dict.fromkeys(self.unloaded, UNLOADED)}
        rows += [
            {"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason} for name, reason in missing.items()
        ]
        return sorted((row for row in rows if not ready or row["state"] == "READY"), key=lambda row: row["name"])

    def label(self, name: str) -> str:
        """What a request for that name is counted under: no label of its own for whatever a client makes up."""
        return name if name in self.models else ""

    def find(self, name: str, version: str | None = None) -> Model:
        """The model of that name, and of that version if one is named.

        Raises:
            RequestError: there is none, or it could not be loaded.
        """
        model = self.models.get(name)
        if model is None:
            if name in self.failures:
                raise RequestError(f"model {name!r} failed to load: {self.failures[name]}", 503)
            if name in self.unloaded:
                raise RequestError(f"model {name!r} has been unloaded", 404)
            served = ", ".join(sorted(self.models)) or "none"
            raise RequestError(f"model {name[:128]!r} is not served; the models are {served}", 404)
        if version is not None and version != str(model.version):
            raise RequestError(
                f"version {version[:20]!r} of model {name!r} is not served; version {model.version} is", 404
            )
        return model

    async def load(self, name: str) -> None:
        """Load a model of the repository, or load it anew; the one that answers now does so until the new one is ready.

        Raises:
            RequestError: there is none of that name, or it cannot be loaded; one that answered still does.
        """
        async with self._changing:
            path = next((path for path in artifact.find(self.paths) if declared_name(path) == name), None)
            if path is None or self.open is None:
                raise RequestError(f"failed to load {name[:128]!r}, no such model is in the repository", 400)
            try:
                model = await asyncio.to_thread(_opened, self.open, path, name)
            except Exception as error:
                log.error("%s cannot be loaded: %s", name, error)
                if name not in self.models:
                    self.failures[name] = str(error)
                    self.unloaded.discard(name)
                raise RequestError(f"failed to load {name!r}, {error}", 400) from None
            former = self.models.pop(name, None)
            self.models[name] = model
            self.failures.pop(name, None)
            self.unloaded.discard(name)
            log.info("%s version %s is loaded", name, model.version)
        if former is not None:
            await former.scheduler.close()

    async def unload(self, name: str) -> None:
        """Take a model out; what it was asked before is still answered.

        Raises:
            RequestError: there is none of that name.
        """
        async with self._changing:
            if name not in self.models and name not in self.failures and name not in self.unloaded:
                raise RequestError(f"failed to unload {name[:128]!r}, no such model is in the repository", 400)
            former = self.models.pop(name, None)
            self.failures.pop(name, None)
            self.unloaded.add(name)
            log.info("%s is unloaded", name)
        if former is not None:
            await former.scheduler.close()

    async def close(self) -> None:
        """Drain every model."""
        for model in self.models.values():
            await model.scheduler.close()


def open_repository(paths: list[Path], limits: Limits, metrics: Metrics) -> Repository:
    """Load every model under `paths`. One that fails is listed with its reason; the others serve.

    Raises:
        PenstockError: a path is missing or holds no models, or two models have one name.
    """
    repository = Repository(paths=paths, open=lambda path: load(path, limits, metrics))
    for path in artifact.find(paths):
        name = declared_name(path)
        if name in repository.models or name in repository.failures:
            raise PenstockError(f"{path}: a model named {name!r} is already declared; names must differ")
        try:
            repository.models[name] = _opened(lambda path: load(path, limits, metrics), path, name)
        except PenstockError as error:
            repository.failures[name] = str(error)
        except Exception as error:  # one model must not keep the others from serving
            log.exception("%s cannot be loaded", path)
            repository.failures[name] = f"{type(error).__name__}: {error}"
        metrics.ready(name, is_ready=name in repository.models)
    return repository


def _opened(open: Callable[[Path], Model], path: Path, name: str) -> Model:
    model = open(path)
    if model.name != name:
        raise PenstockError(f"{path}: its receipt names it {model.name!r}; the folder's name must be that")
    return model


def declared_name(path: Path) -> str:
    """The model's name: its file's, or that of its folder, or of the folder above a version folder."""
    if path.is_file():
        return path.stem
    resolved = path.resolve()
    return resolved.parent.name if (path / artifact.RECEIPT).is_file() and path.name.isdigit() else resolved.name
