"""Figures: the document that all reports are made of, from measurements whose every number is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.artifact import read
from penstock.bench import figures, report
from penstock.bench.footprint import Footprint
from penstock.bench.measure import Plan, Result, Row, Setting
from penstock.bench.peaks import Peaks
from penstock.bench.warnings import Warning
from penstock.evaluation import Score
from penstock.launches import Parts
from penstock.timing import Cell

ONE = Setting(8)
PEAKS = {"2": Peaks({"float32": 1e11, "int8": 4e11}, {2**18: 1e11}), "1": Peaks({"float32": 5e10}, {2**18: 5e10})}


def cell(seconds: float, runs: int = 100, rounds: int = 10, batch: int = 8) -> Cell:
    return Cell(batch, [[seconds] * runs] * rounds, spans=[seconds * runs] * rounds)


@pytest.fixture
def result(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """fp32 at 2 ms and int8 at 1 ms for 8 rows, on a machine of two cores whose peaks are round."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    rows = [
        Row(read(repository / "digits-onnx-fp32"), {ONE: cell(0.002)}, score=Score(99, 100)),
        Row(read(repository / "digits-onnx-int8"), {ONE: cell(0.001)}, score=Score(98, 100)),
    ]
    for row in rows:
        row.footprint = Footprint(0.01, 0.001, 10**7, 10**8, None, 1e6)
    environment = {"cpu": "a CPU", "cores": 2, "load_1min": 0.0, "gpu": None}
    return Result(rows, "digits-onnx-fp32", Plan(batches=(8,)), environment, [], [], dict(PEAKS), [0.002] * 10)


def test_the_document_has_what_was_measured(result: Result) -> None:
    found = json.loads(json.dumps(figures.as_dict(result), allow_nan=False))
    assert (found["penstock_bench"], found["kind"], found["interrupted"]) == (1, "engines", False)
    assert found["clock"] == {"unit": "s", "rounds_s": [0.002] * 10, "others_cores": []}
    fp32, int8 = (row["cells"][0] for row in found["rows"])
    assert (fp32["batch"], fp32["threads"], fp32["streams"], fp32["samples"]) == (8, None, 1, 1000)
    assert [fp32[f"{name}_s"] for name in ("median", "p90", "p95", "p99")] == [0.002] * 4
    assert int8["p99_ci_s"] == [0.001, 0.001]
    assert int8["rows_per_second"] == pytest.approx(8000)
    assert (fp32["ratio"], int8["ratio"]) == ({"value": 1, "lo": 1, "hi": 1}, {"value": 2, "lo": 2, "hi": 2})
    assert int8["rounds_s"] == [[0.001] * 100] * 10
    assert found["rows"][0]["memory"] == {"host_bytes": 10**7, "device_bytes": None, "process_bytes": 10**8}


def test_a_share_of_the_ceiling_is_the_least_time_over_the_real_one(result: Result) -> None:
    fp32, int8 = (row["cells"][0] for row in figures.as_dict(result)["rows"])
    assert fp32["ceiling_s"] == pytest.approx(2 * 8 * 1e6 / 1e11)  # 0.16 ms of arithmetic, on two cores
    assert fp32["share_of_ceiling"] == pytest.approx(0.08)
    assert (fp32["limit"], int8["limit"]) == ("arithmetic", "arithmetic")
    assert int8["share_of_ceiling"] == pytest.approx(0.04)


def test_a_line_beyond_its_ceiling_is_warned_of(result: Result) -> None:
    assert not any("ceiling" in held["text"] for held in figures.as_dict(result)["warnings"])
    result.rows[1].cells[ONE] = cell(3e-5)
    texts = [held["text"] for held in figures.as_dict(result)["warnings"]]
    assert any(text.startswith("digits-onnx-int8 reaches 133% of its ceiling") for text in texts)


def test_operations_that_a_format_does_not_tell_are_those_of_the_same_checkpoint(result: Result) -> None:
    result.rows[1].footprint = Footprint(0.01, 0.001)
    assert figures.as_dict(result)["rows"][1]["multiply_adds_per_row"] == 1e6
    result.rows[0].footprint = None
    found = figures.as_dict(result)["rows"][0]
    assert found["multiply_adds_per_row"] is None
    assert found["cells"][0]["share_of_ceiling"] is None
    assert found["load_s"] is None


