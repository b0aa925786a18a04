"""Everything that tritonclient asks over HTTP, by its sync and its asyncio client, of a real server."""

from __future__ import annotations

import asyncio
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

triton = pytest.importorskip("tritonclient.http")
aio = pytest.importorskip("tritonclient.http.aio")
NAME = "digits-onnx-fp32"


@pytest.fixture(scope="module")
def models(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of this module's own, with one model."""
    home = tmp_path_factory.mktemp("own") / "models"
    shutil.copytree(repository / NAME, home / NAME)
    return home


@pytest.fixture(scope="module")
def own_server(models: Path, start_server: StartServer) -> Server:
    return start_server(models)


@pytest.fixture
def client(own_server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(own_server.netloc, concurrency=4) as made:
        yield made


@pytest.fixture(scope="module")
def golden(models: Path) -> tuple[Any, Any]:
    inputs, outputs = artifact.read(models / NAME).golden()
    return inputs["image"], outputs["logits"]


def asked(images: Any, binary: bool = True) -> list[Any]:
    wanted = triton.InferInput("image", list(images.shape), "FP32")
    wanted.set_data_from_numpy(images, binary_data=binary)
    return [wanted]


def test_the_server_lists_the_extensions_that_it_has(client: Any) -> None:
    assert client.get_server_metadata()["extensions"] == [
        *("binary_tensor_data", "classification", "model_configuration", "model_repository", "schedule_policy"),
        *("statistics", "logging"),
    ]


def test_the_configuration_says_what_config_pbtxt_says(client: Any, models: Path) -> None:
    config = client.get_model_config(NAME)
    assert client.get_model_config(NAME, "1") == config
    assert (config["name"], config["platform"], config["backend"]) == (NAME, "onnxruntime_onnx", "onnxruntime")
    assert config["max_batch_size"] == 64
    assert config["input"] == [{"name": "image", "data_type": "TYPE_FP32", "dims": [1, 8, 8]}]
    assert config["output"] == [{"name": "logits", "data_type": "TYPE_FP32", "dims": [10]}]
    assert f"max_batch_size: {config['max_batch_size']}" in (models / NAME / "config.pbtxt").read_text()


def test_statistics_count_requests_rows_and_batches(client: Any, golden: tuple[Any, Any]) -> None:
    (before,) = client.get_inference_statistics(NAME)["model_stats"]
    for _ in range(3):
        client.infer(NAME, asked(golden[0][:2]))
    with pytest.raises(triton.InferenceServerException):
        client.infer(NAME, asked(golden[0][:2].astype(np.float32)[:, :, :4]))
    (after,) = client.get_inference_statistics(NAME)["model_stats"]
    assert client.get_inference_statistics()["model_stats"] == client.get_inference_statistics(NAME)["model_stats"]
    assert (after["name"], after["version"]) == (NAME, "1")
    assert after["inference_count"] - before["inference_count"] == 6
    assert after["execution_count"] - before["execution_count"] == 3
    was, now = before["inference_stats"], after["inference_stats"]
    grown = {key: now[key]["count"] - was[key]["count"] for key in now}
    assert grown == {
        **dict.fromkeys(("success", "queue", "compute_input", "compute_infer", "compute_output"), 3),
        **{"fail": 1, "cache_hit": 0, "cache_miss": 0},
    }
    for key in ("success", "compute_infer"):
        assert now[key]["ns"] > was[key]["ns"]
    (pairs,) = [row for row in after["batch_stats"] if row["batch_size"] == 2]
    assert pairs["compute_infer"]["count"] == 3
    assert after["last_inference"] > before["last_inference"] or before["last_inference"] == 0


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_bodies_are_compressed_both_ways_where_the_client_asks_for_it(
    client: Any, golden: tuple[Any, Any], coding: str, binary: bool
) -> None:
    answer = client.infer(
        NAME,
        asked(golden[0], binary),
        outputs=[triton.InferRequestedOutput("logits", binary_data=binary)],
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    assert np.allclose(answer.as_numpy("logits"), golden[1], atol=1e-4)


def test_only_who_names_one_coding_gets_it(own_server: Server, golden: tuple[Any, Any]) -> None:
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": golden[0][:1].tolist()}]}
    for accepted, coding in (("gzip", "gzip"), ("gzip, deflate", None), ("br", None), ("identity", None)):
        answer = own_server.ask("POST", f"/v2/models/{NAME}/infer", body, {"Accept-Encoding": accepted})
        assert (answer.status, answer.headers.get("content-encoding")) == (200, coding)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_classes_come_with_value_index_and_label(client: Any, golden: tuple[Any, Any], binary: bool) -> None:
    wanted = triton.InferRequestedOutput("logits", binary_data=binary, class_count=3)
    found = client.infer(NAME, asked(golden[0][:4]), outputs=[wanted]).as_numpy("logits")
    assert found.shape == (4, 3)
    for row, logits in zip(found, golden[1][:4], strict=True):
        parts = [(text.decode() if isinstance(text, bytes) else text).split(":") for text in row]
        order = np.argsort(-logits)[:3]
        assert [int(part[1]) for part in parts] == list(order)
        assert [part[2] for part in parts] == [str(index) for index in order]  # the digits' labels
        assert np.allclose([float(part[0]) for part in parts], logits[order], atol=1e-3)


def test_a_raw_request_is_its_inputs_bytes_and_is_answered_in_binary(
    own_server: Server, golden: tuple[Any, Any]
) -> None:
    answer = own_server.ask(
        *("POST", f"/v2/models/{NAME}/infer", golden[0][:3].tobytes(), {"Inference-Header-Content-Length": "0"})
    )
    assert answer.status == 200
    length = int(answer.headers["inference-header-content-length"])
    assert np.allclose(np.frombuffer(answer.body[length:], np.float32).reshape(3, 10), golden[1][:3], atol=1e-4)
    short = own_server.ask(
        *("POST", f"/v2/models/{NAME}/infer", golden[0][:3].tobytes()[:-1], {"Inference-Header-Content-Length": "0"})
    )
    assert (short.status, "takes 256 for each" in short.error) == (400, True)


def test_not_a_number_goes_in_as_the_client_writes_it(client: Any, golden: tuple[Any, Any]) -> None:
    images = golden[0][:2].copy()
    images[0, 0, 0, 0] = np.nan
    found = client.infer(NAME, asked(images, binary=False)).as_numpy("logits")
    assert np.isnan(found[0]).all()
    assert np.allclose(found[1], golden[1][1], atol=1e-4)


def test_a_model_is_unloaded_and_loaded_again(client: Any, own_server: Server, golden: tuple[Any, Any]) -> None:
    client.unload_model(NAME)
    assert not client.is_model_ready(NAME)
    assert not client.is_server_ready()  # it was the only one, and there is nobody to answer
    (row,) = client.get_model_repository_index()
    assert (row["state"], row["reason"]) == ("UNAVAILABLE", "unloaded")
    with pytest.raises(
        triton.InferenceServerException, match=f"is not loaded; POST /v2/repository/models/{NAME}/load loads it"
    ):
        client.infer(NAME, asked(golden[0]))
    client.load_model(NAME)
    assert client.is_model_ready(NAME)
    assert np.allclose(client.infer(NAME, asked(golden[0])).as_numpy("logits"), golden[1], atol=1e-4)
    with pytest.raises(triton.InferenceServerException, match="no such model is in the repository"):
        client.load_model("nobody")
    with pytest.raises(triton.InferenceServerException, match="no such model is in the repository"):
        client.unload_model("nobody")
    with pytest.raises(triton.InferenceServerException, match="'config' are not taken"):
        client.load_model(NAME, config="{}")


def test_a_new_version_and_a_new_model_are_loaded_from_the_repository(
    client: Any, models: Path, repository: Path, golden: tuple[Any, Any]
) -> None:
    shutil.copytree(repository / "digits-onnx-fp16", models / "digits-onnx-fp16")
    client.load_model("digits-onnx-fp16")
    assert client.is_model_ready("digits-onnx-fp16")
    assert np.allclose(client.infer("digits-onnx-fp16", asked(golden[0])).as_numpy("logits"), golden[1], atol=0.05)
    client.unload_model("digits-onnx-fp16")
    shutil.rmtree(models / "digits-onnx-fp16")


def test_a_model_that_cannot_be_loaded_anew_goes_on_answering(
    client: Any, models: Path, golden: tuple[Any, Any]
) -> None:
    path = models / NAME / "1" / "model.onnx"
    content = path.read_bytes()
    try:
        path.write_bytes(content[:-1])
        with pytest.raises(triton.InferenceServerException, match="its bytes are not those"):
            client.load_model(NAME)
        assert np.allclose(client.infer(NAME, asked(golden[0])).as_numpy("logits"), golden[1], atol=1e-4)
    finally:
        path.write_bytes(content)


def test_what_is_logged_is_read_and_set(client: Any) -> None:
    held = client.get_log_settings()
    assert held == {
        **{"log_file": "", "log_error": True, "log_warning": True, "log_info": True},
        **{"log_verbose_level": 0, "log_format": "default"},
    }
    assert not client.update_log_settings({"log_info": False})["log_info"]
    assert not client.update_log_settings({"log_warning": False, "log_info": False})["log_warning"]
    assert client.update_log_settings(held) == held
    for wrong in ({"log_file": "/tmp/x"}, {"log_info": 1}, {"log_color": True}):
        with pytest.raises(triton.InferenceServerException):
            client.update_log_settings(wrong)
    for wrong, why in (
        ({"log_info": False, "log_verbose_level": 2}, "log_info is false, and log_verbose_level is 2"),
        ({"log_warning": False}, "log_warning is false, and log_info is true"),
        ({"log_error": False, "log_info": False}, "log_error is false, and log_warning is true"),
    ):
        with pytest.raises(triton.InferenceServerException, match=why):
            client.update_log_settings(wrong)
    assert client.get_log_settings() == held


def test_the_asyncio_client_gets_the_same(own_server: Server, golden: tuple[Any, Any]) -> None:
    async def all_of_it() -> None:
        async with aio.InferenceServerClient(own_server.netloc) as client:
            assert await client.is_server_live()
            await is_heard(client)
            assert await client.is_server_ready()
            assert await client.is_model_ready(NAME)
            assert (await client.get_server_metadata())["name"] == "penstock"
            assert (await client.get_model_metadata(NAME))["name"] == NAME
            assert (await client.get_model_config(NAME))["max_batch_size"] == 64
            assert (await client.get_inference_statistics(NAME))["model_stats"][0]["name"] == NAME
            assert NAME in [row["name"] for row in await client.get_model_repository_index()]
            await client.unload_model(NAME)
            await client.load_model(NAME)
            assert (await client.get_log_settings())["log_error"]
            for coding in (None, "gzip", "deflate"):
                answers = await asyncio.gather(
                    *(
                        client.infer(
                            NAME,
                            asked(golden[0][row : row + 1]),
                            request_compression_algorithm=coding,
                            response_compression_algorithm=coding,
                        )
                        for row in range(8)
                    )
                )
                for row, answer in enumerate(answers):
                    assert np.allclose(answer.as_numpy("logits"), golden[1][row : row + 1], atol=1e-4)

    asyncio.run(all_of_it())
