"""Ids of requests, and counting them, of a real server over HTTP and gRPC."""

from __future__ import annotations

import http.client
import queue
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.serve.metrics import Metrics
from penstock.serve.records import Record
from penstock.serve.watch import Watch

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

grpc = pytest.importorskip("grpc")
triton = pytest.importorskip("tritonclient.grpc")
NAME = "digits-onnx-fp32"
MADE = re.compile(r"[0-9a-f]{8}-\d+")


def test_an_end_is_told_to_the_metrics_and_to_everybody_else() -> None:
    metrics, heard = Metrics(), []
    watch = Watch(metrics, (heard.append,))
    watch.ended(Record(), "m", 503)
    ((record,),) = (heard,)
    assert (record.model, record.status) == ("m", 503)
    assert record.total_s > 0
    assert b'penstock_requests_total{code="503",model="m"} 1.0' in metrics.text()


@pytest.fixture(scope="module")
def watched(repository: Path, slow_onnx: Path, start_server: StartServer) -> Server:
    return start_server(repository / NAME, slow_onnx, "--max-queue-rows", "4", "--timeout-s", "0.2")


@pytest.fixture(scope="module")
def address(watched: Server) -> str:
    found = re.search(r"gRPC at (\S+)", "\n".join(watched.lines))
    assert found is not None
    return found[1]


def digits() -> dict[str, Any]:
    return {"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 64}]}


def slow(turns: int) -> dict[str, Any]:
    return {"inputs": [{"name": "turns", "shape": [1], "datatype": "INT64", "data": [turns]}]}


def image() -> Any:
    made = triton.InferInput("image", [1, 1, 8, 8], "FP32")
    made.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32))
    return made


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"/v2/models/{NAME}/infer", digits(), 200),
        (f"/v2/models/{NAME}/infer", {"inputs": []}, 400),
        (f"/predict/{NAME}", {"inputs": {"image": np.zeros((1, 1, 8, 8)).tolist()}}, 200),
        (f"/predict/{NAME}", {"inputs": []}, 400),
    ],
)
def test_an_id_comes_back_with_the_answer_and_with_a_refusal(
    watched: Server, path: str, body: dict[str, Any], status: int
) -> None:
    answer = watched.ask("POST", path, body, {"X-Request-Id": "mine-1"})
    assert (answer.status, answer.headers["x-request-id"]) == (status, "mine-1")
    assert "x-request-id" not in watched.ask("POST", path, body).headers
    for unfit in ("a b", "x" * 129, ""):
        assert MADE.fullmatch(watched.ask("POST", path, body, {"X-Request-Id": unfit}).headers["x-request-id"])


def test_an_id_that_replaces_the_client_s_is_the_one_that_its_request_is_told_by(watched: Server) -> None:
    given = watched.ask("POST", f"/v2/models/{NAME}/infer", digits(), {"X-Request-Id": "a b"}).headers["x-request-id"]
    told = watched.ask("GET", f"/debug/slow?model={NAME}").json["requests"]
    assert given in [entry["request_id"] for entry in told]
    named = watched.ask("POST", f"/v2/models/{NAME}/infer", {**digits(), "id": "own"}, {"X-Request-Id": "a b"})
    assert named.headers["x-request-id"] == "own"


def test_an_id_comes_back_by_the_road_of_bodies_in_chunks(watched: Server) -> None:
    connection = http.client.HTTPConnection(watched.netloc, timeout=30)
    connection.request("POST", f"/v2/models/{NAME}/infer", iter([b"{}"]), {"X-Request-Id": "c"}, encode_chunked=True)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["X-Request-Id"]) == (400, "c")
    connection.close()


def test_answers_on_one_connection_have_each_their_own_id(watched: Server) -> None:
    connection = watched.connect()
    for id in ("one", "two", None, "three"):
        headers = {} if id is None else {"X-Request-Id": id}
        connection.request("POST", f"/v2/models/{NAME}/infer", b"{}", headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.headers["X-Request-Id"] == id
    connection.close()


def test_a_failure_of_the_servers_has_an_id_to_quote(watched: Server) -> None:
    late = watched.ask("POST", "/v2/models/slow/infer", slow(3000))
    assert (late.status, "no answer within" in late.error) == (503, True)
    assert MADE.fullmatch(late.headers["x-request-id"])
    found = watched.ask("GET", "/debug/slow?model=slow").json["requests"]
    (entry,) = [entry for entry in found if entry["request_id"] == late.headers["x-request-id"]]
    assert entry["compute_ms"] >= 190  # it was given up while it ran


def test_ids_come_back_over_grpc(address: str) -> None:
    with triton.InferenceServerClient(address):
        pass
    from penstock import messages

    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary(
            f"/{messages.SERVICE}/ModelInfer",
            messages.message("ModelInferRequest").SerializeToString,
            messages.message("ModelInferResponse").FromString,
        )
        request = messages.message("ModelInferRequest")(model_name="nobody")
        with pytest.raises(grpc.RpcError) as caught:
            ask(request, metadata=(("x-request-id", "mine"), ("bytes-bin", b"\0")))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert dict(caught.value.trailing_metadata())["x-request-id"] == "mine"
        with pytest.raises(grpc.RpcError) as caught:
            ask(request)
        assert "x-request-id" not in dict(caught.value.trailing_metadata())
        with pytest.raises(grpc.RpcError) as caught:
            ask(request, metadata=(("x-request-id", "a b"),))
        assert MADE.fullmatch(dict(caught.value.trailing_metadata())["x-request-id"])
        late = messages.message("ModelInferRequest")(model_name="slow")
        late.inputs.add(name="turns", datatype="INT64", shape=[1]).contents.int64_contents.append(3000)
        with pytest.raises(grpc.RpcError) as caught:
            ask(late)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert MADE.fullmatch(dict(caught.value.trailing_metadata())["x-request-id"])


def test_each_request_of_a_stream_is_counted_by_its_own_end(watched: Server, address: str) -> None:
    before = {code: watched.metric(sample(code)) for code in (200, 400)}
    wrong = triton.InferInput("image", [1, 1, 8, 7], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 1, 8, 7), np.float32))
    answers: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for given in (image(), wrong, image()):
            client.async_stream_infer(NAME, [given])
        told = [answers.get(timeout=20) for _ in range(3)]
        client.stop_stream()
    assert [error is None for _, error in told] == [True, False, True]
    watched.wait_for_metric(sample(200), before[200] + 2)
    watched.wait_for_metric(sample(400), before[400] + 1)


def sample(code: int) -> str:
    return f'penstock_requests_total{{code="{code}",model="{NAME}"}}'


def test_a_failure_within_a_stream_has_an_id_to_quote(address: str) -> None:
    from penstock import messages

    late = messages.message("ModelInferRequest")(model_name="slow", id="own")
    late.inputs.add(name="turns", datatype="INT64", shape=[1]).contents.int64_contents.append(3000)
    nameless = messages.message("ModelInferRequest")(model_name="nobody")
    with grpc.insecure_channel(address) as channel:
        ask = channel.stream_stream(
            f"/{messages.SERVICE}/{messages.STREAM}",
            messages.message("ModelInferRequest").SerializeToString,
            messages.message("ModelStreamInferResponse").FromString,
        )
        failed, refused = list(ask(iter([late, nameless]), metadata=(("x-request-id", "stream"),)))
    assert failed.error_message
    assert failed.infer_response.parameters["x-request-id"].string_param == "own"
    assert "x-request-id" not in refused.infer_response.parameters
