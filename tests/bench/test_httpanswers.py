"""Answers of HTTP read in whatever pieces they come."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.httpanswers import Answer, AnswerReader, Malformed

BODIES = st.binary(max_size=300)
CUTS = st.lists(st.integers(1, 40), max_size=60)


def fed(data: bytes, cuts: list[int]) -> list[Answer]:
    """What a reader gives for data in pieces of these sizes, and then the rest."""
    reader, found, place = AnswerReader(), [], 0
    for size in [*cuts, len(data)]:
        part = data[place : place + size]
        place += size
        if part and (answer := reader.feed(part)) is not None:
            found.append(answer)
    return found


def chunks(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%X;x=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: 1\r\n\r\n"


@given(BODIES, CUTS, st.integers(200, 599).filter(lambda status: status not in (204, 304)))
def test_an_answer_of_a_told_length_is_read_however_it_is_cut(body: bytes, cuts: list[int], status: int) -> None:
    data = b"HTTP/1.1 %d Word Word\r\ncontent-LENGTH: %d\r\nX-Id: a\r\n\r\n%s" % (status, len(body), body)
    (answer,) = fed(data, cuts)
    assert (answer.head.status, answer.body, answer.head.closes) == (status, body, False)
    assert answer.head.fields[b"x-id"] == b"a"


@given(BODIES, CUTS, st.integers(1, 50))
def test_chunks_are_put_together(body: bytes, cuts: list[int], size: int) -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks(body, size)
    (answer,) = fed(data, cuts)
    assert answer.body == body


@given(BODIES, CUTS)
def test_an_answer_without_a_length_ends_with_its_connection(body: bytes, cuts: list[int]) -> None:
    reader, data, place = AnswerReader(), b"HTTP/1.0 200 OK\r\n\r\n" + body, 0
    for size in [*cuts, len(data)]:
        part = data[place : place + size]
        place += size
        assert not part or reader.feed(part) is None
    answer = reader.end()
    assert answer is not None
    assert (answer.body, answer.head.closes) == (body, True)


@given(st.lists(BODIES, min_size=1, max_size=5))
def test_a_reader_takes_one_answer_after_another(bodies: list[bytes]) -> None:
    reader = AnswerReader()
    for body in bodies:
        answer = reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert answer is not None
        assert answer.body == body
        assert not reader.begun


@given(st.binary(min_size=1, max_size=400))
def test_noise_is_refused_or_waited_on_and_never_an_answer(data: bytes) -> None:
    reader = AnswerReader()
    with suppress(Malformed):
        assert reader.feed(data) is None or data.startswith(b"HTTP/1.")


def test_what_is_no_answer_is_a_wrong_value_to_those_who_know_no_better() -> None:
    with pytest.raises(ValueError, match="a first line that is no answer's"):
        AnswerReader().feed(b"junk\r\n\r\n")


def test_a_long_body_in_chunks_is_looked_at_once() -> None:
    body, began = b"x" * (32 << 20), time.process_time()
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks(body, 1 << 20)
    reader = AnswerReader()
    found = [reader.feed(data[at : at + 65_536]) for at in range(0, len(data), 65_536)]
    assert found[-1] is not None
    assert found[-1].body == body
    assert time.process_time() - began < 1.0


def test_interim_answers_are_passed_over() -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    assert [answer.body for answer in fed(data, [])] == [b"hi"]
    assert [answer.body for answer in fed(data, [1] * len(data))] == [b"hi"]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi there",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhiXX0\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"x" * 70_000,
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        AnswerReader().feed(data)


@pytest.mark.parametrize(
    ("head", "closes"),
    [
        (b"HTTP/1.1 200 OK\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", True),
        (b"HTTP/1.0 200 OK\r\n", True),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", False),
    ],
)
def test_a_head_says_whether_its_connection_closes(head: bytes, closes: bool) -> None:
    (answer,) = fed(head + b"Content-Length: 0\r\n\r\n", [])
    assert answer.head.closes is closes
