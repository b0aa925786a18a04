"""What a server says of its own time: its statistics extension, over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WORDS = {"total": "success", "queue": "queue", "compute": "compute_infer"}
# Copies in and out of the model are part of its computing.
_BESIDE = ("compute_input", "compute_output")


@dataclass(frozen=True)
class Stages:
    """What the server has counted: requests, and the seconds of all of them, in all, queued and computing."""

    count: int
    total_s: float
    queue_s: float
    compute_s: float

    def since(self, before: Stages) -> Stages:
        return Stages(
            self.count - before.count,
            self.total_s - before.total_s,
            self.queue_s - before.queue_s,
            self.compute_s - before.compute_s,
        )


def of_json(listed: Sequence[Mapping[str, Any]]) -> Stages:
    """Of all versions of the model together.

    Args:
        listed: `model_stats` of /v2/models/MODEL/stats.

    Raises:
        KeyError, TypeError, ValueError: it has not the extension's form.
    """

    def figure(word: str, what: str) -> float:
        return float(sum(int(each["inference_stats"][word][what]) for each in listed))

    seconds = {stage: figure(word, "ns") / 1e9 for stage, word in _WORDS.items()}
    beside = sum(figure(word, "ns") for word in _BESIDE) / 1e9
    return Stages(int(figure("success", "count")), seconds["total"], seconds["queue"], seconds["compute"] + beside)


def of_messages(listed: Sequence[Any]) -> Stages:
    """The same of ModelStatistics' `model_stats`."""
    return of_json([_as_json(each) for each in listed])


def _as_json(stats: Any) -> dict[str, Any]:
    named = stats.inference_stats
    words = (*_WORDS.values(), *_BESIDE)
    return {
        "inference_stats": {
            word: {"count": getattr(named, word).count, "ns": getattr(named, word).ns} for word in words
        }
    }
