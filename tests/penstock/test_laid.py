"""Batches copied by one call: rows lie behind one another, answers where they were wanted; nothing else is touched."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import laid
from penstock.laid import Form, Laid, Memory, Place, gather, scatter, shape_of

WIDE = 70_000
FLOAT = np.dtype(np.float32)


def items(arrays: list[Any]) -> list[dict[str, Any]]:
    return [{"x": array} for array in arrays]


@given(st.lists(st.integers(1, 5), min_size=4, max_size=30), st.sampled_from(["uint8", "float32", "int64"]))
def test_rows_of_several_arrays_become_one_array(rows: list[int], dtype: str) -> None:
    rng = np.random.default_rng(len(rows))
    # Cheap to draw: the test is of copies, and each example has 200 ms.
    arrays = [np.frombuffer(rng.bytes(count * WIDE), np.uint8).reshape(count, WIDE).astype(dtype) for count in rows]
    into = np.zeros((sum(rows) + 1, WIDE), dtype)
    assert gather(items(arrays), "x", into)
    for array, end in zip(arrays, np.cumsum(rows), strict=True):
        assert np.array_equal(into[end - len(array) : end], array)
    assert not into[-1].any()


@pytest.mark.parametrize(
    "arrays",
    [
        [np.ones((1, 2**18), np.float32)] * 3,
        [np.ones((1, 8), np.float32)] * 8,
        [np.ones((1, 2**18), np.float64)] * 8,
        [np.ones((1, 2**19), np.float32)[:, ::2]] * 8,
        [np.ones((1, 2**18), np.float32)] * 9,
    ],
    ids=["few", "small", "another dtype", "not in order", "more than there is room for"],
)
def test_what_it_does_not_take_is_left_to_others(arrays: list[np.ndarray]) -> None:
    into = np.zeros((8, 2**18), np.float32)
    assert not gather(items(arrays), "x", into)
    assert not into.any()


def test_where_the_call_is_forbidden_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for way in ("_read", "_read_held"):
        monkeypatch.setattr(laid, way, lambda *_: -1)
    assert not gather(items([np.ones((1, 2**18), np.float32)] * 4), "x", np.zeros((4, 2**18), np.float32))
    requests, answer, memory = requested([1] * 4)
    assert not gather(requests, "y", np.zeros(4, FLOAT))
    assert scatter(answer, requests)  # one by one
    assert [int(held.form.outputs["t"].at(memory.map, held.room or 0)[0]) for held in requests] == [0, 1, 2, 3]


def requested(rows: list[int], dtype: Any = FLOAT) -> tuple[list[Laid], dict[str, Any], Memory]:
    """Requests of so many rows each, that lie in a memory with gaps between; an answer to all of them; and the memory.

    Inputs are `x`, and behind it `y` of one number a row; outputs `s` of three a row, and behind them `t` of one.
    """
    size = sum(rows)
    fd = os.memfd_create("test")
    os.ftruncate(fd, 2**22 + size * WIDE * 8)
    memory = Memory(fd)
    rng = np.random.default_rng(size)
    found, at = [], 128
    forms: dict[int, Form] = {}
    for count in rows:
        if count not in forms:
            x = Place("x", np.dtype(np.uint8), (count, WIDE), 0)
            y = Place("y", FLOAT, (count,), x.end + 64 - x.end % 64)
            s = Place("s", np.dtype(dtype), (count, 3), 0)
            t = Place("t", np.dtype(np.int64), (count,), s.end + 64 - s.end % 64)
            forms[count] = Form(memory, (x, y), (s, t))
        form = forms[count]
        room = at + form.end + 64 - form.end % 64
        item = Laid(form, at, room)
        item["x"][:] = rng.integers(1, 255, (count, WIDE))  # type: ignore[index]
        item["y"][:] = rng.normal(size=count)  # type: ignore[index]
        found.append(item)
        at = room + form.room + 192
    return found, {"s": rng.normal(size=(size, 3)).astype(dtype), "t": np.arange(size)}, memory


@given(st.lists(st.integers(1, 5), min_size=4, max_size=20))
def test_requests_that_only_lie_somewhere_are_gathered_as_their_arrays_are(rows: list[int]) -> None:
    requests, _, _ = requested(rows)
    large, small = np.zeros((sum(rows), WIDE), np.uint8), np.zeros(sum(rows), FLOAT)
    for name, into in (("x", large), ("y", small)):
        assert gather(requests, name, into)
        assert np.array_equal(into, np.concatenate([request[name] for request in requests]))
    assert [shape_of(request, "x") for request in requests] == [(count, WIDE) for count in rows]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20))
def test_each_request_has_its_own_rows_of_an_answer_and_nothing_beside_is_written(rows: list[int]) -> None:
    requests, answer, memory = requested(rows)
    if len(rows) % 2:  # as a runtime may give it
        answer["s"] = np.asfortranarray(answer["s"])
    before = np.frombuffer(memory.map, np.uint8).copy()
    assert scatter(answer, requests)
    start = 0
    for request, count in zip(requests, rows, strict=True):
        assert request.room is not None
        for name, place in request.form.outputs.items():
            held = place.at(memory.map, request.room)
            assert np.array_equal(held, answer[name][start : start + count])
            held[...] = 0
        start += count
    assert np.array_equal(np.frombuffer(memory.map, np.uint8), before)


@pytest.mark.parametrize(
    "change",
    [
        lambda requests, answer: answer.pop("t"),
        lambda requests, answer: answer.update(s=answer["s"].astype(np.float64)),
        lambda requests, answer: answer.update(s=answer["s"][:, :2].copy()),
        lambda requests, answer: answer.update(s=answer["s"][:-1]),
        lambda requests, answer: setattr(requests[2], "room", None),
        lambda requests, answer: requests.__setitem__(1, dict(requests[1])),
        lambda requests, answer: requests.pop(),
    ],
    ids=["an output less", "dtype", "columns", "rows", "no room", "lies nowhere", "a request less"],
)
def test_an_answer_that_has_no_room_is_left_to_others(change: Any) -> None:
    requests, answer, _ = requested([1, 2, 1, 3, 1])
    change(requests, answer)
    assert not scatter(answer, requests)


def test_an_answer_is_laid_where_one_request_wants_it_if_it_fits() -> None:
    (request, *_), _, memory = requested([2])
    answer = {"s": np.ones((2, 3), np.float32), "t": np.array([7, 8])}
    assert request.given(answer)
    assert np.array_equal(request.form.outputs["t"].at(memory.map, request.room or 0), [7, 8])
    for other in ({"s": answer["s"]}, {**answer, "t": np.array([7, 8, 9])}, {**answer, "s": answer["s"].astype("f8")}):
        assert not request.given(other)
    assert not Laid(request.form, request.slot, None).given(answer)


def test_a_request_that_leaves_its_memory_is_refused() -> None:
    (request, *_), _, memory = requested([2])
    form, most = request.form, memory.bytes
    Laid(form, most - form.end, most - form.room)
    with pytest.raises(ValueError, match="leaves its memory"):
        Laid(form, most - form.end + 1, None)
    with pytest.raises(ValueError, match="leaves its memory"):
        Laid(form, 0, most - form.room + 1)
