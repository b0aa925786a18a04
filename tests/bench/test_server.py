"""`penstock bench URL` as it is run: real processes that ask real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.bench import server
from penstock.bench.server import Plan
from penstock.bench.sources import Wanted
from penstock.errors import PenstockError
from tests.bench.test_stages import counted

QUICK = {"seconds": 0.6, "warmup_s": 0.1, "processes": 1}


def bench(*words: str | Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "bench", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def failed(result: dict[str, Any]) -> int:
    return sum(sum(run["failures"].values()) for run in result["runs"])


def test_a_server_without_the_binary_extension_is_asked_in_json(toy: Callable[..., Any]) -> None:
    result = server.measure(toy(delay_s=0.001).url, "double", Plan(concurrency=(1, 4), **QUICK))
    assert result["payload"]["form"] == "v2-json"
    assert any("has no binary extension" in note for note in result["notes"])
    assert [run["concurrency"] for run in result["runs"]] == [1, 4]
    assert result["capacity"]["rate_per_s"] == max(run["throughput_per_s"] for run in result["runs"])
    assert failed(result) == 0
    assert server.exit_code(result) == 0


@pytest.mark.parametrize("form", ["v2-binary", "v2-json", "grpc"])
def test_a_penstock_server_is_measured_in_every_form_and_tells_its_stages(served: str, form: str) -> None:
    url, grpc = served.split()
    wanted = Wanted(form=form, rows=2)
    result = server.measure(url, None, Plan(concurrency=(2,), wanted=wanted, grpc=grpc, **QUICK))
    (run,) = result["runs"]
    assert (result["payload"]["form"], result["payload"]["rows"]) == (form, 2)
    assert failed(result) == 0
    assert len(run["latencies_s"]) > 20
    stages = run["stages_s"]
    assert set(stages) == {"client", "network", "server", "queue", "compute"}
    assert sum(stages.values()) == pytest.approx(np.mean(run["latencies_s"]), rel=0.2)
    assert stages["compute"] > 0
    assert 0 < run["generator"]["cores"] < 2


def test_a_server_is_measured_over_grpc_alone(served: str) -> None:
    _, grpc = served.split()
    result = server.measure(f"grpc://{grpc}", "line", Plan(concurrency=(2,), **QUICK))
    assert (result["server"]["name"], result["payload"]["form"]) == ("penstock", "grpc")
    assert failed(result) == 0
    assert result["runs"][0]["stages_s"] is not None


def test_rows_come_from_files(served: str, tmp_path: Path) -> None:
    url, _ = served.split()
    np.savez(tmp_path / "rows.npz", x=np.arange(80, dtype=np.float32).reshape(10, 8), labels=np.arange(10))
    np.save(tmp_path / "rows.npy", np.ones((3, 8), np.float32))
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": list(range(8))}]}
    (tmp_path / "request.json").write_text(json.dumps(body))
    found = {}
    for file in ("rows.npz", "rows.npy", "request.json"):
        plan = Plan(concurrency=(1,), wanted=Wanted(data=tmp_path / file), **QUICK)
        found[file] = server.measure(url, "line", plan)
        assert failed(found[file]) == 0
    payloads = [found[file]["payload"] for file in found]
    assert [each["different"] for each in payloads] == [10, 3, 1]
    assert [each["form"] for each in payloads] == ["v2-binary", "v2-binary", "v2-json"]


def test_rows_that_fill_no_request_are_told(served: str, tmp_path: Path) -> None:
    url, _ = served.split()
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", x=np.ones((10, 8), np.float32))
    plan = Plan(concurrency=(1,), wanted=Wanted(data=tmp_path, rows=8), **QUICK)
    result = server.measure(url, "line", plan)
    assert result["payload"]["different"] == 2
    assert f"of {tmp_path}, rows left over from --rows 8, not sent: 4" in result["notes"]
    with pytest.raises(PenstockError, match=r"--rows 20: .* has fewer rows"):
        server.measure(url, "line", Plan(concurrency=(1,), wanted=Wanted(data=tmp_path, rows=20)))


def test_several_processes_share_a_rate(toy: Callable[..., Any]) -> None:
    plan = Plan(rates=(200.0,), poisson=True, **{**QUICK, "processes": 3})
    result = server.measure(toy().url, "double", plan)
    (run,) = result["runs"]
    assert run["mode"] == "poisson"
    assert run["generator"]["processes"] == 3
    assert 70 < run["requests"] < 180
    assert failed(result) == 0


def test_a_version_loaded_during_a_run_leaves_no_stages_and_a_warning(toy: Callable[..., Any]) -> None:
    looks = iter([counted("1", 1000, 50.0), counted("2", 1500, 60.0)])
    served = toy(looks=lambda: {"model_stats": [next(looks)]})
    result = server.measure(served.url, "double", Plan(concurrency=(1,), seconds=0.3, warmup_s=0.1))
    assert result["runs"][0]["stages_s"] is None
    (said,) = [each for each in result["warnings"] if "where the time went" in each["text"]]
    assert said["text"].startswith("closed, 1 connection: where the time went is not known")
    assert "loaded" in said["remedy"]


def test_the_search_finds_the_rate_that_one_at_a_time_allows(toy: Callable[..., Any]) -> None:
    # A millisecond each and one at a time by one connection: 1000 a second at most.
    result = server.measure(toy(delay_s=0.001).url, "double", Plan(slo_ms=40.0, connections=1, **QUICK))
    assert result["slo"]["rate_per_s"] is not None
    assert 100 < result["slo"]["rate_per_s"] < 1000
    assert {run["purpose"] for run in result["runs"]} == {"guess", "probe", "confirm"}


def test_wrong_answers_are_failures_and_the_exit_code_says_so(toy: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    told = ("--concurrency", "2", "--seconds", "0.6", "--warmup", "0.1", "--json", file)
    found = bench(toy(wrong_every=9).url, "double", *told)
    assert found.returncode == 1, found.stderr
    assert "relative L2 error" in found.stdout
    written = json.loads(file.read_text())
    assert set(written["runs"][0]["failures"]) == {"wrong"}
    assert written["penstock_bench"] == 1
    assert written["kind"] == "server"


def test_answers_that_are_never_alike_are_counted_but_not_compared(toy: Callable[..., Any]) -> None:
    plan = Plan(concurrency=(1,), tolerance=0.0, **QUICK)
    result = server.measure(toy(jitter=True).url, "double", plan)
    assert any("not compared" in note for note in result["notes"])
    assert failed(result) == 0


def test_one_answer_that_is_alike_by_chance_does_not_make_them_comparable(toy: Callable[..., Any]) -> None:
    plan = Plan(concurrency=(1,), tolerance=0.0, **QUICK)
    # Of 64 payloads that are answered alone, the first is answered again as before.
    result = server.measure(toy(alike_every=64).url, "double", plan)
    assert any("not compared" in note for note in result["notes"])


def test_a_server_that_dies_leaves_what_there_was_and_exit_code_3(toy: Callable[..., Any], tmp_path: Path) -> None:
    served, file = toy(delay_s=0.002), tmp_path / "out.json"
    told = ["--concurrency", "2,4", "--seconds", "20", "--warmup", "0", "--timeout", "2", "--json", str(file)]
    command = [sys.executable, "-m", "penstock", "bench", served.url, "double", *told]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        give_up = time.monotonic() + 30
        while served.answered < 300 and time.monotonic() < give_up:
            time.sleep(0.05)
        served.die()
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 3, out + errors
    assert "the server was lost" in out
    written = json.loads(file.read_text())
    assert written["lost"]
    (run,) = written["runs"]
    assert run["ended"] == "lost"
    assert len(run["latencies_s"]) > 50


def test_an_interrupt_leaves_what_there_was(toy: Callable[..., Any], tmp_path: Path) -> None:
    served, file = toy(delay_s=0.002), tmp_path / "out.json"
    told = ["--concurrency", "2", "--seconds", "30", "--warmup", "0", "--json", str(file)]
    command = [sys.executable, "-m", "penstock", "bench", served.url, "double", *told]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        give_up = time.monotonic() + 30
        while served.answered < 300 and time.monotonic() < give_up:
            time.sleep(0.05)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the generators too
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 130, out + errors
    assert time.monotonic() - began < 5
    assert "ended early: the figures are of what came before" in out
    assert (out + errors).count("interrupted") == 1
    assert "capacity" not in out  # of a run that was broken off
    written = json.loads(file.read_text())
    assert written["interrupted"]
    assert len(written["runs"][0]["latencies_s"]) > 50


def test_a_server_that_hangs_is_given_up_in_bounded_time(toy: Callable[..., Any]) -> None:
    began = time.monotonic()
    found = bench(toy(hang=True).url, "double", "--timeout", "0.5", "--seconds", "1")
    assert time.monotonic() - began < 20
    assert found.returncode == 2
    assert "no answer within 0.5 s" in found.stderr


def test_a_server_that_hangs_from_the_first_run_on_is_lost_and_has_no_capacity(toy: Callable[..., Any]) -> None:
    plan = Plan(concurrency=(2, 4), seconds=0.3, warmup_s=0.2, timeout_s=0.6)
    result = server.measure(toy(hang_in_runs=True).url, "double", plan)
    assert len(result["runs"]) == 1
    assert result["runs"][0]["failures"] == {"timeout": 2}
    assert result["capacity"] is None
    assert server.exit_code(result) == 3


def test_a_run_that_no_answer_ended_in_says_nothing(toy: Callable[..., Any]) -> None:
    result = server.measure(toy(slow_in_runs_s=0.8).url, "double", Plan(concurrency=(1,), seconds=0.3, warmup_s=0.1))
    assert result["runs"][0]["requests"] == 0
    assert "no request was due" in result["runs"][0]["void"]
    assert "--seconds" in result["warnings"][-1]["remedy"]
    assert result["capacity"] is None
    assert server.exit_code(result) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://127.0.0.1:1", "m"], "nobody listens there"),
        (["URL", "nosuch"], "it serves double, other"),
        (["URL"], "serves double, other; name one"),
        (["URL/v2/models/double"], "give the address alone: penstock bench http://127.0.0.1:PORT double"),
        (["URL/elsewhere", "double"], "(404 for GET /v2); others are not measured"),
        (["127.0.0.1:1", "m"], "did you mean a server: penstock bench http://127.0.0.1:1 m"),
        (["[::1]:8000"], "did you mean a server: penstock bench http://[::1]:8000"),
        (["URL", "double", "--form", "grpc", "--grpc", "127.0.0.1:1"], "--grpc HOST:PORT says where its gRPC is"),
        (
            ["URL", "double", "--grpc", "127.0.0.1:1"],
            "--grpc '127.0.0.1:1': says where a server's gRPC is; add --form grpc",
        ),
        (["URL", "--grpc", "--concurrency", "4"], "--grpc '--concurrency': says where"),
        (["URL", "double", "third"], "must be a URL, and one model of it"),
        (["URL", "double", "--batch", "8"], "--batch: is for artifacts"),
        (["URL", "double", "--rate", "0"], "--rate '0': must be"),
        (["URL", "double", "--rate", "nan"], "--rate 'nan': must be"),
        (["URL", "double", "--concurrency", "0"], "--concurrency '0': must be"),
        (["URL", "double", "--poisson"], "--poisson: is of open loops"),
        (["URL", "double", "--form", "xml"], "--form 'xml': must be one of"),
        (["URL", "double", "--form", "image"], "uploads go to penstock's"),
        (["URL", "double", "--shape", "z=1,4"], "--shape z: is no input of double"),
        (["URL", "double", "--shape", "x=a"], "--shape 'x=a': must read"),
        (["URL", "double", "--data", "/no/such"], "--data /no/such: no such file"),
        (["URL", "double", "--logs", "x"], "--logs: is for --loadgen"),
        (["URL", "double", "--loadgen", "x"], "--loadgen 'x': must be one of"),
        (["/tmp", "--slo-ms", "3"], "--slo-ms: is for a server"),
        (["grpc://127.0.0.1:1", "m"], "UNAVAILABLE"),
        (["grpc://127.0.0.1", "m"], "must read grpc://HOST:PORT"),
    ],
)
def test_what_cannot_be_measured_is_told_in_a_sentence(
    toy: Callable[..., Any], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock import cli

    url = toy().url
    said = said.replace("PORT", url.rpartition(":")[2]) if "bench http" in said else said
    before, sys.argv = sys.argv, ["penstock", "bench", *(word.replace("URL", url) for word in words)]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = before
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_model_that_is_not_there_is_told_with_the_others_once(served: str) -> None:
    url, _ = served.split()
    with pytest.raises(PenstockError, match="nosuch") as told:
        server.measure(url, "nosuch", Plan(concurrency=(1,), **QUICK))
    assert str(told.value).count("line") == 1
