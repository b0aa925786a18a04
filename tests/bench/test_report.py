"""Reports: a table that says what was measured, and JSON that keeps every sample."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock import cli
from penstock.bench import report
from penstock.bench.measure import Plan, Result, Setting, measure
from penstock.commands import reporting
from penstock.errors import PenstockError
from penstock.timing import Cell


@pytest.fixture(scope="session")
def result(repository: Path) -> Result:
    paths = [repository / name for name in ("digits-onnx-fp32", "digits-onnx-int8", "digits-trt-fp16")]
    return measure(paths, Plan(batches=(1, 8), seconds=0.05))


def test_the_table_is_the_last_thing_printed(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    report.show(result)
    lines = capsys.readouterr().out.splitlines()
    header = max(index for index, line in enumerate(lines) if line.startswith("variant"))
    table = lines[header:]
    assert "speed vs digits-onnx-fp32" in table[0]
    assert table[1].split()[:2] == ["digits-onnx-fp32", "1"]
    assert table[1].rstrip().endswith("1 (reference)")
    assert [line.split()[0] for line in table[1:]] == ["digits-onnx-fp32", "8", "digits-onnx-int8", "8"]
    assert all(len(line) <= 132 for line in table)


def test_what_was_not_measured_is_noted_above_the_table(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    if result.rows[2].unavailable is None:
        pytest.skip("this machine runs the engine")
    report.show(result)
    assert "note: digits-trt-fp16 not measured: " in capsys.readouterr().out


def test_what_fails_at_every_batch_for_one_reason_says_it_once(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, why = report.as_dict(result), ("it is damaged", "it is damaged", "no memory left")
    figures["rows"][1]["failures"] = [{"batch": 8**place, "error": error} for place, error in enumerate(why)]
    report.show_figures(figures)
    lines = [line.partition("batch ")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("failed")]
    assert lines == ["1, 8: it is damaged", "64: no memory left"]


GPU = {"gpu": "NVIDIA A10", "compute_capability": "8.6", "cuda": "13.0", "driver": "580.159.04"}


@pytest.mark.parametrize(
    ("gpu", "device", "words"),
    [
        (GPU, "cuda:1", "; NVIDIA A10, driver 580.159.04; device cuda:1, "),
        (GPU, "cpu", "; NVIDIA A10, driver 580.159.04; device cuda:0 for engines, cpu for others, "),
        ({**GPU, "driver": None}, "cuda:0", "; NVIDIA A10, driver unknown; device cuda:0, "),
        (None, "cpu", "; device cpu, "),
    ],
)
def test_the_head_names_the_gpu_and_its_driver_where_one_was_used(
    result: Result, capsys: pytest.CaptureFixture[str], gpu: dict[str, str | None] | None, device: str, words: str
) -> None:
    facts = gpu and {name: fact for name, fact in gpu.items() if fact is not None}
    plan = replace(result.plan, device=device)
    report.show(replace(result, environment={**result.environment, "gpu": facts}, plan=plan))
    head = capsys.readouterr().out.splitlines()[0]
    assert words in head
    assert ("driver" in head) == (gpu is not None)


def test_figures_are_in_the_file_though_they_cannot_be_shown(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(figures: Any) -> None:
        raise UnicodeEncodeError("ascii", "×", 0, 1, "ordinal not in range")

    monkeypatch.setattr(report, "show_figures", fails)
    words = ["bench", str(repository / "digits-onnx-fp32"), "--batch", "1", "--seconds", "0.1"]
    done = CliRunner().invoke(cli.app, [*words, "--json", str(tmp_path / "bench.json")])
    assert isinstance(done.exception, UnicodeEncodeError)
    content = json.loads((tmp_path / "bench.json").read_text())
    assert content["rows"][0]["cells"][0]["samples"] > 0


def test_brackets_in_a_path_are_printed_as_they_are(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    paths = "models[bold]/a[/bold] [red]x[/] [0] [link=http://a]b"
    row = replace(result.rows[0], unavailable=f"{paths} is not here", cells={})
    report.show(replace(result, rows=[*result.rows, row], notes=[f"no accuracy: {paths}"]))
    out = capsys.readouterr().out
    assert f"note: no accuracy: {paths}\n" in out
    assert f"note: digits-onnx-fp32 not measured: {paths} is not here\n" in out


def test_json_keeps_the_raw_samples_and_the_conditions(result: Result, tmp_path: Path) -> None:
    reporting.tell(lambda: None, report.as_dict(result), reporting.Files(json=tmp_path / "bench.json"))
    content = json.loads((tmp_path / "bench.json").read_text())
    assert content["environment"]["cores"] >= 1
    assert content["reference"] == "digits-onnx-fp32"
    cell = content["rows"][0]["cells"][0]
    samples = [seconds for part in cell["rounds_s"] for seconds in part]
    assert len(samples) == cell["samples"]
    assert min(samples) <= cell["median_s"] <= max(samples)
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


# --- The command -----------------------------------------------------------------------------------------------------


def bench(*words: str) -> Any:
    return CliRunner().invoke(cli.app, ["bench", *words])


@pytest.mark.parametrize(
    ("interrupted", "failure", "code"),
    [(False, None, 0), (False, "no memory", 3), (True, None, 130), (True, "no", 130)],
)
def test_the_exit_code_says_what_became_of_it(
    result: Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, interrupted: bool, failure: str | None, code: int
) -> None:
    cells = {**result.rows[0].cells, Setting(64): Cell(64, failure=failure)} if failure else result.rows[0].cells
    made = replace(result, rows=[replace(result.rows[0], cells=cells)], interrupted=interrupted)
    monkeypatch.setattr("penstock.bench.measure.measure", lambda *_: made)
    done = bench("models", "--json", str(tmp_path / "bench.json"))
    assert done.exit_code == code
    assert json.loads((tmp_path / "bench.json").read_text())["interrupted"] is interrupted
    assert ("failed: " in done.output) == (failure is not None)


def test_the_table_comes_first_and_a_file_that_cannot_be_written_costs_no_other(
    result: Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("penstock.bench.measure.measure", lambda *_: result)
    monkeypatch.setattr("penstock.commands.reporting.Files.see", lambda _: None)  # they were there then
    gone = tmp_path / "gone"
    done = bench("models", "--json", f"{gone}/a.json", "--html", f"{gone}/a.html", "--csv", f"{tmp_path}/a.csv")
    told = "cannot be written: No such file or directory"
    said = f"--json {gone}/a.json: {told}; the figures are not kept; --html {gone}/a.html: {told}; the page is not kept"
    assert str(done.exception) == said
    assert "speed vs digits-onnx-fp32" in done.output
    assert done.output.endswith(f"\nwrote {tmp_path}/a.csv\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "a.json", "--html", "./a.json"], "--html a.json: is the file of --from too, and would replace it"),
        (["--from", "a.json", "--html", "link"], "--html link: is the file of --from too"),
        (["--compare", "a.json", "b.json", "--json", "b.json"], "--json b.json: is the file of --compare too"),
        (["models", "--csv", "x", "--html", "x"], "--csv and --html x: must be two files"),
        (["models", "--source", "a.json", "--json", "a.json"], "--json a.json: is the file of --source too"),
    ],
)
def test_no_file_is_written_over_one_that_is_read_or_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "b.json"):
        Path(name).write_text("kept")
    Path("link").symlink_to("a.json")
    assert str(bench(*words).exception).startswith(said)
    assert [Path(name).read_text() for name in ("a.json", "b.json")] == ["kept", "kept"]


def test_a_device_may_be_written_to_twice() -> None:
    null = Path("/dev/null")
    reporting.keep_apart({"--csv": null, "--html": null}, [("--from", null)])


def test_a_real_interrupt_ends_it_soon_with_what_there_is(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "bench", str(repository / "digits-onnx-fp32"), "--batch", "1"]
    command += ["--seconds", "60", "--json", str(tmp_path / "bench.json")]
    restored = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", restored, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        time.sleep(6)  # in the first round, of six seconds, or before it
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, err
    assert "note: interrupted; the figures are of the rounds that were finished" in out
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["interrupted"] is True
    assert all(0 < len(cell["rounds_s"]) < 10 for row in found["rows"] for cell in row["cells"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threads", "0"], "--threads '0': must be a whole number"),
        (["--threads", ","], "--threads ',': must name at least one"),
        (["--streams", "1,two"], "--streams 'two': must be a whole number"),
        (["--streams", "1,1025"], "--streams '1025': must be a whole number from 1 to 1024"),
        (["--threads", "20000"], "--threads '20000': must be a whole number from 1 to 1024"),
        (["--loadgen", "offline", "--threads", "20000"], "--threads '20000': must be a whole number from 1 to 1024"),
    ],
)
def test_an_option_that_means_nothing_is_named(words: list[str], said: str) -> None:
    done = bench("models", *words)
    assert isinstance(done.exception, PenstockError)
    assert said in str(done.exception)


def test_help_tells_the_exit_codes() -> None:
    text = " ".join(bench("--help").output.split())
    for part in ("Exit codes: 0 ", "; 2 ", "; 3 ", "; 130 "):
        assert part in text
