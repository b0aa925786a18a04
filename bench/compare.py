"""Two results of other times compared, cell by cell: whether anything became slower, beyond noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from penstock.bench import contrast, facts, pairs, rounds, statistics
from penstock.bench.contrast import Contrast
from penstock.bench.facts import Change
from penstock.bench.pairs import Item, Key, Pair
from penstock.bench.recorded import Engines, Result
from penstock.bench.shares import wilson
from penstock.errors import PenstockError

# Of all comparisons of two results together: the chance that noise makes any of their intervals leave out the truth.
FAMILY_ERROR = 0.01
Verdict = Literal["slower", "faster", "same", "unsure", "worse"]


@dataclass(frozen=True)
class Compared:
    """One figure of one cell or run in both results: seconds, or a second's requests.

    `contrast` is how many times as long the new one takes; None where `unable` says why there is none.
    """

    what: str
    figure: str
    old: float
    new: float
    contrast: Contrast | None
    verdict: Verdict
    unable: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Two results compared; `clocked` tells whether the machine's own speed was taken out."""

    compared: tuple[Compared, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]
    threshold: float
    clocked: bool

    @property
    def regressions(self) -> list[Compared]:
        return [one for one in self.compared if one.verdict in ("slower", "worse")]

    @property
    def untold(self) -> list[Compared]:
        """What is in both and could not be compared: there the new one may be slower, or not."""
        return [one for one in self.compared if one.unable is not None]


def compare(old: Result, new: Result, threshold: float) -> Comparison:
    """Compare what two results have in common.

    All intervals together hold the truth with 99 %: each is given the confidence 1 - 0.01/m, m being how many there are
    (Bonferroni). What counts as slower is told by `Contrast.slower`.

    Args:
        old: the one that the other is held against.
        new: of the same kind.
        threshold: the slow-down that counts at least, 0.05 for 5 %.

    Raises:
        PenstockError: they are of two kinds, or have nothing in common.
    """
    before, after = pairs.items(old), pairs.items(new)
    both = [key for key in before if key in after]
    if type(old) is not type(new) or not both:
        raise PenstockError(_nothing(old, new, before, after))
    clocked = isinstance(old, Engines) and bool(old.clock.rounds_s and new.clock.rounds_s)
    found = [pair for key in both for pair in pairs.of(before[key], after[key], old, new)]
    found += pairs.together([pair for pair in found if pair.model])
    able = sum(pair.unable is None for pair in found)
    confidence = 1 - FAMILY_ERROR / max(1, able)
    differ = facts.changes(old.environment, new.environment)
    return Comparison(
        compared=tuple(_judged(pair, confidence, threshold) for pair in found),
        only_old=tuple(pairs.title(before[key]) for key in before if key not in after),
        only_new=tuple(pairs.title(after[key]) for key in after if key not in before),
        changes=tuple(differ),
        warnings=tuple(_warnings(old, new, differ, clocked)),
        threshold=threshold,
        clocked=clocked,
    )


def _nothing(old: Result, new: Result, before: dict[Key, Item], after: dict[Key, Item]) -> str:
    if type(old) is not type(new):
        return f"--compare: the one is of {old.kind}, the other of {new.kind}; both must be of one kind"
    held = [", then ".join(dict.fromkeys(map(pairs.title, items.values()))) or "nothing" for items in (before, after)]
    return f"--compare: nothing is in both: the old result has {held[0]:.300}; the new one {held[1]:.300}"


def _judged(pair: Pair, confidence: float, threshold: float) -> Compared:
    if pair.unable is not None:
        return Compared(pair.what, pair.figure, pair.old, pair.new, None, "unsure", pair.unable)
    if pair.failures is not None:
        verdict: Verdict = "worse" if _fails_more(*pair.failures, confidence) else "same"
        return Compared(pair.what, pair.figure, pair.old, pair.new, None, verdict)
    if pair.rounds is not None:
        beside = pair.counted.variance if pair.counted else 0.0
        found = contrast.between(*pair.rounds, confidence, pair.loads, beside)
    else:
        assert pair.intervals is not None
        found = contrast.of_intervals(*pair.intervals, statistics.CONFIDENCE, confidence)
    return Compared(pair.what, pair.figure, pair.old, pair.new, found, _verdict(found, threshold))


def _verdict(found: Contrast, threshold: float) -> Verdict:
    if found.slower(threshold):
        return "slower"
    if found.faster(threshold):
        return "faster"
    return "unsure" if found.high > 1 + threshold else "same"


def _fails_more(failed: int, asked: int, fails: int, asks: int, confidence: float) -> bool:
    """Whether the share of failures has grown for certain: Wilson's intervals (1927) of the two lie apart."""
    return wilson(fails, asks, confidence)[0] > wilson(failed, asked, confidence)[1]


def _warnings(old: Result, new: Result, differ: list[Change], clocked: bool) -> Iterator[str]:
    if any(change.of_machine for change in differ):
        yield "the machines differ: what follows compares machines as much as programs"
    elif not old.environment or not new.environment:
        yield "a result tells nothing of its machine: whether the two are of the same one is not known"
    if old == new:
        yield "both files hold one and the same measurement"
    if isinstance(old, Engines) and isinstance(new, Engines):
        yield from rounds.peaks(old, new)
    if not clocked and isinstance(old, Engines):
        yield "no clock in both results: a machine that became slower looks like a slower program"
    for name, result in (("old", old), ("new", new)):
        if result.interrupted:
            yield f"the {name} result was interrupted"
        for warned in result.warnings:
            yield f"the {name} result warns: {warned.text}"
