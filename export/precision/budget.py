"""The budget: the fewest nodes kept in higher precision with which a lowered graph is still right.

Nodes are ranked by the error that each causes when it alone is lowered, the most harmful are kept until the graph
is within its budget, and each of those is then tried without: greedy, then trimmed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Protocol

from penstock import cache
from penstock.errors import PenstockError, Say
from penstock.export.precision.costs import Costs
from penstock.progress import bar
from penstock.receipt import Plan, PlanPoint

_KIND = "budget"
# What a plan must lower of the multiply-adds to be worth its error.
_LEAST_SHARE = 0.01


class Lowering(Protocol):
    """A graph that can be lowered node by node."""

    nodes: list[str]

    def graph(self, kept: Collection[str]) -> Any:
        """The graph with all of `nodes` lowered but those `kept`."""


@dataclass(frozen=True)
class Judgement:
    """How far a lowered graph is off its source, the accuracy it loses in points, and why it is no good, if so."""

    error: float
    drop: float | None
    failure: str | None


Judge = Callable[[Any], Judgement]


class Trials:
    """Judgements of a lowering, each made once: those of an earlier run that was interrupted are taken over."""

    def __init__(self, lowering: Lowering, judge: Judge, key: str) -> None:
        self._lowering, self._judge, self._key = lowering, judge, key
        self._known: dict[str, Any] = _read(key)
        self.taken_over = len(self._known)

    def of(self, kept: Iterable[str]) -> Judgement:
        """The judgement of the graph with these nodes kept."""
        nodes = sorted(kept)
        name = json.dumps(nodes)
        if name not in self._known:
            found = self._judge(self._lowering.graph(nodes))
            self._known[name] = (found.error, found.drop, found.failure)
            # What could not be run may be the machine's fault, and is tried again the next time.
            kept = {name: item for name, item in self._known.items() if isfinite(item[0])}
            cache.write(_KIND, self._key, json.dumps(kept).encode())
        return Judgement(*self._known[name])


def plan(lowering: Lowering, trials: Trials, quick: Trials, costs: Costs, say: Say) -> Plan:
    """Find the fewest nodes to keep in float32, if any, that bring a lowered graph within its budget.

    Args:
        lowering: the graph.
        trials: judges it on all samples.
        quick: judges it on few, for the ranking.
        costs: of each node.
        say: told each step, in a line.

    Raises:
        PenstockError: no graph is within the budget that lowers anything.
    """
    points = [_point(lowering, trials, (), costs)]
    first = trials.of(())
    if first.failure is None:
        return Plan(kept=(), points=tuple(points), lowered_operations=points[0].lowered_operations)
    say(f"all {len(lowering.nodes)} nodes lowered: {first.failure}; looking for those to keep in float32")
    if quick.taken_over:
        say(f"{quick.taken_over} trials of an earlier run are taken over")
    try:
        kept = _grown(rank(lowering, quick), trials, points, lowering, costs)
        kept = _trimmed(kept, trials, points, lowering, costs)
    except PenstockError:
        for line in curve(points):
            say(line)
        raise
    except KeyboardInterrupt:
        say("what was tried is kept: the same command goes on from here")
        raise
    points = sorted(set(points), key=lambda point: (len(point.kept), _error(point), point.kept))
    return Plan(
        kept=tuple(name for name in lowering.nodes if name in kept),
        points=tuple(points),
        lowered_operations=_point(lowering, trials, kept, costs).lowered_operations,
    )


def curve(points: Sequence[PlanPoint]) -> Iterator[str]:
    """The best point for each number of nodes kept, in lines: the error with them, and what is lowered then."""
    best: dict[int, PlanPoint] = {}
    for point in points:
        held = best.get(len(point.kept))
        if held is None or (point.within, -_error(point)) > (held.within, -_error(held)):
            best[len(point.kept)] = point
    for count, point in sorted(best.items()):
        drop = "" if point.drop is None else f", {point.drop:.2f} points of accuracy lost"
        # The error alone may be within its limit, where answers flip or one batch size is off.
        within = "within the budget" if point.within else f"over it: {point.failure}"
        if point.within and not point.lowered_operations:
            within += ", and nothing is gained"
        yield (
            f"  {count} kept in float32: error {_error(point):.2e}{drop}, {point.lowered_operations:.0%} of "
            f"multiply-adds lowered, {point.saved_bytes / 1e6:.2f} MB saved, {within}"
        )


def _error(point: PlanPoint) -> float:
    return inf if point.error is None else point.error


def rank(lowering: Lowering, quick: Trials) -> list[str]:
    """The nodes by the error that each causes when it alone is lowered, the most harmful first."""
    losses = {}
    with bar("ranking nodes", len(lowering.nodes)) as advance:
        for node in lowering.nodes:
            losses[node] = quick.of(name for name in lowering.nodes if name != node).error
            advance()
    return sorted(lowering.nodes, key=lambda node: -losses[node])


def _grown(
    ranked: Sequence[str], trials: Trials, points: list[PlanPoint], lowering: Lowering, costs: Costs
) -> list[str]:
    """The shortest start of the ranking that is within the budget: by doubling, then by halving."""

    def passes(count: int) -> bool:
        points.append(_point(lowering, trials, ranked[:count], costs))
        return trials.of(ranked[:count]).failure is None

    low, high = 0, 1
    while high < len(ranked) and not passes(high):
        low, high = high, high * 2
    if high >= len(ranked):
        high = len(ranked)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    nothing = any(costs.operations.values()) and costs.share(ranked[high:]) < _LEAST_SHARE
    if high == len(ranked) or nothing:
        lowered = f"{len(ranked) - high + 1} of {len(ranked)} nodes lowered"
        raise PenstockError(
            f"no plan is within the budget: {trials.of(ranked[: high - 1]).failure} with {lowered}, and with fewer, "
            f"under {_LEAST_SHARE:.0%} of the multiply-adds are; export it as fp32, try another --calibration, or "
            "widen --max-error or --accuracy-drop"
        )
    return list(ranked[:high])


def _trimmed(
    kept: Sequence[str], trials: Trials, points: list[PlanPoint], lowering: Lowering, costs: Costs
) -> list[str]:
    """The kept nodes without those that need not be: the heaviest are tried first, then the least harmful.

    Which of two nodes goes often decides whether the other must stay, and the heavier one is worth more when lowered.
    """
    left = list(kept)
    harmless_first = list(reversed(kept))
    order = sorted(harmless_first, key=lambda name: -costs.operations.get(name, 0))
    with bar("trimming the plan", len(kept)) as advance:
        for node in order:
            fewer = [name for name in left if name != node]
            points.append(_point(lowering, trials, fewer, costs))
            if trials.of(fewer).failure is None:
                left = fewer
            advance()
    return left


def _point(lowering: Lowering, trials: Trials, kept: Collection[str], costs: Costs) -> PlanPoint:
    found = trials.of(kept)
    lowered = [name for name in lowering.nodes if name not in set(kept)]
    return PlanPoint(
        kept=tuple(sorted(kept)),
        error=found.error if isfinite(found.error) else None,
        drop=found.drop,
        within=found.failure is None,
        failure=found.failure,
        lowered_operations=costs.share(lowered),
        saved_bytes=costs.saved_bytes(lowered),
    )


def _read(key: str) -> dict[str, Any]:
    """Judgements that were cached; a damaged file is none."""
    try:
        found = json.loads(cache.read(_KIND, key) or b"{}")
        for name, (error, drop, failure) in found.items():
            whole = (
                isinstance(error, float)
                and isfinite(error)
                and isinstance(drop, float | None)
                and isinstance(failure, str | None)
            )
            if not whole or not isinstance(json.loads(name), list):
                return {}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return dict(found)
