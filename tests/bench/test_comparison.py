"""What a comparison prints, and the command's exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock import cli
from penstock.bench import compare, comparison, recorded
from penstock.errors import PenstockError
from tests.bench import samples


def bench(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["bench", *map(str, words)])


def files(folder: Path, slower: float = 1.0, **more: Any) -> tuple[Path, Path]:
    old = samples.engines([samples.row("net", [samples.cell(8, 1e-3, 1), samples.cell(1, 1e-4, 1)])])
    new = samples.engines([samples.row("net", [samples.cell(8, 1e-3 * slower, 2), samples.cell(1, 1e-4, 2)])], **more)
    for name, content in (("old", old), ("new", new)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder / "old.json", folder / "new.json"


def test_no_regression_exits_with_0_and_says_so_last(tmp_path: Path) -> None:
    done = bench("--compare", *files(tmp_path))
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split() == ["what", "figure", "old", "new", "time,", "new/old,", "clocked", "change"]
    assert lines[-1].startswith("no regression: none of 3 is slower by 5.0% or more and beyond noise")


def test_a_regression_exits_with_1_and_is_named(tmp_path: Path) -> None:
    done = bench("--compare", *files(tmp_path, slower=1.2))
    assert done.exit_code == 1, done.output
    assert done.output.splitlines()[-1].startswith("regression: 2 of 3: net, batch 8, 1 thread (median 1.")
    assert "SLOWER" in done.output


def test_the_threshold_decides(tmp_path: Path) -> None:
    assert bench("--compare", *files(tmp_path, slower=1.2), "--threshold", "0.5").exit_code == 0


def test_nothing_in_common_is_an_error_which_the_command_line_ends_with_2(tmp_path: Path) -> None:
    old, new = files(tmp_path)
    new.write_text(json.dumps(samples.engines([samples.row("other", [samples.cell(8, 1e-3)])])))
    done = bench("--compare", old, new)
    assert isinstance(done.exception, PenstockError)
    assert "nothing is in both" in str(done.exception)


def test_what_differs_is_said_before_the_table(tmp_path: Path) -> None:
    done = bench("--compare", *files(tmp_path, environment={"cpu": "Another [bold]one[/]", "cores": 2}))
    lines = done.output.splitlines()
    assert "differs: cpu: A Processor → Another [bold]one[/]" in lines
    assert any(line.startswith("warning: the machines differ") for line in lines)
    assert next(i for i, line in enumerate(lines) if line.startswith("what")) > lines.index(
        "differs: versions.onnxruntime: 1.32.0 → not told"
    )


def test_json_has_the_whole_comparison(tmp_path: Path) -> None:
    done = bench("--compare", *files(tmp_path, slower=1.2), "--json", tmp_path / "c.json")
    assert done.exit_code == 1
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["regressions"] == 2
    assert content["compared"][0]["verdict"] == "slower"
    assert content["compared"][0]["contrast"]["low"] > 1


def test_a_comparison_is_shown_also_where_its_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.commands.reporting.Files.see", lambda _: None)  # it was there then
    done = bench("--compare", *files(tmp_path, slower=1.2), "--json", tmp_path / "gone" / "c.json")
    assert "gone/c.json: cannot be written" in str(done.exception)
    assert "regression: 2 of " in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threshold", "0.1"], "--threshold: means something only with --compare OLD NEW"),
        ([], "bench needs artifacts or a server's URL to measure"),
        (["--from", "old.json"], "--from old.json: cannot be read"),
        (["--compare", "old.json", "new.json", "--batch", "8"], "cannot be given together with --batch"),
        (["--compare", "old.json", "new.json", "--html", "a.html"], "cannot be given together with --html"),
        (["models", "--compare", "old.json", "new.json"], "cannot be given together with an artifact or a server"),
        (["--from", "old.json", "--csv", "a.csv", "--seconds", "2"], "cannot be given together with --seconds"),
        (["--compare", "gone.json", "new.json"], "--compare gone.json: cannot be read: No such file or directory"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words: list[str], said: str) -> None:
    done = bench(*words)
    assert isinstance(done.exception, PenstockError)
    assert said in str(done.exception)


def test_reports_are_made_from_a_file(tmp_path: Path) -> None:
    old, _ = files(tmp_path)
    done = bench("--from", old, "--csv", tmp_path / "a.csv", "--html", tmp_path / "a.html")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.csv").read_text().startswith("name,version,")
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")


def test_a_figure_that_was_not_compared_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [samples.row("a", [samples.cell(1, 1e-3, rounds=3), samples.cell(8, 1e-3)])]
    few = recorded.parse(samples.engines(rows))
    comparison.show(compare.compare(few, few, 0.05))
    assert "not compared: a, batch 1, 1 thread: under 5 rounds that count" in capsys.readouterr().out


def test_too_noisy_to_tell_has_an_exit_code_of_its_own_and_says_what_to_do(tmp_path: Path) -> None:
    busy = {"rounds_s": [1e-3] * 10, "others_cores": [1.8] * 10}
    done = bench("--compare", *files(tmp_path, clock=busy), "--json", tmp_path / "c.json")
    assert done.exit_code == comparison.UNTOLD == 4, done.output
    assert done.output.splitlines()[-2:] == [
        "not compared: net, batch 8, 1 thread and 1 more: under 5 rounds that count: others were on the cores",
        "too noisy to tell: none of 2 could be compared; measure again",
    ]
    assert json.loads((tmp_path / "c.json").read_text())["untold"] == 2


def test_what_is_slower_exits_with_1_beside_what_cannot_be_told(tmp_path: Path) -> None:
    old, new = (
        samples.engines([samples.row("a", [samples.cell(1, 1e-3, rounds=3), samples.cell(8, seconds)])])
        for seconds in (1e-3, 1.3e-3)
    )
    for name, content in (("old", old), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert bench("--compare", tmp_path / "old.json", tmp_path / "new.json").exit_code == 1
    (tmp_path / "new.json").write_text(json.dumps({**old, "reference": "a"}))
    done = bench("--compare", tmp_path / "old.json", tmp_path / "new.json")
    assert done.exit_code == 4, done.output
    assert "no regression: none of 1 is slower" in done.output
    assert done.output.splitlines()[-1].endswith("; of 1 more it cannot be told")


def test_a_file_is_no_slower_than_itself_whoever_was_on_the_cores(tmp_path: Path) -> None:
    _, new = files(tmp_path, clock={"rounds_s": [1e-3] * 10, "others_cores": [1.8] * 10})
    done = bench("--compare", new, new)
    assert done.exit_code == 0, done.output
    assert "warning: both files hold one and the same measurement" in done.output


def test_a_file_alone_shows_the_tables_of_artifacts_again(tmp_path: Path, repository: Path) -> None:
    made = bench(repository / "digits-onnx-fp32", "--batch", "1", "--seconds", "0.1", "--json", tmp_path / "a.json")
    *shown, wrote = made.output.splitlines()
    assert wrote == f"wrote {tmp_path / 'a.json'}"
    assert bench("--from", tmp_path / "a.json").output.splitlines() == shown
    old, _ = files(tmp_path)
    done = bench("--from", old)
    assert isinstance(done.exception, PenstockError)
    assert "for the tables; give --html or --csv" in str(done.exception)
    old.write_text(json.dumps(samples.server()))
    assert "say what to make of it" in str(bench("--from", old).exception)
