"""Traces: settings by tritonclient over HTTP and gRPC, and the file that they fill, of a real server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.serve.errors import RequestError
from penstock.serve.times import Times
from penstock.serve.tracing import DEFAULTS, Tracer

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

http = pytest.importorskip("tritonclient.http")
grpc = pytest.importorskip("tritonclient.grpc")
triton_error = pytest.importorskip("tritonclient.utils").InferenceServerException
NAME = "digits-onnx-fp32"
STAGES = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END"]


@dataclass
class Traced:
    """A client of one flavour, of a server whose traces go to a file."""

    module: Any
    client: Any
    file: Path

    def ask(self, count: int, request: str = "") -> None:
        for _ in range(count):
            wanted = self.module.InferInput("image", [1, 1, 8, 8], "FP32")
            wanted.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32))
            self.client.infer(NAME, [wanted], request_id=request)

    def settings(self, model: str = "") -> dict[str, Any]:
        found = self.client.get_trace_settings(model, **({} if self.module is http else {"as_json": True}))
        if self.module is http:
            return dict(found)
        values = {key: held["value"] for key, held in found["settings"].items()}
        return {key: value if key == "trace_level" else value[0] for key, value in values.items()}

    def traces(self, file: Path | None = None) -> list[Any]:
        return list(json.loads((file or self.file).read_text()))

    def written(self, count: int) -> list[Any]:
        """The traces, once there are so many: another process may write them, a moment after the answer."""
        give_up = time.monotonic() + 5
        while len(found := self.traces()) < count and time.monotonic() < give_up:
            time.sleep(0.01)
        return found


@pytest.fixture(scope="module")
def traced_server(
    repository: Path, start_server: StartServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Server, Path]:
    file = tmp_path_factory.mktemp("traces") / "traces.json"
    return start_server(repository / NAME, "--trace-file", file), file


@pytest.fixture(params=["http", "grpc"])
def traced(request: pytest.FixtureRequest, traced_server: tuple[Server, Path]) -> Iterator[Traced]:
    server, file = traced_server
    module = http if request.param == "http" else grpc
    address = re.search(r"gRPC at (\S+)", "\n".join(server.lines))
    assert address is not None
    clear = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))
    with module.InferenceServerClient(server.netloc if module is http else address[1]) as client:
        yield Traced(module, client, file)
        for model in ("", NAME):
            client.update_trace_settings(model, clear)


def test_settings_are_told_changed_and_taken_back(traced: Traced) -> None:
    assert traced.settings() == {**DEFAULTS, "trace_file": str(traced.file)}
    traced.client.update_trace_settings("", {"trace_rate": "7", "trace_level": ["TIMESTAMPS"]})
    assert (traced.settings()["trace_rate"], traced.settings()["trace_level"]) == ("7", ["TIMESTAMPS"])
    traced.client.update_trace_settings(NAME, {"trace_rate": "3"})
    assert (traced.settings(NAME)["trace_rate"], traced.settings()["trace_rate"]) == ("3", "7")
    traced.client.update_trace_settings(NAME, {"trace_rate": None})
    assert traced.settings(NAME)["trace_rate"] == "7"
    traced.client.update_trace_settings("", {"trace_rate": None, "trace_level": None})
    assert traced.settings()["trace_rate"] == "1000"


def test_one_request_in_so_many_is_written_with_its_stages_in_order(traced: Traced) -> None:
    before = len(traced.traces())
    traced.client.update_trace_settings("", {"trace_rate": "2", "trace_level": ["TIMESTAMPS"]})
    traced.ask(6, "mine")
    found = traced.written(before + 6)[before:]
    assert len(found) == 6  # three traces of two entries
    for head, stages in zip(found[::2], found[1::2], strict=True):
        assert head == {"id": stages["id"], "model_name": NAME, "model_version": 1, "request_id": "mine"}
        moments = [stamp["ns"] for stamp in stages["timestamps"]]
        assert [stamp["name"] for stamp in stages["timestamps"]] == STAGES
        assert moments == sorted(moments)
        assert moments[-1] - moments[0] < 30e9
    traced.client.update_trace_settings("", {"trace_level": ["OFF"]})
    traced.ask(4)
    assert len(traced.traces()) == before + 6


def test_so_many_traces_are_written_and_no_more(traced: Traced) -> None:
    before = len(traced.traces())
    traced.client.update_trace_settings("", {"trace_rate": "1", "trace_count": "2", "trace_level": ["TIMESTAMPS"]})
    traced.ask(5)
    assert len(traced.written(before + 4)) == before + 4
    assert traced.settings()["trace_count"] == "0"


def test_unknown_settings_and_impossible_values_are_refused(traced: Traced) -> None:
    for wrong, why in (
        ({"trace_color": "red"}, "'trace_color' is unknown"),
        ({"trace_rate": "0"}, "from 1 on"),
        ({"trace_rate": "many"}, "must be a whole number"),
        ({"trace_level": ["TENSORS"]}, "must be OFF or TIMESTAMPS"),
        ({"trace_file": "/tmp/elsewhere"}, "cannot be changed"),
        ({"trace_rate": "5", "trace_count": "-2"}, "from -1 on"),
    ):
        with pytest.raises(triton_error, match=why):
            traced.client.update_trace_settings("", wrong)
    assert traced.settings()["trace_rate"] == "1000"  # none of those that stood beside a wrong one
    with pytest.raises(triton_error, match="is not served"):
        traced.client.get_trace_settings("nobody")


def test_traces_go_to_a_new_file_after_so_many(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path / "t.json")
    tracer.update({"trace_rate": "1", "log_frequency": "2", "trace_level": "TIMESTAMPS"})
    for _ in range(5):
        tracer.answered("m", 1, None, Times())
    counts = {path.name: len(json.loads(path.read_text())) for path in tmp_path.iterdir()}
    assert counts == {"t.json": 0, "t.json.0": 4, "t.json.1": 4, "t.json.2": 2}


def test_without_a_file_there_is_no_tracing(repository: Path, start_server: StartServer) -> None:
    server = start_server(repository / NAME)
    assert "trace" not in server.ask("GET", "/v2").json["extensions"]
    for method, body in (("GET", None), ("POST", {"trace_level": ["TIMESTAMPS"]})):
        refused = server.ask(method, "/v2/trace/setting", body)
        assert (refused.status, "--trace-file FILE turns it on" in refused.error) == (400, True)


def test_a_file_that_cannot_be_written_fails_the_start_and_later_no_request(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"--trace-file .*cannot be written"):
        Tracer(tmp_path / "none" / "t.json")
    tracer = Tracer(tmp_path / "t.json")
    tracer.update({"trace_rate": "1", "trace_level": "TIMESTAMPS"})
    (tmp_path / "t.json").unlink()
    (tmp_path / "t.json").mkdir()
    tracer.answered("m", 1, None, Times())
    assert tracer.settings()["trace_level"] == ["OFF"]


def test_a_wrong_value_is_refused_whatever_it_is(tmp_path: Path) -> None:
    tracer = Tracer(tmp_path / "t.json")
    for value in (True, 1.5, {}, [1, 2], "1" * 30, "-", "²"):
        with pytest.raises(RequestError, match="trace_rate"):
            tracer.update({"trace_rate": value})
