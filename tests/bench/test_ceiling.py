"""Ceilings: the longer of arithmetic and reading, or nothing where either is not known."""

from __future__ import annotations

import pytest

from penstock.bench.ceiling import Ceiling, Demand, ceiling, computes_in, cores
from penstock.bench.peaks import Peaks

PEAKS = Peaks({"float32": 100e9, "int8": 400e9}, {2**20: 50e9, 2**24: 20e9, 2**22: 10e9})


def test_arithmetic_or_memory_says_what_a_batch_takes_at_least() -> None:
    assert ceiling(Demand(1e9, 2**20, "fp32"), PEAKS, "cpu") == Ceiling(2e9 / 100e9, "arithmetic")
    assert ceiling(Demand(1e6, 2**26, "fp32"), PEAKS, "cpu") == Ceiling(2**26 / 20e9, "memory")


def test_what_is_smaller_than_all_that_was_read_is_bound_by_arithmetic_alone() -> None:
    assert PEAKS.bytes_per_s(1000) is None
    assert ceiling(Demand(1.0, 1000, "fp32"), PEAKS, "cpu") == Ceiling(2 / 100e9, "arithmetic")


def test_a_size_is_read_as_fast_as_the_largest_within_and_no_slower_than_larger_ones() -> None:
    assert PEAKS.bytes_per_s(2**21) == 50e9
    assert PEAKS.bytes_per_s(2**23) == 20e9  # the disturbed reading of 2**22 does not count
    assert PEAKS.bytes_per_s(2**30) == 20e9


@pytest.mark.parametrize(
    ("precision", "device", "kind"),
    [
        ("fp32", "cpu", "float32"),
        ("fp16", "cpu", "float32"),
        ("int8", "cpu", "int8"),
        ("fp32", "cuda:0", "float32"),
        ("tf32", "cuda:0", "tf32"),
        ("fp16", "cuda:0", "float16"),
        ("int8-fp16", "cuda:0", "int8"),
        ("fp8", "cuda:1", "int8"),
    ],
)
def test_a_precision_is_held_to_what_it_computes_in(precision: str, device: str, kind: str) -> None:
    assert computes_in(precision, device) == kind


def test_what_is_not_known_has_no_ceiling() -> None:
    assert ceiling(Demand(None, 10, "fp32"), PEAKS, "cpu") is None
    assert ceiling(Demand(1e6, 10, "fp16"), PEAKS, "cuda:0") is None


def test_a_setting_takes_its_threads_for_each_stream_and_no_more_cores_than_there_are() -> None:
    assert [cores(1, 1, 8), cores(2, 3, 8), cores(4, 4, 8), cores(None, 1, 8)] == [1, 6, 8, 8]
