"""Which batches are held to be quick."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.serve import quick
from penstock.serve.batches import Item
from penstock.serve.quick import Company, Lone, Quick


def batch(*rows: int, kind: Any = "k") -> list[Item]:
    return [Item(None, count, None, 0, 0.0, True, None, number, kind=kind) for number, count in enumerate(rows)]  # type: ignore[arg-type]


class Clock:
    """Of the module, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(quick.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_nothing_is_quick_before_it_has_been() -> None:
    assert not Quick().holds(batch(1))


def test_a_batch_is_quick_up_to_the_rows_that_were() -> None:
    known = Quick()
    known.told(batch(2, 2), 1e-4)
    known.told(batch(8), 1e-3)
    assert known.holds(batch(4))
    assert known.holds(batch(1, 2))
    assert not known.holds(batch(5))
    assert not known.holds(batch(1, kind="other"))


def test_what_has_no_kind_is_never_quick() -> None:
    known = Quick()
    known.told(batch(1, kind=None), 1e-6)
    assert not known.holds(batch(1, kind=None))


def test_a_kind_that_turned_out_slower_is_learnt_anew() -> None:
    known = Quick()
    known.told(batch(4), 1e-4)
    known.told(batch(4, kind="other"), 1e-4)
    known.held_up(batch(4), 2e-3)
    assert not known.holds(batch(1))
    assert known.holds(batch(4, kind="other"))
    known.told(batch(4), 1e-4)
    assert known.holds(batch(4))


def test_after_a_batch_that_held_up_the_loop_none_is_quick_for_longer_each_time(clock: Clock) -> None:
    known = Quick()
    for pause in (1.0, 2.0, 4.0):
        known.told(batch(4), 1e-4)
        known.held_up(batch(4), 0.5)
        for later in (0.0, 0.99 * pause):
            clock.now += later
            known.told(batch(4), 1e-4)
            assert not known.holds(batch(4))
        clock.now += 0.02 * pause
        known.told(batch(4), 1e-4)
        assert known.holds(batch(4))


def test_kinds_are_bounded() -> None:
    known = Quick()
    for number in range(5000):
        known.told(batch(1, kind=number), 1e-5)
    assert len(known._rows) == 1024
    known.told(batch(2, kind=0), 1e-5)
    assert known.holds(batch(2, kind=0))


def test_a_kind_of_which_a_batch_failed_is_learnt_anew() -> None:
    known = Quick()
    known.told(batch(4), 1e-4)
    known.failed(batch(2), 1e-5)
    assert not known.holds(batch(1))
    known.told(batch(4), 1e-4)
    known.failed(batch(4), 0.5)
    known.told(batch(4), 1e-4)
    assert not known.holds(batch(1))  # it held others up


def known_to(company: Company) -> Lone:
    """Batches of a row that are short, if they come alone."""
    lone = Lone(company)
    lone.told(batch(1), 1e-3)
    return lone


def test_a_lone_batch_may_take_longer_than_a_quick_one_but_not_as_long_as_it_likes(clock: Clock) -> None:
    lone = Lone(Company())
    lone.told(batch(1), 1e-3)
    lone.told(batch(2), 3e-3)
    assert lone.holds(batch(1))
    assert not lone.holds(batch(2))


def test_who_comes_while_a_thread_is_at_work_is_not_alone_nor_who_comes_soon_after(clock: Clock) -> None:
    company = Company()
    lone = known_to(company)
    company.entered(waiting=False)
    assert lone.holds(batch(1))
    company.begun()
    assert not lone.holds(batch(1))
    clock.now += 0.01
    company.entered(waiting=False)
    company.ended()
    assert not lone.holds(batch(1))
    clock.now += 0.04
    assert not lone.holds(batch(1))
    clock.now += 0.02
    assert lone.holds(batch(1))


@pytest.mark.parametrize(("later", "waiting"), [(50e-6, False), (1e-3, True)], ids=["at once", "the other waits"])
def test_two_that_come_together_are_not_alone(clock: Clock, later: float, waiting: bool) -> None:
    company = Company()
    lone = known_to(company)
    company.entered(waiting=False)
    clock.now += later
    company.entered(waiting=waiting)
    assert not lone.holds(batch(1))


def test_who_came_while_the_event_loop_was_held_up_is_not_alone(clock: Clock) -> None:
    company = Company()
    mine, other = known_to(company), known_to(company)
    for later, alone in ((50e-6, False), (0.06, True)):
        company.entered(waiting=False)
        clock.now += 1e-3
        mine.held_up(batch(1), 1e-3)
        clock.now += later
        company.entered(waiting=False)
        assert mine.holds(batch(1)) is other.holds(batch(1)) is alone
        clock.now += 1.0
