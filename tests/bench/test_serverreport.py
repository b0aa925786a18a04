"""What the terminal shows of a server's measurement."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bench import serverreport
from tests.bench import samples


def shown(capsys: pytest.CaptureFixture[str], runs: list[dict[str, Any]], **more: Any) -> str:
    result = samples.server(runs, lost=False, **more)
    result["environment"] |= {"load_1min": 0.1, "processes": 1, "started": "today"}
    result["server"] |= {"model_version": "1"}
    result["payload"] |= {"different": 4}
    serverreport.show(result)
    return capsys.readouterr().out


def line(out: str, begin: str) -> str:
    return next(text for text in out.splitlines() if text.startswith(begin))


def test_probes_of_a_search_are_in_the_table_and_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [samples.run("constant", 200, 1e-3, purpose=purpose, ended=None) for purpose in ("probe", "confirm")]
    runs.append(samples.run("constant", 300, 1e-3, purpose="probe", ended="hopeless", void="late"))
    out = shown(capsys, runs)
    assert "constant, 200/s (probe) " in out
    assert "constant, 200/s  " in out
    assert "constant, 300/s (probe, hopeless, void)" in out


def test_every_column_of_times_tells_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, [samples.run("closed", 1, 1e-3, purpose="sweep", ended=None)])
    head = line(out, "load")
    assert head.count(" ms") == 4 + 5 + 1


def test_rows_a_second_stand_beside_answers_where_a_request_has_several(capsys: pytest.CaptureFixture[str]) -> None:
    run = samples.run("closed", 1, 1e-3, purpose="sweep", ended=None)
    payload = {"form": "v2-binary", "bytes": 512, "rows": 8, "source": "a.npz"}
    capacity = {"rate_per_s": 1000.0, "concurrency": 1}
    out = shown(capsys, [run], payload=payload, capacity=capacity)
    assert "rows/s" in line(out, "load")
    assert "8,000" in line(out, "closed, 1 connection ")
    assert line(out, "capacity:") == "capacity: 1,000 answers/s (8,000 rows/s), at 1 connection"
    assert "rows/s" not in shown(capsys, [run], capacity=capacity)


def test_a_runner_in_this_process_has_no_version_and_its_arrays_no_size(capsys: pytest.CaptureFixture[str]) -> None:
    served = {"url": "models/a/1", "name": "onnxruntime, in this process", "version": "", "model": "a"}
    payload = {"form": "arrays", "bytes": 0, "rows": 1, "source": "its golden rows"}
    told = {"scenario": "offline", "verdict": "LoadGen, Offline: VALID, 20,209.7 samples/s"}
    out = shown(capsys, [], server=served, payload=payload, loadgen=told)
    assert "onnxruntime, in this process, model a version 1; arrays, 1 row, 4 different" in out
    assert "LoadGen, Offline: VALID, 20,209.7 samples/s" in out
