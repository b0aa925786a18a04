"""LoadGen's scenarios: what is said of a run, without LoadGen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.bench import loadgen, scenarios
from penstock.bench.loadgen import Outcome, Settings
from penstock.bench.server import Plan


def result_of(monkeypatch: pytest.MonkeyPatch, scenario: str, logs: Path | None, summary: dict[str, str]) -> Any:
    """What a scenario gives where LoadGen leaves this summary."""

    def ran(settings: Settings, make: Any) -> Outcome:
        settings.logs.mkdir(parents=True, exist_ok=True)
        (settings.logs / loadgen.SUMMARY).touch()
        return Outcome(summary, [1e-3] * 1000, {}, 1.0)

    def asked(word: str, model: str | None, plan: Plan, choice: scenarios.Choice, folder: Path) -> dict[str, Any]:
        settings = Settings(choice.scenario, folder)
        return scenarios._result(loadgen.run(settings, lambda: None), settings, [])

    monkeypatch.setattr(loadgen, "run", ran)
    monkeypatch.setattr(scenarios, "_of_server", asked)
    rates = (100.0,) if scenario == "server" else ()
    return scenarios.measure("http://127.0.0.1:1", None, Plan(rates=rates), scenarios.Choice(scenario, logs))


@pytest.mark.parametrize(
    ("scenario", "name", "value", "said"),
    [
        ("singlestream", "90.0th percentile latency (ns)", "62804", "LoadGen, SingleStream: VALID, p90 0.0628 ms"),
        (
            "multistream",
            "99.0th percentile latency (ns)",
            "6867706",
            "MultiStream: VALID, p99 6.868 ms for a query of 8",
        ),
        ("server", "Completed samples per second", "98.5", "LoadGen, Server: VALID, 98.5 samples/s"),
        ("offline", "Samples per second", "20209.7", "LoadGen, Offline: VALID, 20,209.7 samples/s"),
    ],
)
def test_the_verdict_and_the_scenario_s_own_metric_are_told(
    monkeypatch: pytest.MonkeyPatch, scenario: str, name: str, value: str, said: str
) -> None:
    result = result_of(monkeypatch, scenario, None, {"Result is": "VALID", name: value})
    assert said in result["loadgen"]["verdict"]


def test_a_run_without_a_summary_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    assert result_of(monkeypatch, "offline", None, {})["loadgen"]["verdict"] == "LoadGen, Offline: no verdict"


def test_logs_are_kept_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = result_of(monkeypatch, "offline", None, {})
    assert (result["loadgen"]["logs"], list(tmp_path.iterdir())) == (None, [])
    assert any("--logs DIR keeps" in note for note in result["notes"])
    result = result_of(monkeypatch, "offline", tmp_path / "logs", {})
    assert result["loadgen"]["logs"] == str(tmp_path / "logs")
    assert (tmp_path / "logs" / loadgen.SUMMARY).is_file()
