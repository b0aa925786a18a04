"""Calls over gRPC: what is known of one when it comes."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc")

from penstock.serve import calls
from penstock.serve.records import CALL


class Call:
    """A call that must not be asked once it has ended."""

    ended = False

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        assert not self.ended
        return (("x-request-id", "seven"), ("some-bin", b"\xff"))

    def peer(self) -> str:
        assert not self.ended
        return "ipv6:%5B::1%5D:7"


def test_a_record_tells_its_client_after_the_call_s_end() -> None:
    call = Call()
    record = calls.recorded(CALL, call)
    call.ended = True
    assert (record.client, record.id, record.headers) == ("[::1]:7", "seven", {b"x-request-id": b"seven"})
