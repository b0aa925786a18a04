"""Frames and places: whatever pieces a stream comes in, what was said is heard, and arrays lie where it says."""

from __future__ import annotations

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
