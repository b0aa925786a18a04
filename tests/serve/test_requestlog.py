"""The log of requests: which stand in it, with what, and how many."""

from __future__ import annotations

import json
import logging
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PenstockError
from penstock.serve.records import Record
from penstock.serve.requestlog import RequestLog, request_log

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

NAME = "digits-onnx-fp32"


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The fields of what is logged by a server that says what it does."""
    found: list[dict[str, Any]] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append({"level": record.levelname, **record.fields})  # type: ignore[attr-defined]

    log = logging.getLogger("penstock.requests")
    monkeypatch.setattr(log, "handlers", [Ear()])
    log.setLevel(logging.INFO)
    yield found
    log.setLevel(logging.NOTSET)


def test_failures_of_the_servers_alone_are_logged(heard: list[dict[str, Any]]) -> None:
    log = request_log("failed")
    assert log is not None
    for status in (200, 400, 404, 499, 500, 503, 504):
        log(Record(status=status))
    assert [(entry["level"], entry["status"]) for entry in heard] == [
        ("WARNING", 500), ("WARNING", 503), ("WARNING", 504)
    ]  # fmt: skip


def test_all_are_logged_where_that_is_asked_for(heard: list[dict[str, Any]]) -> None:
    log = request_log("all")
    assert log is not None
    for status in [200, 400, 503] * 20:
        log(Record(status=status, peer=lambda: ("10.0.0.1", 7), rows=3, model="m", version=2))
    assert len(heard) == 60
    assert heard[0].items() >= {
        "level": "INFO", "status": 200, "client": "10.0.0.1:7", "rows": 3, "model": "m", "version": 2
    }.items()  # fmt: skip
    assert {f"{stage}_ms" for stage in ("decode", "queue", "compute", "rest", "total")} <= heard[0].keys()


@pytest.mark.parametrize(
    ("level", "statuses"), [(logging.INFO, [200, 503]), (logging.WARNING, [503]), (logging.ERROR, [])]
)
def test_requests_are_information_and_failures_are_warnings(
    heard: list[dict[str, Any]], level: int, statuses: list[int]
) -> None:
    logging.getLogger("penstock.requests").setLevel(level)
    log = request_log("all")
    assert log is not None
    for status in (200, 503):
        log(Record(status=status))
    assert [entry["status"] for entry in heard] == statuses


def test_none_is_no_log() -> None:
    assert request_log("none") is None


def test_a_word_that_means_nothing_is_refused_by_its_options_name() -> None:
    with pytest.raises(PenstockError, match="--log-requests 'some': must be one of none, failed, all"):
        request_log("some")


def test_a_flood_of_failures_is_held_back_and_counted(heard: list[dict[str, Any]]) -> None:
    now = [100.0]
    log = RequestLog(everything=False, most_per_s=3, clock=lambda: now[0])
    for _ in range(10):
        log(Record(status=503))
    assert len(heard) == 3
    now[0] += 1
    log(Record(status=503))
    assert [entry.get("left_out") for entry in heard] == [None, None, None, 7]
    log(Record(status=503))
    assert "left_out" not in heard[-1]


def tensors(turns: int) -> dict[str, Any]:
    return {"inputs": [{"name": "turns", "shape": [1], "datatype": "INT64", "data": [turns]}]}


def lines_of(server: Server, count: int) -> list[dict[str, Any]]:
    """The lines of requests on stderr, once there are as many; every line must be JSON."""
    give_up = time.monotonic() + 10
    while server.log.count('"status"') < count or not server.log.endswith("\n"):
        assert time.monotonic() < give_up, server.log
        time.sleep(0.01)
    return [line for line in map(json.loads, server.log.splitlines()) if "status" in line]


def test_everything_that_a_server_writes_is_json(repository: Path, slow_onnx: Path, start_server: StartServer) -> None:
    options = ("--log-format", "json", "--log-requests", "all", "--timeout-s", "0.2")
    server = start_server(repository / NAME, slow_onnx, *options)
    said = [json.loads(line) for line in server.lines]
    assert [event["message"].split()[0] for event in said] == ["serving", "serving", "ready"]
    secrets = {"Authorization": "Bearer s3cret", "Cookie": "a=s3cret", "X-Request-Id": "mine"}
    path = "/v2/models/slow/infer"
    assert server.ask("POST", path, tensors(1), secrets).status == 200
    assert server.ask("POST", path, {"inputs": [], "s3cret\n": 1}).status == 400
    assert server.ask("POST", path, tensors(3000)).status == 503
    found = lines_of(server, 3)
    assert [(line["level"], line["status"], line["model"]) for line in found] == [
        ("INFO", 200, "slow"), ("INFO", 400, "slow"), ("WARNING", 503, "slow")
    ]  # fmt: skip
    good, _, late = found
    assert (good["request_id"], good["version"], good["rows"]) == ("mine", 1, 1)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", good["client"])
    assert late["error"] == "no answer within the timeout of 0.2 s"
    assert "s3cret" not in server.log
    assert server.stop() == 0
    assert all(json.loads(line) for line in server.log.splitlines())


def test_failures_are_logged_as_text_by_default(slow_onnx: Path, start_server: StartServer) -> None:
    server = start_server(slow_onnx, "--timeout-s", "0.2")
    assert server.ask("POST", "/v2/models/slow/infer", tensors(1)).status == 200
    late = server.ask("POST", "/v2/models/slow/infer", tensors(3000))
    server.stop(signal.SIGTERM)
    (line,) = [line for line in server.log.splitlines() if " INFO " not in line]
    assert f"WARNING request failed request_id={late.headers['x-request-id']} " in line
    assert "status=503" in line
