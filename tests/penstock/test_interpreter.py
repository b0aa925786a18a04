"""The interpreter among threads: a thread that keeps it for a moment, where others hand it on sooner."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from penstock import interpreter

TakeTurns = Callable[[float], None]


def test_where_turns_are_short_a_thread_may_keep_it_until_it_shares_it(take_turns: TakeTurns) -> None:
    take_turns(1e-4)
    assert sys.getswitchinterval() == pytest.approx(1e-4)
    interpreter.keep()
    interpreter.keep()
    assert sys.getswitchinterval() == pytest.approx(5e-4)
    interpreter.share()
    assert sys.getswitchinterval() == pytest.approx(1e-4)


@pytest.mark.parametrize("turn_s", [5e-4, 5e-3])
def test_where_turns_are_long_enough_nothing_is_changed(take_turns: TakeTurns, turn_s: float) -> None:
    take_turns(turn_s)
    for step in (interpreter.keep, interpreter.share):
        step()
        assert sys.getswitchinterval() == pytest.approx(turn_s)


@pytest.mark.usefixtures("take_turns")
def test_a_process_that_takes_no_turns_is_left_as_it_is() -> None:
    sys.setswitchinterval(1e-3)
    interpreter.keep()
    interpreter.share()
    assert sys.getswitchinterval() == pytest.approx(1e-3)
