"""Timing: runners take turns in whole rounds, are fed what was asked for, and are compared round with round."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import timing
from penstock.runtimes import BaseRunner
from penstock.signature import Arrays, Dim, Signature, Tensor
from penstock.timing import ROUNDS, Cell, Watch, Work

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 3)),),
    outputs=(Tensor(name="y", shape=("batch", 3)),),
    dims={"batch": Dim(opt=4, max=16)},
)
seconds = st.floats(1e-6, 10.0)


class Clock:
    """A clock that moves when it is told to."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Recorder(BaseRunner):
    """Takes `wait` seconds of a clock for a run, notes its name and its feeds, and is interrupted at run `ends`."""

    def __init__(
        self, name: str, log: list[str], *, ends: int | None = None, wait: float = 0.0, clock: Clock | None = None
    ) -> None:
        super().__init__(SIGNATURE)
        self.name, self.log, self.ends, self.wait, self.clock = name, log, ends, wait, clock or Clock()
        self.fed: list[Arrays] = []

    def run(self, feeds: Arrays) -> dict[str, Any]:
        self.log.append(self.name)
        self.fed.append(feeds)
        if len(self.fed) == self.ends:
            raise KeyboardInterrupt
        self.clock.now += self.wait
        return {"y": feeds["x"]}


