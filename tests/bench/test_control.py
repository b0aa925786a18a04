"""The control: how long a runtime's threads take together."""

from __future__ import annotations

import sys

import pytest

from penstock.bench.control import Control, beside


def test_it_takes_the_median_and_leaves_out_the_runs_in_which_threads_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    control = Control(2)
    taken = iter([9.0] * 3 + [1.0] * 10 + [2.0] + [3.0] * 10)
    monkeypatch.setattr(control, "_once", lambda: next(taken))
    assert control.tick() == 2.0


def test_it_can_be_asked_again_and_again() -> None:
    control = Control(2)
    assert all(0 < control.tick() < 1 for _ in range(3))


def test_cells_of_as_many_cores_share_a_control_and_one_thread_has_none() -> None:
    found = beside({1: 1, 2: 2, 3: 2, 4: 3})
    assert {cell: control.threads for cell, control in found.items()} == {2: 2, 3: 2, 4: 3}
    assert found[2] is found[3]


def test_without_onnxruntime_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert beside({1: 2}) == {}
