"""Records of requests: their ids, their clients, and what may be told of them."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve.records import CALL, INFER, Record, moment


def sent(id: bytes) -> Record:
    return Record(headers={b"x-request-id": id})


def test_an_id_of_the_clients_is_kept_and_quoted() -> None:
    record = sent(b"order-7/a")
    assert (record.name(), record.quoted) == ("order-7/a", True)


@pytest.mark.parametrize("id", [b"", b"a b", b"a\r\nb", b"\x1b[2J", "é".encode(), b"x" * 129], ids=repr)
def test_an_id_that_is_long_or_not_printable_is_replaced_and_the_answer_says_by_which(id: bytes) -> None:
    record, named = sent(id), sent(id)
    assert record.quoted
    assert re.fullmatch(r"[0-9a-f]{8}-\d+", record.name())
    named.found("m", 1, "own")
    assert (named.name(), named.quoted) == ("own", True)


@given(st.binary(max_size=200))
def test_whatever_is_sent_as_an_id_a_name_is_one_printable_word(id: bytes) -> None:
    assert re.fullmatch(r"[!-~]{1,128}", sent(id).name())


@given(st.text(max_size=200))
def test_so_is_that_of_the_protocols_own_id(own: str) -> None:
    record = Record()
    record.found("m", 1, own)
    assert re.fullmatch(r"[!-~]{1,128}", record.name())


def test_the_protocols_own_id_counts_where_no_header_says_another() -> None:
    plain, headed = Record(), sent(b"mine")
    for record in (plain, headed):
        record.found("m", 3, "own")
    assert (plain.name(), plain.quoted, plain.version) == ("own", False, 3)
    assert headed.name() == "mine"


def test_made_ids_differ_and_stay() -> None:
    one, other = Record(), Record()
    assert one.name() != other.name()
    assert one.name() == one.name()


def test_a_failure_of_the_servers_is_always_quoted() -> None:
    record = Record()
    for status, quoted in ((200, False), (404, False), (499, False), (500, True), (503, True)):
        record.status = status
        assert record.quoted is quoted


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        (("10.0.0.1", 99), "10.0.0.1:99"),
        (("::1", 9, 0, 0), "[::1]:9"),
        ("ipv4:10.0.0.1:9", "10.0.0.1:9"),
        ("ipv6:%5B::1%5D:9", "[::1]:9"),
        (None, ""),
    ],
)
def test_a_clients_address_is_text(peer: object, said: str) -> None:
    assert Record(peer=lambda: peer).client == said
    if isinstance(peer, str):
        assert Record(peer=peer).client == said


def test_what_no_stage_accounts_for_is_the_rest() -> None:
    record = Record(road=CALL, decode_s=0.001, queue_s=0.002, compute_s=0.003, rows=2, total_s=0.01)
    told = record.as_dict()
    assert (told["decode_ms"], told["queue_ms"], told["compute_ms"], told["rest_ms"]) == (1, 2, 3, 4)
    assert (told["total_ms"], told["rows"], told["via"]) == (10, 2, "ModelInfer")
    assert Record(decode_s=2, total_s=1).rest_s == 0  # of parts that ran side by side


def test_nothing_that_a_client_sent_beside_its_id_is_told() -> None:
    record = Record(headers={b"authorization": b"Bearer s3cret", b"x-request-id": b"a"}, peer=lambda: ("h", 1))
    told = json.dumps(record.as_dict())
    assert "s3cret" not in told
    assert str(INFER) in told


def test_a_moment_is_in_utc_as_rfc_3339_has_it() -> None:
    assert moment(0) == "1970-01-01T00:00:00.000000Z"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", moment())
