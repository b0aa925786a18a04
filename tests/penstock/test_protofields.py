"""Fields of protocol buffers: read as the protobuf package reads them, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import protofields

pytest.importorskip("onnx")
from onnx import TensorProto


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8), st.binary(max_size=40))
def test_a_tensors_sizes_and_bytes_are_those_that_were_written(sizes: list[int], raw: bytes) -> None:
    tensor = TensorProto(dims=sizes, raw_data=raw)
    held = list(protofields.fields(memoryview(tensor.SerializeToString())))
    assert [protofields.signed(size) for number, c in held if number == 1 for size in protofields.packed(c)] == sizes
    assert [bytes(c) for number, c in protofields.parts(memoryview(tensor.SerializeToString())) if number == 9] == [raw]


def test_packed_numbers_and_numbers_one_by_one_are_the_same() -> None:
    alone, together = memoryview(b"\x08\x05\x08\x07"), memoryview(b"\x0a\x02\x05\x07")
    for message in (alone, together):
        assert [value for _, content in protofields.fields(message) for value in protofields.packed(content)] == [5, 7]


@pytest.mark.parametrize(
    ("content", "why"),
    {
        "a group": (b"\x0b\x0c", "kind 3"),
        "a field's number of more than 32 bits, which protobuf cuts": (b"\xea\x80\x80\x80\x10\x01x", "too large"),
        "a length beyond the end": (b"\x0a\x05abc", "beyond its end"),
        "a length that protobuf takes for a negative one": (b"\x0a\xff\xff\xff\xff\x0f", "beyond its end"),
        "a number without end": (b"\x08" + b"\x80" * 20, "does not end"),
        "a number that is cut off": (b"\x08\x80", "does not end"),
    }.values(),
)
def test_what_readers_differ_in_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        list(protofields.fields(memoryview(content)))


def test_a_field_that_may_be_there_once_is_not_taken_twice() -> None:
    assert protofields.once([]) == b""
    assert protofields.once([memoryview(b"a")]) == b"a"
    with pytest.raises(ValueError, match="twice"):
        protofields.once([memoryview(b"a"), memoryview(b"b")])


@given(
    st.lists(
        st.sampled_from([b"\x08\x85\x01", b"\x3d\x0a\x01a\x0a", b"\x41" + b"\x0a" * 8, b"\x0a\x01b", b"\x80", b"\x0a"])
    )
)
def test_numbers_that_are_passed_over_together_change_nothing_of_the_rest(pieces: list[bytes]) -> None:
    message = memoryview(b"".join(pieces))
    try:
        one_by_one = [(number, bytes(c)) for number, c in protofields.fields(message) if not isinstance(c, int)]
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            list(protofields.parts(message))
    else:
        assert [(number, bytes(c)) for number, c in protofields.parts(message)] == one_by_one
