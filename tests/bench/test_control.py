"""The control: how long as many threads take together."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from penstock.bench.control import Control, beside


def test_it_takes_the_median_of_the_slowest_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([[1.0, 1.0, 1.0, 9.0, 1.0], [1.0, 2.0, 2.0, 1.0, 2.0]])
    with Control(2) as control:
        monkeypatch.setattr(control, "_repeat", lambda _: next(taken))
        assert control.tick() == 2.0


def test_threads_work_at_once_and_can_be_asked_again() -> None:
    with Control(3) as control:
        assert all(0 < control.tick() < 1 for _ in range(3))


def test_cells_of_as_many_cores_share_a_control_and_one_thread_has_none() -> None:
    with ExitStack() as stack:
        found = beside({1: 1, 2: 2, 3: 2, 4: 4}, stack)
    assert {cell: control.threads for cell, control in found.items()} == {2: 2, 3: 2, 4: 4}
    assert found[2] is found[3]
