"""The models of one server: those that answer, and those that could not be loaded, with the reason."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import artifact
from penstock.errors import PenstockError
from penstock.serve.metrics import Metrics
from penstock.serve.model import Limits, Model, load

log = logging.getLogger(__name__)


@dataclass
class Repository:
    """Models by name, and by name why one is missing."""

    models: dict[str, Model] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """Why the server is not ready: each declared model that does not answer, or that there is none."""
        found = [f"model {name!r} failed to load: {reason}" for name, reason in self.failures.items()]
        found += [f"model {name!r} has a dead instance" for name, model in self.models.items() if not model.ready]
        return found or ([] if self.models else ["no model is loaded"])

    def index(self) -> list[dict[str, Any]]:
        """Name, version, state and reason of each model, as the repository extension of the protocol lists them."""
        rows = [
            {
                "name": model.name,
                "version": str(model.version),
                "state": "READY" if model.ready else "UNAVAILABLE",
                "reason": "" if model.ready else "an instance died and is being restarted",
            }
            for model in self.models.values()
        ]
        rows += [
            {"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason}
            for name, reason in self.failures.items()
        ]
        return sorted(rows, key=lambda row: row["name"])

    async def close(self) -> None:
        """Drain every model."""
        for model in self.models.values():
            await model.scheduler.close()


def open_repository(paths: list[Path], limits: Limits, metrics: Metrics) -> Repository:
    """Load every model under `paths`. One that fails is listed with its reason; the others serve.

    Raises:
        PenstockError: a path is missing or holds no models, or two models have one name.
    """
    repository = Repository()
    for path in artifact.find(paths):
        name = path.stem if path.is_file() else _declared_name(path)
        if name in repository.models or name in repository.failures:
            raise PenstockError(f"{path}: a model named {name!r} is already declared; names must differ")
        try:
            model = load(path, limits, metrics)
            if model.name != name:
                raise PenstockError(f"{path}: its receipt names it {model.name!r}; the folder's name must be that")
            repository.models[name] = model
        except PenstockError as error:
            repository.failures[name] = str(error)
        except Exception as error:  # one model must not keep the others from serving
            log.exception("%s cannot be loaded", path)
            repository.failures[name] = f"{type(error).__name__}: {error}"
        metrics.ready.labels(name).set(name in repository.models)
    return repository


def _declared_name(path: Path) -> str:
    """The model's name: that of its folder, or of the folder above a version folder."""
    resolved = path.resolve()
    return resolved.parent.name if (path / artifact.RECEIPT).is_file() and path.name.isdigit() else resolved.name
