"""Spans of requests: what stands in them, and that a collector on a socket gets them, as OTLP's protobuf."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.serve import telemetry
from penstock.serve.records import CALL, INFER, Record

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
pytest.importorskip("opentelemetry.sdk.trace")
NAME = "digits-onnx-fp32"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes spans as a collector does; `spans` are those that came, by their names, with attributes as a dict."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resource: dict[str, Any] = {}
        held = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
                held.take(messages.ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request: Any) -> None:
        for resource in request.resource_spans:
            self.resource = values(resource.resource)
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def trace(self, trace: str, count: int) -> dict[str, Any]:
        """The spans of one trace by their names, once there are as many."""
        give_up = time.monotonic() + 20
        while len(found := [span for span in self.spans if span.trace_id.hex() == trace]) < count:
            assert time.monotonic() < give_up, [span.name for span in self.spans]
            time.sleep(0.01)
        return {span.name: span for span in found}


def values(held: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in held.attributes}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def spanning(repository: Path, slow_onnx: Path, collector: Collector, start_server: StartServer) -> Server:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    options = ("--log-requests", "all", "--timeout-s", "0.2")
    return start_server(repository / NAME, slow_onnx, *options, environment=environment)


def image() -> dict[str, Any]:
    return {"inputs": [{"name": "image", "shape": [2, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 128}]}


def parent(trace: str, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{PARENT}-{flags}"}


def nested(spans: dict[str, Any], name: str) -> None:
    """See that the stages stand within the request's own span, one after the other."""
    root = spans[name]
    before = root.start_time_unix_nano
    for stage in ("decode", "queue", "compute"):
        span = spans[stage]
        assert span.parent_span_id == root.span_id
        assert before <= span.start_time_unix_nano + 1000
        assert span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano + 1000
        before = span.end_time_unix_nano


def test_a_request_over_http_is_a_span_below_the_clients_with_its_stages_below(
    spanning: Server, collector: Collector
) -> None:
    headers = {**parent(TRACE), "X-Request-Id": "mine", "Authorization": "Bearer s3cret"}
    assert spanning.ask("POST", f"/v2/models/{NAME}/infer", image(), headers).status == 200
    spans = collector.trace(TRACE, 4)
    name = "POST /v2/models/{model}/infer"
    root = spans[name]
    assert (root.parent_span_id.hex(), root.kind, root.status.code) == (PARENT, 2, 0)
    found = values(root)
    assert found.pop("client.port") > 0
    assert found == {
        "http.request.method": "POST",
        "http.route": "/v2/models/{model}/infer",
        "url.path": f"/v2/models/{NAME}/infer",
        "http.response.status_code": 200,
        "client.address": "127.0.0.1",
        "penstock.model.name": NAME,
        "penstock.model.version": "1",
        "penstock.rows": 2,
        "penstock.request_id": "mine",
    }
    nested(spans, name)
    assert abs(root.end_time_unix_nano / 1e9 - time.time()) < 60
    assert collector.resource["service.name"] == "penstock"
    assert b"s3cret" not in b"".join(span.SerializeToString() for span in collector.spans)
    assert f"trace_id={TRACE}" in spanning.log
    assert TRACE in spanning.ask("GET", "/debug/slow").body.decode()


def test_predict_is_a_span_too(spanning: Server, collector: Collector) -> None:
    trace = TRACE.replace("0af", "1af")
    body = {"inputs": {"image": np.zeros((1, 1, 8, 8)).tolist()}}
    assert spanning.ask("POST", f"/predict/{NAME}", body, parent(trace)).status == 200
    nested(collector.trace(trace, 4), "POST /predict/{model}")


def test_calls_over_grpc_are_spans_by_the_conventions_for_rpc(spanning: Server, collector: Collector) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    trace, streamed = TRACE.replace("0af", "2af"), TRACE.replace("0af", "3af")
    address = re.search(r"gRPC at (\S+)", "\n".join(spanning.lines))
    assert address is not None
    given = triton.InferInput("image", [1, 1, 8, 8], "FP32")
    given.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32))
    with triton.InferenceServerClient(address[1]) as client:
        client.infer(NAME, [given], headers=parent(trace))
        answered = threading.Event()
        client.start_stream(lambda result, error: answered.set(), headers=parent(streamed))
        client.async_stream_infer(NAME, [given])
        assert answered.wait(20)
        client.stop_stream()
    for method, id in (("ModelInfer", trace), ("ModelStreamInfer", streamed)):
        spans = collector.trace(id, 4)
        name = f"inference.GRPCInferenceService/{method}"
        nested(spans, name)
        found = values(spans[name])
        assert spans[name].parent_span_id.hex() == PARENT
        assert {key: found[key] for key in found if key.startswith("rpc.")} == {
            "rpc.system": "grpc",
            "rpc.service": "inference.GRPCInferenceService",
            "rpc.method": method,
            "rpc.grpc.status_code": 0,
        }


