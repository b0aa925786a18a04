"""Compressed bodies: what they were comes out whatever it is cut into, and never more than the bound."""

from __future__ import annotations

import gzip
import threading
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve import compression
from penstock.serve.errors import RequestError

PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
bodies = st.binary(max_size=3000) | st.builds(
    lambda part, count: part * count, st.binary(max_size=5), st.integers(0, 3000)
)


@given(body=bodies, coding=st.sampled_from(sorted(PACK)), piece=st.integers(1, 100), step=st.integers(1, 400))
def test_any_body_is_what_it_was_however_it_is_cut(body: bytes, coding: str, piece: int, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "_PIECE", piece)
        patch.setattr(compression, "_STEP", step)
        packed = PACK[coding](body)
        assert compression.inflate(packed, coding, len(body)) == body
        if body:
            with pytest.raises(RequestError, match="over the limit") as caught:
                compression.inflate(packed, coding, len(body) - 1)
            assert caught.value.status == 413


@given(body=bodies, coding=st.sampled_from(sorted(PACK)), piece=st.integers(1, 100), data=st.data())
def test_what_is_cut_short_or_goes_on_is_refused(body: bytes, coding: str, piece: int, data: st.DataObject) -> None:
    packed = PACK[coding](body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "_PIECE", piece)
        with pytest.raises(RequestError, match="cut short"):
            compression.inflate(packed[: data.draw(st.integers(0, len(packed) - 1))], coding, 10**6)
        # What begins as gzip does is another member of it, cut short.
        with pytest.raises(
            RequestError, match="behind its end" if coding == "deflate" else "behind its end|cut short|member 2"
        ):
            compression.inflate(packed + data.draw(st.binary(min_size=1, max_size=200)), coding, 10**6)


@given(
    members=st.lists(st.tuples(bodies, st.integers(0, 9)), min_size=1, max_size=8),
    coding=st.sampled_from(["gzip", "x-gzip", " GZip"]),
    piece=st.integers(1, 100),
)
def test_gzip_of_several_members_is_all_of_them_and_bounded_as_one(
    members: list[tuple[bytes, int]], coding: str, piece: int
) -> None:
    whole = b"".join(body for body, _ in members)
    packed = b"".join(gzip.compress(body, level) for body, level in members)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "_PIECE", piece)
        assert compression.inflate(packed, coding, len(whole)) == whole
        if whole:
            with pytest.raises(RequestError, match="over the limit"):
                compression.inflate(packed, coding, len(whole) - 1)


def test_members_of_gzip_that_hold_nothing_are_not_followed_for_ever() -> None:
    with pytest.raises(RequestError, match="goes on behind its end, after 65536 members"):
        compression.inflate(gzip.compress(b"") * (2**16 + 1), "gzip", 10)


def test_a_bomb_is_refused_at_the_bound_and_nobody_waits_for_it() -> None:
    bomb = gzip.compress(bytes(2**28), 1)
    worst, over = 0.0, threading.Event()

    def beat() -> None:
        nonlocal worst
        last = time.perf_counter()
        while not over.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            worst, last = max(worst, now - last), now

    beside = threading.Thread(target=beat)
    beside.start()
    try:
        with pytest.raises(RequestError, match="over the limit of 67108864 bytes"):
            compression.inflate(bomb, "gzip", 2**26)
    finally:
        over.set()
        beside.join()
    assert worst < 0.06  # 2 ms on an idle machine
