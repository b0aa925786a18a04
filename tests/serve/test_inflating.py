"""Compressed bodies: nobody waits for a long one, and what it says is what it would say here."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib

import numpy as np
import pytest

from penstock.serve import inflating
from penstock.serve.errors import RequestError
from penstock.serve.reader import LONG

MOST = 64 * 2**20


def inflated(body: bytes, coding: str = "gzip", most: int = MOST) -> bytes:
    return bytes(asyncio.run(inflating.inflated(body, coding, most, 60)))


def noise(size: int) -> bytes:
    return np.random.default_rng(1).integers(0, 256, size, np.uint8).tobytes()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> inflating.Reader:
    """A process of this test's own, which is there only once it was asked."""
    held = inflating.Reader("compressed bodies", "send it uncompressed")
    monkeypatch.setattr(inflating, "INFLATER", held)
    return held


def test_a_short_body_is_inflated_here(process: inflating.Reader) -> None:
    body = bytes(LONG)
    assert inflated(gzip.compress(body)) == body
    assert process.process_id is None


@pytest.mark.parametrize(
    "body", [bytes(LONG + 1), noise(2**19), noise(3 * 2**20)], ids=["long after", "long before", "both"]
)
@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_long_one_is_inflated_elsewhere(process: inflating.Reader, body: bytes, coding: str, pack: object) -> None:
    assert callable(pack)
    assert inflated(pack(body), coding) == body
    assert process.process_id is not None


@pytest.mark.parametrize("aligned", [0, 1, 101, 4096])
@pytest.mark.parametrize("size", [5000, LONG - 3, LONG + 1, 3 * 2**20])
def test_what_lies_behind_its_json_is_aligned(process: inflating.Reader, size: int, aligned: int) -> None:
    found = asyncio.run(inflating.inflated(gzip.compress(bytes(size), 1), "gzip", MOST, 60, aligned))
    assert np.frombuffer(found, np.uint8)[aligned:].__array_interface__["data"][0] % 64 == 0


@pytest.mark.parametrize(
    ("body", "coding", "most", "status", "why"),
    [
        (gzip.compress(bytes(2**28), 1), "gzip", MOST, 413, f"inflates to over the limit of {MOST} bytes"),
        (gzip.compress(bytes(2**21)), "gzip", 2**20, 413, f"inflates to over the limit of {2**20} bytes"),
        (gzip.compress(noise(2**20))[:-1], "gzip", MOST, 400, "gzip that is cut short"),
        (noise(2**20), "deflate", MOST, 400, "not deflate, as Content-Encoding says"),
        (noise(2**20), "br", MOST, 415, "'br'; it must be gzip, deflate or identity"),
    ],
)
def test_what_is_wrong_with_a_long_one_is_said(body: bytes, coding: str, most: int, status: int, why: str) -> None:
    with pytest.raises(RequestError, match=why) as caught:
        inflated(body, coding, most)
    assert caught.value.status == status


def test_the_event_loop_goes_on_while_a_bomb_is_inflated(process: inflating.Reader) -> None:
    body = gzip.compress(bytes(2**28), 1)

    async def scenario() -> float:
        await inflating.inflated(gzip.compress(bytes(2 * LONG)), "gzip", MOST, 60)  # the process is there
        bomb = asyncio.ensure_future(inflating.inflated(body, "gzip", 2**28, 60))
        worst, last = 0.0, time.perf_counter()
        while not bomb.done():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            worst, last = max(worst, now - last), now
        assert len(bomb.result()) == 2**28
        return worst

    assert asyncio.run(scenario()) < 0.08
