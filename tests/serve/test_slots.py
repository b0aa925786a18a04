"""Slots of shared memory: never two at one place, and all of it free again when nobody looks."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve.errors import RequestError, explained
from penstock.serve.outcomes import QueueFull
from penstock.serve.slots import ALIGNED, Places, Slots, mapped, rounded

SIZE = 64 * ALIGNED


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20 * ALIGNED)), max_size=200))
def test_places_never_overlap_and_what_is_given_back_can_be_taken_whole(steps: list[tuple[bool, int]]) -> None:
    places, held = Places(SIZE), dict[int, int]()
    for takes, number in steps:
        if takes:
            start = places.take(number)
            gaps = free_of(held)
            if start is None:
                assert all(end - begin < rounded(number) for begin, end in gaps)
            else:
                assert start % ALIGNED == 0
                assert any(begin <= start and start + rounded(number) <= end for begin, end in gaps)
                held[start] = number
        elif held:
            start = sorted(held)[number % len(held)]
            places.give(start, held.pop(start))
        assert places.free == SIZE - sum(map(rounded, held.values()))
    for start, size in held.items():
        places.give(start, size)
    assert places.take(SIZE) == 0


def free_of(held: dict[int, int]) -> list[tuple[int, int]]:
    """The gaps between what is taken."""
    found, at = [], 0
    for start in sorted(held):
        found.append((at, start))
        at = start + rounded(held[start])
    return [*found, (at, SIZE)]


def test_the_lowest_place_that_fits_is_taken() -> None:
    places = Places(SIZE)
    first, second, third = places.take(ALIGNED), places.take(3 * ALIGNED), places.take(1)
    assert (first, second, third) == (0, ALIGNED, 4 * ALIGNED)
    places.give(ALIGNED, 3 * ALIGNED)
    assert places.take(4 * ALIGNED) == 5 * ALIGNED
    assert places.take(ALIGNED + 1) == ALIGNED


def test_a_slot_is_taken_as_long_as_anything_looks_at_it() -> None:
    slots = Slots(SIZE)
    view = slots.take(100)
    assert view is not None
    array = np.frombuffer(view[:64], np.float32).reshape(4, 4)
    part = array[1:]
    del view, array
    assert (slots.taken, slots.free) == (1, SIZE - 128)
    del part
    assert (slots.taken, slots.free) == (0, SIZE)


def test_where_there_is_no_room_there_is_none_until_something_is_let_go() -> None:
    slots = Slots(SIZE)
    held = [slots.take(16 * ALIGNED) for _ in range(4)]
    assert slots.take(1) is None
    held.pop(2)
    again = slots.take(16 * ALIGNED)
    assert again is not None
    assert all(view is not None for view in held)


def test_what_lies_in_the_memory_is_found_by_where_it_lies() -> None:
    slots = Slots(SIZE)
    slots.take(10)
    first, second = slots.take(64), slots.take(64)
    assert first is not None
    assert second is not None
    array = np.frombuffer(second, np.float32)
    assert slots.place(array[4:]) == slots.place(array) + 16  # type: ignore[operator]
    assert slots.place(array[::2]) is None
    assert slots.place(np.zeros(4)) is None


def test_the_other_end_sees_what_is_laid_there() -> None:
    slots = Slots(SIZE)
    view = slots.take(64)
    assert view is not None
    array = np.frombuffer(view, np.float32)
    array[...] = range(16)
    other = mapped(os.dup(slots.fd))
    found = np.frombuffer(other, np.float32, 16, slots.place(array))  # type: ignore[arg-type]
    assert found.tolist() == list(range(16))


def test_its_size_cannot_be_changed_under_a_reader() -> None:
    slots = Slots(SIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(slots.fd, 0)


def test_slots_may_be_let_go_in_any_thread() -> None:
    slots = Slots(SIZE)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(500):
            views = [slots.take(4 * ALIGNED) for _ in range(16)]
            assert None not in views
            list(pool.map(lambda held: held.release(), views))
            del views
    assert (slots.taken, slots.free) == (0, SIZE)


def test_many_requests_leave_no_slot_taken() -> None:
    slots, rng = Slots(1024 * ALIGNED), np.random.default_rng(3)
    held: list[memoryview] = []
    for _ in range(20_000):
        if (view := slots.take(int(rng.integers(1, 4000)))) is not None:
            held.append(view)
        while held and (view is None or rng.random() < 0.5):
            held.pop(int(rng.integers(len(held))))
            view = b""  # type: ignore[assignment]
    held.clear()
    del view
    gc.collect()
    assert (slots.taken, slots.free) == (0, 1024 * ALIGNED)


def test_what_has_no_place_now_is_told_apart_from_what_never_has() -> None:
    slots = Slots(SIZE)
    held = slots.take(SIZE)
    for size, kind, status in ((SIZE, QueueFull, 503), (SIZE + 1, RequestError, 413)):
        assert slots.take(size) is None
        refusal = slots.refusal(size)
        assert type(refusal) is kind
        assert explained(refusal)[0] == status
        assert "--slots-mb" in str(refusal)
    del held
