"""Shared memory: what one end lays the other finds, and nothing that cannot be true is believed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from penstock.errors import PenstockError
from penstock.serve.arena import Arena
from penstock.signature import V2_DTYPES

SHAPES = npst.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)
NUMBERS = st.sampled_from(sorted(V2_DTYPES)).flatmap(lambda dtype: npst.arrays(dtype, SHAPES))
TEXTS = npst.arrays(object, SHAPES, elements=st.binary(max_size=9), fill=st.nothing())


@pytest.fixture
def ends() -> Iterator[tuple[Arena, Arena]]:
    ours = Arena()
    theirs = Arena(os.dup(ours.fd))
    yield ours, theirs
    ours.close()
    theirs.close()


def same(found: Any, array: Any) -> bool:
    return bool(found.dtype == array.dtype and found.shape == array.shape and found.tobytes() == array.tobytes())


@given(st.lists(NUMBERS | TEXTS, min_size=1, max_size=5))
def test_whatever_arrays_are_laid_at_one_end_are_found_at_the_other(arrays: list[Any]) -> None:
    ours = Arena()
    theirs = Arena(os.dup(ours.fd))
    end, laid = 0, []
    for number, array in enumerate(arrays):
        place, end = ours.lay(f"a{number}", [array], end)
        laid.append(place)
    for number, (array, place) in enumerate(zip(arrays, laid, strict=True)):
        name, found = theirs.found(place)
        assert name == f"a{number}"
        assert found.tolist() == array.tolist() if array.dtype == object else same(found, array)
    del found
    ours.close()
    theirs.close()


def test_rows_of_several_are_laid_as_one_array(ends: tuple[Arena, Arena]) -> None:
    parts = [np.full((rows, 3), rows, np.float32) for rows in (1, 4, 2)]
    place, _ = ends[0].lay("x", parts, 0)
    assert same(ends[1].found(place)[1], np.concatenate(parts))


def test_bfloat16_is_laid_too(ends: tuple[Arena, Arena]) -> None:
    array = np.arange(6).reshape(2, 3).astype("bfloat16")
    place, _ = ends[0].lay("x", [array], 0)
    assert same(ends[1].found(place)[1], array)


def test_it_grows_for_either_end_and_what_was_laid_before_stays(ends: tuple[Arena, Arena]) -> None:
    first, large = np.arange(10), np.arange(3_000_000, dtype=np.float32)
    kept, end = ends[0].lay("first", [first], 0)
    place, end = ends[1].lay("large", [large], end)
    further, _ = ends[0].lay("further", [large], end)
    for arena in ends:
        assert same(arena.found(kept)[1], first)
        assert same(arena.found(place)[1], large)
        assert same(arena.found(further)[1], large)


def test_arrays_begin_where_vector_instructions_want_them(ends: tuple[Arena, Arena]) -> None:
    _, end = ends[0].lay("odd", [np.zeros(3, np.uint8)], 0)
    place, _ = ends[0].lay("x", [np.zeros(4)], end)
    assert ends[1].found(place)[1].ctypes.data % 64 == 0


@pytest.mark.parametrize(
    "said",
    [
        ["x", "float32", [4], 2**30, 16],
        ["x", "float32", [4], -64, 16],
        ["x", "float32", [4], 0, 12],
        ["x", "float32", [-4], 0, 16],
        ["x", "void", [4], 0, 16],
        ["x", "object", [4], 0, 8],
        ["x", "float32", [4], 0],
        ["x", "float32", "four", 0, 16],
        ["x", "float32", [4], "0", 16],
        None,
    ],
)
def test_what_cannot_be_true_of_an_array_is_refused(ends: tuple[Arena, Arena], said: Any) -> None:
    with pytest.raises(PenstockError, match="not as the other process says"):
        ends[0].found(said)


def test_it_cannot_be_made_smaller_under_a_reader(ends: tuple[Arena, Arena]) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(ends[1].fd, 4096)
