"""Warnings: what was seen, with numbers, and what helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bench import warnings
from penstock.bench.warnings import Lookout, of_samples, too_few, unsteady


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """/proc/stat of a machine that is idle, and on which nobody else works."""
    path = tmp_path / "stat"
    path.write_text("cpu 100 0 0 900 0 0 0 0 0 0\n")
    monkeypatch.setattr(warnings, "_STAT", path)
    monkeypatch.setattr(warnings, "_throttled", lambda: 0)
    monkeypatch.setattr("penstock.machine.Others.cores", lambda self: 0.0)
    return path


def test_a_quiet_machine_gives_no_warning(stat: Path) -> None:
    assert Lookout().warnings([1.0, 1.05]) == []


def test_stolen_time_is_told_with_its_share(stat: Path) -> None:
    lookout = Lookout()
    stat.write_text("cpu 100 0 0 980 0 0 0 20 0 0\n")
    (found,) = lookout.warnings()
    assert "took 20.0% of its processors' time away" in found.text
    assert found.remedy


def test_others_at_work_are_told_in_cores(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.machine.Others.cores", lambda self: 0.5)
    (found,) = Lookout().warnings()
    assert "other processes had 0.5 of" in found.text


def test_processors_that_were_slowed_down_are_told(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookout = Lookout()
    monkeypatch.setattr(warnings, "_throttled", lambda: 3)
    (found,) = lookout.warnings()
    assert "slowed down 3 times" in found.text


def test_a_gpu_s_brakes_are_kept_from_the_moment_they_were_seen(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookout = Lookout("cuda:0")
    seen = iter([{"heat"}, set(), {"its power cap"}])
    monkeypatch.setattr(warnings, "_gpu_brakes", lambda device: next(seen))
    for _ in range(3):
        lookout.look()
    (found,) = lookout.warnings()
    assert "slowed down by heat and its power cap" in found.text


def test_a_machine_that_changes_its_speed_is_told(stat: Path) -> None:
    (found,) = Lookout().warnings([1.0, 1.25, 1.1])
    assert "changed by 25%" in found.text


def test_outliers_are_told_of_the_worst_line() -> None:
    quiet, loud, louder = [1.0] * 1000, [1.0] * 990 + [5.0] * 10, [1.0] * 950 + [50.0] * 50
    assert of_samples([("quiet", quiet), ("few", [1.0, 9.0])]) == []
    (found,) = of_samples([("loud", loud), ("louder", louder), ("quiet", quiet)])
    assert found.text.startswith("louder: 5.0% of its runs took more than 3 times the median, the longest 50 times")


def test_a_remedy_for_too_few_samples_would_be_enough() -> None:
    found = too_few(3, 12, 331, 2.0)
    assert "3 of 12 lines have too few samples for a p99, which takes 662" in found.text
    assert found.remedy.startswith("--seconds 5 ")  # 4 would be just enough


def test_lines_that_never_settled_are_named() -> None:
    assert unsteady(["a at batch 1"]).text.startswith("a at batch 1: ")
    assert unsteady(["a at batch 1", "b", "c"]).text.startswith("a at batch 1 and 2 more: ")


def test_many_outliers_are_not_said_to_leave_the_median_alone() -> None:
    few, many = (of_samples([("a", [1.0] * (1000 - far) + [9.0] * far)])[0].remedy for far in (20, 260))
    assert few.endswith("the median and the ratios hardly feel it")
    assert many.endswith("so many move the median too")
