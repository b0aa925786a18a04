"""The gate: who is admitted, who is refused and how, and keys that change meanwhile."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.serve import keys
from penstock.serve.gate import Gate
from penstock.serve.keys import Key

INFER, OPERATE = ("infer",), ("repository",)


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def key(name: str, **said: Any) -> Key:
    return Key(name, keys.digest(name.encode()), **said)


def bearer(name: str) -> bytes:
    return f"Bearer {name}".encode()


def reason(gate: Gate, said: bytes | None, needed: tuple[str, ...] = INFER) -> str | None:
    found = gate.fault(said, needed)
    return None if found is None else found.reason


@pytest.mark.parametrize("said", [b"Bearer alice", b"bearer alice", b"BEARER  alice ", b"Bearer \talice"])
def test_a_known_key_is_admitted(said: bytes) -> None:
    assert reason(Gate([key("alice")]), said) is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "no_key"),
        (b"", "no_key"),
        (b"alice", "no_key"),
        (b"Basic alice", "no_key"),
        (b"Bearer", "no_key"),
        (b"Bearer ", "unknown_key"),
        (b"Bearer Alice", "unknown_key"),
        (b"Bearer alice bob", "unknown_key"),
        (b"Bearer " + b"a" * 60_000, "unknown_key"),
        (b"Bearer " + keys.digest(b"alice").encode(), "unknown_key"),
        (b"Bearer \xff\xfe", "unknown_key"),
    ],
)
def test_any_other_is_refused_with_401_and_a_challenge(said: bytes | None, why: str) -> None:
    found = Gate([key("alice")]).fault(said, INFER)
    assert found is not None
    assert (found.status, found.reason) == (401, why)
    assert found.headers["WWW-Authenticate"].startswith('Bearer realm="penstock"')


@given(st.binary(max_size=80))
def test_nothing_but_the_key_opens(said: bytes) -> None:
    gate = Gate([key("alice", rights=("infer", "repository", "metrics", "shared-memory"))])
    if said.strip() != b"alice":
        assert reason(gate, b"Bearer " + said) == "unknown_key"


def test_a_key_without_the_right_is_refused_with_403_and_the_right_s_name() -> None:
    gate = Gate([key("alice"), key("ops", rights=("repository", "metrics"))])
    found = gate.fault(bearer("alice"), OPERATE)
    assert found is not None
    assert found.status == 403
    assert str(found) == "the API key 'alice' lacks the right repository, which this needs"
    assert 'scope="repository"' in found.headers["WWW-Authenticate"]
    assert reason(gate, bearer("ops"), OPERATE) is None
    assert reason(gate, bearer("ops"), INFER) == "no_right"
    assert reason(gate, bearer("ops"), ("infer", "repository")) is None


def test_a_key_over_its_rate_is_refused_with_429_and_when_to_ask_again(clock: Clock) -> None:
    gate = Gate([key("alice", rate=0.5, burst=2), key("bob")], clock)
    assert [reason(gate, bearer("alice")) for _ in range(3)] == [None, None, "rate"]
    found = gate.fault(bearer("alice"), INFER)
    assert found is not None
    assert (found.status, found.headers) == (429, {"Retry-After": "2"})
    assert reason(gate, bearer("bob")) is None
    clock.now += 2
    assert [reason(gate, bearer("alice")) for _ in range(2)] == [None, "rate"]


def test_what_is_refused_for_its_right_uses_up_nothing(clock: Clock) -> None:
    gate = Gate([key("alice", rate=1, burst=1)], clock)
    assert [reason(gate, bearer("alice"), OPERATE) for _ in range(5)] == ["no_right"] * 5
    assert reason(gate, bearer("alice")) is None


def test_a_key_ends_at_its_time() -> None:
    today = Clock()
    gate = Gate([key("alice", expires=datetime.fromtimestamp(2000, timezone.utc))], today=today)
    today.now = 1999.9
    assert reason(gate, bearer("alice")) is None
    today.now = 2000.0
    assert reason(gate, bearer("alice")) == "expired"


def test_other_keys_take_their_places_at_once() -> None:
    gate = Gate([key("alice"), key("bob")])
    gate.replace([key("bob", rights=("metrics",)), key("carol")])
    assert [reason(gate, bearer(name)) for name in ("alice", "bob", "carol")] == ["unknown_key", "no_right", None]


def test_reading_the_file_anew_gives_no_key_its_requests_back(clock: Clock) -> None:
    gate = Gate([key("alice", rate=1, burst=2)], clock)
    assert [reason(gate, bearer("alice")) for _ in range(2)] == [None, None]
    gate.replace([key("alice", rate=1, burst=50)])
    assert reason(gate, bearer("alice")) == "rate"
    gate.replace([key("alice")])
    assert reason(gate, bearer("alice")) is None


def test_what_is_refused_is_counted_by_its_reason_and_what_is_admitted_by_its_key() -> None:
    gate = Gate([key("alice"), key("bob")])
    for said in (None, b"Bearer x", bearer("alice"), bearer("alice")):
        gate.refusal(said, INFER)
    gate.replace([key("alice")])
    counts = {tuple(sample.labels.values()): sample.value for family in gate.families() for sample in family.samples}
    assert counts == {("no_key",): 1, ("unknown_key",): 1, ("alice",): 2}
