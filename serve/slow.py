"""The slowest requests of the last minutes, and where their time went: what `/debug/slow` tells."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response

from penstock.serve.errors import RequestError
from penstock.serve.records import Record, moment

_MOST_LISTED = 1000


@dataclass
class Window:
    """The slowest requests of one model that ended before `ends`; a heap, the least slow first."""

    ends: float
    held: list[tuple[float, int, dict[str, Any]]] = field(default_factory=list)


@dataclass
class OfModel:
    """One model's windows, oldest first.

    A request is worth a look if it took longer than `least`, or ended at or after `ends`: all others cost these two
    comparisons.
    """

    windows: deque[Window]
    least: float = -1.0
    ends: float = -math.inf


class Slow:
    """Keeps the `most` slowest requests of each model in each of the last `windows` windows, and nothing else.

    Args:
        most: of one window.
        windows: how many are looked back on, the one that runs included.
        window_s: how long each is, in seconds.
        clock: that `Record.started` is of.
    """

    def __init__(
        self, most: int = 50, windows: int = 5, window_s: float = 60.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.most, self.windows, self.window_s = most, windows, window_s
        self.models: dict[str, OfModel] = {}
        self._clock, self._numbers = clock, itertools.count()
        self._since = -1

    def note(self, record: Record, now: float) -> None:
        """Look at a request that ended now, which may be among the slowest."""
        kept = self._of(record.model, now)
        if record.total_s <= kept.least:
            return
        self._keep(kept, record.total_s, {"when": moment(), **record.as_dict()})

    def _keep(self, kept: OfModel, total_s: float, told: dict[str, Any]) -> None:
        held, entry = kept.windows[-1].held, (total_s, next(self._numbers), told)
        if len(held) < self.most:
            heapq.heappush(held, entry)
        else:
            heapq.heapreplace(held, entry)
        if len(held) == self.most:
            kept.least = held[0][0]

    def taken(self) -> list[tuple[str, float, dict[str, Any]]]:
        """Requests kept since this was last asked, for another process: model, seconds, and what is told.

        Those that slower ones have taken the place of are not among them, nor those that ended more than two windows
        ago: nobody may ask for days, and whoever does takes them for new ones.
        """
        since, self._since, oldest = self._since, next(self._numbers), self._clock() - self.window_s
        return [
            (model, total_s, told)
            for model, kept in self.models.items()
            for window in kept.windows
            if window.ends > oldest
            for total_s, number, told in window.held
            if number > since
        ]

    def add(self, taken: Iterable[tuple[str, float, dict[str, Any]]]) -> None:
        """Look at requests that another process has kept, a moment ago."""
        for model, total_s, told in taken:
            kept = self._of(model, self._clock())
            if total_s > kept.least:
                self._keep(kept, total_s, told)

    def _of(self, model: str, now: float) -> OfModel:
        """What is kept of a model, with a window that now is in."""
        kept = self.models.get(model)
        if kept is None:
            kept = self.models[model] = OfModel(deque(maxlen=self.windows))
        if now >= kept.ends:
            kept.ends = now + self.window_s
            kept.least = -1.0
            kept.windows.append(Window(kept.ends))
        return kept

    def slowest(self, limit: int, model: str | None = None) -> list[dict[str, Any]]:
        """The slowest requests of all models or of one, the slowest first."""
        oldest = self._clock() - (self.windows - 1) * self.window_s
        found = [
            entry
            for name, kept in self.models.items()
            if model is None or name == model
            for window in kept.windows
            if window.ends >= oldest
            for entry in window.held
        ]
        return [told for *_, told in heapq.nlargest(limit, found, key=lambda entry: entry[:2])]


def add(app: FastAPI, slow: Slow, gather: Callable[[], Awaitable[None]]) -> None:
    """Add the route; `gather` has other processes say what they have kept."""

    @app.get("/debug/slow", tags=["health"])
    async def slowest(request: Request) -> Response:
        limit, model = _asked(request)
        await gather()
        told = {
            "minutes": round(slow.windows * slow.window_s / 60, 3),
            "kept_of_each_model_and_window": slow.most,
            "now": moment(),
            "requests": slow.slowest(limit, model),
        }
        return Response(orjson.dumps(told, option=orjson.OPT_INDENT_2), media_type="application/json")


def _asked(request: Request) -> tuple[int, str | None]:
    for key in request.query_params:
        if key not in ("limit", "model"):
            raise RequestError(f"query parameter {key[:40]!r} is unknown; it must be one of limit, model")
    text = request.query_params.get("limit", "50")
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= _MOST_LISTED:
        raise RequestError(f"limit is {text[:20]!r}; it must be a number from 1 to {_MOST_LISTED}")
    return int(text), request.query_params.get("model")
