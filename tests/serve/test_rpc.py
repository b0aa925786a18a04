"""The protocol over gRPC, by tritonclient's sync, streaming and asyncio clients, of a real server."""

from __future__ import annotations

import asyncio
import queue
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import artifact
from tests.serve.conftest import is_heard

if TYPE_CHECKING:
    from tests.serve.conftest import Server, StartServer

grpc = pytest.importorskip("grpc")
triton = pytest.importorskip("tritonclient.grpc")
aio = pytest.importorskip("tritonclient.grpc.aio")
triton_error = pytest.importorskip("tritonclient.utils").InferenceServerException
NAME = "digits-onnx-fp32"


@pytest.fixture(scope="module")
def models(repository: Path, slow_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of this module's own."""
    home = tmp_path_factory.mktemp("rpc") / "models"
    shutil.copytree(repository / NAME, home / NAME)
    return home


@pytest.fixture(scope="module")
def rpc_server(models: Path, slow_onnx: Path, start_server: StartServer) -> Server:
    return start_server(models, slow_onnx, "--max-body-mb", "1")


@pytest.fixture(scope="module")
def address(rpc_server: Server) -> str:
    found = re.search(r"gRPC at (\S+)", "\n".join(rpc_server.lines))
    assert found is not None
    return found[1]


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with triton.InferenceServerClient(address) as made:
        yield made


@pytest.fixture(scope="module")
def golden(models: Path) -> tuple[Any, Any]:
    inputs, outputs = artifact.read(models / NAME).golden()
    return inputs["image"], outputs["logits"]


def asked(images: Any, dtype: str = "FP32") -> list[Any]:
    wanted = triton.InferInput("image", list(images.shape), dtype)
    wanted.set_data_from_numpy(images)
    return [wanted]


def refused(call: Any, code: str, words: str) -> None:
    with pytest.raises(triton_error) as caught:
        call()
    assert code in str(caught.value.status())
    assert re.search(words, caught.value.message())


def test_health_metadata_configuration_and_index(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(NAME)
    assert client.is_model_ready(NAME, "1")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata().name == "penstock"
    metadata = client.get_model_metadata(NAME, as_json=True)
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": ["-1", "1", "8", "8"]}]
    config = client.get_model_config(NAME).config
    assert (config.max_batch_size, list(config.input[0].dims), config.input[0].data_type) == (64, [1, 8, 8], 11)
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    index = client.get_model_repository_index().models
    assert (NAME, "READY") in [(row.name, row.state) for row in index]


@pytest.mark.parametrize("rows", [1, 8])
def test_inference_answers_as_the_source_did(client: Any, golden: tuple[Any, Any], rows: int) -> None:
    outputs = [triton.InferRequestedOutput("logits")]
    found = client.infer(NAME, asked(golden[0][:rows]), request_id="r7", model_version="1", outputs=outputs)
    assert np.allclose(found.as_numpy("logits"), golden[1][:rows], atol=1e-4)
    assert (found.get_response().id, found.get_response().model_version) == ("r7", "1")
    assert len(found.get_response().raw_output_contents) == len(found.get_response().outputs) == 1


def test_numbers_may_come_in_typed_contents(address: str, golden: tuple[Any, Any]) -> None:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name=NAME)
    tensor = request.inputs.add(name="image", datatype="FP32", shape=[2, 1, 8, 8])
    tensor.contents.fp32_contents.extend(golden[0][:2].reshape(-1))
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(request)
        found = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(2, 10)
        assert np.allclose(found, golden[1][:2], atol=1e-4)
        tensor.contents.fp32_contents.pop()
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "has 127 numbers; shape is [2, 1, 8, 8]" in caught.value.details()
        request.raw_input_contents.append(golden[0][:2].tobytes())
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "has contents beside raw_input_contents" in caught.value.details()


def test_classes_come_with_value_index_and_label(client: Any, golden: tuple[Any, Any]) -> None:
    outputs = [triton.InferRequestedOutput("logits", class_count=2)]
    found = client.infer(NAME, asked(golden[0][:3]), outputs=outputs).as_numpy("logits")
    for row, logits in zip(found, golden[1][:3], strict=True):
        assert [int(text.decode().split(":")[1]) for text in row] == list(np.argsort(-logits)[:2])


def test_what_is_wrong_is_said_with_its_code(client: Any, golden: tuple[Any, Any]) -> None:
    images = golden[0][:1]
    refused(lambda: client.infer("nobody", asked(images)), "NOT_FOUND", "'nobody' is not served")
    refused(lambda: client.infer(NAME, asked(images), model_version="9"), "NOT_FOUND", "version '9'")
    refused(lambda: client.infer(NAME, asked(images[:, :, :4])), "INVALID_ARGUMENT", "image")
    refused(lambda: client.infer(NAME, asked(images.astype(np.float64), "FP64")), "INVALID_ARGUMENT", "float64|FP64")
    refused(lambda: client.infer(NAME, asked(images), sequence_id=5), "INVALID_ARGUMENT", "stateful")
    outputs = [triton.InferRequestedOutput("nothing")]
    refused(lambda: client.infer(NAME, asked(images), outputs=outputs), "INVALID_ARGUMENT", "'nothing'")
    large = np.zeros((2000, 1, 8, 8), np.float32)
    refused(lambda: client.infer(NAME, asked(np.concatenate([large] * 3))), "RESOURCE_EXHAUSTED", "larger than max")


def test_statistics_and_logging_are_those_of_http(client: Any, rpc_server: Server, golden: tuple[Any, Any]) -> None:
    client.infer(NAME, asked(golden[0]))
    (held,) = client.get_inference_statistics(NAME).model_stats
    (told,) = rpc_server.ask("GET", f"/v2/models/{NAME}/stats").json["model_stats"]
    assert held.inference_count == told["inference_count"] > 0
    assert held.inference_stats.success.ns == told["inference_stats"]["success"]["ns"]
    assert client.get_log_settings().settings["log_error"].bool_param
    assert client.update_log_settings({"log_verbose_level": 1}).settings["log_verbose_level"].uint32_param == 1
    client.update_log_settings({"log_verbose_level": 0, "log_info": False})


def test_a_model_is_unloaded_and_loaded_again(client: Any, golden: tuple[Any, Any]) -> None:
    client.unload_model(NAME)
    assert not client.is_model_ready(NAME)
    refused(lambda: client.infer(NAME, asked(golden[0])), "NOT_FOUND", "is not loaded; POST /v2/repository")
    client.load_model(NAME)
    assert np.allclose(client.infer(NAME, asked(golden[0])).as_numpy("logits"), golden[1], atol=1e-4)
    refused(lambda: client.load_model("nobody"), "INVALID_ARGUMENT", "no such model")


def test_a_stream_answers_in_order_and_survives_a_failure(client: Any, golden: tuple[Any, Any]) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for row in range(8):
        client.async_stream_infer(NAME, asked(golden[0][row : row + 1]), request_id=str(row))
        if row == 3:
            client.async_stream_infer(NAME, asked(golden[0][:1, :, :4]))
    for row in range(8):
        result, error = answers.get(timeout=20)
        assert error is None
        assert result.get_response().id == str(row)
        assert np.allclose(result.as_numpy("logits"), golden[1][row : row + 1], atol=1e-4)
        if row == 3:
            result, error = answers.get(timeout=20)
            assert result is None
            assert "image" in str(error)
    client.stop_stream()


def test_a_cancelled_or_late_call_frees_its_work(client: Any, rpc_server: Server) -> None:
    def turns(count: int) -> list[Any]:
        wanted = triton.InferInput("turns", [1], "INT64")
        wanted.set_data_from_numpy(np.array([count]))
        return [wanted]

    pending = 'penstock_pending_rows{model="slow",version="1"}'
    with pytest.raises(triton_error, match="DEADLINE_EXCEEDED|Deadline"):  # noqa: RUF043
        client.infer("slow", turns(20_000), client_timeout=0.05)
    busy = client.async_infer("slow", turns(20_000), lambda result, error: None)
    rpc_server.wait_for_metric(pending, 0)
    calls = [client.async_infer("slow", turns(20_000), lambda result, error: None) for _ in range(4)]
    rpc_server.wait_for_metric(pending, 4)
    for call in calls:
        call.cancel()
    rpc_server.wait_for_metric(pending, 0)
    busy.cancel()


def test_a_client_that_leaves_its_streams_ends_no_server(slow_onnx: Path, start_server: StartServer) -> None:
    """gRPC crashes a process that asks an ended call for its client, as the log of requests does."""
    from penstock import messages

    server = start_server(slow_onnx, "--log-requests", "all")
    found = re.search(r"gRPC at (\S+)", "\n".join(server.lines))
    assert found is not None
    wanted = {"name": "turns", "datatype": "INT64", "shape": [1]}
    raw = [np.array([200], np.int64).tobytes()]
    request = messages.message("ModelInferRequest")(model_name="slow", inputs=[wanted], raw_input_contents=raw)
    write = messages.message("ModelInferRequest").SerializeToString
    with grpc.insecure_channel(found[1]) as channel:
        for count in (40, 100):  # some of which are not taken yet
            call = channel.stream_stream(f"/{messages.SERVICE}/{messages.STREAM}", write)(iter([request] * count))
            next(call)
            call.cancel()
            server.wait_for_metric('penstock_pending_rows{model="slow",version="1"}', 0)
    assert server.ask("GET", "/v2/health/ready").status == 200
    server.process.terminate()
    assert server.process.wait(20) == 0  # nothing of theirs is lost


def test_a_timeout_of_the_request_is_unavailable_as_in_triton(client: Any) -> None:
    wanted = triton.InferInput("turns", [1], "INT64")
    wanted.set_data_from_numpy(np.array([20_000]))
    refused(lambda: client.infer("slow", [wanted], timeout=20_000), "UNAVAILABLE", r"timeout of 0\.02 s")


def test_the_asyncio_client_gets_the_same(address: str, golden: tuple[Any, Any]) -> None:
    async def all_of_it() -> None:
        async with aio.InferenceServerClient(address) as client:
            await is_heard(client)
            assert await client.is_server_ready()
            assert (await client.get_model_metadata(NAME)).name == NAME
            assert (await client.get_inference_statistics(NAME)).model_stats[0].name == NAME
            answers = await asyncio.gather(*(client.infer(NAME, asked(golden[0][row : row + 1])) for row in range(8)))
            for row, answer in enumerate(answers):
                assert np.allclose(answer.as_numpy("logits"), golden[1][row : row + 1], atol=1e-4)

            async def requests() -> Any:
                for row in range(3):
                    yield {"model_name": NAME, "inputs": asked(golden[0][row : row + 1]), "request_id": str(row)}

            seen = [(result.get_response().id, error) async for result, error in client.stream_infer(requests())]
            assert seen == [("0", None), ("1", None), ("2", None)]

    asyncio.run(all_of_it())


def test_health_checks_and_reflection_are_there(address: str) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        for service in ("", "inference.GRPCInferenceService", NAME):
            assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == serving
        with pytest.raises(grpc.RpcError):
            stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        assert "ModelInferRequest" in [
            kind.name for kind in database.FindFileContainingSymbol("inference.ModelInferRequest").message_type
        ]


def test_what_is_no_message_is_the_client_s_fault_and_fills_no_log(address: str, rpc_server: Server) -> None:
    from penstock import messages

    def sent(service: str, method: str) -> Any:
        return channel.unary_unary(f"/{service}/{method}")(b"\xff" * 64)

    with grpc.insecure_channel(address) as channel:
        for method in ("ModelInfer", "ServerLive", "RepositoryIndex"):
            with pytest.raises(grpc.RpcError) as caught:
                sent(messages.SERVICE, method)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert caught.value.details() == f"the 64 bytes sent are no {method}Request"
        for service, method in (
            ("grpc.health.v1.Health", "Check"),
            ("grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo"),
        ):
            with pytest.raises(grpc.RpcError):
                sent(service, method)
        request = messages.message("ModelInferRequest")(model_name="nobody", id="7").SerializeToString()
        answers = channel.stream_stream(f"/{messages.SERVICE}/{messages.STREAM}")(iter([b"\xff" * 64, request]))
        told = [messages.message("ModelStreamInferResponse").FromString(answer) for answer in answers]
    assert told[0].error_message == "the 64 bytes sent are no ModelInferRequest"
    assert "'nobody' is not served" in told[1].error_message
    assert told[1].infer_response.id == "7"
    assert "Traceback" not in rpc_server.log
    assert "DecodeError" not in rpc_server.log


def test_a_port_that_is_taken_is_told_before_the_models_are_loaded(
    models: Path, address: str, start_server: StartServer
) -> None:
    from typer.testing import CliRunner

    from penstock import cli
    from penstock.errors import PenstockError

    port = address.rpartition(":")[2]
    with pytest.raises(PenstockError, match=f"--grpc-port {port}: another program listens there"):
        CliRunner().invoke(cli.app, ["serve", str(models), "--port", "0", "--grpc-port", port], catch_exceptions=False)
