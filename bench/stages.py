"""What a server says of its own time: its statistics extension, over HTTP and gRPC."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Those of the whole, of the queue, and of computing.
_WORDS = ("success", "queue", "compute_infer")
# Copies in and out of the model are part of its computing.
_BESIDE = ("compute_input", "compute_output")


@dataclass(frozen=True)
class Stages:
    """What the server has counted: requests, and the seconds of all of them, in all, queued and computing."""

    count: int
    total_s: float
    queue_s: float
    compute_s: float

    def plus(self, other: Stages, sign: int = 1) -> Stages:
        return Stages(
            self.count + sign * other.count,
            self.total_s + sign * other.total_s,
            self.queue_s + sign * other.queue_s,
            self.compute_s + sign * other.compute_s,
        )

    @property
    def least(self) -> float:
        return min(self.count, self.total_s, self.queue_s, self.compute_s)


_NONE = Stages(0, 0.0, 0.0, 0.0)
# By model and version: a route has several behind it.
Counted = Mapping[tuple[str, str], Stages]


def between(before: Counted, after: Counted) -> Stages | None:
    """What all versions together have done between two looks.

    None where that cannot be told: a version came or went, and took what it had counted with it, or its counters went
    back, since it was loaded anew.
    """
    if before.keys() != after.keys():
        return None
    done = [after[each].plus(before[each], -1) for each in after]
    if any(each.least < 0 for each in done):
        return None
    return functools.reduce(Stages.plus, done, _NONE)


def of_json(listed: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Stages]:
    """What each version of the model has counted.

    Args:
        listed: `model_stats` of /v2/models/MODEL/stats.

    Raises:
        KeyError, TypeError, ValueError: it has not the extension's form.
    """
    found = dict[tuple[str, str], Stages]()
    for each in listed:
        key = str(each.get("name", "")), str(each.get("version", ""))
        found[key] = found.get(key, _NONE).plus(_counted(each["inference_stats"]))
    return found


def _counted(said: Mapping[str, Any]) -> Stages:
    total, queue, compute = (int(said[word]["ns"]) for word in _WORDS)
    beside = sum(int(said[word]["ns"]) for word in _BESIDE)
    return Stages(int(said["success"]["count"]), total / 1e9, queue / 1e9, (compute + beside) / 1e9)


def of_messages(listed: Sequence[Any]) -> dict[tuple[str, str], Stages]:
    """The same of ModelStatistics' `model_stats`."""
    return of_json([_as_json(each) for each in listed])


def _as_json(stats: Any) -> dict[str, Any]:
    named = stats.inference_stats
    words = (*_WORDS, *_BESIDE)
    said = {word: {"count": getattr(named, word).count, "ns": getattr(named, word).ns} for word in words}
    return {"name": stats.name, "version": stats.version, "inference_stats": said}
