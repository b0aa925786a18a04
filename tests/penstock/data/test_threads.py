"""Work in threads: results in order, and the first error ends it."""

from __future__ import annotations

import time

import pytest

from penstock.data import threads


def test_results_come_in_the_order_of_the_items() -> None:
    assert threads.each("counting", lambda n: n * n, range(1000)) == [n * n for n in range(1000)]
    assert threads.each("counting", str, []) == []


def test_an_error_ends_the_work_before_its_end() -> None:
    done: list[int] = []

    def work(n: int) -> None:
        if n == 10:
            raise ValueError("ten")
        time.sleep(0.0005)
        done.append(n)

    with pytest.raises(ValueError, match="ten"):
        threads.each("counting", work, range(20_000))
    assert len(done) < 10_000
