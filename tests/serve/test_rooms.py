"""Memory for bodies: what was put there is there, wherever it grew, and a head alone takes none."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve import rooms
from penstock.serve.rooms import Room, gathered, room


@given(st.integers(0, 200), st.lists(st.binary(min_size=1, max_size=4000), max_size=30), st.integers(1, 3000))
def test_what_was_added_is_there_in_order_and_aligned(aligned: int, pieces: list[bytes], first: int) -> None:
    whole, held = b"".join(pieces), rooms._FIRST
    rooms._FIRST = first
    try:
        found = Room(len(whole), aligned)
        for piece in pieces:
            found.add(piece)
    finally:
        rooms._FIRST = held
    assert found.whole
    assert found.content() == whole
    array = np.frombuffer(found.content(), np.uint8) if whole else np.zeros(0, np.uint8)
    if aligned < len(whole):
        assert array[aligned:].__array_interface__["data"][0] % 64 == 0


@given(st.integers(0, 300), st.integers(0, 300))
def test_a_room_at_once_is_of_its_length_and_aligned(length: int, aligned: int) -> None:
    found = room(length, aligned)
    assert len(found) == length
    if aligned < length:
        assert np.frombuffer(found, np.uint8)[aligned:].__array_interface__["data"][0] % 64 == 0


def test_bytes_go_where_they_are_received_and_never_over_the_end() -> None:
    found = Room(3 * 2**20 + 5, 7)
    while not found.whole:
        free = found.free()
        count = min(len(free), 700_001)
        free[:count] = bytes([found.filled % 251]) * count
        del free
        found.took(count)
    assert len(found.content()) == 3 * 2**20 + 5
    assert len(found.free()) == 0


def test_a_room_that_nothing_came_for_takes_no_memory_for_what_it_may_hold() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = [Room(2**30) for _ in range(64)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert all(len(one.free()) for one in held)


def test_growing_copies_nothing() -> None:
    found, piece = Room(2**28), memoryview(bytes(2**20))
    growing = 0.0
    while not found.whole:
        if found.filled == len(found._view):
            began = time.perf_counter()
            found.free()
            growing = max(growing, time.perf_counter() - began)
        found.add(piece)
    assert growing < 0.02  # 128 MiB would take 50 ms to be copied


def test_more_than_it_may_hold_is_refused() -> None:
    found = Room(5)
    found.add(b"abc")
    with pytest.raises(ValueError, match="over 5"):
        found.add(b"def")
    assert found.content() == b"abc"


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(0, 100))
def test_pieces_are_gathered_in_order_and_aligned(pieces: list[bytes], aligned: int) -> None:
    async def coming() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    found = asyncio.run(gathered(coming(), 1000, aligned))
    assert found == b"".join(pieces)
    if aligned < len(found):
        assert np.frombuffer(found, np.uint8)[aligned:].__array_interface__["data"][0] % 64 == 0


def test_what_is_still_held_where_bytes_went_before_is_a_fault_that_is_told() -> None:
    found = Room(2**22)
    free = found.free()
    found.took(len(free))
    with pytest.raises(BufferError):
        found.free()
