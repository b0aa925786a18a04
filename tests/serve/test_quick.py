"""Which batches are held to be quick."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.serve import quick
from penstock.serve.batches import Item
from penstock.serve.quick import Quick


def batch(*rows: int, kind: Any = "k") -> list[Item]:
    return [Item(None, count, None, 0, 0.0, True, None, number, kind=kind) for number, count in enumerate(rows)]  # type: ignore[arg-type]


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


def test_after_a_batch_that_held_up_the_loop_none_is_quick_for_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(quick.time, "monotonic", lambda: now)
    known = Quick()
    for pause in (1.0, 2.0, 4.0):
        known.told(batch(4), 1e-4)
        known.held_up(batch(4), 0.5)
        for later in (0.0, 0.99 * pause):
            now += later
            known.told(batch(4), 1e-4)
            assert not known.holds(batch(4))
        now += 0.02 * pause
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
