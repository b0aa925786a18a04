"""The search for the highest rate that keeps a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.search import Verdict, highest, refuted


@given(st.floats(2, 100_000), st.floats(0.02, 50))
def test_it_ends_within_a_twentieth_under_the_true_rate(true: float, off: float) -> None:
    start = max(1.0, min(true * off, 150 * true))
    found = highest(start, lambda rate: Verdict(rate <= true), lambda rate: Verdict(rate <= true))
    assert found.rate_per_s is not None
    assert true / 1.06 <= found.rate_per_s <= true
    assert found.gives_out_per_s is None
    assert len(found.tried) < 20


def test_a_rate_that_fails_when_it_is_confirmed_is_not_believed() -> None:
    found = highest(100, lambda rate: Verdict(rate <= 110), lambda rate: Verdict(rate <= 101))
    assert found.rate_per_s is not None
    assert 95 < found.rate_per_s <= 101


def test_what_only_a_probe_kept_is_told_with_the_longer_runs_that_did_not() -> None:
    found = highest(100, lambda rate: Verdict(rate <= 101), lambda rate: Verdict(False))
    assert found.rate_per_s is None
    assert found.probed_per_s is not None
    assert found.refuted_per_s == [rate for rate, _ in found.tried[-5:]]
    assert found.refuted_per_s[0] == found.probed_per_s


def test_the_sentence_of_one_longer_run_speaks_of_one() -> None:
    said = refuted(1.0, [1.0])
    assert said.startswith("a probe kept 1/s, and a longer run at 1/s did not; run it again")


def test_nothing_is_found_where_no_rate_keeps_it() -> None:
    found = highest(1000, lambda rate: Verdict(False), lambda rate: Verdict(False))
    assert found.rate_per_s is None
    assert found.tried[-1][0] == 1.0


def test_a_void_run_is_not_believed_and_the_rate_at_which_the_generator_gave_out_is_told() -> None:
    def run(rate: float) -> Verdict:
        return Verdict(kept=rate < 900, void=rate > 500)

    found = highest(100, run, run)
    assert found.rate_per_s is not None
    assert found.rate_per_s <= 500
    assert found.gives_out_per_s is not None
    assert 500 < found.gives_out_per_s <= 530
    assert highest(100, lambda rate: Verdict(rate < 300, rate > 500), run).gives_out_per_s is None


def test_a_rate_is_not_confirmed_by_a_void_run() -> None:
    found = highest(100, lambda rate: Verdict(rate <= 110), lambda rate: Verdict(True, void=True))
    assert found.rate_per_s is None
    assert found.gives_out_per_s is not None


def test_where_every_run_is_void_nothing_is_known_of_the_server() -> None:
    found = highest(1000, lambda rate: Verdict(True, void=True), lambda rate: Verdict(True, void=True))
    assert found.rate_per_s is None
    assert found.gives_out_per_s == found.tried[-1][0]
    assert len(found.tried) == 4  # lower and lower rates take longer and longer
