"""Comparing two results: what is a regression, what is noise, what cannot be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench import recorded
from penstock.bench.compare import Comparison, compare
from penstock.errors import PenstockError
from tests.bench import samples

BATCHES = (1, 8, 32)


def measured(
    seed: int, slower: dict[int, float] | None = None, drift: float = 0.0, clocked: bool = True, **more: Any
) -> recorded.Result:
    """A measurement of one net: the machine drifts by `drift` between and within runs, and the clock with it."""
    rng = np.random.default_rng(seed)
    speed = np.exp(rng.normal(0, drift) + np.cumsum(rng.normal(0, drift / 5, samples.ROUNDS)))
    cells = []
    for batch in BATCHES:
        made = samples.cell(batch, batch * 1e-4 * (slower or {}).get(batch, 1.0), seed)
        made["rounds_s"] = [[value * s for value in part] for part, s in zip(made["rounds_s"], speed, strict=True)]
        cells.append(made)
    clock = {"rounds_s": (1e-3 * speed * np.exp(rng.normal(0, 0.003, samples.ROUNDS))).tolist() if clocked else []}
    return recorded.parse(samples.engines([samples.row("net", cells)], **{"clock": clock, **more}))


def verdicts(found: Comparison) -> dict[str, str]:
    return {one.what: one.verdict for one in found.compared}


@pytest.mark.parametrize("drift", [0.0, 0.2])
def test_the_same_again_differs_in_none_of_a_hundred(drift: float) -> None:
    for seed in range(100):
        found = compare(measured(seed, drift=drift), measured(1000 + seed, drift=drift), 0.05)
        assert not found.regressions
        assert "faster" not in verdicts(found).values()


@pytest.mark.parametrize(("drift", "slower"), [(0.0, 1.1), (0.2, 1.15)])
def test_a_tenth_slower_is_found_in_each_of_a_hundred_and_only_there(drift: float, slower: float) -> None:
    for seed in range(100):
        found = compare(measured(seed, drift=drift), measured(1000 + seed, {8: slower}, drift), 0.05)
        assert [one.what for one in found.regressions] == ["net, batch 8, 1 thread"]


def test_a_tenth_faster_is_told_and_is_no_regression() -> None:
    found = compare(measured(1, {8: 1.12}), measured(2), 0.05)
    assert verdicts(found)["net, batch 8, 1 thread"] == "faster"
    assert not found.regressions


def test_without_a_clock_drift_is_not_taken_out_and_that_is_said() -> None:
    found = compare(measured(1, clocked=False), measured(2, clocked=False), 0.05)
    assert not found.clocked
    assert any("no clock in both results" in warning for warning in found.warnings)
    one_clock = compare(measured(1), measured(2, clocked=False), 0.05)
    assert not one_clock.clocked


def test_the_threshold_is_what_counts_at_least() -> None:
    old, new = measured(1), measured(2, {8: 1.1})
    assert len(compare(old, new, 0.05).regressions) == 1
    assert not compare(old, new, 0.2).regressions


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(1.0, 1.3), st.floats(0.1, 10))
def test_a_machine_of_another_speed_throughout_changes_no_verdict(seed: int, slower: float, speed: float) -> None:
    new = samples.engines([samples.row("net", [samples.cell(8, 8e-4 * slower, seed)])])
    other = samples.engines([samples.row("net", [samples.cell(8, 8e-4 * slower, seed)])])
    for made in other["rows"][0]["cells"]:
        made["rounds_s"] = [[value * speed for value in part] for part in made["rounds_s"]]
    other["clock"]["rounds_s"] = [tick * speed for tick in other["clock"]["rounds_s"]]
    old = measured(seed + 1)
    there, here = (compare(old, recorded.parse(content), 0.05) for content in (new, other))
    assert verdicts(there) == verdicts(here)
    assert there.compared[0].contrast is not None
    assert here.compared[0].contrast is not None
    assert here.compared[0].contrast.value == pytest.approx(there.compared[0].contrast.value)


def test_what_is_in_one_result_alone_is_named() -> None:
    old = recorded.parse(
        samples.engines([samples.row("a", [samples.cell(1, 1e-3)]), samples.row("b", [samples.cell(1, 1e-3)])])
    )
    new = recorded.parse(samples.engines([samples.row("a", [samples.cell(1, 1e-3), samples.cell(8, 1e-3)])]))
    found = compare(old, new, 0.05)
    assert [one.what for one in found.compared] == ["a, batch 1, 1 thread"]
    assert found.only_old == ("b, batch 1, 1 thread",)
    assert found.only_new == ("a, batch 8, 1 thread",)


def test_nothing_in_common_and_two_kinds_are_refused() -> None:
    a = recorded.parse(samples.engines([samples.row("a", [samples.cell(1, 1e-3)])]))
    b = recorded.parse(samples.engines([samples.row("b", [samples.cell(1, 1e-3)])]))
    with pytest.raises(PenstockError, match="nothing is in both: the old result has a, batch 1"):
        compare(a, b, 0.05)
    with pytest.raises(PenstockError, match="the one is of engines, the other of server"):
        compare(a, recorded.parse(samples.server()), 0.05)


def test_too_few_rounds_are_not_compared() -> None:
    rows = [samples.row("a", [samples.cell(1, 1e-3, rounds=4), samples.cell(8, 1e-3)])]
    few = recorded.parse(samples.engines(rows))
    found = compare(few, few, 0.05)
    assert found.compared[0].unable == "under 5 rounds that count: a longer run has more"
    assert [one.unable for one in found.compared[1:]] == [None]
    assert not found.regressions


def test_where_nothing_can_be_compared_there_is_no_verdict() -> None:
    few = recorded.parse(samples.engines([samples.row("a", [samples.cell(1, 1e-3, rounds=4)])]))
    found = compare(few, few, 0.05)
    assert [one.unable for one in found.untold] == ["under 5 rounds that count: a longer run has more"]
    assert not found.regressions


def test_rounds_in_which_others_were_on_the_cores_do_not_count() -> None:
    def busy(rounds: int, slow: float) -> recorded.Result:
        made = samples.cell(8, 1e-3)
        made["rounds_s"][:rounds] = [[value * slow for value in part] for part in made["rounds_s"][:rounds]]
        clock = {"rounds_s": [1e-3] * 10, "others_cores": [1.8] * rounds + [0.0] * (10 - rounds)}
        return recorded.parse(samples.engines([samples.row("a", [made])], clock=clock))

    assert compare(busy(0, 1), busy(5, 1.5), 0.05).compared[0].verdict in ("same", "unsure")
    found = compare(busy(0, 1), busy(6, 1.5), 0.05)
    assert [one.unable for one in found.untold] == ["under 5 rounds that count: others were on the cores"]
    itself = compare(busy(10, 1.5), busy(10, 1.5), 0.05)
    assert not itself.untold
    assert not itself.regressions
    assert "both files hold one and the same measurement" in itself.warnings


def test_one_thread_is_compared_beside_others_that_leave_it_half_a_core_within_a_wider_interval() -> None:
    def beside(seconds: float, others: float, seed: int = 0) -> recorded.Result:
        clock = {"rounds_s": [1e-3] * 10, "others_cores": [others] * 10}
        return recorded.parse(samples.engines([samples.row("a", [samples.cell(8, seconds, seed)])], clock=clock))

    (alone,), (among,) = (compare(beside(1e-3, others), beside(1e-3, others, 1), 0.05).compared for others in (0, 1.4))
    assert alone.contrast is not None
    assert among.contrast is not None
    assert among.contrast.high > alone.contrast.high * 1.05
    assert not compare(beside(1e-3, 1.4), beside(1.1e-3, 1.4, 1), 0.05).regressions
    assert compare(beside(1e-3, 1.4), beside(1.4e-3, 1.4, 1), 0.05).regressions


def of_threads(
    threads: int | None, seconds: float, control: tuple[float, ...] | None = (1e-3,), **more: Any
) -> recorded.Result:
    """A measurement of one cell of so many threads, its control taking one of `control` in turns."""
    made = {**samples.cell(8, seconds), "threads": threads}
    if control is not None:
        turns = [control[number % len(control)] for number in range(2 * samples.ROUNDS)]
        made["control"] = {"rounds_s": list(zip(turns[::2], turns[1::2], strict=True))}
    return recorded.parse(samples.engines([samples.row("a", [made])], **more))


@pytest.mark.parametrize("threads", [None, 2])
def test_where_several_threads_ran_at_another_speed_no_cell_of_them_is_slower(threads: int | None) -> None:
    """The clock of one thread is the same in both."""
    found = compare(of_threads(threads, 1e-3), of_threads(threads, 1.7e-3, (1.8e-3,)), 0.05)
    assert [(one.verdict, one.unable) for one in found.compared] == [
        (
            "unsure",
            "the machine itself ran at 0.56 of its speed with 2 threads, and cells feel more of it; "
            "measure both again, or both with --threads 1",
        )
    ]


def test_a_control_that_did_not_hold_still_compares_nothing_of_several_threads() -> None:
    moved = of_threads(2, 1e-3, (1e-3, 1e-3, 1e-3, 1.8e-3))
    for old, new, name in ((moved, of_threads(2, 1.7e-3), "old"), (of_threads(2, 1.7e-3), moved, "new")):
        (one,) = compare(old, new, 0.05).compared
        assert one.unable is not None
        assert one.unable.startswith(f"the machine's speed with 2 threads changed within the {name} result")
    assert compare(of_threads(1, 1e-3, None), of_threads(1, 1.2e-3, None), 0.05).regressions


def test_cells_of_several_threads_are_compared_where_their_control_held_still() -> None:
    assert compare(of_threads(2, 1e-3), of_threads(2, 1.2e-3, (1.01e-3,)), 0.05).regressions
    assert not compare(of_threads(2, 1e-3), of_threads(2, 1e-3, (1.01e-3,)), 0.05).untold


def test_the_interval_holds_what_the_control_moved_by() -> None:
    still, moved = (
        compare(of_threads(2, 1e-3), of_threads(2, 1.1e-3, (control,)), 0.05).compared[0].contrast
        for control in (1e-3, 1.04e-3)
    )
    assert still is not None
    assert moved is not None
    assert moved.high / moved.low > 1.1 * still.high / still.low


def test_without_a_control_several_threads_are_not_compared_and_the_measured_peaks_are() -> None:
    def peaks(rate: float) -> dict[str, Any]:
        return {"ceiling": {"peaks": {"2": {"operations_per_s": {"float32": rate}, "bytes_per_s": {}}}}}

    found = compare(of_threads(None, 1e-3, None, **peaks(5e11)), of_threads(None, 1.7e-3, **peaks(2.4e11)), 0.05)
    assert [one.unable for one in found.compared] == [
        "no control of 2 threads in the old result; measure both again, or both with --threads 1"
    ]
    assert any("peak of 2 cores was 500 G operations/s in the old result and 240 G" in one for one in found.warnings)


def test_what_is_too_little_in_each_cell_is_found_of_all_together() -> None:
    def of(seed: int, slower: float) -> recorded.Result:
        rows = [samples.row(f"net-{n}", [samples.cell(8, 1e-3 * slower, seed + n, noise=0.06)]) for n in range(12)]
        return recorded.parse(samples.engines(rows))

    found = compare(of(0, 1), of(100, 1.1), 0.05)
    assert [one.what for one in found.regressions if one.what.startswith("all")] == ["all 12 together"]
    assert len(found.regressions) < 8
    assert not compare(of(0, 1), of(200, 1), 0.05).regressions


def test_a_gpu_s_figures_are_not_divided_by_the_clock_of_a_core() -> None:
    def at(clock: float, **row: Any) -> recorded.Result:
        rows = [samples.row("a", [samples.cell(8, 1e-3)], **row)]
        return recorded.parse(samples.engines(rows, clock={"rounds_s": [clock] * 10}))

    assert compare(at(1e-3), at(2e-3), 0.05).compared[0].verdict == "faster"
    assert compare(at(1e-3, format="trt"), at(2e-3, format="trt"), 0.05).compared[0].verdict != "faster"


def test_environments_that_differ_are_named_and_another_machine_is_warned_of() -> None:
    old = measured(1, environment={"cpu": "A", "cores": 2, "versions": {"onnxruntime": "1.31"}, "load_1min": 0.1})
    new = measured(2, environment={"cpu": "B", "cores": 2, "versions": {"onnxruntime": "1.32"}, "load_1min": 1.9})
    found = compare(old, new, 0.05)
    assert [str(change) for change in found.changes] == ["cpu: A → B", "versions.onnxruntime: 1.31 → 1.32"]
    assert any("machines differ" in warning for warning in found.warnings)
    again = compare(old, measured(2, environment=old.environment), 0.05)
    assert again.changes == ()
    assert again.warnings == ()


def of_server(**more: Any) -> recorded.Result:
    return recorded.parse(samples.server(**more))


def test_a_server_is_compared_by_throughput_latency_and_failures() -> None:
    old = of_server(runs=[samples.run("closed", 8, 1e-3, 1), samples.run("poisson", 200, 1e-3, 2)])
    slow = of_server(runs=[samples.run("closed", 8, 1.2e-3, 3), samples.run("poisson", 200, 1.2e-3, 4)])
    found = compare(old, slow, 0.05)
    assert {(one.what.split(",")[0], one.figure) for one in found.regressions} == {
        ("closed", "requests/s"),
        ("closed", "median"),
        ("closed", "p99"),
        ("poisson", "median"),
        ("poisson", "p99"),
    }
    assert not compare(old, of_server(runs=[samples.run("closed", 8, 1e-3, 5)]), 0.05).regressions


def test_more_failures_are_a_regression_however_fast_they_are() -> None:
    old = of_server(runs=[samples.run("closed", 8, 1e-3, 1)])
    fails = of_server(runs=[samples.run("closed", 8, 5e-4, 1, failures={"wrong": 200})])
    assert [(one.figure, one.verdict) for one in compare(old, fails, 0.05).regressions] == [("failures", "worse")]
    one = of_server(runs=[samples.run("closed", 8, 1e-3, 1, failures={"connection": 1})])
    assert not compare(old, one, 0.05).regressions


def test_a_void_run_is_not_compared() -> None:
    old = of_server(runs=[samples.run("closed", 1, 1e-3, 1), samples.run("closed", 8, 1e-3, 1)])
    void = of_server(
        runs=[samples.run("closed", 1, 1e-3, 2), samples.run("closed", 8, 9e-3, 1, void="the generator was too slow")]
    )
    found = compare(old, void, 0.05)
    assert {(one.what, one.unable) for one in found.compared} == {
        ("closed, 1 connection", None),
        ("closed, 8 connections", "void: the generator was too slow"),
    }
    assert not found.regressions


def test_without_windows_a_latency_s_own_interval_is_used() -> None:
    old = of_server(runs=[samples.run("poisson", 200, 1e-3, 1, windows=[])])
    new = of_server(runs=[samples.run("poisson", 200, 1.3e-3, 2, windows=[])])
    assert {one.figure for one in compare(old, new, 0.05).regressions} == {"median", "p99"}
    bare = of_server(runs=[samples.run("poisson", 200, 1.3e-3, 2, windows=[], median_ci_s=None, p99_ci_s=None)])
    assert {one.unable for one in compare(old, bare, 0.05).compared} == {None, "under 5 windows of time in a run"}


@pytest.mark.parametrize("turned", [False, True])
def test_a_guess_takes_no_other_run_s_place_and_counts_where_there_is_no_other(turned: bool) -> None:
    measured, guess = (
        samples.run("closed", 32, seconds, 1, purpose=purpose)
        for seconds, purpose in ((1e-3, "sweep"), (9e-3, "guess"))
    )
    runs = [guess, measured] if turned else [measured, guess]
    assert not compare(of_server(runs=[measured]), of_server(runs=runs), 0.05).regressions
    assert compare(of_server(runs=[measured]), of_server(runs=[guess]), 0.05).regressions


def test_runs_that_only_find_the_way_are_not_compared() -> None:
    runs = [samples.run("poisson", 200, 1e-3, 1), samples.run("poisson", 200, 9e-3, 2, purpose="probe")]
    found = compare(of_server(runs=runs), of_server(runs=runs[:1]), 0.05)
    assert not found.regressions
    assert found.only_old == ()
    assert not found.clocked