def test_a_failure_of_the_servers_is_an_error_and_one_of_the_clients_is_not(
    spanning: Server, collector: Collector
) -> None:
    late, wrong = TRACE.replace("0af", "4af"), TRACE.replace("0af", "5af")
    slow = {"inputs": [{"name": "turns", "shape": [1], "datatype": "INT64", "data": [3000]}]}
    assert spanning.ask("POST", "/v2/models/slow/infer", slow, parent(late)).status == 503
    assert spanning.ask("POST", f"/v2/models/{NAME}/versions/1/infer", {}, parent(wrong)).status == 400
    span = collector.trace(late, 3)["POST /v2/models/{model}/infer"]
    assert (span.status.code, span.status.message) == (2, "no answer within the timeout of 0.2 s")
    assert values(span)["error.type"] == "503"
    span = collector.trace(wrong, 1)["POST /v2/models/{model}/versions/{version}/infer"]
    assert span.status.code == 0
    assert values(span)["http.response.status_code"] == 400


@pytest.mark.parametrize("sent", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-xyz-01"])
def test_a_parent_that_cannot_be_read_is_none(spanning: Server, collector: Collector, sent: str) -> None:
    before = len(collector.spans)
    headers = {"traceparent": sent, "X-Request-Id": f"case-{len(sent)}"}
    assert spanning.ask("POST", f"/v2/models/{NAME}/infer", image(), headers).status == 200
    give_up = time.monotonic() + 20
    while not (
        found := [s for s in collector.spans[before:] if values(s).get("penstock.request_id") == f"case-{len(sent)}"]
    ):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert (found[0].parent_span_id, found[0].trace_id.hex() == TRACE) == (b"", False)


def test_what_the_client_does_not_sample_is_not_sent(spanning: Server, collector: Collector) -> None:
    quiet, loud = TRACE.replace("0af", "6af"), TRACE.replace("0af", "7af")
    path = f"/v2/models/{NAME}/infer"
    assert spanning.ask("POST", path, image(), parent(quiet, "00")).status == 200
    assert spanning.ask("POST", path, image(), parent(loud)).status == 200
    collector.trace(loud, 4)
    assert quiet not in {span.trace_id.hex() for span in collector.spans}


def test_what_has_not_been_sent_is_sent_at_the_end(
    repository: Path, collector: Collector, start_server: StartServer
) -> None:
    trace = TRACE.replace("0af", "8af")
    environment = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces",
        "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        "OTEL_SERVICE_NAME": "mine",
    }
    server = start_server(repository / NAME, "--otel", environment=environment)
    assert server.ask("POST", f"/v2/models/{NAME}/infer", image(), parent(trace)).status == 200
    assert server.stop() == 0
    collector.trace(trace, 4)
    assert collector.resource["service.name"] == "mine"


def test_a_collector_that_is_not_there_costs_no_request_and_no_end(repository: Path, start_server: StartServer) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "10"}
    server = start_server(repository / NAME, "--otel", environment=environment)
    for _ in range(5):
        assert server.ask("POST", f"/v2/models/{NAME}/infer", image()).status == 200
    started = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("asked", "environment", "expected"),
    [
        (None, {}, False),
        (True, {}, True),
        (False, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (None, {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (None, {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        (None, {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
    ],
)
def test_spans_are_wanted_by_the_option_or_the_environment(
    asked: bool | None, environment: dict[str, str], expected: bool
) -> None:
    assert telemetry.wanted(asked, environment) is expected


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER is 'zipkin'"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'.*4318"),
        ("OTEL_SDK_DISABLED", "true", "OTEL_SDK_DISABLED=true: give one or the other"),
    ],
)
def test_an_environment_that_asks_for_what_there_is_not_is_refused(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(PenstockError, match=said), telemetry.opened(True):
        pass


def test_without_the_extra_the_option_is_refused_and_the_environment_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    install = re.escape("pip install 'penstock[otel]'")
    with pytest.raises(PenstockError, match=install), telemetry.opened(True):
        pass
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    with caplog.at_level(logging.WARNING), telemetry.opened(None) as spans:
        assert spans is None
    assert re.search(install, caplog.text)


def test_stages_stand_before_the_end_of_the_batch_or_after_the_start() -> None:
    ran = Record(started=10, decode_s=1, queue_s=2, compute_s=3, computed=17, total_s=8)
    assert list(telemetry.stages(ran)) == [("decode", 11, 12), ("queue", 12, 14), ("compute", 14, 17)]
    late = Record(started=10, decode_s=1, queue_s=5, total_s=6)
    assert list(telemetry.stages(late)) == [("decode", 10, 11), ("queue", 11, 16)]


def test_a_call_that_failed_has_grpcs_code() -> None:
    found = telemetry.attributes(Record(road=CALL, code=14, status=503, peer=lambda: "ipv6:%5B::1%5D:9"))
    assert (found["rpc.grpc.status_code"], found["error.type"]) == (14, "503")
    assert (found["client.address"], found["client.port"]) == ("::1", 9)
    assert "url.path" not in telemetry.attributes(Record(road=INFER))
