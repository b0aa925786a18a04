"""IRHeader: labels before a picture, as MXNet lays them out."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock import irheader
from penstock.irheader import BadHeader

# flag 0, label 7.0, id 2574, id2 1; then the picture.
SCALAR = bytes.fromhex("00000000 0000e040 0e0a000000000000 0100000000000000") + b"picture"
# flag 3, label 0.0, id 5, id2 0; three labels: 1.0, 0.0, -2.5; then the picture.
ARRAY = bytes.fromhex("03000000 00000000 0500000000000000 0000000000000000 0000803f 00000000 000020c0") + b"picture"


def test_a_scalar_label_is_laid_out_as_mxnet_does_it() -> None:
    assert irheader.pack(7, b"picture", id=2574, id2=1) == SCALAR
    header, picture = irheader.unpack(SCALAR)
    assert (header.label, header.id, header.id2, header.size, picture) == (7.0, 2574, 1, 24, b"picture")


def test_an_array_of_labels_follows_a_header_that_counts_them() -> None:
    assert irheader.pack([1, 0, -2.5], b"picture", id=5) == ARRAY
    header, picture = irheader.unpack(ARRAY)
    assert isinstance(header.label, np.ndarray)
    assert header.label.dtype == np.float32
    assert header.label.tolist() == [1, 0, -2.5]
    assert (header.id, header.id2, header.size, picture) == (5, 0, 36, b"picture")


labels = st.one_of(
    st.floats(width=32), arrays.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32, allow_nan=False))
)


@given(labels, st.binary(), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_what_is_packed_is_unpacked(label, picture, id, id2) -> None:
    record = irheader.pack(label, picture, id, id2)
    header, rest = irheader.unpack(record)
    assert (rest, header.id, header.id2) == (picture, id, id2)
    assert np.asarray(header.label, np.float32).tobytes() == np.asarray(label, np.float32).tobytes()
    assert irheader.size(record[: irheader.SIZE]) == header.size == len(record) - len(picture)


def test_a_header_is_read_from_its_own_bytes_alone() -> None:
    for record in (SCALAR, ARRAY):
        taken = irheader.size(record[:24])
        assert irheader.read(record[:taken]).size == taken
        for cut in range(taken):
            with pytest.raises(BadHeader):
                irheader.read(record[:cut])


def test_a_record_without_room_for_its_labels_is_refused() -> None:
    with pytest.raises(BadHeader, match="has 23 bytes; an IRHeader alone has 24"):
        irheader.unpack(SCALAR[:23])
    with pytest.raises(BadHeader, match="has room for 2 labels; its IRHeader says 3"):
        irheader.unpack(ARRAY[:35])
    most = struct.pack("<IfQQ", 2**32 - 1, 0, 0, 0)
    with pytest.raises(BadHeader, match="has room for 1 labels; its IRHeader says 4294967295"):
        irheader.unpack(most + bytes(4))


def test_what_no_header_can_hold_is_not_packed() -> None:
    for empty in ([], [[1.0], [2.0]]):
        with pytest.raises(ValueError, match="must be a number, or"):
            irheader.pack(empty, b"")  # type: ignore[arg-type]
    for id in (-1, 2**64):
        with pytest.raises(ValueError, match="must be from 0 to"):
            irheader.pack(0, b"", id)
    with pytest.raises(OverflowError):
        irheader.pack(1e39, b"")
    assert math.isinf(irheader.unpack(irheader.pack(math.inf, b""))[0].label)
