"""Times of a request's stages."""

from __future__ import annotations

import re
import time

from penstock.serve.times import Times, header


def test_of_parts_that_run_side_by_side_the_longest_counts() -> None:
    times = Times()
    times.ran(0.25, 0.5)
    times.ran(0.125, 0.75)
    assert (times.queue_s, times.compute_s) == (0.25, 0.75)


def test_stages_are_milliseconds_and_the_total_is_all_the_time_until_now() -> None:
    times = Times(started=time.perf_counter() - 0.5, decode_s=0.001, queue_s=0.0021234, compute_s=0.25)
    stages = times.stages_ms()
    assert list(stages) == ["decode", "queue", "compute", "total"]
    assert (stages["decode"], stages["queue"], stages["compute"]) == (1.0, 2.123, 250.0)
    assert 500 <= stages["total"] < 5000


def test_the_header_names_each_stage_with_its_duration() -> None:
    assert header({"decode": 1.0, "total": 2.5}) == "decode;dur=1.000, total;dur=2.500"
    assert re.fullmatch(r"(\w+;dur=\d+\.\d{3}(, )?){4}", header(Times().stages_ms()))
