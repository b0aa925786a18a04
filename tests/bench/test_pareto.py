"""The Pareto front."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.pareto import front

PLACES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12)


@given(PLACES)
def test_nobody_on_it_is_beaten_and_everybody_else_is_by_one_on_it(places: list[tuple[int, int]]) -> None:
    found = front(places)
    assert found
    for index, (speed, right) in enumerate(places):
        beaten = [i for i in found if places[i][0] >= speed and places[i][1] >= right and places[i] != (speed, right)]
        assert bool(beaten) == (index not in found)
