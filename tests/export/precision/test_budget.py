"""Budgets: plans that are within them and no longer than they must be, and trials that are made once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, count, permutations
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import cache
from penstock.errors import PenstockError
from penstock.export.precision.budget import Judgement, Lowering, Trials, curve, plan, rank
from penstock.export.precision.costs import Costs
from penstock.receipt import Plan

Losses = Mapping[str, float]
_KEYS = count()


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this module's own; tests keep apart by their keys."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("budget") / "cache"
        patch.setenv("PENSTOCK_CACHE", str(path))
        yield path


class Nodes:
    """A lowering whose graph is the set of nodes kept."""

    def __init__(self, names: Collection[str]) -> None:
        self.nodes = list(names)

    def graph(self, kept: Collection[str]) -> frozenset[str]:
        assert set(kept) <= set(self.nodes)
        return frozenset(kept)


@dataclass
class Judge:
    """Judges by the sum of what each lowered node loses; notes what it was asked, and is interrupted after `most`."""

    losses: Losses
    budget: float = math.inf
    most: int | None = None
    asked: list[frozenset[str]] = field(default_factory=list)

    def error(self, kept: Collection[str]) -> float:
        return sum(loss for name, loss in self.losses.items() if name not in kept)

    def __call__(self, kept: frozenset[str]) -> Judgement:
        if self.most is not None and len(self.asked) == self.most:
            raise KeyboardInterrupt
        self.asked.append(kept)
        error = self.error(kept)
        over = error > self.budget
        return Judgement(error, error * 100, f"error {error:g} is over {self.budget:g}" if over else None)


def fresh() -> str:
    return f"key{next(_KEYS)}"


def planned(judge: Judge, quick: Judge | None = None, key: str | None = None, said: list[str] | None = None) -> Plan:
    """The plan for the nodes that a judge knows; costs are 1, 2, 4, … multiply-adds and 10, 20, 40, … weights."""
    key, lowering = key or fresh(), Nodes(judge.losses)
    quick = quick or Judge(judge.losses)
    say: Callable[[str], None] = lambda line: None if said is None else said.append(line)  # noqa: E731
    return plan(
        lowering, Trials(lowering, judge, key), Trials(lowering, quick, f"{key}quick"), costs_of(judge.losses), say
    )


def costs_of(losses: Losses) -> Costs:
    return Costs(
        {name: 3 + place for place, name in enumerate(losses)},
        {name: 10 << place for place, name in enumerate(losses)},
    )


# Whole numbers, so that a sum does not hang on its order.
TABLES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 1000)), min_size=1, max_size=12).map(
    lambda losses: {f"node{place}": float(loss) for place, loss in enumerate(losses)}
)
BUDGETS = st.one_of(st.integers(0, 20), st.integers(0, 4000))


def fewest(losses: Losses, budget: float) -> int:
    """The fewest nodes that must be kept, by trying all sets."""
    judge = Judge(losses)
    sizes = range(len(losses) + 1)
    return next(k for k in sizes if any(judge.error(kept) <= budget for kept in combinations(losses, k)))


# --- What a plan is -----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(TABLES, BUDGETS)
def test_a_plan_is_within_its_budget_and_every_node_in_it_is_needed(losses: Losses, budget: int) -> None:
    judge = Judge(losses, budget)
    if min(losses.values()) > budget:
        with pytest.raises(PenstockError, match="no plan is within the budget"):
            planned(judge)
        return
    kept = set(planned(judge).kept)
    assert judge.error(kept) <= budget
    assert all(judge.error(kept - {name}) > budget for name in kept)


@settings(deadline=None, max_examples=40)
@given(TABLES.filter(lambda losses: len(losses) <= 6), BUDGETS)
def test_where_losses_add_up_no_plan_keeps_fewer_nodes(losses: Losses, budget: int) -> None:
    wanted = fewest(losses, budget)
    if wanted == len(losses):
        with pytest.raises(PenstockError):
            planned(Judge(losses, budget))
    else:
        assert len(planned(Judge(losses, budget)).kept) == wanted


@settings(deadline=None, max_examples=40)
@given(TABLES.filter(lambda losses: len(losses) > 1), BUDGETS, st.randoms(use_true_random=False))
def test_a_ranking_that_misleads_costs_nodes_but_leaves_the_plan_right(
    losses: Losses, budget: int, random: Random
) -> None:
    """On few samples other nodes may look harmful; each node left is still needed."""
    shuffled = list(losses.values())
    random.shuffle(shuffled)
    judge, quick = Judge(losses, budget), Judge(dict(zip(losses, shuffled, strict=True)))
    try:
        kept = set(planned(judge, quick).kept)
    except PenstockError:
        # The last of the ranking cannot be lowered alone: nothing shorter was found.
        last = min(losses, key=lambda name: (quick.losses[name], -list(losses).index(name)))
        assert losses[last] > budget
        return
    assert judge.error(kept) <= budget
    assert all(judge.error(kept - {name}) > budget for name in kept)


@settings(deadline=None, max_examples=30)
@given(TABLES, BUDGETS)
def test_the_same_lowering_gets_the_same_plan(losses: Losses, budget: int) -> None:
    if min(losses.values()) <= budget:
        assert planned(Judge(losses, budget)) == planned(Judge(losses, budget))


def test_nodes_are_kept_in_the_order_of_the_graph() -> None:
    losses = {"z": 5.0, "b": 0.0, "y": 9.0, "a": 7.0, "c": 0.0}
    assert planned(Judge(losses, 1)).kept == ("z", "y", "a")


def test_a_node_that_only_looked_harmful_is_trimmed() -> None:
    """On few samples b ranks between the two that must be kept; on all of them it loses nothing."""
    losses = {"a": 9.0, "b": 0.0, "c": 3.0, "d": 0.0}
    judge, quick = Judge(losses, 1), Judge({**losses, "b": 5.0})
    assert planned(judge, quick).kept == ("a", "c")
    assert frozenset("abc") in judge.asked


# --- What is tried ------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(TABLES)
def test_where_everything_may_be_lowered_nothing_is_kept_and_nothing_is_ranked(losses: Losses) -> None:
    judge, quick, said = Judge(losses, sum(losses.values())), Judge(losses), list[str]()
    found = planned(judge, quick, said=said)
    assert (found.kept, found.lowered_operations) == ((), 1.0)
    assert [point.kept for point in found.points] == [()]
    assert (judge.asked, quick.asked, said) == ([frozenset()], [], [])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9])
def test_where_only_a_graph_that_lowers_nothing_is_right_there_is_no_plan(size: int) -> None:
    losses = {f"node{place}": 10.0 + place for place in range(size)}
    with pytest.raises(PenstockError) as caught:
        planned(Judge(losses, 9))
    for part in ("error 10 is over 9", f"1 of {size} nodes lowered", "export it as fp32", "--max-error"):
        assert part in str(caught.value)


def test_a_plan_that_lowers_next_to_nothing_is_none() -> None:
    """What is left of the multiply-adds is no int8, whatever it is called."""
    losses = {"light": 0.0, **{f"node{place}": 10.0 for place in range(4)}}
    lowering, judge = Nodes(losses), Judge(losses, 1)
    for operations, found in ((1, False), (500, True)):
        costs = Costs({name: operations if name == "light" else 10_000 for name in losses}, dict.fromkeys(losses, 10))
        trials = Trials(lowering, judge, fresh()), Trials(lowering, Judge(losses), fresh())
        if found:
            assert plan(lowering, *trials, costs, lambda line: None).kept == tuple(losses)[1:]
            continue
        with pytest.raises(PenstockError, match=r"under 1% of the multiply-adds are; .*try another --calibration"):
            plan(lowering, *trials, costs, lambda line: None)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9])
def test_all_but_one_can_be_kept(size: int) -> None:
    losses = {f"node{place}": 10.0 + place for place in range(size)}
    if size > 1:
        assert planned(Judge(losses, 10)).kept == tuple(losses)[1:]
    else:
        assert planned(Judge(losses, 10)).kept == ()


@settings(deadline=None, max_examples=30)
@given(TABLES, BUDGETS)
def test_no_graph_is_judged_twice_and_each_is_ranked_once(losses: Losses, budget: int) -> None:
    judge, quick = Judge(losses, budget), Judge(losses)
    if not min(losses.values()) <= budget < sum(losses.values()):
        return
    planned(judge, quick)
    assert len(judge.asked) == len(set(judge.asked))
    assert quick.asked == [frozenset(losses) - {name} for name in losses]


@settings(deadline=None, max_examples=30)
@given(TABLES, BUDGETS)
def test_points_are_all_that_was_tried_with_what_it_lowers(losses: Losses, budget: int) -> None:
    judge = Judge(losses, budget)
    if min(losses.values()) > budget:
        return
    found = planned(judge)
    assert {frozenset(point.kept) for point in found.points} == set(judge.asked)
    assert len(found.points) == len(judge.asked)
    assert {(), tuple(sorted(found.kept))} <= {point.kept for point in found.points}
    numbers = {name: place for place, name in enumerate(losses)}
    for point in found.points:
        left = {name: place for name, place in numbers.items() if name not in point.kept}
        operations = sum(3 + place for place in left.values())
        assert point.error == judge.error(point.kept)
        assert point.drop == 100 * point.error
        assert point.within == (point.error <= budget)
        assert point.lowered_operations == operations / sum(3 + place for place in numbers.values())
        assert point.saved_bytes == 3 * 10 * sum(1 << place for place in left.values())
    assert [len(point.kept) for point in found.points] == sorted(len(point.kept) for point in found.points)
    assert found.lowered_operations == next(
        point.lowered_operations for point in found.points if set(point.kept) == set(found.kept)
    )


def test_the_search_asks_for_few_of_many_nodes() -> None:
    """Of 200 nodes the 5 that lose anything: doubling and halving, then one trial for each."""
    losses = {f"node{place}": float(place % 40 == 0) for place in range(200)}
    judge = Judge(losses, 0)
    assert len(planned(judge).kept) == 5
    assert len(judge.asked) < 1 + 2 * math.ceil(math.log2(200)) + 5


def test_the_ranking_is_by_loss_and_then_by_the_order_of_the_graph() -> None:
    losses = {"a": 1.0, "b": math.inf, "c": 1.0, "d": 0.0, "e": 2.0, "f": math.inf}
    lowering = Nodes(losses)
    assert rank(lowering, Trials(lowering, Judge(losses), fresh())) == ["b", "f", "e", "a", "c", "d"]


def test_a_user_is_told_why_nodes_are_kept() -> None:
    said: list[str] = []
    planned(Judge({"a": 3.0, "b": 0.0}, 2), said=said)
    assert said == ["all 2 nodes lowered: error 3 is over 2; looking for those to keep in float32"]


def test_a_point_whose_error_is_small_says_which_limit_it_passes_all_the_same() -> None:
    def judge(kept: frozenset[str]) -> Judgement:
        return Judgement(0.1, None, None if "a" in kept else "top-1 agreement 96.00% is under the limit of 97.00%")

    lowering, key, losses = Nodes({"a": 5.0, "b": 0.0}), fresh(), {"a": 5.0, "b": 0.0}
    quick = Trials(lowering, Judge(losses), f"{key}quick")
    found = plan(lowering, Trials(lowering, judge, key), quick, costs_of(losses), lambda line: None)
    none, one = curve(found.points)
    assert "error 1.00e-01" in none
    assert none.endswith("over it: top-1 agreement 96.00% is under the limit of 97.00%")
    assert one.endswith("within the budget")


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_a_plan_with_a_trial_that_gave_no_numbers_is_read_as_it_was_written(error: float) -> None:
    losses = {"a": 5.0, "b": 0.0, "c": 0.0}

    def judge(kept: frozenset[str]) -> Judgement:
        return Judgement(0.25, None, None) if "a" in kept else Judgement(error, None, "no numbers")

    lowering, key = Nodes(losses), fresh()
    quick = Trials(lowering, Judge({**losses, "b": 9.0}), f"{key}quick")
    found = plan(lowering, Trials(lowering, judge, key), quick, costs_of(losses), lambda line: None)
    assert found.kept == ("a",)
    assert Plan.model_validate_json(found.model_dump_json()) == found
    errors = {point.kept: point.error for point in found.points}
    assert (errors[()], errors["b",], errors["a",]) == (None, None, 0.25)
    assert list(errors).index(("a",)) < list(errors).index(("b",))  # of as many nodes those with numbers come first


# --- What is kept from one run to the next ------------------------------------------------------------------------

LOSSES = {f"node{place}": float((7 * place) % 11) for place in range(11)}
BUDGET = 12.0


def whole() -> tuple[Plan, list[frozenset[str]], list[frozenset[str]]]:
    """The plan of a run that nothing interrupts, and what both judges were asked."""
    judge, quick = Judge(LOSSES, BUDGET), Judge(LOSSES)
    return planned(judge, quick), judge.asked, quick.asked


@pytest.mark.parametrize("calls", [0, 1, 2, 5, 8])
def test_an_interrupted_search_goes_on_where_it_stopped(calls: int) -> None:
    expected, all_asked, all_ranked = whole()
    assert calls < len(all_asked)
    key, first, ranked = fresh(), Judge(LOSSES, BUDGET, calls), Judge(LOSSES)
    with pytest.raises(KeyboardInterrupt):
        planned(first, ranked, key)
    assert first.asked == all_asked[:calls]
    second, rest = Judge(LOSSES, BUDGET), Judge(LOSSES)
    assert planned(second, rest, key) == expected
    assert second.asked == all_asked[calls:]
    assert ranked.asked + rest.asked == all_ranked


@pytest.mark.parametrize("calls", range(len(LOSSES)))
def test_an_interrupted_ranking_goes_on_where_it_stopped_and_says_so(calls: int) -> None:
    expected, all_asked, all_ranked = whole()
    key, first = fresh(), Judge(LOSSES, most=calls)
    with pytest.raises(KeyboardInterrupt):
        planned(Judge(LOSSES, BUDGET), first, key)
    second, rest, said = Judge(LOSSES, BUDGET), Judge(LOSSES), list[str]()
    assert planned(second, rest, key, said) == expected
    assert rest.asked == all_ranked[calls:]
    assert second.asked == all_asked[1:]  # the first of all was judged before the ranking
    assert any(f"{calls} trials of an earlier run are taken over" in line for line in said) == (calls > 0)


def test_a_search_that_was_finished_is_not_made_again() -> None:
    key = fresh()
    expected = planned(Judge(LOSSES, BUDGET), key=key)
    judge, quick = Judge(dict.fromkeys(LOSSES, math.nan), most=0), Judge(LOSSES, most=0)
    assert planned(judge, quick, key) == expected


def test_another_key_shares_nothing() -> None:
    planned(Judge(LOSSES, BUDGET))
    judge = Judge(LOSSES, 0.5)
    assert planned(judge).kept == tuple(name for name, loss in LOSSES.items() if loss)
    assert judge.asked[0] == frozenset()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"[]",
        b"3",
        b"null",
        b'{"[]": [0.5]}',
        b'{"no list": [0.5, null, null]}',
        b'{"[]": [NaN, null, null]}',
    ],
)
def test_a_damaged_file_is_as_good_as_none(damage: bytes) -> None:
    key, (expected, all_asked, all_ranked) = fresh(), whole()
    planned(Judge(LOSSES, BUDGET), key=key)
    for name in (key, f"{key}quick"):
        assert cache.read("budget", name)
        cache.write("budget", name, damage)
    judge, quick = Judge(LOSSES, BUDGET), Judge(LOSSES)
    assert planned(judge, quick, key) == expected
    assert (judge.asked, quick.asked) == (all_asked, all_ranked)
    assert planned(Judge(LOSSES, most=0), Judge(LOSSES, most=0), key) == expected


def test_a_file_that_was_cut_off_is_as_good_as_none() -> None:
    key, lowering = fresh(), Nodes(LOSSES)
    Trials(lowering, Judge(LOSSES), key).of(["node1"])
    data = cache.read("budget", key) or b""
    for length in range(1, len(data)):
        cache.write("budget", key, data[:length])
        judge = Judge(LOSSES)
        assert Trials(lowering, judge, key).of(["node1"]).error == judge.error(["node1"])
        assert len(judge.asked) == 1
    assert json.loads(cache.read("budget", key) or b"")  # what was damaged is whole again


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_what_could_not_be_run_is_tried_again_the_next_time_and_no_sooner(error: float) -> None:
    key, lowering = fresh(), Nodes(["a", "b"])
    asked: list[frozenset[str]] = []

    def judge(kept: frozenset[str]) -> Judgement:
        asked.append(kept)
        return Judgement(0.5, None, None) if kept else Judgement(error, None, "it does not run")

    for runs in (1, 2, 3):
        trials = Trials(lowering, judge, key)
        for _ in range(2):
            assert trials.of(["b"]) == Judgement(0.5, None, None)
            assert trials.of([]).failure == "it does not run"
        assert trials.taken_over == min(runs - 1, 1)
        assert asked.count(frozenset()) == runs
        assert asked.count(frozenset("b")) == 1


def test_the_order_in_which_nodes_are_named_makes_no_other_trial() -> None:
    lowering, judge = Nodes(LOSSES), Judge(LOSSES)
    trials = Trials(lowering, judge, fresh())
    for order in permutations(["node1", "node3", "node4", "node8"]):
        for kept in (order, frozenset(order), iter(order)):
            assert trials.of(kept).error == judge.error(order)
    assert judge.asked == [frozenset(["node1", "node3", "node4", "node8"])]


def test_a_judgement_is_read_as_it_was_written() -> None:
    key, wanted = fresh(), Judgement(0.1 + 0.2, -1 / 3, "«over» its limit")
    nodes: Lowering = Nodes(["a"])
    assert Trials(nodes, lambda kept: wanted, key).of(["a"]) == wanted
    assert Trials(nodes, lambda kept: Judgement(0, None, None), key).of(["a"]) == wanted
