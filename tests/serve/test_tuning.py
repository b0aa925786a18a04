"""Threads: the fewest that are about as fast as the best, measured once, kept, and given to the runner."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import runtimes
from penstock.errors import PenstockError
from penstock.runtimes.fake import FakeRunner
from penstock.serve import tuning
from penstock.serve.opening import Opening
from penstock.signature import Dim, Signature, Tensor

SIGNATURE = Signature(
    inputs=(Tensor(name="x", shape=("batch", 2)),),
    outputs=(Tensor(name="y", shape=("batch", 1)),),
    dims={"batch": Dim(opt=2, max=8)},
)
FEEDS = {"x": np.ones((2, 2), np.float32)}


class Timed(FakeRunner):
    """Takes as long as its number of threads is said to."""

    def __init__(self, seconds: float, closed: list[float]) -> None:
        super().__init__(SIGNATURE)
        self.seconds, self.closed = seconds, closed

    def run(self, feeds: Any) -> dict[str, Any]:
        time.sleep(self.seconds)
        return super().run(feeds)

    def close(self) -> None:
        self.closed.append(self.seconds)


def tuned(takes: dict[int, float], key: str, most: int = 8) -> tuple[int, list[int], list[float]]:
    """The number that is found, those that were loaded, and those that were closed."""
    loaded: list[int] = []
    closed: list[float] = []

    def load(count: int) -> Timed:
        loaded.append(count)
        return Timed(takes[count], closed)

    return tuning.threads((key,), most, load, lambda: FEEDS), sorted(loaded), closed


@pytest.fixture(autouse=True)
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nothing is kept yet; how many cores others use is what stands here, of 8."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    used = [0.0]
    monkeypatch.setattr("penstock.machine.Others.cores", lambda _: used[0])
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    return used


def test_the_fastest_is_found_and_every_trial_closed() -> None:
    found, loaded, closed = tuned({1: 0.02, 2: 0.01, 4: 0.004, 8: 0.008}, "m")
    assert (found, loaded) == (4, [1, 2, 4, 8])
    assert sorted(closed) == [0.004, 0.008, 0.01, 0.02]


def test_what_was_measured_is_not_measured_again_but_for_another_number_of_cores() -> None:
    takes = {1: 0.001, 2: 0.004, 4: 0.004, 8: 0.004}
    assert tuned(takes, "m")[1] == [1, 2, 4, 8]
    assert tuned(takes, "m")[:2] == (1, [])
    assert tuned(takes, "m", most=4)[1] == [1, 2, 4]
    assert tuned(takes, "another")[1] == [1, 2, 4, 8]


def test_where_nothing_can_be_kept_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    caplog.set_level("INFO")
    takes = {1: 0.001, 2: 0.004, 4: 0.004, 8: 0.004}
    assert [tuned(takes, "m")[1] for _ in range(2)] == [[1, 2, 4, 8], [1, 2, 4, 8]]
    assert f"; not kept, so each start measures it anew: {tmp_path / 'file'}: " in caplog.text


def test_while_others_use_the_same_cores_all_are_taken_and_nothing_is_kept(others: list[float]) -> None:
    takes = {1: 0.001, 2: 0.004, 4: 0.004, 8: 0.004}
    others[0] = 1.5
    assert tuned(takes, "m")[0] == 8
    assert tuned(takes, "m", most=4)[0] == 1  # which leaves enough for them
    others[0] = 0.1
    assert tuned(takes, "m")[0] == 1


def test_a_slow_model_is_measured_for_no_longer_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_SECONDS", 0.6)
    started = time.perf_counter()
    assert tuned({1: 0.1, 2: 0.05}, "m", most=2)[0] == 2
    assert time.perf_counter() - started < 0.8


def test_a_model_whose_runs_do_not_fit_is_run_once_and_has_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_SECONDS", 0.5)
    started = time.perf_counter()
    found, loaded, closed = tuned({1: 0.001, 2: 0.3, 4: 0.3, 8: 0.3}, "m")
    assert (found, loaded, closed) == (8, [8], [0.3])
    assert time.perf_counter() - started < 0.5
    assert tuned({1: 0.001, 2: 0.3, 4: 0.3, 8: 0.3}, "m")[:2] == (8, [])  # kept


def test_a_model_that_is_slow_with_few_threads_alone_takes_little_over_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "_SECONDS", 0.3)
    started = time.perf_counter()
    assert tuned({1: 0.4, 2: 0.001}, "m", most=2)[0] == 2
    assert time.perf_counter() - started < 0.3 + 0.4 + 0.2


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-6, 10), min_size=1))
def test_the_fewest_that_are_about_as_fast_as_the_best(medians: dict[int, float]) -> None:
    found, best = tuning.fewest(medians), min(medians.values())
    assert medians[found] <= 1.1 * best
    assert all(seconds > 1.1 * best for count, seconds in medians.items() if count < found)


@given(st.integers(1, 300))
def test_candidates_are_from_one_to_the_most(most: int) -> None:
    found = tuning.candidates(most)
    assert (found[0], found[-1]) == (1, most)
    assert found == sorted(set(found))


@pytest.fixture
def given_threads(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The threads of each runner that is loaded."""
    seen: list[int | None] = []
    load = runtimes.load

    def noting(*arguments: Any, **named: Any) -> Any:
        seen.append(named.get("threads"))
        return load(*arguments, **named)

    monkeypatch.setattr(runtimes, "load", noting)
    return seen


@pytest.mark.parametrize("name", ["digits-onnx-fp32", "slow.onnx"])
def test_a_runner_is_opened_with_the_number_that_was_found(
    repository: Path, slow_onnx: Path, given_threads: list[int | None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tuning, "fewest", lambda medians: 2)
    path = slow_onnx if name == slow_onnx.name else repository / name
    Opening(path=path, most_threads=4).open()[0].close()
    assert set(given_threads[:-1]) >= {1, 2, 4}
    assert given_threads[-1] == 2


def test_what_is_told_is_not_measured(repository: Path, given_threads: list[int | None]) -> None:
    Opening(path=repository / "digits-onnx-fp32", threads=3, most_threads=4).open()[0].close()
    assert given_threads == [3]


def test_what_cannot_be_measured_has_them_all(
    repository: Path, given_threads: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> int:
        raise PenstockError("no")

    monkeypatch.setattr(tuning, "threads", failing)
    Opening(path=repository / "digits-onnx-fp32", most_threads=4).open()[0].close()
    assert given_threads[-1] == 4


def test_a_runtime_without_threads_is_not_measured(
    fake_artifact: Callable[..., Any], tmp_path: Path, given_threads: list[int | None]
) -> None:
    Opening(path=fake_artifact(tmp_path, "pair").folder, most_threads=4).open()[0].close()
    assert given_threads[-1] == 4
    assert given_threads.count(4) == 1


@pytest.mark.parametrize("name", ["digits-onnx-fp32", "slow.onnx"])
def test_a_number_that_is_kept_costs_no_load_beside_the_model_s_own(
    repository: Path, slow_onnx: Path, given_threads: list[int | None], name: str
) -> None:
    path = slow_onnx if name == slow_onnx.name else repository / name
    opening = Opening(path=path, most_threads=4)
    opening.open()[0].close()
    given_threads.clear()
    opening.open()[0].close()
    assert len(given_threads) == 1
