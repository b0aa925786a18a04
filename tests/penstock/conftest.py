"""What tests of more than one module of penstock's own need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from penstock import interpreter


@pytest.fixture
def take_turns() -> Iterator[Callable[[float], None]]:
    """Says after how many seconds threads hand the interpreter on, until the test ends."""
    before = sys.getswitchinterval()
    yield interpreter.take_turns
    interpreter.take_turns(before)
