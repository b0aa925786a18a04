"""How far a model's answers are from another's for the same requests: figures for Prometheus, and the worst cases."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from penstock import parity
from penstock.parity import Distance
from penstock.serve.metrics import Distribution
from penstock.serve.model import Model
from penstock.serve.records import moment
from penstock.signature import Arrays

RESULTS = ("agreed", "differed", "failed", "dropped")
_ERRORS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_WORST = 10
# What is not finite would make the sum of a histogram so for ever.
_MOST_ERROR = 1e6
# Of models that no receipt vouches for: nobody has said how far apart they may be.
_UNSAID = parity.Limits(max_error=1e-3, min_agreement=1.0)


@dataclass(frozen=True)
class Difference:
    """One request's answers compared: each output's distance, and why they are not held to agree, or None."""

    distances: tuple[Distance, ...]
    rows: int
    why: str | None

    @property
    def error(self) -> float:
        """The largest relative error of its outputs."""
        return max((each.rel_l2 for each in self.distances), default=math.inf)


def compare(reference: Arrays, actual: Arrays, limits: dict[str, parity.Limits]) -> Difference:
    """Two models' outputs for one request, by `penstock.parity`; outputs of another shape are infinitely far.

    Args:
        reference: what the client was answered.
        actual: the other model's outputs.
        limits: for each output.
    """
    distances, whys = [], []
    for name, expected in reference.items():
        got = actual[name]
        if expected.shape != got.shape:
            far = Distance(output=name, max_abs=math.inf, rel_l2=math.inf, cosine=-1.0)
            why: str | None = f"it has shape {list(got.shape)}, not {list(expected.shape)}"
        else:
            far = _distance(name, expected, got)
            why = _failure(far, limits[name])
        distances.append(far)
        if why is not None:
            whys.append(f"output {name!r}: {why}")
    rows = max((len(array) for array in reference.values() if array.ndim), default=1)
    return Difference(tuple(distances), rows, "; ".join(whys) or None)


def _failure(distance: Distance, limits: parity.Limits) -> str | None:
    """The figure that leaves the limits, in words; of a class, also where it is the only one of its request."""
    if distance.entries and distance.rel_l2 > 1 - limits.min_agreement:
        return f"{distance.rel_l2:.2%} of its entries differ"
    return distance.failure(limits)


def _distance(name: str, expected: NDArray[Any], got: NDArray[Any]) -> Distance:
    if expected.dtype == object:  # texts are the same or not
        share = float(np.mean(expected != got)) if expected.size else 0.0
        return Distance(output=name, max_abs=share, rel_l2=share, cosine=1.0 - share, entries=expected.size)
    if expected.dtype.kind not in "fiub":  # bfloat16
        expected, got = expected.astype(np.float32), got.astype(np.float32)
    return parity.distance(name, expected, got)


def limits_between(first: Model, second: Model) -> dict[str, parity.Limits]:
    """How far the outputs of two models may be apart: what the receipt of the looser one allows it to be off."""
    found = {}
    for tensor in first.signature.outputs:
        told = [model.receipt.verification.limits[tensor.name] for model in (first, second) if model.receipt]
        found[tensor.name] = parity.Limits(
            max_error=max((held.max_error for held in told), default=_UNSAID.max_error),
            min_agreement=min((held.min_agreement for held in told), default=_UNSAID.min_agreement),
        )
    return found


class Drift:
    """What one shadow has found so far. All calls come on the event loop."""

    def __init__(self) -> None:
        self.counts = Counter(dict.fromkeys(RESULTS, 0))
        self.last_failure = ""
        self._errors: dict[str, Distribution] = {}
        self._rows = self._agreed = 0
        self._worst: list[tuple[float, int, dict[str, Any]]] = []
        self._numbers = itertools.count()

    def failed(self, why: str) -> None:
        """Count a request that the other model did not answer."""
        self.counts["failed"] += 1
        self.last_failure = why

    def found(self, difference: Difference, case: dict[str, Any]) -> None:
        """Count a comparison; `case` says which request it was, should it be among the worst."""
        self.counts["agreed" if difference.why is None else "differed"] += 1
        for distance in difference.distances:
            held = self._errors.setdefault(distance.output, Distribution(_ERRORS))
            held.observe(min(distance.rel_l2, _MOST_ERROR))
            if distance.agreement is not None:
                self._rows += difference.rows
                self._agreed += round(distance.agreement * difference.rows)
        if len(self._worst) == _WORST and difference.error <= self._worst[0][0]:
            return
        told = {
            **case,
            "when": moment(),
            "why": difference.why,
            "outputs": [_told(distance) for distance in difference.distances],
        }
        entry = (difference.error, -next(self._numbers), told)
        (heapq.heappush if len(self._worst) < _WORST else heapq.heappushpop)(self._worst, entry)

    def as_dict(self) -> dict[str, Any]:
        """Counts, top-1 agreement and the worst cases, the farthest first."""
        return {
            **self.counts,
            "top1_rows": self._rows,
            "top1_agreement": self._agreed / self._rows if self._rows else None,
            "last_failure": self.last_failure or None,
            "worst": [told for _, _, told in sorted(self._worst, key=lambda entry: entry[:2], reverse=True)],
        }

    @property
    def top1(self) -> tuple[int, int]:
        """Rows whose largest entry was compared, and those of them where it was the same one."""
        return self._rows, self._agreed

    def add_errors(self, family: HistogramMetricFamily, labels: tuple[str, str]) -> None:
        for output, held in self._errors.items():
            held.add_to(family, (*labels, output))


def _told(distance: Distance) -> dict[str, Any]:
    """A distance as JSON has it, which knows no infinity."""
    figures = {"rel_l2": distance.rel_l2, "max_abs": distance.max_abs, "top1_agreement": distance.agreement}
    finite = {key: value if value is None or math.isfinite(value) else None for key, value in figures.items()}
    return {"output": distance.output, **finite}


def families(drifts: Iterable[tuple[str, str, Drift]]) -> Iterator[Metric]:
    """Figures of shadows, each by the name whose requests it is given, its model, and what it found."""
    labels = ("name", "model")
    requests = CounterMetricFamily(
        "penstock_shadow_requests", "Requests that another model was given too.", labels=(*labels, "result")
    )
    errors = HistogramMetricFamily(
        "penstock_shadow_difference", "Relative L2 error against what was answered.", labels=(*labels, "output")
    )
    rows = CounterMetricFamily("penstock_shadow_rows", "Rows whose largest entry was compared.", labels=labels)
    agreed = CounterMetricFamily("penstock_shadow_rows_agreed", "Rows where it was the same one.", labels=labels)
    for name, model, drift in drifts:
        for result, count in drift.counts.items():
            requests.add_metric((name, model, result), count)
        drift.add_errors(errors, (name, model))
        for family, count in zip((rows, agreed), drift.top1, strict=True):
            family.add_metric((name, model), count)
    yield from (requests, errors, rows, agreed)