def test_without_peaks_there_are_no_ceilings(result: Result) -> None:
    found = figures.as_dict(replace(result, peaks={}))
    assert found["ceiling"] is None
    assert found["rows"][0]["cells"][0]["ceiling_s"] is None


def test_percentiles_from_too_few_are_null_and_the_remedy_names_the_seconds(result: Result) -> None:
    result.rows[0].cells[ONE] = cell(0.002, runs=6)
    found = figures.as_dict(result)
    held = found["rows"][0]["cells"][0]
    assert (held["samples"], held["median_s"], held["p90_s"], held["p95_s"], held["p99_s"]) == (
        60,
        0.002,
        None,
        None,
        None,
    )
    assert held["p99_ci_s"] is None
    assert {
        "text": "1 of 2 lines have too few samples for a p99, which takes 662",
        "remedy": "--seconds 13 gives it to all of them",
    } in found["warnings"]


@pytest.mark.parametrize(("budget", "winner"), [(0.01, "digits-onnx-int8"), (0.005, "digits-onnx-fp32")])
def test_the_verdict_keeps_the_budget(result: Result, budget: float, winner: str) -> None:
    found = figures.as_dict(replace(result, plan=replace(result.plan, budget=budget)))["verdict"]
    assert (found["fastest"], found["batch"], found["budget"]) == (winner, 8, budget)
    assert found["text"].startswith(f"fastest within an accuracy drop of {budget:g}: {winner}, ")


def test_a_verdict_without_labels_claims_no_accuracy(result: Result) -> None:
    for row in result.rows:
        row.score = None
    said = figures.as_dict(result)["verdict"]["text"]
    assert said.startswith(
        "fastest that agrees with its source on 99% of rows or more (accuracy not measured): digits-"
    )
    for row in result.rows:
        distances = [one.model_copy(update={"agreement": None}) for one in row.artifact.receipt.verification.distances]
        checked = row.artifact.receipt.verification.model_copy(update={"distances": distances})
        receipt = row.artifact.receipt.model_copy(update={"verification": checked})
        row.artifact = replace(row.artifact, receipt=receipt)
    said = figures.as_dict(result)["verdict"]["text"]
    assert said.startswith("fastest (accuracy not measured): digits-onnx-int8, ")


def test_a_verdict_from_few_rounds_says_so(result: Result) -> None:
    for row in result.rows:
        row.cells[ONE].rounds = row.cells[ONE].rounds[:3]
    found = figures.as_dict(replace(result, interrupted=True))
    assert found["verdict"]["fastest"] == "digits-onnx-fp32"
    assert "digits-onnx-int8 is no faster for certain (too few rounds to tell)" in found["verdict"]["text"]
    assert found["rows"][1]["cells"][0]["ratio"] == {"value": 2.0, "lo": None, "hi": None}


