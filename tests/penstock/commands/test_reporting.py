"""Where bench writes: seen before anything is measured, written whatever becomes of the screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock import cli
from penstock.commands import reporting
from penstock.errors import PenstockError
from tests.bench import samples


@pytest.mark.parametrize("words", [["http://127.0.0.1:1", "m"], ["no/such/artifact"]])
@pytest.mark.parametrize("option", ["--json", "--csv", "--html"])
def test_a_target_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, option: str, words: list[str]
) -> None:
    target = tmp_path / "gone" / "x"
    with pytest.raises(PenstockError, match=f"{option} .*gone/x: cannot be written: No such file.*nothing was begun"):
        CliRunner().invoke(cli.app, ["bench", *words, option, str(target)], catch_exceptions=False)


def test_the_folder_of_the_logs_is_seen_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PenstockError, match=r"--logs .*file/logs: cannot be written: Not a directory"):
        reporting.Files(logs=tmp_path / "file" / "logs").see()
    reporting.Files(logs=tmp_path / "new" / "logs").see()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_dash_is_no_file_and_one_file_does_not_hold_two_reports(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="--csv -: must be the name of a file"):
        reporting.Files(csv=Path("-")).see()
    with pytest.raises(PenstockError, match="must be two files"):
        reporting.Files(csv=tmp_path / "a", html=tmp_path / "a").see()
    reporting.Files(json=tmp_path / "a", csv=tmp_path / "b", html=tmp_path / "c").see()


def test_what_was_written_is_told_behind_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = reporting.Files(tmp_path / "a.json", tmp_path / "a.csv", tmp_path / "a.html")
    reporting.tell(lambda: print("the table"), samples.server(), files)
    said = capsys.readouterr().out.splitlines()
    assert said == ["the table", *(f"wrote {tmp_path}/a.{form}" for form in ("json", "csv", "html"))]
    assert json.loads((tmp_path / "a.json").read_text()) == samples.server()


def test_a_disk_that_fills_up_meanwhile_takes_the_file_and_not_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PenstockError, match=r"--json .*gone/a\.json: cannot be written: .*the figures are not kept"):
        reporting.tell(lambda: print("the table"), samples.server(), reporting.Files(json=tmp_path / "gone" / "a.json"))
    assert "the table" in capsys.readouterr().out


def test_a_screen_that_is_closed_takes_no_file(tmp_path: Path) -> None:
    def closed() -> Any:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        reporting.tell(closed, samples.server(), reporting.Files(json=tmp_path / "a.json"))
    assert (tmp_path / "a.json").is_file()
