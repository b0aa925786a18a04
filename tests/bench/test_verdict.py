"""The verdict: fast within the budget, and precise where speed does not decide."""

from __future__ import annotations

import pytest

from penstock.bench.verdict import Candidate, choose, loss
from penstock.timing import Cell


def candidate(name: str, precision: str, seconds: float, lost: float | None = 0.0, noise: float = 0.0) -> Candidate:
    """Ten rounds that take so long, every other one longer by the noise."""
    rounds = [[seconds * (1 + noise * (place % 2))] * 3 for place in range(10)]
    return Candidate(name, precision, lost, Cell(1, rounds))


def test_the_fastest_wins() -> None:
    choice = choose([candidate("a", "fp32", 2.0), candidate("b", "int8", 1.0)], 0.01)
    assert choice is not None
    assert (choice.winner.name, choice.tied) == ("b", None)


@pytest.mark.parametrize(("lost", "winner"), [(0.02, "a"), (0.01, "b"), (None, "b")])
def test_who_loses_more_than_the_budget_does_not_win(lost: float | None, winner: str) -> None:
    choice = choose([candidate("a", "fp32", 2.0), candidate("b", "int8", 1.0, lost)], 0.01)
    assert choice is not None
    assert choice.winner.name == winner


def test_a_tie_goes_to_the_more_precise_with_the_lead_that_is_none() -> None:
    slow, fast = candidate("a", "fp32", 1.0, noise=0.2), candidate("b", "int8", 1.05)
    choice = choose([fast, candidate("c", "fp16", 1.07, noise=0.0), slow], 0.01)
    assert choice is not None
    assert choice.tied is not None
    assert choice.lead is not None
    assert (choice.winner.name, choice.tied.name) == ("a", "b")
    assert choice.lead.low <= 1 <= choice.lead.high


@pytest.mark.parametrize(("lead", "winner"), [(1.015, "a"), (1.03, "b")])
def test_a_lead_that_two_loads_of_one_file_may_have_is_none(lead: float, winner: str) -> None:
    choice = choose([candidate("a", "fp32", lead), candidate("b", "int8", 1.0)], 0.01)
    assert choice is not None
    assert choice.winner.name == winner


def test_a_tie_among_one_precision_goes_to_the_faster() -> None:
    choice = choose([candidate("a", "fp32", 1.01, noise=0.2), candidate("b", "fp32", 1.0, noise=0.2)], 0.01)
    assert choice is not None
    assert choice.winner.name == "b"


def test_too_few_rounds_decide_nothing_and_the_most_precise_wins() -> None:
    few = [
        Candidate(name, kind, 0.0, Cell(1, [[took]] * 2))
        for name, kind, took in (("a", "fp32", 2.0), ("b", "int8", 1.0))
    ]
    choice = choose(few, 0.01)
    assert choice is not None
    assert choice.winner.name == "a"


def test_nothing_measured_is_no_verdict() -> None:
    assert choose([Candidate("a", "fp32", 0.0, Cell(1))], 0.01) is None
    assert choose([candidate("a", "fp32", 1.0, 0.5)], 0.01) is None


@pytest.mark.parametrize(
    ("accuracy", "reference", "agreement", "expected"),
    [
        (0.90, 0.95, 0.99, 0.05),
        (0.97, 0.95, 0.9, 0.0),
        (None, None, 0.98, 0.02),
        (0.9, None, 0.98, 0.02),
        (None, None, None, None),
    ],
)
def test_a_loss_is_of_accuracy_or_else_at_most_the_disagreement(
    accuracy: float | None, reference: float | None, agreement: float | None, expected: float | None
) -> None:
    found = loss(accuracy, reference, agreement)
    assert found == (None if expected is None else pytest.approx(expected))
