"""What gRPC's words make of a call."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from penstock.bench.calls import _event


@pytest.mark.parametrize(
    ("code", "details", "failure"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: UNKNOWN: Connection refused", "refused"),
        ("UNAVAILABLE", "Stream removed (Socket closed)", "refused"),
        ("UNAVAILABLE", "recvmsg:Connection reset by peer", "refused"),
        ("UNAVAILABLE", "the queue is full", "status UNAVAILABLE"),
        ("UNAVAILABLE", "", "status UNAVAILABLE"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", "timeout"),
        ("INTERNAL", "x", "status INTERNAL"),
    ],
)
def test_a_server_that_is_busy_is_told_apart_from_one_that_is_gone(code: str, details: str, failure: str) -> None:
    call = SimpleNamespace(code=lambda: SimpleNamespace(name=code), details=lambda: details)
    assert _event(3, call) == (3, failure, None)
