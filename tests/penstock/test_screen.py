"""The screen: texts of others are shown, and steer nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.table import Table
from typer.testing import CliRunner

from penstock import cli
from penstock.bench import serverreport
from penstock.screen import Screen
from tests.bench import samples

STEERS = "a\x1b[31m\x1b]0;own\x07\r\u202eb\x9b2J\ud800[bold]ü"
SHOWN = r"a\x1b[31m\x1b]0;own\x07\r\u202eb\x9b2J\ud800[bold]ü"


def test_what_steers_a_terminal_is_spelt_out_in_lines_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(STEERS, box=None)
    table.add_row(STEERS)
    screen = Screen(140)
    screen.print(f"note: {STEERS}", soft_wrap=True)
    screen.print(table)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [f"note: {SHOWN}", SHOWN, SHOWN]


def test_results_of_others_are_shown_without_steering(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [samples.row(f"{STEERS[:-13]}ü", [samples.cell(1, 1e-3, seed)]) for seed in (1, 2)]
    for name, row in zip("ab", rows, strict=True):
        warned = [{"text": STEERS[:20], "remedy": ""}]
        (tmp_path / name).write_text(
            json.dumps(samples.engines([row], warnings=warned, environment={"cpu": name + "\x1b"}))
        )
    found = CliRunner().invoke(cli.app, ["bench", "--compare", f"{tmp_path}/a", f"{tmp_path}/b"])
    assert "old result warns: a\\x1b[31m" in found.output
    assert found.output.replace("\n", "").isprintable()
    made = samples.server([], warnings=[{"text": STEERS, "remedy": STEERS}], lost=False, capacity=None, slo=None)
    made["server"] |= {"model_version": "", "name": STEERS}
    made["payload"] |= {"different": 1}
    made["environment"] |= {"load_1min": 0, "processes": 1, "started": ""}
    serverreport.show({**made, "interrupted": False})
    assert SHOWN in (out := capsys.readouterr().out)
    assert out.replace("\n", "").isprintable()


def test_an_error_steers_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["penstock", "bench", "--from", "\x1b[2J.json", "--csv", "x.csv"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err.startswith("error: --from \\x1b[2J.json: cannot be read")
