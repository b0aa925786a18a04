"""Buckets that processes share: together they admit what one would, and no process's end changes that."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.serve import meters
from penstock.serve.meters import Meters

KEY, OTHER = b"k" * 32, b"k" * 4 + b"o" * 28


@pytest.fixture
def fd() -> Iterator[int]:
    held = meters.created()
    yield held
    os.close(held)


def test_two_that_share_it_admit_what_one_would(fd: int) -> None:
    one, two = (Meters(fd).bucket(KEY, 10.0, 5.0, 100.0) for _ in range(2))
    assert [bool(bucket.take(100.0)) for bucket in (one, two, one, two, one, two)] == [False] * 5 + [True]
    assert two.take(100.0) == pytest.approx(0.1)
    assert one.take(100.1) == 0.0
    assert two.take(100.1) > 0


def test_keys_are_apart_also_where_their_digests_begin_alike(fd: int) -> None:
    held = Meters(fd)
    one, other = held.bucket(KEY, 1.0, 1.0, 0.0), held.bucket(OTHER, 1.0, 1.0, 0.0)
    assert (one.take(0.0), other.take(0.0)) == (0.0, 0.0)
    assert one.take(0.0) > 0


def test_a_smaller_burst_takes_back_what_is_over_it_and_a_larger_one_gives_nothing(fd: int) -> None:
    Meters(fd).bucket(KEY, 1.0, 10.0, 0.0)
    smaller = Meters(fd).bucket(KEY, 1.0, 2.0, 0.0)
    assert [bool(smaller.take(0.0)) for _ in range(3)] == [False, False, True]
    assert Meters(fd).bucket(KEY, 1.0, 10.0, 0.0).take(0.0) > 0


def _admitted(fd: int, until: float, results: Any) -> None:
    bucket, count = Meters(fd).bucket(KEY, 200.0, 20.0, time.monotonic()), 0
    while (now := time.monotonic()) < until:
        count += not bucket.take(now)
    results.put(count)


def test_processes_that_ask_all_at_once_get_the_rate_together(fd: int) -> None:
    forking = multiprocessing.get_context("fork")
    results, until = forking.Queue(), time.monotonic() + 0.5
    began = time.monotonic()
    asking = [forking.Process(target=_admitted, args=(fd, until, results)) for _ in range(3)]
    for process in asking:
        process.start()
    total = sum(results.get(timeout=20) for _ in asking)
    took = time.monotonic() - began
    for process in asking:
        process.join()
    assert 20 + 200 * 0.3 < total <= 20 + 200 * took + 3