def test_nothing_measured_is_a_document_too(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    for row in result.rows:
        row.cells[ONE] = Cell(8)
    result.interrupted = True
    found = figures.as_dict(result)
    assert found["verdict"] is None
    assert all(row["cells"] == [] for row in found["rows"])
    report.show(result)
    assert "note: interrupted" in capsys.readouterr().out


def test_what_failed_is_told_beside_what_did_not(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    result.rows[1].cells[Setting(64)] = Cell(64, failure="no memory left")
    found = figures.as_dict(result)["rows"][1]
    assert found["failures"] == [{"batch": 64, "threads": None, "streams": 1, "error": "no memory left"}]
    report.show(result)
    assert "failed: digits-onnx-int8 at batch 64: no memory left\n" in capsys.readouterr().out


def test_warnings_come_with_their_remedies(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    result.warnings = [Warning("the machine was busy", "stop the others")]
    assert figures.as_dict(result)["warnings"][0] == {"text": "the machine was busy", "remedy": "stop the others"}
    result.rows[0].cells[ONE].steady = False
    report.show(result)
    out = capsys.readouterr().out
    assert "warning: the machine was busy; stop the others\n" in out
    assert "warning: digits-onnx-fp32 at batch 8: " in out


def test_columns_appear_where_they_say_something(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    report.show(result)
    plain = next(line for line in reversed(capsys.readouterr().out.splitlines()) if line.startswith("variant"))
    assert not any(name in plain for name in ("threads", "streams", "gpu ms", "copies", "J/row"))
    setting = Setting(8, 1, 2)
    for row in result.rows:
        row.cells = {setting: replace(cell(0.002), streams=2, joules=80.0)}
        row.parts = {setting: Parts(0.0001, 0.001, 0.0002)}
    report.show(replace(result, plan=Plan(batches=(8,), threads=(1, 2), streams=(1, 2))))
    lines = capsys.readouterr().out.splitlines()
    table = lines[max(place for place, line in enumerate(lines) if line.startswith("variant")) :]
    assert table[0].split()[1:11] == ["batch", "threads", "streams", "median", "ms", "±", "p90", "p95", "p99", "n"]
    assert table[0].split()[11:17] == ["gpu", "ms", "copies", "rows/s", "J/row", "ceiling"]
    assert table[1].split()[1:] == [
        *(
            "8",
            "1",
            "2",
            "2.000",
            "0.0%",
            "2.000",
            "2.000",
            "2.000",
            "1000",
            "0.700",
            "0.300",
            "4,000",
            "0.01",
            "8%",
            "1",
            "(reference)",
        )
    ]
    assert all(len(line) <= 140 for line in table)


def test_another_setting_s_winner_is_named_with_the_faster_one_it_was_preferred_to(result: Result) -> None:
    one = Setting(1)
    result.rows[0].cells[one] = cell(0.0010, batch=1)
    result.rows[1].cells[one] = cell(0.00099, batch=1)
    result.plan = replace(result.plan, batches=(1, 8))
    text = figures.as_dict(result)["verdict"]["text"]
    assert "digits-onnx-int8, 8,000 rows/s at batch 8, by medians 2.00 times as fast as digits-onnx-fp32" in text
    assert text.endswith("; at batch 1 digits-onnx-fp32, as digits-onnx-int8 is no faster for certain (1.01 to 1.01)")


def told(result: Result) -> list[str]:
    return [f"{one['text']}; {one['remedy']}" for one in figures.as_dict(result)["warnings"]]


def test_it_is_said_at_once_how_many_rounds_can_be_compared(result: Result) -> None:
    assert not any("--compare" in one for one in told(result))
    result.others = [0.0, 0.1, 0.2, *[1.0] * 7]
    assert told(result) == [
        "of lines with 2 threads 3 of 10 rounds can be compared with another result (--compare), which takes 5: others "
        "were on the cores in the rest; stop what else runs, and measure again"
    ]


def test_rounds_beside_others_that_leave_one_thread_half_a_core_can_be_compared(result: Result) -> None:
    for row in result.rows:
        row.cells = {Setting(8, 1): row.cells[ONE]}
    result.others = [1.4] * 10
    assert not told(result)
    result.others = [1.7] * 10
    assert told(result)[0].startswith("of lines with 1 thread 0 of 10 rounds can be compared")


def test_cores_whose_speed_together_changed_are_warned_of(result: Result) -> None:
    result.rows[0].cells[ONE].controls = [(1e-3, 1.01e-3)] * 10
    assert not told(result)
    result.rows[0].cells[ONE].controls = [(1e-3, 1e-3), (1e-3, 2e-3)] * 5
    assert told(result) == [
        "the machine's speed with 2 threads changed meanwhile: lines of so many cannot be compared with another result "
        "(--compare); --threads 1 measures what can be; or measure on a machine whose cores are its own"
    ]


def test_a_remedy_for_too_few_samples_counts_the_rounds_that_were_made(result: Result) -> None:
    """Two of ten rounds in 1 s: 40 runs took a fifth of it."""
    for row in result.rows:
        row.cells[ONE] = cell(0.002, runs=20, rounds=2)
    result.interrupted = True
    (few,) = [one for one in told(result) if "p99" in one]
    assert few.endswith("; --seconds 4 gives it to all of them")
