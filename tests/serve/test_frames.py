"""Frames and places: whatever pieces a stream comes in, what was said is heard, and arrays lie where it says."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.serve import frames
from penstock.serve.frames import Frames


@given(
    st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=20),
    st.lists(st.integers(1, 50), min_size=1, max_size=30),
)
def test_frames_come_apart_as_they_were_put_together(said: list[tuple[int, bytes]], steps: list[int]) -> None:
    data, reader, heard, at, turn = b"".join(frames.frame(*each) for each in said), Frames(), [], 0, 0
    while at < len(data):
        step = steps[turn % len(steps)]
        heard += reader.feed(data[at : at + step])
        at, turn = at + step, turn + 1
    assert heard == said


def test_a_long_frame_is_read_about_as_fast_as_it_comes() -> None:
    size = 2**26
    data = frames.frame(7, b"x" * size, b"end")
    pieces = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]

    began, kept = time.perf_counter(), bytearray()
    for piece in pieces:
        kept += piece
    copied = time.perf_counter() - began

    began, reader = time.perf_counter(), Frames()
    heard = [each for piece in pieces for each in reader.feed(piece)]
    read = time.perf_counter() - began

    assert [(kind, len(content)) for kind, content in heard] == [(7, size + 3)]
    assert bytes(heard[0][1][-4:]) == b"xend"
    # A reader that copies what it has at every piece copies each byte 500 times; sizes of unlike age in memory do not
    # compare, so one size is compared with the least that keeping it costs.
    assert read < 20 * copied


def test_what_is_longer_than_any_frame_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST_FRAME", 10)
    assert frames.frame(1, b"12345", b"67890")
    with pytest.raises(PenstockError, match=r"11 bytes are more than what passes .*--workers 0"):
        frames.frame(1, b"12345", b"678901")


def test_a_frame_that_is_too_long_is_no_frame() -> None:
    with pytest.raises(PenstockError, match="are the most"):
        list(Frames().feed(b"\xff\xff\xff\xff\x01"))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["float32", "uint8", "int64", "bool", "bfloat16"]), st.lists(st.integers(0, 5), max_size=3)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_arrays_in_a_slot_overlap_nowhere_and_are_found_again(forms: list[tuple[str, list[int]]]) -> None:
    named = [(f"a{number}", dtype, tuple(shape)) for number, (dtype, shape) in enumerate(forms)]
    held, size = frames.places(named)
    memory, rng = bytearray(size + 64), np.random.default_rng(0)
    arrays = {name: rng.integers(0, 2, shape).astype(dtype) for name, dtype, shape in named}
    frames.fill(memory, 64, held, arrays)
    for place in frames.read(frames.written(held)):
        assert place.start % 64 == 0
        assert place.end <= size
        assert np.array_equal(place.at(memory, 64), arrays[place.name])


def test_an_array_out_of_the_memory_is_none() -> None:
    ((place,), _) = frames.places([("x", "float32", (4,))])
    with pytest.raises(TypeError):
        place.at(bytearray(64), 56)


@pytest.mark.parametrize(
    "said", [[["x", "object", [1], 0]], [["x", "float32", [-1], 0]], [["x", "float32", [1], -4]], [["x"]], [1]]
)
def test_places_that_cannot_be_are_refused(said: object) -> None:
    with pytest.raises(PenstockError, match="not as the other process says"):
        frames.read(said)


def test_texts_and_numbers_come_over_together() -> None:
    arrays = {"t": np.array([b"a", b"", b"\x00\xff"], object).reshape(3, 1), "n": np.arange(6).reshape(2, 3)[:, ::2]}
    ((kind, content),) = Frames().feed(frames.told_with(7, {"number": 3}, arrays))
    told, found = frames.read_with(content)
    assert (kind, told["number"]) == (7, 3)
    assert found["t"].tolist() == arrays["t"].tolist()
    assert np.array_equal(found["n"], arrays["n"])