def turns(log: list[str]) -> list[str]:
    """The names in the order in which they took over from another."""
    return [name for place, name in enumerate(log) if place == 0 or log[place - 1] != name]


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more runs before the rounds than must be."""
    monkeypatch.setattr(timing, "WINDOW_S", 0.0)
    monkeypatch.setattr(timing, "WARMUP_MOST_S", 0.0)


# --- Rounds ----------------------------------------------------------------------------------------------------------


def test_runners_take_turns_in_every_round_after_all_have_warmed_up() -> None:
    log: list[str] = []
    work = [(Recorder(name, log), {"x": np.zeros((2, 3))}, Cell(2)) for name in "abc"]
    timing.measure(work, seconds=0.0, rounds=4)
    assert turns(log) == list("abc") * 5
    # Three runs to warm up; then in each round one that is not counted and three that are.
    assert [log.count(name) for name in "abc"] == [3 + 4 * 4] * 3
    assert [[len(part) for part in cell.rounds] for _, _, cell in work] == [[3] * 4] * 3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    return made


def test_without_a_word_there_are_as_many_rounds_as_usual_and_each_cell_gets_its_own_times(clock: Clock) -> None:
    slow, fast, fed = Cell(2), Cell(2), {"x": np.zeros((2, 3))}
    work = [
        (Recorder(name, [], wait=wait, clock=clock), fed, cell)
        for name, wait, cell in (("slow", 1 / 64, slow), ("fast", 1 / 256, fast))
    ]
    timing.measure(work, seconds=0.0)
    assert slow.rounds == [[1 / 64] * 3] * ROUNDS
    assert fast.rounds == [[1 / 256] * 3] * ROUNDS


@pytest.mark.parametrize(("wait", "runs"), [(1 / 1024, 64), (1 / 64, 4), (1 / 32, 3), (1.0, 3)])
def test_a_round_lasts_its_share_of_the_seconds_and_three_runs_at_least(clock: Clock, wait: float, runs: int) -> None:
    cell = Cell(2)
    timing.measure([(Recorder("a", [], wait=wait, clock=clock), {"x": np.zeros((2, 3))}, cell)], 4 / 16, rounds=4)
    assert cell.rounds == [[wait] * runs] * 4


@pytest.mark.parametrize(("wait", "runs"), [(1 / 1024, 3 * 32), (1 / 16, 3), (1.0, 3)])
def test_warming_up_takes_three_windows_of_a_run_each_at_least(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, wait: float, runs: int
) -> None:
    monkeypatch.setattr(timing, "WINDOW_S", 1 / 32)
    runner, cell = Recorder("a", [], wait=wait, clock=clock), Cell(2)
    timing.measure([(runner, {"x": np.zeros((2, 3))}, cell)], seconds=0.0, rounds=0)
    assert len(runner.fed) == runs
    assert cell.steady


class Slowing(Recorder):
    """Each run takes so many times as long as the one before, until it takes a second."""

    def __init__(self, factor: float, clock: Clock) -> None:
        super().__init__("slowing", [], wait=1 / 1024, clock=clock)
        self.factor = factor

    def run(self, feeds: Arrays) -> dict[str, Any]:
        self.wait = min(1.0, self.wait * self.factor)
        return super().run(feeds)


def test_warming_up_goes_on_until_three_windows_are_alike(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "WARMUP_MOST_S", 100.0)
    runner, cell = Slowing(2.0, clock), Cell(2)
    timing.measure([(runner, {"x": np.zeros((2, 3))}, cell)], seconds=0.0, rounds=0)
    assert (len(runner.fed), cell.steady) == (12, True)  # ten doublings to a second, and two more like it


def test_a_warm_up_that_never_settles_ends_and_says_so(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "WARMUP_MOST_S", 1 / 4)
    runner, cell = Slowing(1.5, clock), Cell(2)
    timing.measure([(runner, {"x": np.zeros((2, 3))}, cell)], seconds=0.0, rounds=1)
    assert not cell.steady
    assert len(cell.rounds) == 1


# --- Streams, failures, watching -------------------------------------------------------------------------------------


class Slow(BaseRunner):
    """Takes some milliseconds, and counts who is in it at once."""

    def __init__(self) -> None:
        super().__init__(SIGNATURE)
        self.inside = self.most = 0
        self.lock = threading.Lock()

    def run(self, feeds: Arrays) -> dict[str, Any]:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(0.005)
        with self.lock:
            self.inside -= 1
        return {"y": feeds["x"]}


def test_streams_run_at_once_each_in_its_own_runner_and_throughput_counts_them_all() -> None:
    runners, cell = [Slow(), Slow()], Cell(2, streams=2)
    timing.measure_all([Work(runners, {"x": np.zeros((2, 3))}, cell)], 0.2, rounds=2)
    assert [runner.most for runner in runners] == [1, 1]
    assert len(cell.spans) == 2
    assert cell.rows_per_second == pytest.approx(2 * len(cell.samples) / sum(cell.spans))
    assert cell.rows_per_second > 1.2 * 2 / float(np.median(cell.samples))  # more than one stream could do


def test_streams_share_a_runner_that_takes_several() -> None:
    runner = Slow()
    timing.measure_all([Work([runner], {"x": np.zeros((2, 3))}, Cell(2, streams=3))], 0.0, rounds=1)
    assert runner.most == 3


class Failing(Recorder):
    def run(self, feeds: Arrays) -> dict[str, Any]:
        super().run(feeds)
        if len(self.fed) > 5:
            raise RuntimeError("out of\nmemory")
        return {}


@pytest.mark.parametrize("streams", [1, 2])
def test_what_fails_says_so_in_its_cell_and_the_rest_is_measured(streams: int) -> None:
    fed = {"x": np.zeros((2, 3))}
    bad, good = Cell(2, streams=streams), Cell(2)
    timing.measure_all([Work([Failing("a", [])], fed, bad), Work([Recorder("b", [])], fed, good)], 0.0, rounds=3)
    assert bad.failure == "RuntimeError: out of"
    assert bad.rounds == bad.spans == []
    assert (len(good.rounds), good.failure) == (3, None)


def test_a_failure_ends_a_measurement_that_is_not_told_to_bear_it() -> None:
    with pytest.raises(RuntimeError, match="out of"):
        timing.measure([(Failing("a", []), {"x": np.zeros((2, 3))}, Cell(2))], 0.0)


class Noting(Watch):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def before(self, work: Work) -> None:
        self.heard.append(f"before {work.cell.batch}")

    def after(self, work: Work) -> None:
        self.heard.append(f"after {work.cell.batch}")

    def round(self) -> None:
        self.heard.append("round")


def test_whoever_watches_hears_of_every_part_and_round() -> None:
    watch, fed = Noting(), {"x": np.zeros((2, 3))}
    work = [Work([Recorder(str(batch), [])], fed, Cell(batch)) for batch in (1, 2)]
    timing.measure_all(work, 0.0, rounds=2, watch=watch)
    assert watch.heard == ["before 1", "after 1", "before 2", "after 2", "round"] * 2


def test_every_run_is_fed_what_belongs_to_its_cell() -> None:
    fed = [{"x": np.full((rows, 3), rows, np.float32)} for rows in (1, 4)]
    runner = Recorder("both", [])
    timing.measure([(runner, fed[0], Cell(1)), (runner, fed[1], Cell(4))], seconds=0.0, rounds=2)
    assert [len(feeds["x"]) for feeds in runner.fed] == [1] * 3 + [4] * 3 + ([1] * 4 + [4] * 4) * 2


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("first", [False, True], ids=["in the second runner", "in the first"])
def test_an_interrupt_leaves_whole_rounds_alone(rounds: int, first: bool) -> None:
    log: list[str] = []
    ends = 3 + 4 * rounds + 2  # the second run of the round after
    cells = Cell(2), Cell(2)
    runners = Recorder("a", log, ends=ends if first else None), Recorder("b", log, ends=None if first else ends)
    fed = {"x": np.zeros((2, 3))}
    with pytest.raises(KeyboardInterrupt):
        timing.measure([(runner, fed, cell) for runner, cell in zip(runners, cells, strict=True)], 0.0, rounds=5)
    assert [len(cell.rounds) for cell in cells] == [rounds, rounds]
    assert len(cells[1].ratios(cells[0])) == rounds


def test_an_interrupt_while_warming_up_leaves_nothing() -> None:
    cell = Cell(2)
    with pytest.raises(KeyboardInterrupt):
        timing.measure([(Recorder("a", [], ends=2), {"x": np.zeros((2, 3))}, cell)], 0.0)
    assert cell.rounds == []


# --- Feeds -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 30))
def test_rows_come_over_again_in_their_order_until_there_are_enough(held: int, batch: int) -> None:
    inputs = {"x": np.arange(held * 2).reshape(held, 2)[:, ::-1], "ids": np.arange(held)}
    found = timing.feeds(inputs, batch)
    assert list(found) == ["x", "ids"]
    assert found["ids"].tolist() == [row % held for row in range(batch)]
    assert found["x"].tolist() == [[2 * (row % held) + 1, 2 * (row % held)] for row in range(batch)]
    assert all(array.flags.c_contiguous for array in found.values())


# --- Cells -----------------------------------------------------------------------------------------------------------


def test_a_ratio_is_that_of_the_medians_of_one_round() -> None:
    mine, theirs = Cell(1, [[1.0, 2.0, 9.0], [4.0]]), Cell(1, [[6.0, 5.0], [2.0, 2.0, 1.0]])
    assert mine.ratios(theirs) == [5.5 / 2.0, 2.0 / 4.0]
    assert theirs.ratios(mine) == [2.0 / 5.5, 4.0 / 2.0]
    with pytest.raises(ValueError, match="zip"):
        mine.ratios(Cell(1, [[1.0]]))


@given(st.lists(st.lists(seconds, min_size=1, max_size=5), min_size=1, max_size=5), st.floats(0.1, 10.0))
def test_a_speedup_is_the_ratio_of_medians_round_by_round(rounds: list[list[float]], factor: float) -> None:
    slow, fast = Cell(1, [[s * factor for s in part] for part in rounds]), Cell(1, rounds)
    middle, low, high = fast.speedup(slow)
    assert (low, middle, high) == pytest.approx((factor, factor, factor))


def test_a_speedup_has_the_quartiles_of_its_rounds_around_it() -> None:
    fast, slow = Cell(1, [[1.0]] * 5), Cell(1, [[8.0], [1.0], [3.0], [2.0], [5.0]])
    assert fast.speedup(slow) == (3.0, 2.0, 5.0)


@given(st.lists(st.lists(seconds, min_size=1, max_size=5), min_size=2, max_size=6), st.floats(0.1, 10.0))
def test_drift_that_hits_a_whole_round_moves_no_ratio(rounds: list[list[float]], drift: float) -> None:
    fast, slow = Cell(1, rounds), Cell(1, [[3 * s for s in part] for part in rounds])
    later = [[s * drift for s in part] for part in rounds[:1]] + rounds[1:]
    drifted, with_it = Cell(1, later), Cell(1, [[3 * s for s in part] for part in later])
    assert drifted.ratios(with_it) == pytest.approx(fast.ratios(slow))


def test_the_median_is_that_of_all_runs() -> None:
    assert Cell(1).median is None
    assert Cell(1, [[3.0, 1.0], [2.0]]).median == 2.0


def test_throughput_counts_rows() -> None:
    assert Cell(8, [[0.5, 0.5], [1.0]]).rows_per_second == pytest.approx(8 * 3 / 2)
