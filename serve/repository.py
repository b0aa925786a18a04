"""The models of one server: those that answer, and those that do not, with the reason; loaded and unloaded by name."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric

from penstock.errors import PenstockError
from penstock.serve import declared
from penstock.serve.errors import RequestError
from penstock.serve.loading import ENDING, Loader, release
from penstock.serve.model import Model
from penstock.serve.routes import Routes, absent
from penstock.serve.shadow import Shadows

log = logging.getLogger(__name__)
UNLOADED = "unloaded"
MODES = ("explicit", "none", "poll")


@dataclass
class Repository:
    """Models by name, and by name why one is missing.

    `unloaded` are those that were taken out on purpose: nobody misses them while there are others. `held_back` says why
    a newer version does not answer, of models whose older one does. `open` loads a folder or file. `mode` is one of
    `MODES`. `ending` is set once the server has been told to end: it is not ready then, while its models still answer.
    `changed` is told whenever models or routes come or go, and `troubles` says why the server is not ready beside that.
    `away` says why it is not known yet which models there are.
    """

    models: dict[str, Model] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    unloaded: set[str] = field(default_factory=set)
    paths: list[Path] = field(default_factory=list)
    open: Callable[[Path], Model] | None = None
    mode: str = "explicit"
    held_back: dict[str, str] = field(default_factory=dict)
    routes: Routes = field(default_factory=Routes)
    shadows: Shadows | None = None
    away: str = ""
    load_failures: Counter[str] = field(default_factory=Counter)
    _loader: Loader = field(default_factory=Loader)
    ending: bool = False
    changed: Callable[[], None] = lambda: None
    troubles: Callable[[], list[str]] = list
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changes: set[asyncio.Task[None]] = field(default_factory=set)

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
        found += self.routes.problems(self.models) + self.troubles()
        return found or ([] if self.models else ["no model is loaded"])

    def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """Name, version, state and reason of each model, or of those that are ready, as the protocol lists them."""
        rows = [
            {
                "name": name,
                "version": str(model.version),
                "state": "READY" if model.ready else "UNAVAILABLE",
                "reason": self.held_back.get(name, "") if model.ready else "an instance died and is being restarted",
            }
            for name, model in self.models.items()
        ]
        missing = {**self.failures, **dict.fromkeys(self.unloaded, UNLOADED)}
        rows += [
            {"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason} for name, reason in missing.items()
        ]
        return sorted((row for row in rows if not ready or row["state"] == "READY"), key=lambda row: row["name"])

    @property
    def names(self) -> set[str]:
        """The names of all models that are served, or would be had they been loaded."""
        return {*self.models, *self.failures, *self.unloaded}

    def knows(self, name: str) -> bool:
        """Whether a model of that name is served, or would be had it been loaded."""
        return name in self.models or name in self.failures or name in self.unloaded

    def label(self, name: str) -> str:
        """What a request for that name is counted under: no label of its own for whatever a client makes up."""
        return name if name in self.models or name in self.routes.held else ""

    def find(self, name: str, version: str | None = None) -> Model:
        """The model that answers the next request for that name, and of that version if one is named.

        Raises:
            RequestError: there is none, or it could not be loaded.
        """
        model = self.models.get(name)
        if model is None:
            if (route := self.routes.held.get(name)) is not None:
                if (taken := route.take(self.models, version)) is None:
                    raise absent(name, route, version)
                return taken
            if self.away:
                raise RequestError(self.away, 503)
            if name in self.failures:
                raise RequestError(f"model {name!r} failed to load: {self.failures[name]}", 503)
            if name in self.unloaded:
                if self.mode != "explicit":
                    raise RequestError(
                        f"model {name!r} is not loaded; by --mode {self.mode} clients may not load it", 404
                    )
                step = f"POST /v2/repository/models/{name}/load loads it"
                raise RequestError(f"model {name!r} is not loaded; {step}", 404)
            served = ", ".join(sorted([*self.models, *self.routes.held])) or "none"
            raise RequestError(f"model {name[:128]!r} is not served; the models are {served}", 404)
        if version is not None and version != str(model.version):
            raise RequestError(
                f"version {version[:20]!r} of model {name!r} is not served; version {model.version} is", 404
            )
        return model

    def look(self, name: str, version: str | None = None) -> Model:
        """A model that tells what `find` finds, where nothing is to be computed; errors as there."""
        if (route := self.routes.held.get(name)) is None:
            return self.find(name, version)
        if (model := route.look(self.models, version)) is None:
            raise absent(name, route, version)
        return model

    def behind(self, name: str, version: str | None = None) -> list[Model]:
        """All models that `find` may find; errors as there."""
        look, route = self.look(name, version), self.routes.held.get(name)
        return [look] if route is None else route.served(self.models)

    def is_ready(self, name: str, version: str | None = None) -> bool:
        """Whether requests for that name would be answered."""
        try:
            return self.look(name, version).ready and not self.ending
        except RequestError:
            return False

    def change_routes(self, wanted: dict[str, Any]) -> None:
        """Replace all routes, as a client asks.

        Raises:
            RequestError: clients may not, or a route cannot be.
        """
        if self.mode == "none":
            raise RequestError("failed to change the routes: by --mode none nobody may", 403)
        try:
            self.routes.change(wanted, self.names, self.models)
        except PenstockError as error:
            raise RequestError(str(error)) from None
        self.changed()

    async def load(self, name: str) -> None:
        """Load a model of the repository, or load it anew; the one that answers now does so until the new one is ready.

        Raises:
            RequestError: clients may not, there is none of that name, or it cannot be loaded; one that answered still
                does.
        """
        self._allow("load", name)
        path = await asyncio.to_thread(declared.path_of, self.paths, name)
        if path is None or self.open is None:
            raise RequestError(f"failed to load {name[:128]!r}, no such model is in the repository", 400)
        await self.renew(name, path)

    async def unload(self, name: str) -> None:
        """Take a model out; what it was asked before is still answered, and then its memory is free.

        Raises:
            RequestError: clients may not, or there is none of that name.
        """
        self._allow("unload", name)
        await self._whole(self._remove(name, on_purpose=True))

    async def renew(self, name: str, path: Path, excuses: Callable[[], bool] | None = None) -> None:
        """Load what lies at `path`, whoever may: checked, replayed and warm before it takes its predecessor's place.

        A failure that `excuses` makes nothing of is no failure of the model's: it will be tried again. It is asked
        beside the event loop.

        Raises:
            RequestError: it cannot be loaded; one that answered still does.
        """
        await self._whole(self._renew(name, path, excuses))

    async def remove(self, name: str) -> None:
        """Take out a model that is no longer in the repository."""
        await self._whole(self._remove(name, on_purpose=False))

    def start(self) -> None:
        """Look after the models from now on; to be called on the event loop."""
        for model in self.models.values():
            model.scheduler.start()

    async def close(self) -> None:
        """Drain every model."""
        self._loader.close()
        await asyncio.gather(*(model.scheduler.close() for model in self.models.values()))

    def families(self) -> Iterator[Metric]:
        """Figures of the repository itself."""
        failed = CounterMetricFamily(
            "penstock_model_load_failures", "Loads of a model or of a version that failed.", labels=("model",)
        )
        for name, count in self.load_failures.items():
            failed.add_metric((name,), count)
        yield failed
        yield from self.routes.families()
        if self.shadows is not None:
            yield from self.shadows.families()

    def note_failure(self, name: str, error: Exception) -> None:
        """Keep why a model, or a version of one that answers, could not be loaded."""
        self.load_failures[name] += 1
        if (served := self.models.get(name)) is not None:
            self.held_back[name] = f"version {served.version} answers; what is to replace it cannot be loaded: {error}"
            return
        self.failures[name] = str(error)
        self.unloaded.discard(name)
        self.changed()

    def _allow(self, verb: str, name: str) -> None:
        """Refuse what clients may not do.

        Raises:
            RequestError: the mode is another.
        """
        if self.mode != "explicit":
            why = "the repository's folders alone say what is served" if self.mode == "poll" else "nobody may"
            raise RequestError(f"failed to {verb} {name[:128]!r}: by --mode {self.mode} {why}", 403)

    async def _whole(self, change: Coroutine[Any, Any, None]) -> None:
        """Make a change to its end, also if whoever asked for it goes away: a model half loaded would stay for ever."""
        task = asyncio.ensure_future(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    async def _renew(self, name: str, path: Path, excuses: Callable[[], bool] | None) -> None:
        assert self.open is not None
        async with self._changing:
            try:
                model = await self._loader.load(self.open, path, name)
                await self._check_routes(model)
            except Exception as error:
                if excuses is not None and await asyncio.to_thread(excuses):
                    log.info("%s changed while it was loaded, and will be tried again", name)
                else:
                    log.error("%s cannot be loaded: %s", name, error)
                    self.note_failure(name, error)
                raise RequestError(f"failed to load {name!r}, {error}", 400) from None
            former = self.models.pop(name, None)
            self.models[name] = model
            model.scheduler.start()
            if former is not None and former.version != model.version:
                former.forget()
            self.failures.pop(name, None)
            self.held_back.pop(name, None)
            self.unloaded.discard(name)
            self.changed()
            log.info("%s version %s is loaded", name, model.version)
        if former is not None:
            await release(former)

    async def _remove(self, name: str, *, on_purpose: bool) -> None:
        async with self._changing:
            if not self.knows(name):
                raise RequestError(f"failed to unload {name[:128]!r}, no such model is in the repository", 400)
            former = self.models.pop(name, None)
            self.failures.pop(name, None)
            self.held_back.pop(name, None)
            self.unloaded.discard(name)
            if on_purpose:
                self.unloaded.add(name)
            else:
                self.load_failures.pop(name, None)  # names come and go
                if former is not None:
                    former.forget()
            self.changed()
            log.info("%s is unloaded", name)
        if former is not None:
            await release(former)

    async def _check_routes(self, model: Model) -> None:
        try:
            self.routes.check(model, self.models)
        except PenstockError:
            await model.scheduler.close()
            raise
